"""Steps of a run, which are global batches counted from 0 over all epochs.

All epochs of samples have the same number of steps. The number of packs differs from epoch to
epoch, so their steps are counted epoch by epoch (`mds._dataset.pack_counts`).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from mds._dataset.pack_counts import COUNTED_AT_ONCE, count_packs, estimate_packs
from mds._process.fork_safe import cached_property
from mds._words import plural
from mds.errors import ConfigError
from mds.plan._edits import skips_of
from mds.plan._pack_filling import packs_of
from mds.plan._partition import Gaps
from mds.plan._state import Position, ResumePoint

if TYPE_CHECKING:
    from mds._dataset.order_state import OrderState
    from mds.plan import EpochPlan
    from mds.plan._filling import Filling
    from mds.world import World

_MOST_DOCUMENTS = 1 << 24  # packed to find a step that is ahead
_MOST_EPOCHS = 1 << 10  # packed to find a step, if they have few documents


class TrainingSteps:
    """Steps of a run in a world, with the edits made so far.

    A *place* of an epoch is a number of samples of all ranks, or of packs with packing. Skipping
    steps does not change the numbers of later steps.

    Args:
        order: Order of the dataset.
        world: Nodes, ranks and workers of the run.
    """

    def __init__(self, order: OrderState, world: World) -> None:
        self._order, self._world = order, world
        self.batch = order.spec.batch() * world.num_ranks  # places of a step
        self._counted: dict[int, int] = {}  # steps by epoch

    def plan(self, epoch: int) -> EpochPlan:
        """Return the order of a whole epoch."""
        return self._order.epoch_plan(epoch, self._world)

    def _filling(self, epoch: int) -> Filling:
        return self.plan(epoch).filling

    @cached_property
    def _are_equal(self) -> bool:
        """Whether all epochs have equally many steps."""
        return self._filling(0).has_equal_epochs

    def in_epoch(self, epoch: int) -> int:
        """Return the number of steps of an epoch, skipped ones included."""
        epoch = 0 if self._are_equal else epoch
        if epoch not in self._counted:
            self._counted[epoch] = self._filling(epoch).epoch_batches.count
        return self._counted[epoch]

    def full_steps(self, epoch: int) -> int:
        """Return the number of steps of an epoch that ``drop_last`` does not leave out."""
        return self._filling(epoch).epoch_batches.full

    def before(self, epoch: int) -> int:
        """Return the number of steps of all earlier epochs."""
        if self._are_equal:
            return epoch * self.in_epoch(0)
        return sum(map(self.in_epoch, range(epoch)))

    def epoch_of(self, step: int, current_epoch: int) -> tuple[int, int]:
        """Return the epoch of a step of the run, and the number of the step in that epoch.

        Raises ConfigError for a step of packs that is too many epochs after ``current_epoch``,
        because each of them would have to be packed to find it.
        """
        if self._are_equal:
            return divmod(step, max(self.in_epoch(0), 1))
        epoch, step_in_epoch = 0, step
        while step_in_epoch >= (steps := self.in_epoch(epoch)) > 0:
            if epoch >= current_epoch + self._most_ahead:
                raise ConfigError(
                    f"step {step:,} is more than {plural(self._most_ahead, 'epoch')} of packs "
                    "ahead, and "
                    "each of them would have to be packed to find it. Name a step before "
                    f"{step - step_in_epoch + steps:,}, or make this edit later in the training."
                )
            epoch, step_in_epoch = epoch + 1, step_in_epoch - steps
        return epoch, step_in_epoch

    @cached_property
    def _most_ahead(self) -> int:
        """Maximum number of epochs that are packed to find a step ahead."""
        return min(max(_MOST_DOCUMENTS // max(self.plan(0).epoch_size, 1), 1), _MOST_EPOCHS)

    def place_of(self, step: int, current_epoch: int = 0) -> tuple[int, int]:
        """Return the epoch of a step, and the place in it at which the step begins.

        Raises ConfigError as `epoch_of` does.
        """
        epoch, step_in_epoch = self.epoch_of(step, current_epoch)
        return epoch, self.place_in_epoch(epoch, step_in_epoch)

    def place_in_epoch(self, epoch: int, step: int) -> int:
        """Return the place at which a step of an epoch begins; ``step`` counts skipped ones."""
        return self._filling(epoch).epoch_batches.batch_of(step) * self.batch

    def step_in_epoch(self, epoch: int, place: int) -> int:
        """Return the first step of an epoch that begins at a place or later."""
        return self._filling(epoch).epoch_batches.step_at(-(-place // self.batch))

    def number_of(self, epoch: int, step: int) -> int | None:
        """Return the number of a step among those that are not skipped; None if it is skipped."""
        gaps, place = self._gaps(epoch), self.place_in_epoch(epoch, step)
        if not gaps.is_in_no_gap(np.array([place])):
            return None
        return self._filling(epoch).batches.step_at(gaps.number(place) // self.batch)

    def step_of(self, epoch: int, number: int) -> int:
        """Return the step of an epoch with a number among those that are not skipped."""
        batch = self._filling(epoch).batches.batch_of(number)
        return self.step_in_epoch(epoch, self._gaps(epoch).place(batch * self.batch))

    def _gaps(self, epoch: int) -> Gaps:
        """Return the places of an epoch that were skipped."""
        return Gaps(skips_of(self._order.epochs.edits, epoch))

    def next_at(self, epoch: int, place: int) -> tuple[int, int]:
        """Return the first step that is not skipped and begins at or after a place.

        The result is its epoch and its number there, counting all steps. With global batches of 10
        samples, place 25 gives step 3, or step 5 if steps 3 and 4 are skipped. If the skipped steps
        reach to the end of the epoch, the result is the first step of a later epoch.
        """
        while True:
            gaps = self._gaps(epoch)
            # A place in a skipped range (a gap) moves to the end of it, the next place that is
            # read; others stay. The place is then rounded up to the beginning of a step.
            step_in_epoch = self.step_in_epoch(epoch, gaps.place(gaps.number(place)))
            if len(gaps.firsts) == 0 or step_in_epoch < self.in_epoch(epoch):
                return epoch, step_in_epoch
            epoch, place = epoch + 1, 0

    def step_at(self, epoch: int, place: int) -> int:
        """Return the number in the run of the first step that begins at or after a place."""
        epoch, step_in_epoch = self.next_at(epoch, place)
        return self.before(epoch) + step_in_epoch


class RankSteps:
    """Steps of one rank in the rest of an epoch, whose batches tell where their step ends.

    So it is with packs. All ranks get equally many batches, the last ones with padding, and steps
    that ``drop_last`` leaves out are not made.
    """

    def share_after(self, samples: int, *, is_full: bool) -> tuple[int, bool]:
        """Return what every rank has taken after a batch, and whether that is the whole epoch.

        Args:
            samples: Samples of this rank, including those of the batch.
            is_full: Whether the batch has ``batch_size`` samples.
        """
        del is_full
        return samples, False

    def share_at_end(self, samples: int) -> int:
        """Return what every rank has taken at the end of the epoch, this one ``samples``."""
        return samples

    def is_end(self, samples: int) -> bool:
        """Return True if no rank gets a batch after so many samples of this rank."""
        del samples
        return False

    def leaves_out(self, samples: int) -> bool:
        """Return True if ``drop_last`` leaves out the step of a batch, as it is not full.

        ``samples`` are those of this rank, including those of the batch.
        """
        del samples
        return False

    def samples_before(self, place: int) -> int | None:
        """Return the samples of this rank in the whole steps before a place of the epoch.

        None if only the batches tell it.
        """
        del place
        return None


class SampleSteps(RankSteps):
    """Steps of one rank in the rest of an epoch of samples, counted in the samples of its batches.

    With ``remainder="short"``, ranks may get different numbers of samples. For example, with
    batches of 8, rank 0 gets 17 samples, as batches of 8, 8 and 1, and rank 1 gets 16. Their states
    must be equal all the same, so what a state says is computed from the numbers of all ranks.

    Args:
        order: Order of the dataset.
        world: Nodes and ranks.
        begin: Position at which the rest begins.
        batch_size: Samples of a batch.
        microbatches: Batches of a step.
        drop_last: Whether a last step that is not full is left out.
    """

    def __init__(
        self,
        order: OrderState,
        world: World,
        begin: Position,
        *,
        batch_size: int,
        microbatches: int,
        drop_last: bool,
    ) -> None:
        self._order, self._world, self._begin = order, world, begin
        self._batch_size, self._microbatches = batch_size, microbatches
        self._drop_last = drop_last
        self._size = batch_size * microbatches  # samples of a step

    @cached_property
    def _shares(self) -> tuple[int, int]:
        """The fewest and the most samples that a rank gets: 16 and 17 in the example."""
        return self._order.shares(self._world, self._begin)

    def share_after(self, samples: int, *, is_full: bool) -> tuple[int, bool]:
        """Return what every rank has taken after a batch, and whether that is the whole epoch.

        In the example, both ranks have taken 16 samples after two batches. Then rank 0 gets its
        third batch, while rank 1 finds that the epoch has ended. So after this batch both have
        taken 17 samples, and the epoch is finished. If rank 1 gets 8, 8 and 2 samples, it is 18 for
        both after the third batch.

        Args:
            samples: Samples of this rank, including those of the batch.
            is_full: Whether the batch has ``batch_size`` samples.
        """
        fewest, most = self._shares
        if is_full and samples < most:  # not the last batch
            return samples, False
        return max(samples, most), self._batches_of(fewest) < self._batches_of(most)

    def share_at_end(self, samples: int) -> int:
        """Return what every rank has taken at the end of the epoch, this one ``samples``."""
        return max(samples, self._shares[1])

    def is_end(self, samples: int) -> bool:
        """Return True if no rank gets a batch after so many samples of this rank."""
        return self._batches_of(samples) >= self._batches_of(self._shares[1])

    def leaves_out(self, samples: int) -> bool:
        """Return True if ``drop_last`` leaves out the step of a batch, as it is not full.

        ``samples`` are those of this rank, including those of the batch.
        """
        return samples > self._samples_of_full_steps

    def samples_before(self, place: int) -> int:
        """Return the samples of this rank in the whole steps before a place of the epoch.

        Samples that are skipped do not come, so they are not counted. Rounded down to a whole step:
        the place may be inside a step if the state was saved with another global batch.
        """
        begin = self._begin
        samples = self._order.given_before(begin.epoch, begin.place, place)
        samples //= self._world.num_ranks
        return samples - samples % self._size

    def _batches_of(self, samples: int) -> int:
        """Return the number of batches that a rank gets of so many samples."""
        if self._drop_last:
            return samples // self._size * self._microbatches
        return -(-samples // self._batch_size)  # rounded up

    @cached_property
    def _samples_of_full_steps(self) -> int:
        """Number of samples of this rank in steps that ``drop_last`` does not leave out.

        Unless ranks repeat samples, all of them leave a step out if it is not full on one.
        """
        if self._order.spec.remainder != "repeat":
            return self._order.full_step_samples(self._world, self._begin)
        remaining = self._order.remaining_samples(self._world, self._begin)
        return remaining - remaining % self._size


def rank_steps(
    order: OrderState,
    world: World,
    begin: Position,
    *,
    batch_size: int,
    microbatches: int,
    drop_last: bool,
) -> RankSteps:
    """Return the steps of a rank from ``begin`` on; for the arguments, see `SampleSteps`."""
    if order.spec.packing is not None:
        return RankSteps()
    return SampleSteps(
        order,
        world,
        begin,
        batch_size=batch_size,
        microbatches=microbatches,
        drop_last=drop_last,
    )


def count_steps(order: OrderState, world: World, *, drop_last: bool = False) -> int:
    """Return the number of batches of the current epoch of packs, or of the next if none began.

    A small dataset is packed to count them. For a large one the number is an estimate, with a
    warning, until a thread of this process has packed the epoch. ``drop_last``: whether a last
    global batch that is not full is left out.
    """
    last = order.epochs.last
    epoch = last.position.epoch if last is not None else max(order.epochs.next_epoch, 0)
    plan = order.epoch_plan(epoch, world)
    count = count_packs(plan)
    if not count.is_exact:
        warnings.warn(
            f"len() is an estimate: about {plural(count.packs, 'pack')} an epoch. It becomes exact "
            "when a thread of this process has packed the epoch, and when this run restarts.",
            stacklevel=4,
        )
    if not drop_last:
        return count.steps
    if count.is_exact:
        return plan.filling.epoch_batches.full
    return count.packs // plan.shape.global_batch


def count_first_steps(
    order: OrderState, world: World, *, drop_last: bool = False, may_estimate: bool = False
) -> int:
    """Return the number of batches of the first epoch of packs, the same after every resume.

    Edits do not change it: they were not known when the run began.

    ``drop_last``: as for `count_steps`. ``may_estimate``: whether the number may be an estimate if
    the dataset is large; else the whole epoch is packed.
    """
    plan = order.plan(ResumePoint(Position(0)), world, is_edited=False)
    if may_estimate and plan.epoch_size > COUNTED_AT_ONCE:
        packs, batch = estimate_packs(packs_of(plan.filling)), plan.shape.global_batch
        return packs // batch if drop_last else -(-packs // batch)
    batches = plan.filling.epoch_batches
    return batches.full if drop_last else batches.count
