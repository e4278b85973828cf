"""Global batches of one order: from steps and slots to sample ids, for all ranks.

A *step* is the number of a global batch, which all ranks get at the same time. A *slot* is the
index of a sample in it: node by node, rank by rank, place by place in the batch of the rank. Step n
is batch ``n // workers`` of worker ``n % workers`` of every rank.

The positions of an order are *dealt* to slots in turns, as cards are: the first sample of a step
goes to the first rank of node 0, the second to the first rank of node 1, and so on::

    number in the step     0  1  2  3  4  5  6  7
    node                   0  1  0  1  0  1  0  1      2 nodes of 2 ranks, batch size 2
    rank in the node       0  0  1  1  0  0  1  1
    place in the batch     0  0  0  0  1  1  1  1

The partition (`mds.plan._partition`) counts the dealt samples from the first step on. This *index*
is the step times the size of a global batch, plus the number in the step.

A *lookup* is a function from positions of an order to sample ids, int64 arrays both.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from mds._words import plural
from mds.errors import PlanError
from mds.plan._partition import ExactGrid, PaddedGrid, Partition, check_drop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Lookup = Callable[[Ids], Ids]


class Shape(NamedTuple):
    """Shape of the world and its batches. A *device* is a rank, counted over all nodes.

    Attributes:
        nodes: Number of nodes.
        ranks: Ranks of a node.
        workers: Workers of a rank.
        batch: Samples of a batch of one rank.
    """

    nodes: int
    ranks: int
    workers: int
    batch: int

    @property
    def world(self) -> int:
        """Number of ranks of all nodes."""
        return self.nodes * self.ranks

    @property
    def global_batch(self) -> int:
        """Samples of a global batch."""
        return self.world * self.batch

    @property
    def per_node(self) -> int:
        """Samples of a global batch that one node sees."""
        return self.ranks * self.batch

    def slots(self, first: int, last: int, width: int | None = None) -> Ids:
        """Return the slots of the ranks ``first`` to ``last`` - 1, int64.

        Rank r, counted over all nodes, has the slots ``r * batch`` to ``(r + 1) * batch`` - 1. Of
        each rank the first ``width`` slots are returned, or all.
        """
        width = self.batch if width is None else width
        return (np.arange(first, last)[:, None] * self.batch + np.arange(width)).reshape(-1)

    def deal(self, slots: Ids) -> Ids:
        """Return the number in the step of the sample that is dealt to each slot, int64.

        Samples of a step are dealt to the nodes in turns, then to their ranks, then to the places
        of the batch: number = (place * ranks + rank) * nodes + node.
        """
        # By remainders, as slot = (node * ranks + rank) * batch + place.
        device = slots // self.batch
        node = device // self.ranks
        place, rank = slots - device * self.batch, device - node * self.ranks
        return (place * self.ranks + rank) * self.nodes + node

    def dealt(self, numbers: Ids) -> Ids:
        """Return the slot to which each number in the step is dealt: the inverse of `deal`.

        With 2 nodes of 2 ranks and batches of 2, the numbers 0, 1, 2, 3 go to the slots 0, 4, 2, 6.
        """
        place, number_in_turn = np.divmod(numbers, self.world)
        rank, node = np.divmod(number_in_turn, self.nodes)
        return (node * self.ranks + rank) * self.batch + place

    def shares(self, is_real: NDArray[np.bool_]) -> tuple[int, int]:
        """Return the fewest and the most samples that a rank gets.

        ``is_real`` has an entry for each slot, rank by rank, with equally many slots for each rank:
        True if the slot has a sample, False if it is padding.
        """
        counts = is_real.reshape(self.world, -1).sum(axis=1)
        return int(counts.min()), int(counts.max())


@dataclasses.dataclass(frozen=True)
class PartitionSpec:
    """Settings by which positions of an order are dealt to ranks.

    Attributes:
        shape: Shape of the world.
        canonical: Number of canonical nodes.
        algo: ``"relaxed"``, or ``"orig"``, which requires that canonical nodes fit the nodes.
        initial: Physical nodes with which the run began, if known.
        drop: Samples of all ranks that were seen before.
        is_precise: Whether exactly ``drop`` samples are left out. Otherwise ``drop`` is rounded
            down, as mosaicml-streaming does, and some samples are seen again.
        is_exact: Whether every sample comes once; otherwise some are repeated so that all ranks get
            equally many.
        skips: Ranges of places of the epoch that are left out, each as its first and its end.
        initial_shape: Shape of the world in which the run began, if batches by stream keep it.
    """

    shape: Shape
    canonical: int
    algo: str = "relaxed"
    initial: int | None = None
    drop: int = 0
    is_precise: bool = False
    is_exact: bool = False
    skips: tuple[tuple[int, int], ...] = ()
    initial_shape: Shape | None = None

    def __post_init__(self) -> None:
        if self.canonical < 1:
            raise PlanError(f"num_canonical_nodes must be at least 1, got {self.canonical}.")


class GlobalBatches(Protocol):
    """Global batches of an epoch, from a position on.

    Attributes:
        count: Number of steps.
        filled: Slots of each rank that may have a sample; later ones have none in any step.
        is_full: Whether every slot is known to have a sample.
    """

    count: int
    filled: int
    is_full: bool

    @property
    def shares(self) -> tuple[int, int]:
        """Fewest and most samples that a rank gets in all steps together."""
        ...

    def block(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots, int64 (steps, slots), -1 for padding.

        ``slots`` has the shape (slots,), or (steps, slots) for other slots in each step.
        ``lookups`` has the lookup of each order: one for random batches, else one for each stream.
        """

    def whole(self, first: int, last: int, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of all slots of the steps ``first`` to ``last`` - 1.

        The same as `block` returns, but quicker: int64 of shape (steps, slots), -1 for padding.
        """

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of the order with number ``stream``.

        Both are int64 of shape (n,). Positions that were seen before, or are skipped, are left out.
        """

    def marks(self, steps: Ids, slots: Ids) -> Ids:
        """Return the places in the epoch of steps and slots, int64 (steps, slots); see `block`.

        A place counts the samples of all ranks since the epoch began. It is the same in all worlds
        with equal global batches, so it can be compared between runs.
        """

    def canonical_nodes_of(self, node: int) -> Ids:
        """Return the numbers of the canonical nodes whose samples a physical node reads, int64."""


class NoBatches:
    """Global batches of an epoch without samples: no step, so there is nothing to fill."""

    count = filled = 0
    is_full = True
    shares = (0, 0)

    def block(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return an array without slots."""
        del lookups
        return np.empty((len(steps), slots.shape[-1]), np.int64)

    def whole(self, first: int, last: int, lookups: Sequence[Lookup]) -> Ids:
        """Return an array without steps."""
        del first, last, lookups
        return np.empty((0, 0), np.int64)

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return no steps and no slots."""
        del stream, positions
        return np.empty(0, np.int64), np.empty(0, np.int64)

    def marks(self, steps: Ids, slots: Ids) -> Ids:
        """Return an array without slots."""
        return np.empty((len(steps), slots.shape[-1]), np.int64)

    def canonical_nodes_of(self, node: int) -> Ids:
        """Return an empty array."""
        del node
        return np.empty(0, np.int64)


class RandomBatches:
    """Global batches dealt from one order of all samples, as `GlobalBatches`.

    There are two stages. The partition decides which positions of the order are in which step. Then
    the samples of a step are dealt to the slots of the ranks. A run that continues in another world
    keeps its steps, so the first stage may use the shape of the world in which the run began. All
    of these shapes have global batches of the same size::

        index in the partition   ->  step, number in the step      index // and % global batch
        index in the partition   ->  position, sample id           Partition.positions, lookup
        number in the step      <->  slot                          Shape.dealt, Shape.deal

    Args:
        samples: Number of samples of the order.
        spec: Settings by which they are dealt to ranks.
    """

    is_full = False
    #: Number of steps; the last one may have padding.
    count: int
    #: Number of steps without padding.
    full: int
    #: Slots of each rank that may have a sample: the first ones; all later slots are padding.
    filled: int
    #: Shape for which positions are partitioned. It is the shape of the world, or the one
    #: with which the run began if the canonical nodes do not fit the nodes of the world.
    partition_shape: Shape
    #: Shape of the world, whose ranks take the slots.
    _shape: Shape
    #: Shape by which the samples of a step are dealt to slots.
    _dealt_shape: Shape

    def __init__(self, samples: int, spec: PartitionSpec) -> None:
        shape, drop = spec.shape, spec.drop
        if not spec.is_precise:
            check_drop(samples, shape.world, drop)
        self._shape = shape
        self.partition_shape = shape if spec.is_exact else _shape_to_partition(spec)
        # With the shape of an initial world, steps and padding follow that world, but the
        # samples of a step are dealt to the ranks of this one.
        self._deals_by_partition = spec.initial_shape is None or spec.initial_shape == shape
        self._dealt_shape = self.partition_shape if self._deals_by_partition else shape
        grid: PaddedGrid | ExactGrid
        # An exact grid has every position once, a padded one repeats some for equal parts.
        if spec.is_exact:
            grid = ExactGrid(samples, spec.canonical)
        else:
            grid = PaddedGrid(samples, spec.canonical, self.partition_shape.nodes)
        if not (spec.is_precise or spec.is_exact):
            # As in mosaicml-streaming: all nodes continue at the same place of their part, so the
            # number of seen samples is rounded down to a multiple of the nodes.
            warn_repeated(drop % self.partition_shape.nodes)
            drop -= drop % self.partition_shape.nodes
        self.partition = Partition(
            grid,
            self.partition_shape.nodes,
            self.partition_shape.ranks,
            drop,
            is_even=not spec.is_exact,
            skips=spec.skips,
        )
        # ``total`` is the number of samples that remain to be dealt; -(-a // b) rounds up.
        self.count = -(-self.partition.total // self.partition_shape.global_batch)
        self.full = self.partition.total // self.partition_shape.global_batch
        # If there are fewer samples than slots of one step, the last slots of each rank are empty.
        # This is known only if samples are dealt to batches of the size that ranks get.
        self.filled = shape.batch
        if self._dealt_shape.batch == shape.batch:
            self.filled = min(shape.batch, -(-self.partition.total // shape.world))

    @property
    def shares(self) -> tuple[int, int]:
        """Fewest and most samples that a rank gets in all steps together."""
        # Samples of the last step, if it is not full. Every other step is full on all ranks.
        remainder = self.partition.total - self.full * self.partition_shape.global_batch
        slots = self._shape.slots(0, self._shape.world, self.filled)
        # In the last step, slots with the numbers 0 to remainder - 1 have a sample.
        has_sample = self._dealt_shape.deal(slots) < remainder
        smallest_share, largest_share = self._shape.shares(has_sample)
        in_full_steps = self.full * self._shape.batch
        return in_full_steps + smallest_share, in_full_steps + largest_share

    def block(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots, int64 (steps, slots), -1 for padding."""
        numbers_in_step = self._dealt_shape.deal(slots)
        indices = (steps[:, None] * self._shape.global_batch + numbers_in_step).reshape(-1)
        if len(indices) and int(indices.max()) >= self.partition.total:
            ids = np.full(len(indices), -1, np.int64)
            real = np.flatnonzero(indices < self.partition.total)
            ids[real] = lookups[0](self.partition.positions(indices[real]))
        else:
            ids = lookups[0](self.partition.positions(indices))
        return ids.reshape(len(steps), slots.shape[-1])

    def whole(self, first: int, last: int, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of all slots of the steps ``first`` to ``last`` - 1."""
        shape = self._dealt_shape
        begin, end = first * shape.global_batch, last * shape.global_batch
        ids = lookups[0](self.partition.position_range(begin, min(end, self.partition.total)))
        if len(ids) < end - begin:
            ids = np.concatenate([ids, np.full(end - begin - len(ids), -1, np.int64)])
        # The ids are in the order of numbers in the step, (place * ranks + rank) * nodes + node.
        # Bring them into that of slots, (node * ranks + rank) * batch + place.
        by_number = ids.reshape(last - first, shape.batch, shape.ranks, shape.nodes)
        by_slot: Ids = by_number.transpose(0, 3, 2, 1).reshape(last - first, shape.global_batch)
        return by_slot

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of the order; ``stream`` is not used.

        A position that is repeated as padding has several, one that was seen has none.
        """
        del stream  # there is one order for all streams
        indices = self.partition.find(positions)
        steps, numbers_in_step = np.divmod(indices, self.partition_shape.global_batch)
        return steps, self._dealt_shape.dealt(numbers_in_step)

    def marks(self, steps: Ids, slots: Ids) -> Ids:
        """Return the place in the epoch of each step and slot, int64 (steps, slots).

        Places count the samples as they are dealt, those that were seen or skipped included.
        """
        numbers_in_step = self._dealt_shape.deal(slots)
        indices = steps[:, None] * self._shape.global_batch + numbers_in_step
        # Indices count only the places that remain.
        return self.partition.gaps.places(indices)

    def canonical_nodes_of(self, node: int) -> Ids:
        """Return the canonical nodes whose samples a physical node reads."""
        if not self._deals_by_partition:  # samples of all nodes are mixed in a step
            return np.arange(self.partition.grid.canonical)
        # Nodes of the partition whose slots are among those of this node. With global batches of
        # 24, a node of a world of 3 has 8 slots. Node 1 has the slots 8 to 15, which a partition
        # for 2 nodes, of 12 slots each, deals to both.
        width, partition_width = self._shape.per_node, self.partition_shape.per_node
        first = node * width // partition_width
        last = ((node + 1) * width - 1) // partition_width
        nodes = range(first, last + 1)
        return np.unique(np.concatenate([self.partition.canonical_nodes_of(k) for k in nodes]))


def _shape_to_partition(spec: PartitionSpec) -> Shape:
    """Return the shape of the world for which positions are partitioned.

    A partition requires that the number of canonical nodes divides that of physical nodes, or the
    other way round. If a run continues on a number of nodes that does not fit, the partition is
    still that for the number with which it began. Its global batches keep their size.
    """
    shape, canonical, initial = spec.initial_shape or spec.shape, spec.canonical, spec.initial
    fits = canonical % shape.nodes == 0 or shape.nodes % canonical == 0
    if spec.algo == "orig" or initial is None or fits:
        return shape  # if it does not fit, `PaddedGrid` raises an error
    if initial < 1 or shape.global_batch % (initial * shape.ranks):
        raise PlanError(
            f"a global batch of {plural(shape.global_batch, 'sample')} cannot be divided among the "
            f"{initial} nodes of {plural(shape.ranks, 'rank')} with which the run began. Make "
            "the global "
            f"batch a multiple of {plural(initial * shape.ranks, 'sample')}."
        )
    return Shape(initial, shape.ranks, shape.workers, shape.global_batch // (initial * shape.ranks))


def warn_repeated(samples: int) -> None:
    """Warn that ``samples`` samples are seen again, since the place was rounded down, unless 0."""
    if samples:
        warnings.warn(
            "the state's sample_in_epoch is rounded down, as in mosaicml-streaming, which wrote "
            f"it: {plural(samples, 'sample')} will be seen again.",
            stacklevel=2,
        )
