"""Worker threads, each with a bounded queue of batches, merged round-robin.

A worker thread does what a worker process does: it makes its own part of the batches and keeps
a few ready. The libraries that do the work (numpy's copies, decompression, image decoding, sockets)
release the interpreter's lock, so the threads run side by side, and a batch is handed over as a
reference instead of crossing to another process. An error travels as the exception and is raised
where its batch would have come. No thread polls: a full queue sleeps until a batch is taken, an
empty one until a batch is there.
"""

from __future__ import annotations

import collections
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import IterableDataset

from mds.loader.messages import BatchIterator
from mds.loader.tensor_buffers import TensorPool
from mds.process.fork_safe import new_condition

if TYPE_CHECKING:
    from mds.loader.batches import Batches

_JOIN_SECONDS = 5.0
# Each iteration is a group in the epoch counter; its sign tells it from torch's seeds.
_iterations = itertools.count()


class ThreadedBatches(IterableDataset[Any]):
    """Batches of ``workers`` threads of this process, as of so many worker processes."""

    def __init__(self, batches: Batches, workers: int, ahead: int) -> None:
        self._batches, self._workers, self._ahead = batches, workers, ahead

    def __iter__(self) -> Iterator[Any]:
        group = -2 - next(_iterations)
        parts = [
            self._batches.of_thread().begin_epoch(worker, self._workers, group, TensorPool())
            for worker in range(self._workers)
        ]
        workers = ThreadedWorkers([functools.partial(iter, part) for part in parts], self._ahead)
        return BatchIterator(workers, self._workers)


class _Failed(NamedTuple):
    error: BaseException


_END = object()


class ThreadedWorkers:
    """An iterator over the batches of several makers, in turn; a context manager.

    ``makers`` are functions that give an iterator; each is called and exhausted in a thread of its
    own. ``ahead`` batches are kept ready in each queue. One that is exhausted is passed over.
    """

    def __init__(self, makers: Sequence[Callable[[], Iterator[Any]]], ahead: int) -> None:
        self._queues = [_BoundedQueue(ahead) for _ in makers]
        self._running = collections.deque(self._queues)
        self._threads = [
            threading.Thread(target=queue.run, args=(make,), name=f"mds-loader-{i}", daemon=True)
            for i, (queue, make) in enumerate(zip(self._queues, makers, strict=True))
        ]
        # A loop that is left early drops the iterator: its threads must stop with it. The
        # same at the interpreter's end, which would kill a thread inside torch, and torch aborts.
        self._stop = weakref.finalize(self, _stop_all, self._queues, self._threads)
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while self._running:
            queue = self._running[0]
            item = queue.take()
            if item is _END:
                self._running.popleft()
                continue
            if isinstance(item, _Failed):
                self.close()
                raise item.error
            self._running.rotate(-1)
            return item
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Stop the threads and wait for them; closing twice is fine."""
        self._running.clear()
        _stop_all(self._queues, self._threads)
        self._stop.detach()  # not before: a signal may come in between

    def __enter__(self) -> ThreadedWorkers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ThreadedWorkers: {len(self._running)} of {len(self._queues)} running>"


class _BoundedQueue:
    """A bounded queue between the thread that makes batches and the one that takes them."""

    def __init__(self, ahead: int) -> None:
        self._ahead = max(1, ahead)
        self._items: collections.deque[Any] = collections.deque()
        self._changed = new_condition()
        self._stopped = False

    def run(self, make: Callable[[], Iterator[Any]]) -> None:
        """Make batches until there are no more or the consumer stops."""
        batches: Iterator[Any] = iter(())
        try:
            batches = make()
            for item in batches:
                if not self._offer(item):
                    return
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that takes
            self._end(_Failed(error))
        else:
            self._end(_END)
        finally:
            # A generator gives back its shards here, in its own thread.
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def _offer(self, item: Any) -> bool:
        """Wait for room and leave the batch; False when the consumer has stopped."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < self._ahead or self._stopped)
            if self._stopped:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def _end(self, item: Any) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def take(self) -> Any:
        """Return the next batch, or the error, or the end; wait until there is one."""
        with self._changed:
            # The thread always leaves a last item, whatever happens to it.
            self._changed.wait_for(lambda: self._items or self._stopped)
            if not self._items:
                return _END
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def stop(self) -> None:
        """Stop the maker at its next batch."""
        with self._changed:
            self._stopped = True
            self._items.clear()
            self._changed.notify_all()


def _stop_all(queues: Sequence[_BoundedQueue], threads: Sequence[threading.Thread]) -> None:
    for queue in queues:
        queue.stop()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)
