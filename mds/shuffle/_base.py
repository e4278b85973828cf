"""Base classes of shuffles: deterministic permutations of an epoch, canonical node by node.

A *canonical node* is a fixed share of the samples. An order is made for a number of canonical nodes
that stays the same for a whole run, so that the run can be resumed on any number of machines. With
n samples and N nodes, node k has the positions ``k * n // N`` to ``(k + 1) * n // N`` - 1, unless
the positions are cut by the cost of the samples (`mds.shuffle._shard_parts.cut_by_cost`).

An algorithm inherits `RandomAccessShuffle` if it can compute the id at any position alone, else
`mds.shuffle.SequentialShuffle`. Its class attributes declare what the library has to know of it.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mds._words import plural
from mds.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

_CHUNK_SAMPLES = 1 << 16


@dataclasses.dataclass(frozen=True, eq=False)
class ShuffleSpec:
    """Inputs of a shuffle, which decide the order.

    Attributes:
        sizes: Samples of each shard, int64 of shape (shards,). Shard 0 has the first ids.
        num_canonical_nodes: Number of canonical nodes.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.
        block_size: Samples of a block, for algorithms that have blocks.
        cut: First position of each canonical node, and the end; None (default) for nodes of equally
            many samples.

    Raises PlanError for negative sizes, seeds or epochs, for less than one node, and for a cut that
    does not fit.

    >>> spec = ShuffleSpec(np.array([4, 6]), 2, seed=1, epoch=0, block_size=8)
    >>> spec.node_starts().tolist()  # of two canonical nodes of five samples
    [0, 5, 10]
    """

    sizes: NDArray[np.int64]
    num_canonical_nodes: int
    seed: int
    epoch: int
    block_size: int
    cut: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.num_canonical_nodes < 1:
            raise PlanError(
                f"num_canonical_nodes must be at least 1, got {self.num_canonical_nodes}."
            )
        if self.seed < 0 or self.epoch < 0:
            raise PlanError(
                f"shuffle seed {self.seed} and epoch {self.epoch} must not be negative."
            )
        if len(self.sizes) and int(self.sizes.min()) < 0:
            raise PlanError("a shard cannot have a negative number of samples.")
        if self.cut is not None:
            ends = (self.cut[0], self.cut[-1], len(self.cut)) if self.cut else ()
            is_sorted = all(first <= last for first, last in itertools.pairwise(self.cut))
            if ends != (0, self.samples, self.num_canonical_nodes + 1) or not is_sorted:
                raise PlanError(
                    f"the cut {self.cut} of {plural(self.samples, 'sample')} must ascend from 0 to "
                    f"their number, with the end of each of {self.num_canonical_nodes} nodes."
                )

    @property
    def samples(self) -> int:
        """Samples of all shards."""
        return int(self.sizes.sum())

    def node_starts(self) -> NDArray[np.int64]:
        """Return the first position of each canonical node, and the end: shape (nodes + 1,)."""
        if self.cut is not None:
            return np.array(self.cut, np.int64)
        nodes = self.num_canonical_nodes
        # The products below must not exceed 64 bits.
        if self.samples > np.iinfo(np.int64).max // (nodes + 1):
            raise PlanError(
                f"{plural(self.samples, 'sample')} on {nodes} canonical nodes are too many for "
                "one dataset. "
                "Split the dataset."
            )
        return equal_cut(self.samples, nodes)


def equal_cut(samples: int, nodes: int) -> NDArray[np.int64]:
    """Return the first position of each canonical node, and the end: shape (nodes + 1,).

    All nodes have equally many of the ``samples``, or one more.

    >>> equal_cut(7, 3).tolist()
    [0, 2, 4, 7]
    """
    return np.arange(nodes + 1, dtype=np.int64) * samples // nodes


class Shuffle(abc.ABC):
    """Permutation of the ids 0 to ``spec.samples`` - 1 for one epoch, canonical node by node.

    Ids number the samples through all shards. Node k has the positions ``starts[k]`` to
    ``starts[k + 1]`` - 1 of the order. The order must follow from ``spec`` alone. A constructor
    raises PlanError for a spec that makes no order.

    >>> from mds.shuffle import get_shuffle
    >>> get_shuffle("py1s", [3, 3], num_canonical_nodes=1, seed=1, epoch=0).tolist()
    [0, 1, 2, 5, 3, 4]
    """

    #: Whether the id at any position can be computed alone.
    is_random_access: ClassVar[bool] = False
    #: Whether all samples have to be held in memory at once.
    needs_all_samples: ClassVar[bool] = False
    #: Whether ``shuffle_block_size`` decides how far samples move.
    uses_blocks: ClassVar[bool] = False
    #: Canonical nodes for each machine, unless the user gives a number.
    canonical_nodes_per_node: ClassVar[int] = 1
    #: Increase it when the order changes: stored orders are named by algorithm and version.
    version: ClassVar[int] = 0

    def __init__(self, spec: ShuffleSpec) -> None:
        self.spec = spec
        self.starts = spec.node_starts()

    @classmethod
    def shard_sequence(cls, spec: ShuffleSpec) -> Ids | None:
        """Return the shards in the sequence that is cut into canonical nodes, int64.

        It must be the same in every epoch. Override this method if canonical nodes have consecutive
        samples of such a sequence: then they can be cut by the cost of samples (`ShuffleSpec.cut`).
        None (default): all canonical nodes have equally many samples.
        """
        del spec
        return None

    @abc.abstractmethod
    def windows(self, node: int) -> Iterator[NDArray[np.integer]]:
        """Yield the ids of canonical node ``node`` in order, in windows of any length.

        A window may be overwritten when the next one is asked for, so copy what you keep.
        """


class RandomAccessShuffle(Shuffle):
    """Shuffle whose id at any position can be computed alone.

    >>> class Reversed(RandomAccessShuffle):
    ...     def ids_at(self, positions):
    ...         return self.spec.samples - 1 - positions
    ...
    ...     def find(self, ids):
    ...         return self.spec.samples - 1 - ids
    >>> spec = ShuffleSpec(np.array([4, 2]), 1, seed=1, epoch=0, block_size=8)
    >>> Reversed(spec).ids_at(np.arange(6)).tolist()
    [5, 4, 3, 2, 1, 0]
    """

    is_random_access = True

    @abc.abstractmethod
    def ids_at(self, positions: Ids) -> Ids:
        """Return the ids at positions of the order, int64."""

    @abc.abstractmethod
    def find(self, ids: Ids) -> Ids:
        """Return the position of each id in the order, int64: the inverse of `ids_at`."""

    def at_epoch(self, epoch: int) -> RandomAccessShuffle:
        """Return the shuffle of the same shards in another epoch."""
        return type(self)(dataclasses.replace(self.spec, epoch=epoch))

    @classmethod
    def group(cls, shuffles: Mapping[int, RandomAccessShuffle]) -> ShuffleGroup:
        """Return a group of shuffles, whose ids are computed by one call.

        ``shuffles`` are of this class; their keys are numbers that the caller chooses. Override
        this method if the algorithm can compute ids of several shuffles more quickly at once.
        """
        return ShuffleGroup(shuffles)

    def windows(self, node: int) -> Iterator[Ids]:
        """Yield the ids of canonical node ``node`` in order."""
        first, last = int(self.starts[node]), int(self.starts[node + 1])
        for start in range(first, last, _CHUNK_SAMPLES):
            yield self.ids_at(np.arange(start, min(start + _CHUNK_SAMPLES, last)))


class ShuffleGroup:
    """Several random-access shuffles, whose ids are computed by one call.

    Args:
        shuffles: Shuffles by numbers that the caller chooses, such as those of streams.
    """

    def __init__(self, shuffles: Mapping[int, RandomAccessShuffle]) -> None:
        self.shuffles = dict(shuffles)

    def at_epochs(self, numbers: Ids, epochs: Ids) -> ShuffleGroup:
        """Return a group in which shuffle ``numbers[i]`` is of epoch ``epochs[i]``.

        Other shuffles keep their epochs, and this group is not changed.
        """
        pairs = zip(numbers.tolist(), epochs.tolist(), strict=True)
        changed = {number: self.shuffles[number].at_epoch(epoch) for number, epoch in pairs}
        return type(self)({**self.shuffles, **changed})

    def ids_at(self, numbers: Ids, positions: Ids) -> Ids:
        """Return for each i the id at position ``positions[i]`` of shuffle ``numbers[i]``.

        All three arrays are int64 of shape (n,).
        """
        out = np.empty(len(positions), np.int64)
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            out[rows] = self.shuffles[number].ids_at(positions[rows])
        return out
