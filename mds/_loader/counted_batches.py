"""Batches of an epoch as the trainer gets them: their count, which is the position, and waits.

A batch counts when the trainer receives it, not when it is made, so batches that workers made ahead
are not part of the position. A step of the optimizer may take several batches (``microbatches``).
Then the position moves only with the last batch of a step: in its middle, nothing was learned yet
from its samples.

*Places* are the numbers of samples in the order of an epoch, from 0, over all ranks. A rank's batch
of 8 samples takes 8 places. With ``remainder="short"``, the last batch of some ranks is smaller or
missing: then each rank counts as many places as the rank with the most (`RankSteps`), so that all
ranks save the same state.
"""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from mds._dataset.streaming import StreamingDataset
from mds._iteration.rows import SUM_BITS
from mds._iteration.worker_epoch import EpochProgress
from mds._process.fork_safe import call_in_child
from mds._redaction import get_logger
from mds._words import plural
from mds.errors import ConfigError, repeatable
from mds.plan import OrderHash
from mds.report._account import WaitAccount
from mds.world import worker_group

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from mds._dataset.run import Run
    from mds._dataset.steps import RankSteps
    from mds._iteration.rows import BatchInfo
    from mds._process.stopwatch import Clock
    from mds.plan._state import Position, ResumePoint

log = get_logger("mds.loader")

_NEVER = 1 << 62


class EpochCount:
    """Counts of the batches that the trainer has received in one iteration of a loader.

    Attributes:
        samples: Places of the order that the batches of this rank took.
        batches: Batches, of which ``empty_batches`` had no kept sample.
        share: ``samples`` in whole steps, or at the end of an epoch the samples of the rank with
            the most. So it is equal on all ranks, and their position is ``begin`` plus ``share``
            times the number of ranks.
        begin: Position at which the iteration began; None before the first batch.
        end: Position after the last whole step, with packs; else None.
        dropped: Samples that a filter dropped.
        wrapper_samples: Number of samples that a wrapper around the dataset has returned. It may
            return lists of samples, which are counted in two ways: (2, 16) for two lists of 8.
        is_finished: Whether the epoch has ended on all ranks.
        is_closed: Whether no more batches come, by the end of the epoch, an error or deletion.
        order_hash: Hash of the samples that came.
        hash_of_steps: Hash of those in whole steps; the same object if each step is one batch.
        waits: Times that the trainer waited for batches, for `StreamingDataLoader.report`.
    """

    def __init__(self, microbatches: int = 1) -> None:
        self.samples = self.batches = self.empty_batches = self.share = self.dropped = 0
        self.order_hash = OrderHash()
        self.hash_of_steps = self.order_hash if microbatches == 1 else OrderHash()
        self.begin: Position | None = None
        self.end: Position | None = None
        self.wrapper_samples = (0, 0)
        self.is_closed = self.is_finished = False
        self.worker_count: None = None  # a loader counts all workers
        self.waits = WaitAccount()

    @property
    def is_under_way(self) -> bool:
        """True if batches were given and more may come."""
        return self.batches > 0 and not self.is_closed

    @property
    def progress(self) -> EpochProgress | None:
        """Progress of all ranks after the last step; None before the first batch."""
        if self.begin is None:
            return None
        return EpochProgress(self.begin, self.share, self.end, self.is_finished)


@dataclasses.dataclass(eq=False)
class LoaderState:
    """What a StreamingDataLoader and its iterators share; it refers to none of them.

    A copy has neither ``run`` nor ``reader``; the loader of the copy sets both.

    Args:
        run: Run of the dataset.
        reader: Class of the object that the loader iterates: the dataset, or a wrapper around it.
        workers: Number of workers.
        batch_size: Samples of a batch; None for single samples.
        microbatches: Batches of a step.
        drop_last: Whether a last batch that is not full is left out.
        is_of_order: Whether a batch of n samples takes n places of the order, because no class of
            the user iterates.
        is_strict: Whether the rules of mds hold, and not those of mosaicml-streaming.
        advises_on_lists: Whether the first batch may have lists of tensors that the user did not
            ask for.
        clock: Clock, in seconds, that times the waits.

    Attributes:
        count: Count of the iteration that the state of the loader is about.
        inner: torch's loader of the messages of worker processes, while it is used.
        is_in_processes: Whether batches of the last iteration came from worker processes, which
            count dropped samples for themselves.
        samples_read: Samples of all iterations.
        has_warned: Whether a warning was given that the position is not exact.
    """

    run: Run
    reader: type
    workers: int
    batch_size: int | None
    microbatches: int
    drop_last: bool
    is_of_order: bool
    is_strict: bool
    advises_on_lists: bool
    clock: Clock
    count: EpochCount = dataclasses.field(default_factory=EpochCount)
    inner: DataLoader[Any] | None = None
    is_in_processes: bool = False
    samples_read: int = 0
    has_warned: bool = False

    def __getstate__(self) -> dict[str, Any]:
        # A copy starts its own workers. The class that `map` makes cannot be pickled by its name.
        return {**self.__dict__, "run": None, "reader": None, "inner": None}

    @property
    def step_samples(self) -> int:
        """Number of samples of this rank in a step of the optimizer."""
        return (self.batch_size or 1) * self.microbatches

    def begin(self, batches: CountedBatches) -> None:
        """Make an iterator that gave no batch yet the present one, unless one is under way."""
        if not self.count.is_under_way:
            self._present(batches)
            self.run.begin(batches.count, batches.epoch)

    def take_over(self, batches: CountedBatches) -> None:
        """Make an iterator that gives a batch the one that states and changes are about."""
        self._present(batches)
        self.run.take_over(batches.count)

    def _present(self, batches: CountedBatches) -> None:
        """Make an iterator that of this loader, and warn if another loader came in between."""
        run, count = self.run, self.count
        is_of_other = isinstance(run.iteration, EpochCount) and run.iteration is not count
        if self.is_strict and count.batches and is_of_other:
            warnings.warn(
                "another loader has iterated the dataset of this loader since its last batch. Both "
                "share the epoch and the position, so each changes the order of the other. Create "
                "a StreamingDataset for each loader.",
                stacklevel=4,
            )
        self.count = batches.count
        # A function that returns the iterator, or None after the iterator has been deleted.
        run.order.find_loop = weakref.ref(batches)

    def add_dropped(self, info: BatchInfo) -> None:
        """Add samples that were dropped from a batch to the counts of the dataset.

        Only worker processes report dropped samples here: threads have counted theirs already. A
        batch without samples is counted in any case.
        """
        if self.is_in_processes:
            self.run.dropped.add(info.skipped, info.dropped, info.is_empty)
        else:
            self.run.dropped.empty += info.is_empty

    def advise_on_lists(self, batch: Any) -> None:
        """Warn about columns of the first batch whose arrays have several shapes, on one rank."""
        self.advises_on_lists = False
        columns = batch.items() if isinstance(batch, dict) else ()
        names = [
            name
            for name, values in columns
            if isinstance(values, list) and values and isinstance(values[0], torch.Tensor)
        ]
        if names and self.run.world().is_local_leader:
            shown_names = ", ".join(map(repr, names[:5]))
            log.warning(
                "The arrays of %s have different shapes, so a batch has a list of tensors. For one "
                "tensor, pass collate_fn=pad(%s) or ragged(%s) of mds.transforms, or images() for "
                "pictures.",
                shown_names,
                shown_names,
                shown_names,
            )

    def empty_epoch_error(self) -> ConfigError:
        """Return the error for a dataset that is smaller than a step of all ranks."""
        steps = f" {self.microbatches} times" if self.microbatches > 1 else ""
        worker = ", in one of its workers" if self.workers > 1 else ""
        remedy = " Give more data, or a smaller batch size."
        if self.drop_last:
            fewer = ", fewer workers" if worker else ""
            remedy = (
                " drop_last=True leaves out a smaller step, so nothing comes. Give "
                f"drop_last=False, a smaller batch size{fewer} or more data."
            )
        return ConfigError(
            f"an epoch has no step of {self.batch_size} samples or packs{steps} on "
            "each of "
            f"{plural(self.run.world().num_ranks, 'rank')}{worker}.{remedy}"
        )

    def warn_if_inexact(self, stacklevel: int = 3) -> None:
        """Warn once if a wrapper holds samples back that it has read, or drops samples itself.

        A wrapper with a state_dict() of its own may save them, unless it runs in workers.
        ``stacklevel``: number of frames from the warning to the caller's line.
        """
        count, run = self.count, self.run
        # A class of the user that iterates (``is_of_order`` is false) can hold samples back, which
        # a resume would lose. After the whole epoch the position is its end in any case.
        if self.is_of_order or count.is_finished:
            return
        own_states = {None, StreamingDataset.state_dict}
        has_own_state = getattr(self.reader, "state_dict", None) not in own_states
        if self.has_warned or not self.is_strict or (has_own_state and not self.workers):
            return
        name = self.reader.__name__
        samples = count.samples - count.dropped  # that the wrapper has read
        # A sample of the wrapper may be one of ours, or a list of ours. If either of its counts is
        # the number that it has read, it holds none back.
        if samples not in count.wrapper_samples:
            self.has_warned = True
            warnings.warn(
                f"the position is not exact: {name} has read {plural(samples, 'sample')} of the "
                f"dataset and returned {count.wrapper_samples[0]:,}. A resume loses the samples "
                "that it holds. Use Packing or dataset.filter(), or save those samples in a "
                f"state_dict() of {name}, with num_workers=0.",
                stacklevel=stacklevel,
            )
        # With a filter, each worker reads other numbers of places for its batches.
        elif count.dropped and run.world().num_ranks * max(1, self.workers) > 1:
            self.has_warned = True
            warnings.warn(
                f"the position is not exact: the filter below {name} leaves each rank and worker "
                f"at a different position. Move the code of {name} into dataset.map() or "
                "collate_fn.",
                stacklevel=stacklevel,
            )


class CountedBatches:
    """Iterator of one epoch of a loader, which counts the batches that it returns.

    When a change of the order (`OrderEdits`) begins to hold, batches that were made ahead of it are
    discarded and made anew.

    An error ends the iteration: workers stop, shards are released, and every further ``next``
    raises the error again. The count is that after the last batch that was returned.

    Args:
        state: What the loader and its iterators share.
        make: Begins an epoch, or the rest of one, and returns its pairs (`BatchInfo`, batch).

    Attributes:
        epoch: Epoch of the iteration.
        is_followed: Whether the caller iterates the next epoch if this one has no batch.
    """

    def __init__(self, state: LoaderState, make: Callable[[], Iterator[Any]]) -> None:
        self.is_followed = False
        self._state, self._run, self._make = state, state.run, make
        self.count = EpochCount(state.microbatches)
        self.epoch = self._run.order.epochs.upcoming(worker_group(), 0).position.epoch
        self._inner = make()
        self._failure: Exception | None = None
        # Value of count.samples at which batches are made anew, and the place in the epoch for
        # batches that tell where they end; see `change_at`.
        self._until, self._until_place = _NEVER, _NEVER
        self._steps: RankSteps | None = None  # set by `_steps_from`, where it is needed
        spec = self._run.order.spec
        # Whether ranks may get different numbers of samples. Their states must be equal all the
        # same, so `RankSteps` then adjusts the counts.
        self._is_uneven = spec.is_uneven and spec.remainder == "short" and self.is_exact
        # With packs, the position after the step of the last batch.
        self._end_of_step: Position | None = None
        self._may_drop = state.drop_last and (state.microbatches > 1 or spec.remainder != "repeat")
        _living.add(self)  # all iterators of this process, for `_leave_to_parent`

    def __iter__(self) -> CountedBatches:
        return self

    def __next__(self) -> Any:
        """Return the next batch, after its bookkeeping was added to ``count``.

        The new counts are computed first and stored last, all at once.
        """
        if self._failure is not None:
            raise repeatable(self._failure).with_traceback(None)
        try:
            count, state = self.count, self._state
            begin_of_wait = state.clock()
            if count.samples >= self._until:
                self._make_anew()
            try:
                info, batch = next(self._inner)
                if info.end is not None and info.end.place > self._until_place:
                    self._make_anew()
                    info, batch = next(self._inner)
                while self._may_drop and self._is_dropped(info):
                    info, batch = next(self._inner)
            except StopIteration:
                self._finish()
                self._check_if_empty()
                raise
            if not count.batches and state.advises_on_lists:
                state.advise_on_lists(batch)
            count.waits.add(begin_of_wait, state.clock(), info.making)
            # Compute the new counts.
            # state_dict() of the loader and of the dataset is about the last active iterator.
            if state.count is not count or self._run.iteration is not count:
                state.take_over(self)
            state.samples_read += info.samples
            if info.dropped or info.is_empty:
                state.add_dropped(info)
            samples = share = count.samples + info.samples
            # Only the first batch sets it: batches that were made anew report a later beginning.
            begin = count.begin or info.begin
            is_finished = count.is_finished
            if self._is_uneven and begin is not None:
                is_full = info.samples >= (state.batch_size or 1)
                share, is_finished = self._steps_from(begin).share_after(samples, is_full=is_full)
            ends_step = state.microbatches == 1 or self._ends_step(samples, begin)
            order_hash, (added, places) = count.order_hash, info.order
            hash_of_steps = count.hash_of_steps
            # Store the new counts. No function is called from here to the return: CPython handles
            # signals at calls, so an interrupt changes all of these counts or none.
            count.samples, count.begin, self._end_of_step = samples, begin, info.end
            order_hash.total = (order_hash.total + added) & SUM_BITS
            order_hash.count += places
            count.batches += 1
            count.empty_batches += info.is_empty
            if ends_step:
                count.share, count.end, count.is_finished = share, info.end, is_finished
                hash_of_steps.total, hash_of_steps.count = order_hash.total, order_hash.count
            count.dropped += info.dropped
            if info.wrapper_samples[0]:  # samples of a wrapper, see EpochCount
                samples_before, entries_before = count.wrapper_samples
                new_samples, new_entries = info.wrapper_samples
                count.wrapper_samples = samples_before + new_samples, entries_before + new_entries
        except StopIteration:
            raise
        except BaseException as error:
            self._fail(error)
            raise
        else:
            return batch

    def _fail(self, error: BaseException) -> None:
        """End the iteration by an error, and stop its workers."""
        inner, self._inner = self._inner, iter(())
        self._failure = repeatable(
            error,
            "To start the next epoch, iterate the loader again. To continue this epoch, call "
            "loader.load_state_dict(loader.state_dict()) first.",
        )
        self.count.is_closed = True
        self._state.inner = None  # its worker processes may be dead
        _close(inner)

    @property
    def is_under_way(self) -> bool:
        """True if batches were given and more may come."""
        return self.count.is_under_way

    @property
    def position(self) -> Position | None:
        """Position of the first step of all ranks that has not begun; None before the first batch.

        After the last batch it is the beginning of the next epoch.
        """
        count, order = self.count, self._run.order
        ranks = self._run.world().num_ranks
        position = order.position_of(count, ranks)
        if position is None or count.begin is None:
            return None
        if position.is_finished:
            return position.following()
        if count.samples <= count.share:
            return position
        # In the middle of a step.
        size = self._state.step_samples
        steps = -(-count.samples // size)  # rounded up
        end = order.positions.after(count.begin, steps * size * ranks)
        return self._end_of_step or end

    def _steps_from(self, begin: Position) -> RankSteps:
        """Return the steps of this rank from ``begin`` on, where the iteration began."""
        if self._steps is None:
            from mds._dataset.steps import rank_steps

            state, run = self._state, self._run
            self._steps = rank_steps(
                run.order,
                run.world(),
                begin,
                batch_size=state.batch_size or 1,
                microbatches=state.microbatches,
                drop_last=state.drop_last,
            )
        return self._steps

    def _ends_step(self, samples: int, begin: Position | None) -> bool:
        """Return True if a step of all ranks ends with the batch that comes next in ``count``.

        The last step may have fewer batches than others. For example, with batches of 4, two in a
        step, and 11 samples of this rank, the third batch ends the second step.

        Args:
            samples: Samples of this rank, including those of the batch.
            begin: Position at which the iteration began.
        """
        if (self.count.batches + 1) % self._state.microbatches == 0:
            return True
        if begin is None or self._run.order.spec.remainder == "mask":
            return False  # the last step is padded
        return self._steps_from(begin).is_end(samples)

    def _is_dropped(self, info: BatchInfo) -> bool:
        """Return True if ``drop_last`` leaves a batch out, because its step is not full.

        A worker leaves out only batches that are not full, and the last step of packs.
        """
        begin = self.count.begin or info.begin
        if begin is None:
            return False
        return self._steps_from(begin).leaves_out(self.count.samples + info.samples)

    def warn_if_inexact(self) -> None:
        """Warn once if a class of the user makes the position inexact."""
        self._state.warn_if_inexact(stacklevel=6)

    @property
    def is_exact(self) -> bool:
        """True if a batch is ``batch_size`` consecutive places of this rank's order.

        Then a change of the order can begin with any batch. It is false if a class of the user
        iterates, or if the loader's batch size is not the dataset's.
        """
        state = self._state
        return state.is_of_order and state.batch_size == self._run.order.spec.batch_size

    def change_at(self, epoch: int, sample: int) -> None:
        """Plan to make batches anew from the place at which the order changes, if in this epoch.

        Workers may have made batches after that place already, in the old order: `__next__`
        discards them when it arrives there. For example, with 2 ranks, ``batch_size=8``, an
        iteration that began at place 0 and a change at place 100, each rank gets 50 samples of the
        old order. Rounded down to whole steps, batches are made anew after 48 samples.

        Args:
            epoch: Epoch of the change.
            sample: Place in that epoch's order, over all ranks, from which the change holds.
        """
        begin = self.count.begin
        if self.count.is_closed or begin is None or begin.epoch != epoch:
            return
        # Batches of packs tell where their step ends. Samples are counted.
        self._until_place = min(self._until_place, sample)
        self._steps = None  # fewer samples may follow than before
        samples = self._steps_from(begin).samples_before(sample)
        if samples is not None:
            self._until = min(self._until, samples)

    def _make_anew(self) -> None:
        """Discard the batches that were made ahead, and continue in the changed order.

        The rest of the epoch begins like a resume at the present position.
        """
        self._until, self._until_place = _NEVER, _NEVER
        position = self.position
        if self.count.is_closed or self.count.is_finished or position is None:
            return
        # Deleting the old iterator stops its workers, which may be in the middle of a batch.
        self._inner = iter(())
        self._run.order.begin_again(self._run.world(), position)
        self._inner = self._make()

    def _finish(self) -> None:
        """Count the end of the epoch."""
        count = self.count
        # Batches report where the iteration began. If none came, the epoch itself knows it.
        if not count.is_closed and count.begin is None:
            start = self._run.order.epochs.last  # None if no epoch has begun
            if start is not None:
                count.begin = start.position
                self._state.take_over(self)
                self._log_nothing_left(start)
        count.share = max(count.share, count.samples)
        if self._is_uneven and count.begin is not None:
            count.share = self._steps_from(count.begin).share_at_end(count.share)
        count.hash_of_steps = count.order_hash
        count.is_closed = count.is_finished = True

    def _log_nothing_left(self, start: ResumePoint) -> None:
        """Log that the first iteration after loading a state has no batches, and say why.

        ``start``: where the iteration began.
        """
        epoch = start.position.epoch
        # The reason below is right only for a state of mds that was saved after a batch.
        if self.is_followed or not start.is_ours or not start.position.place:
            return
        # For users of mosaicml-streaming, and for a rank with fewer batches than others, it is no
        # mistake.
        if self._run.is_strict and not self._is_uneven:
            log.warning(
                "Epoch %d has no batches left, because the state was saved inside the loop, "
                "after the last batch. Epoch %d comes next. Save the state after the loop to "
                "start with the next epoch directly.",
                epoch,
                epoch + 1,
            )

    def _check_if_empty(self) -> None:
        """Warn if a filter dropped every sample of an epoch.

        Raises ConfigError if ``drop_last`` leaves out every batch of a whole epoch, on all ranks.
        """
        batches, state, order = self.count.batches, self._state, self._run.order
        last = order.epochs.last
        if (
            not batches
            and state.drop_last
            and state.is_strict
            and state.is_of_order
            and last is not None
            and not last.position.place
            # A schedule may end the training, edits may skip all steps, a selection may be empty.
            and not order.may_stop
            and not order.epochs.edits
            and order.weights.epoch_size
        ):
            raise state.empty_epoch_error()
        if batches and batches == self.count.empty_batches:
            warnings.warn(
                f"all {plural(batches, 'batch')} of this rank are empty: the filter or "
                "on_error='skip' "
                "dropped every sample. See dataset.skipped for the reasons.",
                stacklevel=3,
            )

    def __del__(self) -> None:
        self.count.is_closed = True

    def __getattr__(self, name: str) -> Any:
        # Tools look into a DataLoader's iterator (for its workers, say): show them the real one.
        if name in {"_inner", "count"}:  # __init__ failed before it had set them
            raise AttributeError(name)
        return getattr(self._inner, name)


def _close(batches: Any) -> None:
    """Stop the maker of batches: a generator, threads, or torch's iterator with its workers."""
    for name in ("close", "_shutdown_workers"):
        end = getattr(batches, name, None)
        if end is not None:
            end()


_living: weakref.WeakSet[CountedBatches] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """End the parent's iterations in a forked child: their workers belong to the parent.

    Every further ``next`` in the child raises an error that says so.
    """
    from mds._dataset.epoch_iterator import fork_error
    from mds._process.fork_safe import abandon

    for batches in list(_living):
        abandon(batches._inner)  # torch would end the parent's workers with it
        batches._inner = iter(())
        batches._failure = fork_error()
        batches.count.is_closed = True


call_in_child(_leave_to_parent)
