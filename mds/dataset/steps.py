"""Steps of a run: global batches counted from 0 over all epochs, and where each begins.

All epochs of samples have the same number of steps. Epochs of packs have not, so each is packed
once to count its steps, about a second for a million documents. The first epoch needs no count. So
a step of packs can be named as far ahead as that takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds.dataset.pack_counts import load_counts
from mds.errors import ConfigError
from mds.plan.edits import skips_of
from mds.plan.partition import Gaps
from mds.process.fork_safe import cached_property

if TYPE_CHECKING:
    from mds.dataset.order_state import OrderState
    from mds.plan import PackPlan
    from mds.plan.order import Order
    from mds.world import World

_MOST_DOCUMENTS = 1 << 24  # that are packed to find a step ahead
_MOST_EPOCHS = 1 << 10  # of few documents


class TrainingSteps:
    """Steps of a run in a world, with the edits that its order has now.

    A *place* is what a position counts in an epoch: samples, or packs, of all ranks. Steps keep
    their numbers where some were skipped.
    """

    def __init__(self, order: OrderState, world: World) -> None:
        self._order, self._world = order, world
        self._is_packed = order.spec.packing is not None
        self.batch = order.spec.batch() * world.num_ranks
        self._counted: dict[int, int] = {}

    def order(self, epoch: int) -> Order:
        """Return the order of a whole epoch."""
        return self._order.epoch_order(epoch, self._world)

    def packs(self, epoch: int) -> PackPlan:
        """Return the packs of a whole epoch, of a dataset with packing."""
        from mds.plan import PackPlan

        order = self.order(epoch)
        assert isinstance(order, PackPlan)
        return order

    @cached_property
    def _per_epoch(self) -> int:
        from mds.plan import EpochPlan

        order = self.order(0)
        assert isinstance(order, EpochPlan)
        return order.epoch_steps

    def in_epoch(self, epoch: int) -> int:
        """Return the number of steps of an epoch, with those that were skipped."""
        if not self._is_packed:
            return self._per_epoch
        if epoch not in self._counted:
            total = load_counts(self.packs(epoch)).table.total
            self._counted[epoch] = -(-total // self.batch)
        return self._counted[epoch]

    def before(self, epoch: int) -> int:
        """Return the number of steps of all earlier epochs."""
        if not self._is_packed:
            return epoch * self._per_epoch
        return sum(map(self.in_epoch, range(epoch)))

    def epoch_of(self, step: int, begun: int) -> tuple[int, int]:
        """Return the epoch of a step and the step in it, or those after the last step.

        Raises ConfigError for a step of packs that is too far ahead of epoch ``begun``.
        """
        if not self._is_packed:
            return divmod(step, max(self._per_epoch, 1))
        epoch, inside = 0, step
        while inside >= (steps := self.in_epoch(epoch)) > 0:
            if epoch >= begun + self._most_ahead:
                raise ConfigError(
                    f"step {step:,} is more than {self._most_ahead:,} epochs of packs ahead, and "
                    f"each would have to be packed to find it. Name one before step "
                    f"{step - inside + steps:,}, or do it when the training is nearer."
                )
            epoch, inside = epoch + 1, inside - steps
        return epoch, inside

    @cached_property
    def _most_ahead(self) -> int:
        """Number of epochs of packs that are counted ahead."""
        return min(max(_MOST_DOCUMENTS // max(self.order(0).epoch_size, 1), 1), _MOST_EPOCHS)

    def place_of(self, step: int, begun: int = 0) -> tuple[int, int]:
        """Return the epoch of a step, and the place in it at which the step begins.

        Raises ConfigError as `epoch_of` does.
        """
        epoch, inside = self.epoch_of(step, begun)
        return epoch, inside * self.batch

    def next_at(self, epoch: int, place: int) -> tuple[int, int]:
        """Return the epoch of the first step at a place or after it, and the step in the epoch."""
        while True:
            gaps = Gaps(skips_of(self._order.epochs.edits, epoch))
            inside = -(-gaps.place(gaps.number(place)) // self.batch)
            if len(gaps.firsts) == 0 or inside < self.in_epoch(epoch):
                return epoch, inside
            epoch, place = epoch + 1, 0

    def step_at(self, epoch: int, place: int) -> int:
        """Return the number of that step in the run."""
        epoch, inside = self.next_at(epoch, place)
        return self.before(epoch) + inside
