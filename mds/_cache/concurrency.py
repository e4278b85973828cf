"""A pool of threads for the most urgent work, and bounds on bytes in flight and on slow looks.

Unlike those of `concurrent.futures`, the threads are daemons: a transfer that hangs does not keep
the interpreter from exiting. Work is a function with a deadline, and the nearest deadline comes
first. What the function returns or raises is the result of its future.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from mds._process.fork_safe import new_condition

T = TypeVar("T")

_SLOW = 0.001  # seconds of a slow look


class Pool:
    """Pool of up to ``threads`` threads, started when there is work; call `close` when done.

    ``name`` is the prefix of the threads' names (default "mds-fetch").
    """

    def __init__(self, threads: int, name: str = "mds-fetch") -> None:
        self.threads = threads
        self._state = _State(threads)
        self._name = name
        # The threads refer to the state and not to the pool, so a pool that is never closed is
        # collected, and its threads end.
        self._finalizer = weakref.finalize(self, self._state.stop)
        self._finalizer.atexit = False  # at exit, daemon threads end by themselves

    @property
    def waiting(self) -> int:
        """Number of tasks that no thread has begun."""
        return len(self._state.work)

    def submit(self, function: Callable[..., T], *args: Any, deadline: float = 0.0) -> Future[T]:
        """Schedule ``function(*args)`` in a thread and return its future.

        Tasks with the lowest ``deadline`` (any number, default 0.0) run first. In a closed pool,
        the future is cancelled.
        """
        future: Future[T] = Future()
        state = self._state
        with state.changed:
            if state.is_stopped:
                future.cancel()
                return future
            # Among equal deadlines the number decides: first in, first out.
            heapq.heappush(state.work, (deadline, next(state.numbers), future, function, args))
            if state.idle:
                state.changed.notify()
            elif state.running < state.threads:
                state.running += 1
                threading.Thread(
                    target=_run, args=(state,), name=f"{self._name}-{state.running}", daemon=True
                ).start()
        return future

    def close(self) -> None:
        """Cancel work that has not begun, and let the threads end. Closing twice is fine."""
        self._state.stop()  # not the finalizer: it runs once, and a signal may interrupt it


class _State:
    """State that a pool shares with its threads.

    ``threads`` is the most threads that the pool may start.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.owner = os.getpid()
        self.running = self.idle = 0  # number of started threads, and of those that wait for work
        self.is_stopped = False
        self.changed = new_condition()  # its lock protects everything here
        self.numbers = itertools.count()  # of the tasks
        # A heap: the task with the nearest deadline is the first item.
        self.work: list[tuple[float, int, Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def stop(self) -> None:
        """Cancel work that has not begun and wake all threads."""
        if self.owner != os.getpid():
            return  # in a forked child there are no threads, and the lock may be taken
        with self.changed:
            self.is_stopped = True
            work, self.work = self.work, []
            self.changed.notify_all()
        for _, _, future, _, _ in work:
            future.cancel()


def _run(state: _State) -> None:
    """Run work until the pool is closed; the main function of a thread."""
    while True:
        with state.changed:
            state.idle += 1
            state.changed.wait_for(lambda: state.work or state.is_stopped)
            state.idle -= 1
            if state.is_stopped:
                return
            _, _, future, function, args = heapq.heappop(state.work)
        if not future.set_running_or_notify_cancel():
            continue
        try:
            result = function(*args)
        except BaseException as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)
        else:
            future.set_result(result)
        del future, function, args  # a thread that waits keeps no results alive


class ByteSemaphore:
    """Bound on the bytes that threads hold at one time; one larger request is allowed alone.

    ``get_limit`` returns the bound in bytes, which may change.
    """

    def __init__(self, get_limit: Callable[[], int]) -> None:
        self._get_limit = get_limit
        self._held_bytes = 0
        self._changed = new_condition()

    @contextlib.contextmanager
    def acquire(self, size: int) -> Iterator[None]:
        """Wait until ``size`` bytes are free, and hold them while the block runs.

        The block must not acquire bytes of the same semaphore, or threads could deadlock.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: not self._held_bytes or self._held_bytes + size <= self._get_limit()
            )
            self._held_bytes += size
        try:
            yield
        finally:
            with self._changed:
                self._held_bytes -= size
                self._changed.notify_all()


class Paced(Generic[T]):
    """The last result of a function that may be slow, so that it takes a part of the time only.

    A function is called each time, unless it took more than a millisecond twice in a row: once may
    be a hiccup of the machine, and what it returned would soon be out of date.

    Args:
        pause: Time between two calls, in lengths of the shorter one of the last two (default 100).
    """

    def __init__(self, pause: float = 100) -> None:
        self._pause = pause
        self._results: list[T] = []  # the last one, none before the first call
        self._until = 0.0  # time of `time.monotonic` until which the result is used
        self._seconds = 0.0  # that the last call took

    def get(self, function: Callable[[], T]) -> T:
        """Return the result of ``function``: of a call now, or of the last one if it was recent."""
        if self._results and time.monotonic() < self._until:
            return self._results[0]
        self._until = math.inf  # other threads do not wait for this call
        # The time of the thread: it may have to wait for others.
        begun, shorter = time.thread_time(), 0.0
        try:
            result = function()
            self._results = [result]
            seconds = time.thread_time() - begun
            shorter, self._seconds = min(seconds, self._seconds), seconds
        finally:
            # Unless `forget` was called meanwhile: the result may be of an earlier state.
            if self._until == math.inf:
                self._until = time.monotonic() + self._pause * shorter if shorter >= _SLOW else 0.0
        return result

    def forget(self) -> None:
        """Call the function at the next `get`."""
        self._until = 0.0
