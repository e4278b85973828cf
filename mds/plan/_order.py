"""Order of an epoch: the protocol by which all packages use samples, schedules and packs alike.

`EpochPlan` is the order of samples, with a schedule or without. `PackPlan` is the order of packs of
documents. They differ inside: samples can stop anywhere, packs stop at steps and need a cursor; a
dropped sample is replaced by another one, a dropped document becomes padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from mds.plan._audit import OrderHash, Place, StepSample
    from mds.plan._epoch import EpochPlan
    from mds.plan._global_batches import Shape
    from mds.plan._pack_plan import PackPlan
    from mds.plan._schedule import ScheduledEpoch, ScheduledRun
    from mds.plan._spec import OrderSpec
    from mds.plan._state import Position, ResumePoint
    from mds.plan._stream_orders import StreamOrder
    from mds.world import World

    Ids = NDArray[np.int64]


AnyOrder = TypeVar("AnyOrder", bound="Order")


class Order(Protocol):
    """Order of one epoch from a position on: a function of settings, world and data alone.

    Nothing is computed before it is asked for. Nodes, ranks and workers are counted after
    replication, as in `World.replicate`: a rank within its node and a worker within its rank.
    """

    #: Unit of positions, "samples" or "packs".
    unit: str
    epoch: int
    #: Position at which this order begins, in the middle of its epoch after a resume.
    begin: Position
    spec: OrderSpec
    world: World
    shuffle_seed: int
    num_canonical_nodes: int
    #: Schedule of the run; its steps are global batches, or windows of packs.
    schedule: ScheduledRun | None

    @property
    def shape(self) -> Shape:
        """Nodes, ranks, workers and batch size."""

    @property
    def epoch_size(self) -> int:
        """Samples that the epoch takes of all streams."""

    @property
    def choose(self) -> Sequence[int]:
        """Samples that each stream gives to an epoch, or to a pass through it with a schedule."""

    @property
    def samples(self) -> EpochPlan:
        """Order of the samples: this order, or for packs that of their documents."""

    @property
    def packs(self) -> PackPlan | None:
        """This order if it is of packs, else None."""

    @property
    def epoch_steps(self) -> int:
        """Number of global batches of the whole epoch, seen and skipped ones included."""

    def following(self) -> Self:
        """Return the order of the next epoch, with the same settings."""

    # ------------------------------------------------------------------ what a node reads

    @property
    def long_orders(self) -> Sequence[StreamOrder]:
        """Orders that take long to compute, so that the processes of a node share them in files."""

    def nodes_read(self, node: int) -> Ids:
        """Return the canonical nodes whose samples a node reads, sorted."""

    def node_reads(self, node: int, start: int = 0, every: int = 1) -> Iterator[tuple[Ids, Ids]]:
        """Yield the samples that the workers of a node read, from the ``start``-th of each on.

        Each item is (times, ids), both int64 of shape (n,). A time is a place in the order of a
        worker; times ascend. The id at the same index is the sample that some worker reads then.
        Only the ranks 0, ``every``, 2 * ``every``, ... of the node take part.
        """

    # ------------------------------------------------------------------ states

    def dataset_facts(self) -> dict[str, Any]:
        """Return facts about the data, which a state records and compares, as plain JSON."""

    def order_facts(self) -> dict[str, Any]:
        """Return the settings that a state records and compares, as plain JSON."""

    def data_facts(self) -> dict[str, Any]:
        """Return settings that a state records only to make the order again, as plain JSON."""

    def fingerprint(self) -> str:
        """Return a text that is equal for equal data and settings."""

    def check(self, state: Mapping[str, Any] | ResumePoint) -> None:
        """Raise StateError for a state that does not fit this order, naming the differences."""

    # ------------------------------------------------------------------ audits

    @property
    def scheduled(self) -> ScheduledEpoch | None:
        """Part of the schedule that the epoch has; None without a schedule."""

    @property
    def steps(self) -> int:
        """Number of global batches that remain; the last one may be short."""

    def step_rows(self, step: int) -> list[StepSample]:
        """Return the samples of a global batch, rank by rank.

        Steps count from the beginning of this order. Raises IndexError after the last one.
        """

    def step_reads(self) -> Iterator[Ids]:
        """Yield for each remaining global batch a sorted array that identifies its samples."""

    def locate(self, sample: int) -> list[Place]:
        """Return every place of a sample in the rest of the epoch, by step."""

    def order_hash(self, steps: int) -> OrderHash:
        """Return the hash of the next ``steps`` global batches, without reading any data."""
