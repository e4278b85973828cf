"""Batches of an epoch as the trainer gets them: counted, and their waits charged."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mds.errors import repeatable
from mds.loader.rows import SUM_BITS
from mds.plan import OrderHash
from mds.process.fork_safe import call_in_child
from mds.redaction import get_logger
from mds.report import WaitAccount

if TYPE_CHECKING:
    from mds.dataset.order_state import OrderState
    from mds.plan.state import Position, ResumePoint

log = get_logger("mds.loader")

_NEVER = 1 << 62


class EpochCount:
    """Counts of one iteration of a loader."""

    def __init__(self) -> None:
        self.samples = self.steps = self.empty_steps = 0
        self.share = 0  # samples by which the position of all ranks is counted
        self.order_hash = OrderHash()
        self.begin: Position | None = None  # where this iteration began
        self.end: Position | None = None  # of packs: after the last batch
        self.dropped = 0  # samples, by a filter
        self.wrapper_samples = (0, 0)  # see BatchInfo
        self.is_over = self.is_finished = False  # over: also where the iteration was left
        self.waits = WaitAccount()

    @property
    def is_under_way(self) -> bool:
        """Whether batches were given and more may come."""
        return self.steps > 0 and not self.is_over

    def position(self, order: OrderState, ranks: int) -> Position | None:
        """Return the position after the last batch, with so many ranks; None before the first."""
        begin = self.begin
        if begin is None:
            return None
        end = self.end or order.position_after(begin, self.share * ranks)
        return end._replace(is_finished=self.is_finished)


class CountedBatches:
    """Iterator of one epoch of a loader, which counts what the batches took of the order.

    Where the order is changed meanwhile, batches that were made beforehand are let go of when the
    change begins to hold, and made anew.

    An error ends the iteration: workers stop, shards are given back, and every further ``next``
    raises the error again. The count stays behind the last batch that was handed out.
    """

    def __init__(self, loader: Any, inner: Iterator[Any]) -> None:
        self._loader = loader
        self._inner: Iterator[Any] = inner
        self._clock = loader._clock
        self.count = EpochCount()
        self._failure: Exception | None = None
        self._until = _NEVER  # samples of this rank after which batches are made anew
        streaming = loader._streaming
        # Ranks may get different numbers of samples, and their states shall be the same.
        self._is_uneven = streaming.exact is True and streaming.packing is None and self.is_exact
        # Fewest and most samples of a rank from the beginning of this iteration on.
        self._shares: tuple[int, int] | None = None
        _living.add(self)

    def __iter__(self) -> CountedBatches:
        return self

    def __next__(self) -> Any:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        try:
            count = self.count
            begin_of_wait = self._clock()
            if count.samples >= self._until:
                self._make_anew()
            try:
                info, batch = next(self._inner)
            except StopIteration:
                self._finish()
                self._warn_if_empty()
                raise
            count.waits.add(begin_of_wait, self._clock(), info.making)
            if self._loader._count is not count:  # the state is of what gave a batch last
                self._loader._take_over(self)
            self._loader._samples_read += info.samples
            if info.dropped or info.is_empty:
                self._loader._note_dropped(info)
            samples, share = count.samples + info.samples, count.share + info.samples
            begin = count.begin or info.begin  # and not of batches that were made anew
            is_finished = count.is_finished
            if self._is_uneven:
                share, is_finished = self._level(info.samples, samples, share, begin)
            order_hash, (added, places) = count.order_hash, info.order
            # Without a call from here on: a signal arrives before all of it or after the return.
            count.samples, count.share, count.begin = samples, share, begin
            order_hash.total = (order_hash.total + added) & SUM_BITS
            order_hash.count += places
            count.steps += 1
            count.empty_steps += info.is_empty
            count.end, count.is_finished = info.end, is_finished
            count.dropped += info.dropped
            if info.wrapper_samples[0]:
                entries, listed = count.wrapper_samples
                more_entries, more_listed = info.wrapper_samples
                count.wrapper_samples = entries + more_entries, listed + more_listed
        except StopIteration:
            raise
        except BaseException as error:
            self._fail(error)
            raise
        else:
            return batch

    def _fail(self, error: BaseException) -> None:
        """End the iteration by an error; nothing of it stays open."""
        inner, self._inner = self._inner, iter(())
        self._failure = repeatable(
            error,
            "Iterate the loader again for the next epoch; to go on with this one, call "
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
        """Position of all ranks that comes next; None before the first batch."""
        position = self.count.position(self._loader._streaming._order, self._ranks)
        if position is None or not position.is_finished:
            return position
        return position.following()

    @property
    def is_exact(self) -> bool:
        """Whether every batch is one of the order's, so that a change can begin with any."""
        loader = self._loader
        return bool(
            loader._batches.is_of_order and loader.batch_size == loader._streaming.batch_size
        )

    def change_at(self, epoch: int, sample: int) -> None:
        """Make batches anew from a sample of all ranks on, if that is in this epoch."""
        begin = self.count.begin
        if self.count.is_over or begin is None or begin.epoch != epoch:
            return
        order = self._loader._streaming._order
        mine: int = order.given_before(epoch, begin.place, sample) // self._ranks
        # A batch may begin before it, where the state was of another global batch.
        self._shares = None  # fewer samples may follow than before
        self._until = min(self._until, mine - mine % (self._loader.batch_size or 1))

    @property
    def _ranks(self) -> int:
        return int(self._loader._streaming.num_ranks)

    def _make_anew(self) -> None:
        """Drop batches that were made beforehand, and continue by the order as it is now."""
        self._until = _NEVER
        position = self.position
        if self.count.is_over or self.count.is_finished or position is None:
            return
        streaming = self._loader._streaming
        self._inner = iter(())  # ends workers, which may be in the middle of a batch
        streaming._order.begin_again(streaming._world(), position)
        self._inner = self._loader._make_batches()

    def _finish(self) -> None:
        """Note that the iteration has ended."""
        count, loader = self.count, self._loader
        if not count.is_over and count.begin is None:  # no batch came
            start = loader._streaming._order.epochs.last
            if start is not None:
                count.begin = start.position
                loader._take_over(self)
                self._log_nothing_left(start)
        if self._is_uneven and count.begin is not None:
            count.share = max(count.share, self._find_shares(count.begin)[1])
        count.is_over = count.is_finished = True

    def _log_nothing_left(self, start: ResumePoint) -> None:
        """Log why the first iteration after a state was loaded has no batches."""
        streaming, epoch = self._loader._streaming, start.position.epoch
        if not start.is_ours or not start.position.place:
            return
        if streaming._is_strict and not self._is_uneven:
            log.warning(
                "Epoch %d has no batches left: the state was saved after its last batch, inside "
                "the loop over it. Epoch %d comes next. Save the state after the loop to go on "
                "with it.",
                epoch,
                epoch + 1,
            )

    def _level(
        self, added: int, samples: int, share: int, begin: Position | None
    ) -> tuple[int, bool]:
        """Count the last batch of an epoch as that of the rank with the most samples.

        ``samples`` and ``share`` are the counts after a batch of ``added`` samples. Return the
        share, and whether the iteration has ended: where another rank has no such batch its
        iteration has ended, and so has this one.
        """
        fewest, largest = self._find_shares(begin)
        size = self._loader.batch_size
        if added >= size and samples < largest:
            return share, self.count.is_finished
        if self._loader.drop_last:
            return max(share, largest), fewest // size < largest // size
        return max(share, largest), -(-fewest // size) < -(-largest // size)

    def _find_shares(self, begin: Position | None) -> tuple[int, int]:
        """Return the fewest and the most samples of a rank in this iteration."""
        if self._shares is None:
            assert begin is not None
            streaming = self._loader._streaming
            self._shares = streaming._order.shares(streaming._world(), begin)
        return self._shares

    def _warn_if_empty(self) -> None:
        """Say when a filter left nothing of an epoch."""
        steps = self.count.steps
        if steps and steps == self.count.empty_steps:
            warnings.warn(
                f"all {steps} batches of this rank are empty: the filter, or on_error='skip',"
                " dropped every sample. dataset.skipped says why.",
                stacklevel=3,
            )

    def __del__(self) -> None:
        self.count.is_over = True

    def __getattr__(self, name: str) -> Any:
        # Tools look into a DataLoader's iterator (for its workers, say): show them the real one.
        if name in {"_inner", "count"}:  # of one that was not made
            raise AttributeError(name)
        return getattr(self._inner, name)


def _close(batches: Any) -> None:
    """End what makes batches: a generator, threads, or the worker processes of torch."""
    for name in ("close", "_shutdown_workers"):
        end = getattr(batches, name, None)
        if end is not None:
            end()


_living: weakref.WeakSet[CountedBatches] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """End the iterations of the parent process, whose threads and workers make the batches."""
    from mds.dataset.epoch_iterator import of_parent
    from mds.process.fork_safe import abandon

    for batches in list(_living):
        abandon(batches._inner)  # torch would end the parent's workers with it
        batches._inner = iter(())
        batches._failure = of_parent()
        batches.count.is_over = True


call_in_child(_leave_to_parent)
