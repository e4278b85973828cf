"""Worker threads, each with a bounded queue of batches, which are merged round-robin.

Like a worker process, a thread makes its part of the batches and keeps a few ready. The libraries
that do most of the work (copies of NumPy, decompression, decoding of images, sockets) release the
interpreter's lock, so threads run in parallel, and a batch is passed by reference instead of being
sent to another process. An exception is raised in the place of its batch. No thread polls: the
maker waits while its queue is full, and the consumer while it is empty.
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

from mds._iteration.rows import TensorPool
from mds._loader.messages import BatchIterator
from mds._process.fork_safe import new_condition

if TYPE_CHECKING:
    from mds._loader.batches import Batches

_JOIN_SECONDS = 5.0
# Numbers of iterations, which are groups of the epoch counter. A negative group cannot be one of
# torch's seeds, which are the groups of worker processes.
_iterations = itertools.count()


class ThreadedBatches(IterableDataset[Any]):
    """Dataset of batches that threads make, each iteration with new threads.

    ``batches``: batches of the dataset. ``workers``: number of threads. ``ahead``: number of
    messages that each thread keeps ready.
    """

    def __init__(self, batches: Batches, workers: int, ahead: int) -> None:
        self._batches, self._workers, self._ahead = batches, workers, ahead

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch, start its threads, and return an iterator over its batches."""
        # All threads get the same number, which no other iteration of this process has: -2, -3, ...
        group = -2 - next(_iterations)  # -1 is the group outside of workers
        # Epochs begin here, so that all threads are of the same epoch; batches are made later.
        parts = [
            self._batches.of_thread().begin_epoch(worker, self._workers, group, TensorPool())
            for worker in range(self._workers)
        ]
        workers = ThreadedWorkers([functools.partial(iter, part) for part in parts], self._ahead)
        return BatchIterator(workers, self._workers)


class _Failed(NamedTuple):
    """Last item of a queue: the error that ended its thread's batches."""

    error: BaseException


_END = object()  # last item of a queue whose thread has no more batches


class ThreadedWorkers:
    """Iterator over the batches of several threads, in turn; a context manager.

    Args:
        makers: Functions that return an iterator, each called and exhausted in its own thread.
        ahead: Batches that each thread keeps ready.

    A thread that has no more batches is passed over.
    """

    def __init__(self, makers: Sequence[Callable[[], Iterator[Any]]], ahead: int) -> None:
        self._queues = [_BoundedQueue(ahead) for _ in makers]
        self._running = collections.deque(self._queues)
        self._threads = [
            threading.Thread(target=queue.run, args=(make,), name=f"mds-loader-{i}", daemon=True)
            for i, (queue, make) in enumerate(zip(self._queues, makers, strict=True))
        ]
        # Threads must stop when a loop is left early and the iterator is deleted. They must also
        # stop at the end of the program: torch aborts if one of its threads is killed.
        self._stop = weakref.finalize(self, _stop_all, self._queues, self._threads)
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next batch of the thread whose turn it is; wait until the batch is made."""
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
    """Queue of at most ``ahead`` batches between the thread that makes and the one that takes them.

    Besides batches it holds one last item: `_END`, or `_Failed` with an error.

    ``ahead``: maximum number of batches, at least 1. One condition wakes both threads.
    """

    def __init__(self, ahead: int) -> None:
        self._ahead = max(1, ahead)
        self._items: collections.deque[Any] = collections.deque()
        self._changed = new_condition()
        self._stopped = False

    def run(self, make: Callable[[], Iterator[Any]]) -> None:
        """Make batches until there are no more or the consumer stops; the thread runs this.

        ``make``: function that returns an iterator of batches.
        """
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
            # A generator releases its shards here, in its own thread.
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def _offer(self, item: Any) -> bool:
        """Wait until the queue is not full, and add a batch; return False if it was stopped."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < self._ahead or self._stopped)
            if self._stopped:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def _end(self, item: Any) -> None:
        """Add the last item, `_END` or an error, even to a full queue."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def take(self) -> Any:
        """Return the next batch, or the error, or the end; wait until there is one."""
        with self._changed:
            # The thread always adds a last item, also after an error.
            self._changed.wait_for(lambda: self._items or self._stopped)
            if not self._items:
                return _END
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def stop(self) -> None:
        """Discard the batches, and stop the making thread at its next batch."""
        with self._changed:
            self._stopped = True
            self._items.clear()
            self._changed.notify_all()


def _stop_all(queues: Sequence[_BoundedQueue], threads: Sequence[threading.Thread]) -> None:
    """Stop the makers, and wait up to `_JOIN_SECONDS` for each thread but this one."""
    for queue in queues:
        queue.stop()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)
