"""Filling of a batch of packs: the values of its documents, column by column and end to end.

What goes along with the tokens (positions, labels that a loss leaves out) follows from the plan.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mds.dataset.filtering import DropCount
from mds.errors import ConfigError
from mds.plan import PackPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.loader.tensor_buffers import Allocator
    from mds.plan.pack_plan import RankPacks
    from mds.prefetch.prefetcher import Window

    Ids = NDArray[np.int64]
    Tensors = dict[str, torch.Tensor]

#: What a loss leaves out, as torch's cross entropy does.
IGNORED = -100
LABELS = "labels"
#: Columns of a batch that the packs give.
_ADDED = ("position_ids", "document_ids", "cu_seqlens", "max_seqlen")


class Filling(abc.ABC):
    """A batch that is being filled.

    Columns that follow the tokens are laid end to end; of the others there is a value for each
    document. ``dropped`` has the documents that a filter dropped, whose place is padding.
    """

    def __init__(self, epoch: WorkerEpoch, allocate: Allocator) -> None:
        plan = epoch.order
        assert isinstance(plan, PackPlan)
        self.tokens, self.capacity = plan.packing.lengths, plan.packing.capacity
        self._lengths, self._allocate = plan.lengths, allocate
        self._ramp = np.arange(1)
        self._done = 0  # documents
        self._packs: RankPacks | None = None
        self.dropped = DropCount()

    @property
    def is_full(self) -> bool:
        """Whether all documents of the batch are there."""
        return self._packs is not None and self._done == len(self._packs.ids)

    def fill(self, packs: RankPacks, window: Window, at: int) -> int:
        """Take documents of a window from its place ``at`` on; where those of others begin."""
        if self._packs is None:
            self._packs = packs
            if len(packs.ids):
                self._begin(packs)
        first, last = self._done, min(self._done + len(window.ids) - at, len(packs.ids))
        stop = at + last - first
        if last > first:
            self._add(packs, first, last, window, slice(at, stop))
        self._done = last
        return stop

    def take(self, packs: RankPacks) -> tuple[RankPacks, Tensors, dict[str, list[Any]]]:
        """What is left of packs, the columns that follow the tokens, and the others.

        Where nothing is left it is one token of padding.
        """
        packs, flat, others = self._finish(packs)
        self._packs, self._done = None, 0
        is_padding = not len(packs.ids)
        sizes = np.ones(1, np.int64) if is_padding else packs.sizes
        flat["position_ids"] = self._positions(sizes)
        if LABELS not in flat and flat[self.tokens].dtype == torch.int64:
            labels = self._allocate(flat[self.tokens].shape, np.dtype(np.int64))
            # Not by torch, whose threads cost more than the copy.
            np.copyto(labels.numpy(), flat[self.tokens].numpy())
            flat[LABELS] = labels
        if LABELS in flat:
            flat[LABELS].numpy()[np.cumsum(sizes) - sizes] = IGNORED
        return packs, flat, others

    @abc.abstractmethod
    def _begin(self, packs: RankPacks) -> None:
        """Begin a batch that has documents."""

    @abc.abstractmethod
    def _add(self, packs: RankPacks, first: int, last: int, window: Window, places: slice) -> None:
        """Take the documents ``first`` to ``last`` of the batch, at places of a window."""

    @abc.abstractmethod
    def _finish(self, packs: RankPacks) -> tuple[RankPacks, Tensors, dict[str, list[Any]]]:
        """As `take`, without what the packs add."""

    def _positions(self, sizes: Ids) -> torch.Tensor:
        """The place of each token in its document."""
        longest = int(sizes.max())
        if longest > len(self._ramp):
            self._ramp = np.arange(longest)
        found = self._allocate((int(sizes.sum()),), np.dtype(np.int64))
        np.concatenate([self._ramp[:size] for size in sizes.tolist()], out=found.numpy())
        return found


def padding(following: dict[str, np.dtype[Any]]) -> Tensors:
    """One token of padding."""
    return {name: torch.from_numpy(np.zeros(1, dtype)) for name, dtype in following.items()}


def batch_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which a column comes: whole numbers are int64."""
    return np.dtype(np.int64) if dtype.kind in "iu" else dtype.newbyteorder("=")


def join_values(
    name: str, values: Sequence[NDArray[Any]] | NDArray[Any], out: NDArray[Any]
) -> None:
    """Lay the values of documents end to end. Raises ConfigError for numbers beyond int64."""
    np.concatenate(values, out=out, casting="unsafe")
    if (
        any(value.dtype == np.uint64 for value in values)
        and out.dtype == np.int64
        and out.min() < 0
    ):
        raise ConfigError(
            f"column {name!r} has a number beyond 2**63 - 1, and whole numbers come as int64: make "
            "it smaller in map()."
        )


def check_names(following: Iterable[str], others: Iterable[str]) -> None:
    """See that no column has the name of one that packs add. Raises ConfigError."""
    others = [*others]
    taken = [name for name in (*following, *others) if name in _ADDED]
    if taken or LABELS in others:
        raise ConfigError(
            f"batches of packs get columns {', '.join(_ADDED)} and labels, and the samples have "
            f"{', '.join(taken or [LABELS])} of another kind already. Leave them out with "
            "columns=."
        )
