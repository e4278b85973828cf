"""Executor on a Spark cluster: each call is a job of one task.

The machines must see the same files: the source, and the output or the work folder. The session
that is active is used, and left running; without one a local session is made and stopped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from mds.errors import need
from mds.writers.engines.base import Engine, pickle_call, unpickle_answer


class SparkEngine(Engine):
    """Calls as tasks of a `pyspark.sql.SparkSession`."""

    def __init__(self, session: Any = None) -> None:
        try:
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise need("pyspark", "spark", "the engine spark") from error
        # Or Spark starts whatever `python3` is on the path, which may not have this package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        running: Any = session or SparkSession.getActiveSession()
        used: Any = running or SparkSession.builder.getOrCreate()
        self._own = None if running else used
        self._context: Any = used.sparkContext
        self.slots = int(self._context.defaultParallelism)
        self._threads = ThreadPoolExecutor(self.slots, "mds-engine")
        self._group = f"mds-{id(self)}"
        self._is_closed = False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run the function on an executor."""
        return self._threads.submit(self._call, pickle_call(function, arguments))

    def close(self) -> None:
        """Cancel the jobs, and stop the session if it was made here."""
        if self._is_closed:
            return
        self._is_closed = True
        self._context.cancelJobGroup(self._group)
        self._threads.shutdown(cancel_futures=True)
        if self._own is not None:
            self._own.stop()

    def _call(self, call: Callable[[Any], bytes]) -> Any:
        self._context.setJobGroup(self._group, "mds conversion", interruptOnCancel=True)
        (answer,) = self._context.parallelize([0], 1).map(call).collect()
        return unpickle_answer(answer)

    def __repr__(self) -> str:
        return f"<SparkEngine {self._context.master}, {self.slots} slots>"
