"""Audit of an order: places of samples, and a hash by which two runs are compared.

The hash is a sum modulo 2**64, so workers and ranks add up their own parts, and the parts can be
added in any order. Each summand mixes a sample id with its *mark*, the place in the epoch at which
the sample is due. For batches built by stream the mark is the first place of the global batch, as
the world decides which rank gets which of its samples.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.errors import StateError
from mds.shuffle._permutation import derive_key, hash_counters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

_ID, _MARK = derive_key(1), derive_key(2)
_MASK = (1 << 64) - 1
ID_BITS = 40  # bits for a sample id; the first token of its piece is above them


class Place(NamedTuple):
    """Place of a sample in an epoch.

    Attributes:
        step: Global batch.
        rank: Rank, of all ranks after replication.
        worker: Worker of the rank.
        place: Place in the batch of the rank.
    """

    step: int
    rank: int
    worker: int
    place: int


class StepSample(NamedTuple):
    """Sample of a step, or a piece of a document.

    Attributes:
        rank: Rank that gets the sample, of all ranks.
        sample: Sample id.
        tokens: First token of the piece and the token after its last; None for a whole sample.
    """

    rank: int
    sample: int
    tokens: tuple[int, int] | None = None


class StepContents(NamedTuple):
    """Samples of consecutive steps, or pieces of documents, step after step.

    Attributes:
        sizes: Number of samples, or of pieces, of each step, int64 (steps,).
        filled: Number of places of each step that have a sample or a pack, int64 (steps,).
        ids: Sample ids, int64 of shape (n,) as all arrays that follow.
        marks: Where each is due, for an order hash.
        starts, tokens: First token and number of tokens of each piece; None for whole samples.
    """

    sizes: Ids
    filled: Ids
    ids: Ids
    marks: Ids
    starts: Ids | None = None
    tokens: Ids | None = None

    @property
    def keys(self) -> Ids:
        """Number that identifies each sample, or each piece by its document and first token."""
        return self.ids if self.starts is None else self.ids + (self.starts << ID_BITS)

    def summands(self) -> NDArray[np.uint64]:
        """Return what each sample adds to an order hash, uint64."""
        return summands(self.marks, self.keys)

    def rows(self, ranks: Ids) -> list[StepSample]:
        """Return the samples of a single step, of which ``ranks`` has the rank of each."""
        if self.starts is None or self.tokens is None:
            return [*map(StepSample, ranks.tolist(), self.ids.tolist())]
        ranges = zip(self.starts.tolist(), (self.starts + self.tokens).tolist(), strict=True)
        return [*map(StepSample, ranks.tolist(), self.ids.tolist(), ranges)]


@dataclasses.dataclass(slots=True)
class OrderHash:
    """Hash of samples with their places: a sum, so that samples can be added in any order.

    Attributes:
        total: Sum of the summands, modulo 2**64.
        count: Number of summands.

    >>> a, b = OrderHash(), OrderHash()
    >>> a.add(np.arange(3), np.array([5, 6, 7]))
    >>> b.add(np.array([2]), np.array([7])); b.add(np.arange(2), np.array([5, 6]))
    >>> a == b, a.count
    (True, 3)
    """

    total: int = 0
    count: int = 0

    def add(self, marks: Ids, ids: Ids) -> None:
        """Add samples with their places in the epoch; padding is left out.

        ``marks`` are the places, ``ids`` the sample ids or -1, both int64 of shape (n,).
        """
        if len(ids) and int(ids.min()) < 0:
            real = ids >= 0
            marks, ids = marks[real], ids[real]
        self.total = (self.total + int(summands(marks, ids).sum(dtype=np.uint64))) & _MASK
        self.count += len(ids)

    def take(self, total: int, count: int) -> None:
        """Add the sum ``total`` of ``count`` samples that were hashed elsewhere."""
        self.total = (self.total + total) & _MASK
        self.count += count

    def merge(self, other: OrderHash) -> None:
        """Add the hash of another worker or rank."""
        self.take(other.total, other.count)

    def __str__(self) -> str:
        return f"{self.total:016x}-{self.count}"

    @classmethod
    def parse(cls, text: str) -> OrderHash:
        """Return the hash of a text made by `str`, such as ``"00000000000004d2-3"``.

        The text is the total in hexadecimal digits, and the count. Raises StateError for any other.
        """
        total, _, count = text.partition("-")
        try:
            return cls(int(total, 16), int(count))
        except ValueError:
            raise StateError(
                f"{text!r} is not an order hash. Expected text such as {str(cls(1234, 3))!r}: a "
                "hexadecimal sum, and the number of samples."
            ) from None


def summands(marks: Ids, ids: Ids) -> NDArray[np.uint64]:
    """Return the summand of each sample for an order hash, uint64.

    ``ids`` are sample ids without padding, ``marks`` the places at which they are due.
    """
    # A product, so that neither id nor mark alone decides a bit: a sum of both would be the same if
    # two samples swapped their places. Odd factors, as even ones would lose bits.
    mixed = hash_counters(_ID, ids) | np.uint64(1)
    mixed *= hash_counters(_MARK, marks) | np.uint64(1)
    mixed ^= mixed >> np.uint64(32)
    return np.asarray(mixed)
