"""Executors of conversion work: processes of this machine, a Spark cluster, a Ray cluster.

`open_engine` opens one by name. An engine runs functions somewhere and returns futures; calls and
their results are pickled. `dataframe_to_mds` and its helpers, which write Spark's data frames, are
names of this module too.

The machines of a cluster must see the same files: the source, and the output or the work folder.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, get_args

from mds._arguments import did_you_mean
from mds._process.fork_safe import end_with_parent, new_lock
from mds._words import EngineName
from mds.errors import ConfigError, WriterError, need

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def open_engine(name: str, workers: int) -> Engine:
    """Return an engine by name: `local`, `spark` or `ray`.

    ``workers`` counts processes of this machine; clusters bring as many as they have.
    """
    if name == "local":
        return LocalEngine(workers) if workers > 1 else InlineEngine()
    if name == "spark":
        return SparkEngine()
    if name == "ray":
        return RayEngine()
    near = did_you_mean(name, get_args(EngineName))
    raise ConfigError(f"there is no engine {name!r}.{near} The engines are local, spark and ray.")


class Engine(ABC):
    """Executor that runs independent function calls, perhaps elsewhere; a context manager.

    Functions must be importable, because calls and results are pickled. An error of a call is
    raised by its future, with the same class and text.
    """

    #: Number of calls that run at the same time.
    slots: int = 1

    @abstractmethod
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Queue a call of a function, and return the future of its result."""

    @abstractmethod
    def close(self) -> None:
        """Stop at once and abandon running calls, which must be harmless. Closing twice is fine."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InlineEngine(Engine):
    """Engine that runs every call at once in the calling thread."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call the function now, and return a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 - the future carries it to its caller
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Do nothing, because no process or thread runs between calls."""

    def __repr__(self) -> str:
        return "<InlineEngine>"


# ---------------------------------------------------------------------- this machine


class LocalEngine(Engine):
    """Engine that runs calls in up to ``workers`` processes of this machine.

    A process is started when there is a call and no idle process.

    Processes are spawned, because forked ones would inherit locks that threads hold. They end when
    the process that started them ends, even if that is killed. A thread of the caller waits for the
    answer of each call, on the pipe of its process. The death of a process is a WriterError that
    says how it died.
    """

    def __init__(self, workers: int) -> None:
        self.slots = workers
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        #: All processes, idle or not, which `close` stops.
        self._workers: list[_Worker] = []
        self._lock = new_lock()
        self._is_closed = False
        # A thread per process, which waits for its answer.
        self._threads = ThreadPoolExecutor(workers, "mds-engine")

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Queue a call for the next idle process, and return the future of its result."""
        return self._threads.submit(self._call, function, arguments)

    def close(self) -> None:
        """Kill the processes, and drop queued calls."""
        with self._lock:
            self._is_closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.stop()
        self._threads.shutdown(cancel_futures=True)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a call in an idle process, in a thread of the caller, and return its result."""
        worker = self._take_worker()
        try:
            return worker.call(function, arguments)
        finally:
            self._idle.put(worker)

    def _take_worker(self) -> _Worker:
        """Return an idle process, or a new one if none is idle."""
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return self._start_worker()

    def _start_worker(self) -> _Worker:
        """Start a process. Raises WriterError if the engine was closed meanwhile."""
        # There are as many threads as workers, so a thread without an idle worker may start one.
        with self._lock:
            if self._is_closed:
                raise WriterError("the engine was closed")
            worker = _Worker()
            self._workers.append(worker)
        return worker

    def __repr__(self) -> str:
        return f"<LocalEngine {len(self._workers)}/{self.slots} processes>"


class _Worker:
    """A process that runs calls (`_serve`), with the caller's end of its pipe."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, worker_pipe = context.Pipe()
        self._process = context.Process(target=_serve, args=(worker_pipe,), name="mds-convert")
        # Ctrl-C reaches the whole process group, and only the parent process should act on it. A
        # new process inherits the blocked signals of the thread that starts it. The first `start`
        # also starts a process for resources, and would unblock them: so that comes first.
        resource_tracker.ensure_running()
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        # Only the worker may hold this end, or its death would not close the pipe.
        worker_pipe.close()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a call in the process, and return its result.

        Raises what the function raised, and WriterError if the process died.
        """
        try:
            self._pipe.send_bytes(pickle.dumps((function, arguments)))
            result, error, trace = pickle.loads(self._pipe.recv_bytes())  # noqa: S301 - our own
        except (EOFError, OSError) as broken:
            raise WriterError(self._exit_reason()) from broken
        if error is not None:
            # The error has lost its traceback; its cause shows that of the process.
            raise error from _TracedError(trace)
        return result

    def stop(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _exit_reason(self) -> str:
        """Describe how the process died, with a remedy."""
        self._process.join(5.0)
        code = self._process.exitcode
        if code is not None and code < 0:
            reason = f"was killed by {signal.Signals(-code).name}"
            why = " (is the machine out of memory?)" if code == -signal.SIGKILL else ""
        else:
            reason = f"ended with exit code {code}"
            why = ". A script must start processes below `if __name__ == '__main__':`"
        return (
            f"a process of the conversion {reason}{why}. Finished work is kept: continue with "
            "resume."
        )


class _TracedError(Exception):
    """The traceback of an error in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _serve(pipe: Connection) -> None:
    """Run calls that come through a pipe until it is closed: the main function of a worker.

    A request is a pickled (function, arguments); an answer is a pickled (result, error, traceback).
    """
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
            answer = _pickled_failure(error, traceback.format_exc())
        try:
            pipe.send_bytes(answer)
        except OSError:
            return


# ---------------------------------------------------------------------- clusters


class SparkEngine(Engine):
    """Engine that runs each call as a job of one task on a Spark cluster.

    - ``session`` (SparkSession, default None): The session to use; None: the active one. These are
      left running. If there is no active session, a local one is started, and stopped on `close`.
    """

    def __init__(self, session: Any = None) -> None:
        try:
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise need("pyspark", "spark", "the engine spark") from error
        # By default Spark starts the `python3` on the path, which may not have this package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        running: Any = session or SparkSession.getActiveSession()
        spark: Any = running or SparkSession.builder.getOrCreate()
        #: The session to stop on `close`, if it was started here.
        self._own_session = None if running else spark
        self._context: Any = spark.sparkContext
        self.slots = int(self._context.defaultParallelism)
        self._threads = ThreadPoolExecutor(self.slots, "mds-engine")
        # Jobs of this engine, which `close` cancels: the session may run others.
        self._group = f"mds-{id(self)}"
        self._is_closed = False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Queue a call for a Spark executor, and return the future of its result."""
        return self._threads.submit(self._call, pickle_call(function, arguments))

    def close(self) -> None:
        """Cancel the jobs, and stop the session if it was made here."""
        if self._is_closed:
            return
        self._is_closed = True
        self._context.cancelJobGroup(self._group)
        self._threads.shutdown(cancel_futures=True)
        if self._own_session is not None:
            self._own_session.stop()

    def _call(self, call: Callable[[Any], bytes]) -> Any:
        """Run a pickled call as a Spark job, and return its result or raise its error."""
        self._context.setJobGroup(self._group, "mds conversion", interruptOnCancel=True)
        # A job over one element, which the call ignores.
        (answer,) = self._context.parallelize([0], 1).map(call).collect()
        return unpickle_answer(answer)

    def __repr__(self) -> str:
        return f"<SparkEngine {self._context.master}, {self.slots} slots>"


class RayEngine(Engine):
    """Engine that runs each call as a task on a Ray cluster.

    The Ray instance of this process is used and left running. If there is none, a local one is
    started, and stopped on `close`.
    """

    def __init__(self) -> None:
        try:
            import ray
        except ImportError as error:
            raise need("ray", "ray", "the engine ray") from error
        self._ray = ray
        self._is_own = not ray.is_initialized()
        if self._is_own:
            ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
        self.slots = max(1, int(ray.cluster_resources().get("CPU", 1)))
        # A task that was lost with its machine is run again: calls leave the same files.
        self._run = ray.remote(num_cpus=1, max_retries=3)(_run_call)
        self._pending: set[Any] = set()
        self._is_closed = False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Queue a call for a Ray worker, and return the future of its result."""
        reference = self._run.remote(pickle_call(function, arguments))
        self._pending.add(reference)
        future: Future[Any] = Future()

        def settle(finished: Future[bytes]) -> None:
            """Set the result or the error of the call, from its pickled answer."""
            self._pending.discard(reference)
            try:
                future.set_result(unpickle_answer(finished.result()))
            except Exception as error:  # noqa: BLE001 - the future carries it to its caller
                future.set_exception(error)

        reference.future().add_done_callback(settle)
        return future

    def close(self) -> None:
        """Cancel the tasks, and stop Ray if it was started here."""
        if self._is_closed:
            return
        self._is_closed = True
        for reference in list(self._pending):
            self._ray.cancel(reference, force=True)
        if self._is_own:
            self._ray.shutdown()

    def __repr__(self) -> str:
        return f"<RayEngine {self.slots} slots>"


def _run_call(call: Callable[[Any], bytes]) -> bytes:
    return call(None)


# ---------------------------------------------------------------------- calls as bytes


@dataclass(frozen=True, slots=True)
class _Call:
    """Pickled call that can be sent to a cluster: ``data`` is a pickled (function, arguments).

    Clusters pass an argument to it, which is ignored, and get a pickled (result, error).
    """

    data: bytes

    def __call__(self, _: Any = None) -> bytes:
        function, arguments = pickle.loads(self.data)  # noqa: S301 - made by `pickle_call`
        try:
            return pickle.dumps((function(*arguments), None))
        except Exception as error:  # noqa: BLE001 - carried to the caller
            return _pickled_failure(error)


def pickle_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[Any], bytes]:
    """Return a picklable call that never raises what its function raises."""
    return _Call(pickle.dumps((function, arguments)))


def unpickle_answer(answer: bytes) -> Any:
    """Return the result in an answer. Raises what the function raised."""
    result, error = pickle.loads(answer)  # noqa: S301 - made by our own call
    if error is not None:
        raise error
    return result


def _pickled_failure(error: BaseException, *details: str) -> bytes:
    """Return the pickled answer (None, error, *details) of a call that raised.

    An error that cannot be pickled and loaded again is replaced by a RuntimeError with its text.
    """
    try:
        data = pickle.dumps((None, error, *details))
        pickle.loads(data)  # noqa: S301 - made in the line before
    except Exception:  # noqa: BLE001 - errors of other packages do not all survive pickling
        text = f"{type(error).__name__}: {error}"
        return pickle.dumps((None, RuntimeError(text), *details))
    return data
