"""Steps of a training: global batches counted from 0 over all epochs, and where each begins.

All epochs of samples have as many. Epochs of packs have not, so each is packed once to be counted,
about a second for a million documents; the first epoch takes nothing of that to know where it is.
So a step of packs can be named as far ahead as that takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mds.dataset.pack_counts import load_counts
from mds.errors import ConfigError
from mds.plan import EpochPlan, PackPlan
from mds.plan.edits import skips_of
from mds.plan.gaps import Gaps
from mds.process.fork_safe import cached_property

if TYPE_CHECKING:
    from mds.plan.order import Order

_MOST_DOCUMENTS = 1 << 24  # that are packed to find a step ahead
_MOST_EPOCHS = 1 << 10  # of few documents


class TrainingSteps:
    """Steps of the training of a dataset, with its ranks and the edits that it has now.

    A *place* is what a state counts in an epoch: samples, or packs, of all ranks. Steps keep their
    numbers where some were skipped.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        order = dataset._order
        self.batch: int = order.spec.batch() * dataset._world().num_ranks
        self._counted: dict[int, int] = {}

    def order(self, epoch: int) -> Order:
        """Return the order of a whole epoch."""
        order: Order = self._dataset._order.epoch_order(epoch, self._dataset._world())
        return order

    def packs(self, epoch: int) -> PackPlan:
        """Return the packs of a whole epoch, of a dataset with packing."""
        order = self.order(epoch)
        assert isinstance(order, PackPlan)
        return order

    @cached_property
    def _per_epoch(self) -> int:
        order = self.order(0)
        assert isinstance(order, EpochPlan)
        return order.epoch_steps

    def in_epoch(self, epoch: int) -> int:
        """How many steps an epoch has, those that were skipped among them."""
        if self._dataset.packing is None:
            return self._per_epoch
        if epoch not in self._counted:
            total = load_counts(self.packs(epoch)).table.total
            self._counted[epoch] = -(-total // self.batch)
        return self._counted[epoch]

    def before(self, epoch: int) -> int:
        """How many steps all earlier epochs have."""
        if self._dataset.packing is None:
            return epoch * self._per_epoch
        return sum(map(self.in_epoch, range(epoch)))

    def epoch_of(self, step: int, begun: int) -> tuple[int, int]:
        """The epoch of a step, and the step in it; the one behind the last where there are none.

        Raises ConfigError for a step of packs that is too far ahead of epoch ``begun``.
        """
        if self._dataset.packing is None:
            return divmod(step, max(self._per_epoch, 1))
        epoch, left = 0, step
        while left >= (steps := self.in_epoch(epoch)) > 0:
            if epoch >= begun + self._most_ahead:
                raise ConfigError(
                    f"step {step:,} is more than {self._most_ahead:,} epochs of packs ahead, and "
                    f"each would have to be packed to find it. Name one before step "
                    f"{step - left + steps:,}, or do it when the training is nearer."
                )
            epoch, left = epoch + 1, left - steps
        return epoch, left

    @cached_property
    def _most_ahead(self) -> int:
        """How many epochs of packs are counted ahead."""
        return min(max(_MOST_DOCUMENTS // max(self.order(0).epoch_size, 1), 1), _MOST_EPOCHS)

    def place_of(self, step: int, begun: int = 0) -> tuple[int, int]:
        """The epoch of a step, and the place in it at which the step begins.

        Raises ConfigError as `epoch_of` does.
        """
        epoch, inside = self.epoch_of(step, begun)
        return epoch, inside * self.batch

    def next_at(self, epoch: int, place: int) -> tuple[int, int]:
        """The epoch, and the step in it, that comes first at a place or behind it."""
        while True:
            gaps = Gaps(skips_of(self._dataset._order.epochs.edits, epoch))
            inside = -(-gaps.place(gaps.number(place)) // self.batch)
            if len(gaps.firsts) == 0 or inside < self.in_epoch(epoch):
                return epoch, inside
            epoch, place = epoch + 1, 0

    def step_at(self, epoch: int, place: int) -> int:
        """The number of that step."""
        epoch, inside = self.next_at(epoch, place)
        return self.before(epoch) + inside
