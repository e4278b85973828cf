"""Batches of an epoch as the trainer gets them: their count, which is the position, and waits.

A batch counts when the trainer receives it, not when it is made, so batches that workers made ahead
are not part of the position. A step of the optimizer may take several batches (``microbatches``).
Then the position moves only with the last batch of a step: in its middle, nothing was learned yet
from its samples.

*Places* are the numbers of samples in the order of an epoch, from 0, over all ranks. A rank's batch
of 8 samples takes 8 places. With ``remainder="short"``, the last batch of some ranks is smaller or
missing: then each rank counts as many places as the rank with the most (`CountedBatches._level`),
so that all ranks save the same state.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mds._loader.rows import SUM_BITS
from mds._process.fork_safe import call_in_child
from mds._redaction import get_logger
from mds.errors import repeatable
from mds.plan import OrderHash
from mds.report._account import WaitAccount

if TYPE_CHECKING:
    from mds._dataset.order_state import OrderState
    from mds._loader.rows import BatchInfo
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
        is_over: Whether the iteration has ended, by the end of the epoch, an error or deletion.
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
        self.is_over = self.is_finished = False
        self.worker_place: None = None  # a loader counts all workers
        self.waits = WaitAccount()

    @property
    def is_under_way(self) -> bool:
        """Whether batches were given and more may come."""
        return self.batches > 0 and not self.is_over

    def position(self, order: OrderState, ranks: int) -> Position | None:
        """Return the position of all ranks after the last step; None before the first batch."""
        begin = self.begin
        if begin is None:
            return None
        end = self.end or order.position_after(begin, self.share * ranks)
        return end._replace(is_finished=self.is_finished)


class CountedBatches:
    """Iterator of one epoch of a loader, which counts the batches that it returns.

    When a change of the order (`OrderEdits`) begins to hold, batches that were made ahead of it are
    discarded and made anew.

    An error ends the iteration: workers stop, shards are released, and every further ``next``
    raises the error again. The count is that after the last batch that was returned.

    Args:
        loader: StreamingDataLoader of the batches.
        inner: Iterator of pairs (`BatchInfo`, batch).

    Attributes:
        is_followed: Whether the caller iterates the next epoch if this one has no batch.
    """

    def __init__(self, loader: Any, inner: Iterator[Any]) -> None:
        self.is_followed = False
        self._loader = loader
        self._inner: Iterator[Any] = inner
        self._clock = loader._clock
        self._microbatches: int = loader.microbatches
        self.count = EpochCount(self._microbatches)
        self._failure: Exception | None = None
        # Value of count.samples at which batches are made anew, see `change_at`.
        self._until = _NEVER
        self._streaming = streaming = loader._streaming
        # Whether ranks may get different numbers of samples. Their states must be equal all the
        # same, so `_level` then adjusts the counts.
        self._is_uneven = (
            streaming.remainder == "short" and streaming.packing is None and self.is_exact
        )
        # Fewest and most samples of a rank from the beginning of this iteration on; None until
        # `_find_shares` computes them.
        self._shares: tuple[int, int] | None = None
        # With packs, the position after the step of the last batch.
        self._end_of_step: Position | None = None
        # Value of count.samples after which whole steps are left out by ``drop_last``; None until
        # `_is_dropped` computes it. A worker leaves out only batches that are not full.
        self._most_samples: int | None = None
        self._may_drop = loader.drop_last and (
            loader.microbatches > 1 or streaming.remainder != "repeat"
        )
        _living.add(self)  # all iterators of this process, for `_leave_to_parent`

    def __iter__(self) -> CountedBatches:
        return self

    def __next__(self) -> Any:
        """Return the next batch, after its bookkeeping was added to ``count``.

        The new counts are computed first and stored last, all at once.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        try:
            count = self.count
            begin_of_wait = self._clock()
            if count.samples >= self._until:
                self._make_anew()
            try:
                info, batch = next(self._inner)
                while self._may_drop and self._is_dropped(info):
                    info, batch = next(self._inner)
            except StopIteration:
                self._finish()
                self._warn_if_empty()
                raise
            count.waits.add(begin_of_wait, self._clock(), info.making)
            # Compute the new counts.
            # state_dict() of the loader and of the dataset is about the last active iterator.
            if self._loader._count is not count or self._streaming._loop_count is not count:
                self._loader._take_over(self)
            self._loader._samples_read += info.samples
            if info.dropped or info.is_empty:
                self._loader._note_dropped(info)
            samples = share = count.samples + info.samples
            # Only the first batch sets it: batches that were made anew report a later beginning.
            begin = count.begin or info.begin
            is_finished = count.is_finished
            if self._is_uneven:
                share, is_finished = self._level(info.samples, samples, begin)
            ends_step = self._microbatches == 1 or self._ends_step(samples, begin)
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
        self.count.is_over = True
        self._loader._inner = None  # its worker processes, which may be dead
        _close(inner)

    @property
    def is_under_way(self) -> bool:
        """Whether batches were given and more may come."""
        return self.count.is_under_way

    @property
    def position(self) -> Position | None:
        """Position of the first step of all ranks that has not begun; None before the first batch.

        After the last batch it is the beginning of the next epoch.
        """
        count, order = self.count, self._loader._streaming._order
        position = count.position(order, self._ranks)
        if position is None or count.begin is None:
            return None
        if position.is_finished:
            return position.following()
        if count.samples <= count.share:
            return position
        # In the middle of a step.
        steps = -(-count.samples // self._step_samples)  # rounded up
        end = order.position_after(count.begin, steps * self._step_samples * self._ranks)
        return self._end_of_step or end

    @property
    def _step_samples(self) -> int:
        """Number of samples of this rank in a step of the optimizer."""
        size: int = self._loader.batch_size or 1
        return size * self._microbatches

    def _ends_step(self, samples: int, begin: Position | None) -> bool:
        """Whether a step of all ranks ends with the batch that comes next in ``count``.

        The last step may have fewer batches than others. For example, with batches of 4, two in a
        step, and 11 samples of this rank, the third batch ends the second step.

        Args:
            samples: Samples of this rank, including those of the batch.
            begin: Position at which the iteration began.
        """
        if (self.count.batches + 1) % self._microbatches == 0:
            return True
        streaming = self._loader._streaming
        if begin is None or streaming.packing is not None or streaming.remainder == "mask":
            return False  # the last step is padded
        _, most_samples = self._find_shares(begin)
        return self._batches_of(samples) >= self._batches_of(most_samples)

    def _batches_of(self, samples: int) -> int:
        """Return the number of batches that a rank gets of so many samples."""
        size: int = self._loader.batch_size
        if self._loader.drop_last:
            return samples // self._step_samples * self._microbatches
        return -(-samples // size)  # rounded up

    def _is_dropped(self, info: BatchInfo) -> bool:
        """Whether ``drop_last`` leaves a batch out, because its step is not full on this rank.

        Unless ranks repeat samples, all of them leave the step out if it is not full on one.
        """
        streaming, begin = self._loader._streaming, self.count.begin or info.begin
        if begin is None or streaming.packing is not None:
            return False  # workers leave out the last step of packs
        if self._most_samples is None and streaming.remainder != "repeat":
            self._most_samples = streaming._order.full_step_samples(streaming._world(), begin)
        elif self._most_samples is None:
            remaining = streaming._order.remaining_samples(streaming._world(), begin)
            self._most_samples = remaining - remaining % self._step_samples
        return self.count.samples + info.samples > self._most_samples

    def warn_if_inexact(self) -> None:
        """Warn once if a class of the user makes the position inexact."""
        self._loader._warn_of_wrapper(stacklevel=5)

    @property
    def is_exact(self) -> bool:
        """Whether a batch is ``batch_size`` consecutive places of this rank's order.

        Then a change of the order can begin with any batch. It is false if a class of the user
        iterates, or if the loader's batch size is not the dataset's.
        """
        loader = self._loader
        return bool(
            loader._batches.is_of_order and loader.batch_size == loader._streaming.batch_size
        )

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
        if self.count.is_over or begin is None or begin.epoch != epoch:
            return
        order = self._loader._streaming._order
        # Samples that this rank gets in this iteration before the change; skipped ones do not come.
        samples: int = order.given_before(epoch, begin.place, sample) // self._ranks
        self._shares = self._most_samples = None  # fewer samples may follow than before
        # Round down to a whole step: the change may begin inside a step if the state was saved
        # with another global batch.
        self._until = min(self._until, samples - samples % self._step_samples)

    @property
    def _ranks(self) -> int:
        return int(self._loader._streaming.num_ranks)

    def _make_anew(self) -> None:
        """Discard the batches that were made ahead, and continue in the changed order.

        The rest of the epoch begins like a resume at the present position.
        """
        self._until = _NEVER
        position = self.position
        if self.count.is_over or self.count.is_finished or position is None:
            return
        streaming = self._loader._streaming
        # Deleting the old iterator stops its workers, which may be in the middle of a batch.
        self._inner = iter(())
        streaming._order.begin_again(streaming._world(), position)
        self._inner = self._loader._make_batches()

    def _finish(self) -> None:
        """Count the end of the epoch."""
        count, loader = self.count, self._loader
        # Batches report where the iteration began. If none came, the epoch itself knows it.
        if not count.is_over and count.begin is None:
            start = loader._streaming._order.epochs.last  # None if no epoch has begun
            if start is not None:
                count.begin = start.position
                loader._take_over(self)
                self._log_nothing_left(start)
        count.share = max(count.share, count.samples)
        if self._is_uneven and count.begin is not None:
            _, most_samples = self._find_shares(count.begin)
            count.share = max(count.share, most_samples)  # equal on all ranks
        count.hash_of_steps = count.order_hash
        count.is_over = count.is_finished = True

    def _log_nothing_left(self, start: ResumePoint) -> None:
        """Log that the first iteration after loading a state has no batches, and say why.

        ``start``: where the iteration began.
        """
        streaming, epoch = self._loader._streaming, start.position.epoch
        # The reason below is right only for a state of mds that was saved after a batch.
        if self.is_followed or not start.is_ours or not start.position.place:
            return
        # For users of mosaicml-streaming, and for a rank with fewer batches than others, it is no
        # mistake.
        if streaming._is_strict and not self._is_uneven:
            log.warning(
                "Epoch %d has no batches left, because the state was saved inside the loop, "
                "after the last batch. Epoch %d comes next. Save the state after the loop to "
                "start with the next epoch directly.",
                epoch,
                epoch + 1,
            )

    def _level(self, added: int, samples: int, begin: Position | None) -> tuple[int, bool]:
        """Return ``share`` and ``is_finished`` of `EpochCount` after a batch, equal on all ranks.

        For example, with ``batch_size=8``, rank 0 gets batches of 8, 8 and 1 samples in the rest of
        the epoch, and rank 1 gets batches of 8 and 8. After two batches ``share`` is 16 on both.
        Then rank 0 gets its third batch, while rank 1 finds that the epoch has ended (`_finish`).
        So this batch makes ``share`` 17 and the epoch finished, as on rank 1. If rank 1 gets 8, 8
        and 2 samples, ``share`` is 18 on both after the third batch.

        Args:
            added: Samples of the batch.
            samples: Samples of this rank, including those of the batch.
            begin: Position at which the iteration began.
        """
        fewest, largest = self._find_shares(begin)  # samples of a rank: 16 and 17 in the example
        if added >= self._loader.batch_size and samples < largest:  # not the last batch
            return samples, self.count.is_finished
        return max(samples, largest), self._batches_of(fewest) < self._batches_of(largest)

    def _find_shares(self, begin: Position | None) -> tuple[int, int]:
        """Return the fewest and the most samples that a rank gets in this iteration.

        ``begin``: position at which the iteration began.
        """
        if self._shares is None:
            assert begin is not None
            streaming = self._loader._streaming
            self._shares = streaming._order.shares(streaming._world(), begin)
        return self._shares

    def _warn_if_empty(self) -> None:
        """Warn if a filter dropped every sample of an epoch."""
        batches = self.count.batches
        if batches and batches == self.count.empty_batches:
            warnings.warn(
                f"all {batches} batches of this rank are empty: the filter or on_error='skip' "
                "dropped every sample. See dataset.skipped for the reasons.",
                stacklevel=3,
            )

    def __del__(self) -> None:
        self.count.is_over = True

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
        batches.count.is_over = True


call_in_child(_leave_to_parent)
