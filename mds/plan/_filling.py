"""Filling of an epoch: what is at each of its places, a sample or a pack of documents.

`SampleFilling` and `PackFilling` are the two kinds. They differ where packs do: samples can stop
anywhere, packs stop at steps and need a cursor; a dropped sample is replaced by another one, a
dropped document becomes padding. What an audit or a state asks of both is `Filling`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from mds.plan._audit import StepContents
    from mds.plan._packers import Packer
    from mds.plan._spec import EpochInputs
    from mds.plan._state import Position

    Ids = NDArray[np.int64]


class StepBatches(Protocol):
    """Global batches of an epoch, or of its rest, without those that are left out.

    Steps count the others; ranks get a batch in each.
    """

    @property
    def count(self) -> int:
        """Number of steps."""

    @property
    def full(self) -> int:
        """Number of steps that ``drop_last`` does not leave out."""

    def batch_of(self, step: int) -> int:
        """Return the global batch of a step, also of one after the last."""

    def step_at(self, batch: int) -> int:
        """Return the step of a global batch, or of the next one that is not left out."""


class Filling(Protocol):
    """What is at each place of an epoch, from a position on.

    Steps count from there. Nodes, ranks and workers are counted as in `EpochPlan`.

    Attributes:
        inputs: Data and settings of the epoch.
        begin: Position at which the steps begin.
        has_equal_epochs: Whether all epochs have equally many steps.
        user_packer: Packer of the packs if the user has registered it, else None.
    """

    inputs: EpochInputs
    begin: Position
    has_equal_epochs: bool

    @property
    def user_packer(self) -> Packer | None: ...

    @property
    def batches(self) -> StepBatches:
        """Steps that remain."""

    @property
    def epoch_batches(self) -> StepBatches:
        """Steps of the whole epoch, seen and skipped ones included."""

    def position_after(self, begin: Position, count: int) -> Position:
        """Return the position ``count`` samples, or packs, of all ranks after ``begin``."""

    # ------------------------------------------------------------------ what is read

    def blocks(
        self, node: int, rank: int, worker: int, start: int = 0, *, is_padded: bool = True
    ) -> Iterator[Ids]:
        """Yield the ids of a worker, see `EpochPlan.blocks`."""

    def nodes_read(self, node: int) -> Ids:
        """Return the canonical nodes whose samples a node reads, sorted."""

    def node_reads(self, node: int, start: int = 0, every: int = 1) -> Iterator[tuple[Ids, Ids]]:
        """Yield the samples that the workers of a node read, see `EpochPlan.node_reads`."""

    # ------------------------------------------------------------------ audits and states

    def contents(self, first: int = 0, last: int | None = None) -> Iterator[StepContents]:
        """Yield the samples of the steps ``first`` to ``last`` - 1, one step or more at a time."""

    def dealt(self, step: int) -> tuple[StepContents, Ids]:
        """Return the samples of a step, and the slot of each, int64."""

    def steps_with(self, sample: int) -> set[int]:
        """Return the steps that may have a sample."""

    def order_facts(self) -> dict[str, Any]:
        """Return the settings that a state records and compares, as plain JSON."""

    def data_facts(self) -> dict[str, Any]:
        """Return settings that a state records only to make the order again, as plain JSON."""
