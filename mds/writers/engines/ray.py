"""Executor on a Ray cluster: each call is a task.

The machines must see the same files: the source, and the output or the work folder. A Ray that is
running is used, and left running; without one a local one is made and stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mds.errors import need
from mds.writers.engines.base import Engine, pickle_call, unpickle_answer


class RayEngine(Engine):
    """Calls as tasks of Ray."""

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
        self._run = ray.remote(num_cpus=1, max_retries=3)(_run)
        self._pending: set[Any] = set()
        self._is_closed = False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run the function on a worker."""
        reference = self._run.remote(pickle_call(function, arguments))
        self._pending.add(reference)
        future: Future[Any] = Future()

        def settle(finished: Future[bytes]) -> None:
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


def _run(call: Callable[[Any], bytes]) -> bytes:
    return call(None)
