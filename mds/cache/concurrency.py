"""Threads that do what is most urgent, and are no reason for a process to stay.

Unlike those of `concurrent.futures` they are daemons: a transfer that hangs does not keep the
interpreter from ending. Work is a function and a deadline; the nearest deadline goes first.
Everything that a function returns or raises ends in its Future.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from mds.process.fork_safe import new_condition

T = TypeVar("T")


class Pool:
    """Up to ``threads`` threads, started as work comes; `close` when done."""

    def __init__(self, threads: int, name: str = "mds-fetch") -> None:
        self.threads = threads
        self._state = _State(threads)
        self._name = name
        # A pool that is never closed ends too: threads hold the state and not the pool.
        self._finalizer = weakref.finalize(self, self._state.stop)
        self._finalizer.atexit = False

    @property
    def waiting(self) -> int:
        """Number of tasks that no thread has begun."""
        return len(self._state.work)

    def submit(self, function: Callable[..., T], *args: Any, deadline: float = 0.0) -> Future[T]:
        """Schedule ``function(*args)`` before work with a later deadline."""
        future: Future[T] = Future()
        state = self._state
        with state.changed:
            if state.is_stopped:
                future.cancel()
                return future
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
        """Drop the work that has not begun and let the threads end. Closing twice is fine."""
        self._state.stop()  # the finalizer, which works once, stays: a signal may come in between


class _State:
    """State that the threads share."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.owner = os.getpid()
        self.running = self.idle = 0
        self.is_stopped = False
        self.changed = new_condition()
        self.numbers = itertools.count()
        self.work: list[tuple[float, int, Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def stop(self) -> None:
        """Cancel what waits and wake all threads."""
        if self.owner != os.getpid():
            return  # a forked child's copy: there are no threads here, and the lock may be taken
        with self.changed:
            self.is_stopped = True
            work, self.work = self.work, []
            self.changed.notify_all()
        for _, _, future, _, _ in work:
            future.cancel()


def _run(state: _State) -> None:
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
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            future.set_exception(error)
        else:
            future.set_result(result)
        del future, function, args


class ByteSemaphore:
    """Lets in so many bytes at a time, and one alone however large it is."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._get_limit = limit
        self._inside = 0
        self._changed = new_condition()

    @contextlib.contextmanager
    def acquire(self, size: int) -> Iterator[None]:
        """Wait until ``size`` bytes fit in, and hold them for the block.

        Those inside never wait for others at a gate, so they come out.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: not self._inside or self._inside + size <= self._get_limit()
            )
            self._inside += size
        try:
            yield
        finally:
            with self._changed:
                self._inside -= size
                self._changed.notify_all()
