"""Full shards on their way: sealed and uploaded by threads, a few at a time.

The writer fills the next shard meanwhile. A shard holds one of a few places in memory from when
it is full until it is on disk; the writer waits for a place, which bounds memory. What threads do
is a function of the shard alone, so their number changes nothing in the output. The first failure
stops the rest and is raised, as the object it is, by the next call.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mds.errors import WriterError
from mds.writers.seal import seal

if TYPE_CHECKING:
    from mds.writers.destination import Destination
    from mds.writers.seal import FullShard
    from mds.writers.spec import ShardSpec, WorkSpec


class Pipeline:
    """Threads that seal and upload shards for one writer."""

    def __init__(self, shards: ShardSpec, work: WorkSpec, destination: Destination) -> None:
        self._shards = shards
        self._destination = destination
        self._places = threading.Semaphore(work.shards_ahead)
        self._pool = ThreadPoolExecutor(work.threads, thread_name_prefix="mds-writer")
        self._under_way: deque[Future[str]] = deque()
        self._entries: list[str] = []
        self._failure: BaseException | None = None
        self._stopped = False
        self._progress = _progress(destination.name) if work.progress_bar else None

    def submit(self, shard: FullShard) -> None:
        """Hand over a shard; waits for a place. Raises WriterError if an earlier one failed."""
        self._places.acquire()
        try:
            self._raise_failure()
            self._under_way.append(self._pool.submit(self._work, shard))
        except BaseException:
            self._places.release()
            raise
        while self._under_way and self._under_way[0].done():
            self._collect()

    def finish(self) -> list[str]:
        """Wait for everything; the entries of the index in order. Raises WriterError."""
        while self._under_way:
            self._collect()
        self._raise_failure()
        return self._entries

    def close(self) -> None:
        """Stop: what has not begun never will, what is under way ends at its next piece."""
        self._stopped = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._progress is not None:
            self._progress.stop()

    def _collect(self) -> None:
        """Wait for the oldest shard and take its entry."""
        future = self._under_way.popleft()
        if future.exception() is not None:
            # The one to raise is the first in time, which others may have been stopped by.
            self._raise_failure()
        self._entries.append(future.result())
        self._tell()

    def _work(self, shard: FullShard) -> str:
        try:
            try:
                sealed = seal(shard, self._shards, self._destination.folder, self._check)
            finally:
                shard.release()
                self._places.release()
            for name in sealed.names:
                self._check()
                self._destination.upload(name)
        except BaseException as error:
            if self._failure is None:
                self._failure = error
            raise
        else:
            return sealed.entry

    def _check(self) -> None:
        if self._stopped or self._failure is not None:
            raise WriterError("the writer was stopped")

    def _raise_failure(self) -> None:
        error = self._failure
        if isinstance(error, WriterError):
            raise error
        if error is not None:
            raise WriterError(
                f"a shard could not be written to {self._destination.folder}: {error}"
            ) from error

    def _tell(self) -> None:
        if self._progress is not None:
            done = len(self._entries)
            self._progress.update(
                self._progress.task_ids[0], completed=done, total=done + len(self._under_way)
            )


def _progress(name: str) -> Any:
    from rich.progress import Progress

    progress = Progress(transient=True)
    progress.add_task(f"shards to {name}", total=None)
    progress.start()
    return progress
