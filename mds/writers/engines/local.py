"""Process pool of this machine, spawned.

Each process is spawned (no fork, so threads and locks of the caller do no harm), talks over its
own pipe, and ends when the process that started it does, however that ended. A thread here per
process there waits for answers; a process that dies is an error that says how it died.
"""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import signal
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from mds.errors import WriterError
from mds.process.fork_safe import end_with_parent, new_lock
from mds.writers.engines.base import Engine


class LocalEngine(Engine):
    """Engine of local processes, which are started when there is a call to run."""

    def __init__(self, workers: int) -> None:
        self.slots = workers
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._lock = new_lock()
        self._is_closed = False
        self._threads = ThreadPoolExecutor(workers, "mds-engine")

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run the function in a process."""
        return self._threads.submit(self._call, function, arguments)

    def close(self) -> None:
        """Stop the processes."""
        with self._lock:
            self._is_closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.stop()
        self._threads.shutdown(cancel_futures=True)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        worker = self._take_worker()
        try:
            return worker.call(function, arguments)
        finally:
            self._idle.put(worker)

    def _take_worker(self) -> _Worker:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return self._start_worker()

    def _start_worker(self) -> _Worker:
        # There are as many threads as workers, so one that finds none idle may start one.
        with self._lock:
            if self._is_closed:
                raise WriterError("the engine was closed")
            worker = _Worker()
            self._workers.append(worker)
        return worker

    def __repr__(self) -> str:
        return f"<LocalEngine {len(self._workers)}/{self.slots} processes>"


class _Worker:
    """One process and this side's end of its pipe."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name="mds-convert")
        # Ctrl-C reaches the whole process group; only the parent process acts on it. What is
        # blocked in the thread that starts a process is blocked there from its first instant on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        try:
            self._pipe.send_bytes(pickle.dumps((function, arguments)))
            result, error, trace = pickle.loads(self._pipe.recv_bytes())  # noqa: S301 - our own
        except (EOFError, OSError) as broken:
            raise WriterError(self._exit_reason()) from broken
        if error is not None:
            raise error from _TracedError(trace)
        return result

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _exit_reason(self) -> str:
        self._process.join(5.0)
        code = self._process.exitcode
        if code is not None and code < 0:
            reason = f"was killed by {signal.Signals(-code).name}"
            why = " (is the machine out of memory?)" if code == -signal.SIGKILL else ""
        else:
            reason = f"ended with exit code {code}"
            why = (
                ". Where a script starts processes, it must do so below "
                "`if __name__ == '__main__':`"
            )
        return (
            f"a process of the conversion {reason}{why}. What was done is kept: go on with resume."
        )


class _TracedError(Exception):
    """The traceback of another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _serve(pipe: Connection) -> None:
    end_with_parent()
    while True:
        try:
            function, arguments = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our parent
        except (EOFError, OSError):
            # The parent is gone, or is done with this process.
            return
        try:
            answer = pickle.dumps((function(*arguments), None, ""))
        except BaseException as error:  # noqa: BLE001 - carried to the caller
            answer = _failure(error)
        try:
            pipe.send_bytes(answer)
        except OSError:
            return


def _failure(error: BaseException) -> bytes:
    trace = traceback.format_exc()
    try:
        data = pickle.dumps((None, error, trace))
        pickle.loads(data)  # noqa: S301 - made in the line before
    except Exception:  # noqa: BLE001 - errors of other packages do not all survive pickling
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"), trace))
    return data
