"""Order of an epoch: what everything above `mds.plan` asks, for samples, schedules and packs alike.

`EpochPlan` is the order of samples, of a schedule too; `PackPlan` is that of packs of documents.
What differs between them stays inside: samples stop anywhere, packs stop at steps and need a
cursor; a dropped sample is replaced, a dropped document becomes padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from mds.plan.audit import OrderHash, Place
    from mds.plan.global_batches import Shape
    from mds.plan.schedule import ScheduledEpoch, ScheduledRun
    from mds.plan.spec import OrderSpec
    from mds.plan.state import Position, ResumePoint
    from mds.plan.stream_orders import StreamOrder
    from mds.world import World

    Ids = NDArray[np.int64]


AnyOrder = TypeVar("AnyOrder", bound="Order")


class StepSample(NamedTuple):
    """Sample of a step, or a piece of a document.

    Attributes:
        rank: Rank that gets it.
        sample: Number of the sample.
        tokens: First token of the piece and the one after the last; None for a whole sample.
    """

    rank: int
    sample: int
    tokens: tuple[int, int] | None = None


class Order(Protocol):
    """Order of one epoch, from a position on, as a function of settings, world and data alone.

    Nothing is computed before it is asked for. Nodes, ranks and workers count after replication; a
    rank counts within its node and a worker within its rank.
    """

    #: What positions count, "samples" or "packs".
    unit: str
    epoch: int
    begin: Position
    spec: OrderSpec
    world: World
    shuffle_seed: int
    num_canonical_nodes: int
    #: Schedule of the run, in the steps that it counts.
    schedule: ScheduledRun | None

    @property
    def shape(self) -> Shape:
        """Nodes, ranks, workers and batch size."""

    @property
    def epoch_size(self) -> int:
        """Samples that the epoch takes."""

    @property
    def choose(self) -> Sequence[int]:
        """Samples that each stream gives."""

    def following(self) -> Self:
        """Return the order of the next epoch, with the settings of a loaded state in force."""

    # ------------------------------------------------------------------ what a node reads

    @property
    def long_orders(self) -> Sequence[StreamOrder]:
        """Orders of streams that take long to compute, which processes of a node share in files."""

    def nodes_read(self, node: int) -> Ids:
        """Return the canonical nodes whose samples a node reads, sorted."""

    def node_reads(self, node: int, start: int = 0, every: int = 1) -> Iterator[tuple[Ids, Ids]]:
        """Yield what the workers of a node read, from the ``start``-th sample of each on.

        Each item is (times, ids), both int64 of shape (n,): ascending places in the order of a
        worker, and the samples that are read then. Only each ``every``-th rank takes part.
        """

    # ------------------------------------------------------------------ states

    def dataset_facts(self) -> dict[str, Any]:
        """Return what a state records of the data, as plain JSON."""

    def order_facts(self) -> dict[str, Any]:
        """Return what a state records of the settings, as plain JSON."""

    def data_facts(self) -> dict[str, Any]:
        """Return what a state records, besides, to lead back to the order; as plain JSON."""

    def fingerprint(self) -> str:
        """Return a name for the data and the settings."""

    def check(self, state: Mapping[str, Any] | ResumePoint) -> None:
        """Refuse a state that does not fit this order, naming the differences (StateError)."""

    # ------------------------------------------------------------------ audits

    @property
    def scheduled(self) -> ScheduledEpoch | None:
        """Steps of the schedule that the epoch has."""

    @property
    def steps(self) -> int:
        """Global batches that remain, the last of which may be short."""

    def step_rows(self, step: int) -> list[StepSample]:
        """Return the samples of a global batch, rank by rank.

        Steps count from where this order begins. Raises IndexError after the last one.
        """

    def step_reads(self) -> Iterator[Ids]:
        """Yield for each remaining global batch sorted numbers that tell its samples."""

    def locate(self, sample: int) -> list[Place]:
        """Return every place where a sample is in the rest of the epoch, by step."""

    def order_hash(self, steps: int) -> OrderHash:
        """Return the hash of the next ``steps`` global batches, without reading any data."""
