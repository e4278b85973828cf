"""Steps of a run, which are global batches counted from 0 over all epochs, and packs of an epoch.

All epochs of samples have the same number of steps. The number of packs differs from epoch to
epoch. To count the steps of an epoch of packs, the epoch is packed once, which takes about a second
for a million documents; the result is kept in a file of the cache folder.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds._cache.order_files import PackFile
from mds._cache.source import cache_root
from mds._process.fork_safe import cached_property, new_lock
from mds._words import plural
from mds.errors import ConfigError
from mds.plan._edits import skips_of
from mds.plan._partition import Gaps
from mds.plan._state import Position, ResumePoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds._dataset.order_state import OrderState
    from mds.plan import PackPlan
    from mds.plan._order import Order
    from mds.world import World

    #: Numbers of packs: an array of shape (windows,) for each canonical node.
    Counts = list[NDArray[np.int64]]

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
        self._is_packed = order.spec.packing is not None
        self.batch = order.spec.batch() * world.num_ranks  # places of a step
        self._counted: dict[int, int] = {}  # steps of epochs of packs, by epoch

    def order(self, epoch: int) -> Order:
        """Return the order of a whole epoch."""
        return self._order.epoch_order(epoch, self._world)

    def packs(self, epoch: int) -> PackPlan:
        """Return the order of a whole epoch as a plan of packs, for a dataset with packing."""
        packs = self.order(epoch).packs
        assert packs is not None
        return packs

    @cached_property
    def _per_epoch(self) -> int:
        return self.order(0).epoch_steps

    def in_epoch(self, epoch: int) -> int:
        """Return the number of steps of an epoch, skipped ones included."""
        if not self._is_packed:
            return self._per_epoch
        if epoch not in self._counted:
            self._counted[epoch] = load_counts(self.packs(epoch)).epoch_steps
        return self._counted[epoch]

    def full_steps(self, epoch: int) -> int:
        """Return the number of steps of an epoch that have no place without a sample or pack."""
        if not self._is_packed:
            return self.order(epoch).samples.full_steps
        return load_counts(self.packs(epoch)).full_steps

    def before(self, epoch: int) -> int:
        """Return the number of steps of all earlier epochs."""
        if not self._is_packed:
            return epoch * self._per_epoch
        return sum(map(self.in_epoch, range(epoch)))

    def epoch_of(self, step: int, current_epoch: int) -> tuple[int, int]:
        """Return the epoch of a step of the run, and the number of the step in that epoch.

        Raises ConfigError for a step of packs that is too many epochs after ``current_epoch``,
        because each of them would have to be packed to find it.
        """
        if not self._is_packed:
            return divmod(step, max(self._per_epoch, 1))
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
        return min(max(_MOST_DOCUMENTS // max(self.order(0).epoch_size, 1), 1), _MOST_EPOCHS)

    def place_of(self, step: int, current_epoch: int = 0) -> tuple[int, int]:
        """Return the epoch of a step, and the place in it at which the step begins.

        Raises ConfigError as `epoch_of` does.
        """
        epoch, step_in_epoch = self.epoch_of(step, current_epoch)
        return epoch, self.place_in_epoch(epoch, step_in_epoch)

    def place_in_epoch(self, epoch: int, step: int) -> int:
        """Return the place at which a step of an epoch begins; ``step`` counts skipped ones."""
        packs = self._with_empty_steps(epoch)
        return (step if packs is None else packs.epoch_batches.batch_of(step)) * self.batch

    def step_in_epoch(self, epoch: int, place: int) -> int:
        """Return the first step of an epoch that begins at a place or later."""
        packs, batch = self._with_empty_steps(epoch), -(-place // self.batch)
        return batch if packs is None else packs.epoch_batches.step_at(batch)

    def number_of(self, epoch: int, step: int) -> int | None:
        """Return the number of a step among those that are not skipped; None if it is skipped."""
        gaps, place = self._gaps(epoch), self.place_in_epoch(epoch, step)
        if not gaps.is_in_no_gap(np.array([place])):
            return None
        packs, batch = self._with_empty_steps(epoch), gaps.number(place) // self.batch
        return batch if packs is None else packs.batches.step_at(batch)

    def step_of(self, epoch: int, number: int) -> int:
        """Return the step of an epoch with a number among those that are not skipped."""
        packs = self._with_empty_steps(epoch)
        batch = number if packs is None else packs.batches.batch_of(number)
        return self.step_in_epoch(epoch, self._gaps(epoch).place(batch * self.batch))

    def _gaps(self, epoch: int) -> Gaps:
        """Return the places of an epoch that were skipped."""
        return Gaps(skips_of(self._order.epochs.edits, epoch))

    def _with_empty_steps(self, epoch: int) -> PackPlan | None:
        """Return the packs of an epoch if it may have empty steps, which are left out, else None.

        Steps with as many places as there are canonical nodes have packs of all that go on.
        """
        if not self._is_packed:
            return None
        packs = self.packs(epoch)
        return load_counts(packs) if self.batch < packs.num_canonical_nodes else None

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

    @property
    def most_samples(self) -> int:
        """Maximum number of samples of a rank."""
        return self._shares[1]

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

    def is_end(self, samples: int) -> bool:
        """Return True if no rank gets a batch after so many samples of this rank."""
        return self._batches_of(samples) >= self._batches_of(self.most_samples)

    def _batches_of(self, samples: int) -> int:
        """Return the number of batches that a rank gets of so many samples."""
        if self._drop_last:
            return samples // self._size * self._microbatches
        return -(-samples // self._batch_size)  # rounded up

    @cached_property
    def samples_of_full_steps(self) -> int:
        """Number of samples of this rank in steps that ``drop_last`` does not leave out.

        Unless ranks repeat samples, all of them leave a step out if it is not full on one.
        """
        if self._order.spec.remainder != "repeat":
            return self._order.full_step_samples(self._world, self._begin)
        remaining = self._order.remaining_samples(self._world, self._begin)
        return remaining - remaining % self._size


_COUNTED_AT_ONCE = 1_000_000  # samples, about a second's work


class PackCount(NamedTuple):
    """Number of packs of an epoch, and of its global batches.

    ``filled`` is the share of the space for tokens in all packs that tokens fill, 0 to 1.
    ``is_exact`` is False if the epoch was not packed yet and ``packs`` and ``steps`` are estimates.
    """

    packs: int
    steps: int
    filled: float
    is_exact: bool


def count_packs(plan: PackPlan) -> PackCount:
    """Count the packs of an epoch, or estimate them if that would take long.

    A large epoch is counted by a thread, once on a node.
    """
    counts = _counts_by_key.find(plan)
    if counts is None and plan.plan.epoch_size <= _COUNTED_AT_ONCE:
        counts = _counts_by_key.count(plan)
    if counts is not None:
        plan.counts = counts
        packs, steps = sum(int(window_counts.sum()) for window_counts in counts), plan.epoch_steps
    else:
        _counts_by_key.begin(plan)
        packs = estimate_packs(plan)
        steps = -(-packs // plan.shape.global_batch)
    # Share of the space in all packs that tokens fill; estimated tokens may exceed the space.
    filled = min(_tokens(plan) / max(packs * plan.packing.room, 1), 1.0)
    return PackCount(packs, steps, filled, is_exact=counts is not None)


def count_steps(order: OrderState, world: World, *, drop_last: bool = False) -> int:
    """Return the number of batches of the current epoch of packs, or of the next if none began.

    A small dataset is packed to count them. For a large one the number is an estimate, with a
    warning, until a thread of this process has packed the epoch. ``drop_last``: whether a last
    global batch that is not full is left out.
    """
    last = order.epochs.last
    epoch = last.position.epoch if last is not None else max(order.epochs.next_epoch, 0)
    plan = order.epoch_order(epoch, world).packs
    assert plan is not None
    count = count_packs(plan)
    if not count.is_exact:
        warnings.warn(
            f"len() is an estimate: about {plural(count.packs, 'pack')} an epoch. It becomes exact "
            "when a "
            "thread of this process has packed the epoch, and when this run restarts.",
            stacklevel=3,
        )
    if not drop_last:
        return count.steps
    return plan.full_steps if count.is_exact else count.packs // plan.shape.global_batch


def count_first_steps(
    order: OrderState, world: World, *, drop_last: bool = False, may_estimate: bool = False
) -> int:
    """Return the number of batches of the first epoch of packs, the same after every resume.

    Edits do not change it: they were not known when the run began.

    ``drop_last``: as for `count_steps`. ``may_estimate``: whether the number may be an estimate if
    the dataset is large; else the whole epoch is packed.
    """
    from mds.plan import PackPlan

    samples = order.plan(ResumePoint(Position(0)), world, is_edited=False)
    plan = PackPlan(samples, order.lengths)
    if may_estimate and plan.plan.epoch_size > _COUNTED_AT_ONCE:
        packs, batch = estimate_packs(plan), plan.shape.global_batch
        return packs // batch if drop_last else -(-packs // batch)
    load_counts(plan)
    return plan.full_steps if drop_last else plan.epoch_steps


def load_counts(plan: PackPlan) -> PackPlan:
    """Set the number of packs of each window in a plan, packing the epoch if unknown; return it."""
    plan.counts = _counts_by_key.count(plan)
    return plan


def estimate_packs(plan: PackPlan) -> int:
    """Estimate the number of packs of an epoch from the mean length of a document.

    The last pack of each window of documents is taken to be half full.
    """
    return math.ceil(_tokens(plan) / plan.packing.room + int(plan.windows.sum()) / 2)


def _tokens(plan: PackPlan) -> float:
    """Estimate the tokens of an epoch, from the tokens of all documents of the dataset."""
    count = plan.lengths.count
    tokens = plan.packing.estimate_tokens(plan.lengths.total, count)
    return plan.plan.epoch_size * tokens / max(count, 1)


class _KnownCounts:
    """Numbers of packs of each window of documents, for the epochs (plans) that were packed.

    They are kept in memory for the last few plans, and in a file of the cache folder for each.
    ``plan.key()`` is a text that is equal for plans with the same packs.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._counts: dict[str, Counts] = {}
        self._threads: dict[str, threading.Thread] = {}

    def find(self, plan: PackPlan) -> Counts | None:
        """Return the counts known in this process or in a file, or None."""
        key = plan.key()
        with self._lock:
            if key in self._counts:
                return self._counts[key]
        counts = self._file(key, plan).read()
        return None if counts is None else self._keep(key, counts)

    def count(self, plan: PackPlan) -> Counts:
        """Return the counts of a plan, packing its whole epoch if they are not known yet."""
        key = plan.key()
        with self._lock:
            if key in self._counts:
                return self._counts[key]
        return self._keep(key, self._file(key, plan).ensure(plan.count))

    def begin(self, plan: PackPlan) -> None:
        """Begin to count the packs of a plan in a background thread, unless one does so already."""
        key = plan.key()
        with self._lock:
            thread = self._threads.get(key)
            if thread is None or not thread.is_alive():
                # A daemon, so that the program can end while it counts.
                thread = threading.Thread(
                    target=self.count, args=(plan,), name="mds-packs", daemon=True
                )
                self._threads = {key: thread}  # threads of earlier epochs end by themselves
                thread.start()

    def join(self) -> None:
        """Wait for the threads that count."""
        for thread in list(self._threads.values()):
            thread.join()

    def _keep(self, key: str, counts: Counts) -> Counts:
        """Keep counts in memory, in place of the oldest ones if there are many; return them."""
        with self._lock:
            while len(self._counts) > 8:
                del self._counts[next(iter(self._counts))]
            self._counts[key] = counts
        return counts

    @staticmethod
    def _file(key: str, plan: PackPlan) -> PackFile:
        return PackFile(key, plan.windows, os.path.join(cache_root(), "orders"))


_counts_by_key = _KnownCounts()
