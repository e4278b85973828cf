"""Thread pool that finalizes and uploads full shards, bounded by a semaphore.

The writer fills the next shard meanwhile. A shard holds one of a few places in memory from when
it is full until it is on disk; the writer waits for a place, which bounds memory. What threads do
is a function of the shard alone, so their number changes nothing in the output. The first failure
stops the rest and is raised, as the object it is, by the next call.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mds.errors import WriterError
from mds.process.fork_safe import new_semaphore
from mds.shardfile.layout import shard_name
from mds.writers.finalize import EarlyFile, finalize_shard

if TYPE_CHECKING:
    from mds.writers.destination import Destination
    from mds.writers.finalize import FullShard
    from mds.writers.presence import ExpectedFile
    from mds.writers.spec import ShardSpec, WorkSpec


class Pipeline:
    """Thread pool that finalizes and uploads the shards of one writer."""

    def __init__(self, shards: ShardSpec, work: WorkSpec, destination: Destination) -> None:
        self._shards = shards
        self._destination = destination
        self._places = new_semaphore(work.shards_ahead)
        self._pool = ThreadPoolExecutor(work.threads, thread_name_prefix="mds-writer")
        self._under_way: deque[Future[tuple[str, list[ExpectedFile]]]] = deque()
        self._entries: list[str] = []
        self._files: list[ExpectedFile] = []
        #: Files that shards are written to while they are filled, by number of the shard.
        self._early: dict[int, EarlyFile] = {}
        self._failure: BaseException | None = None
        self._stopped = False
        self._progress = _start_progress(destination.name) if work.progress_bar else None

    def spill(self, number: int, header: bytes, piece: memoryview) -> EarlyFile:
        """Write samples of a shard that is being filled, by the calling thread; gives its file.

        Raises WriterError, also for an earlier shard that failed.
        """
        self._raise_failure()
        try:
            self._check()
            early = self._early.get(number)
            if early is None:
                name = shard_name(number, "mds")
                early = EarlyFile(self._destination.directory, name, header)
                self._early[number] = early
            early.append(piece)
        except Exception as error:  # noqa: BLE001 - told as one of a thread is
            self._failure = error
            self._raise_failure()
        return self._early[number]

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

    def finish(self) -> tuple[list[str], list[ExpectedFile]]:
        """Wait for everything; the entries of the index in order, and all files.

        Raises WriterError.
        """
        while self._under_way:
            self._collect()
        self._raise_failure()
        return self._entries, self._files

    def close(self) -> None:
        """Stop: what has not begun never will, what is under way ends at its next piece."""
        self._stopped = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        for early in self._early.values():
            with contextlib.suppress(OSError):  # the folder may be gone with it
                early.discard()
        self._early.clear()
        if self._progress is not None:
            self._progress.stop()

    def _collect(self) -> None:
        """Wait for the oldest shard and take its entry."""
        future = self._under_way.popleft()
        if future.exception() is not None:
            # The one to raise is the first in time, which others may have been stopped by.
            self._raise_failure()
        entry, files = future.result()
        self._entries.append(entry)
        self._files += files
        self._show_progress()

    def _work(self, shard: FullShard) -> tuple[str, list[ExpectedFile]]:
        place = self._destination
        try:
            finalized = finalize_shard(
                replace(shard, release=self._released(shard)),
                self._shards,
                place.directory,
                self._check,
                syncs=place.syncs_shards,
            )
            self._early.pop(shard.number, None)
            files = []
            for file in finalized.files:
                self._check()
                files.append(place.upload(file))
        except BaseException as error:
            if self._failure is None:
                self._failure = error
            raise
        else:
            return finalized.entry, files

    def _released(self, shard: FullShard) -> Callable[[], None]:
        def release() -> None:
            shard.release()
            self._places.release()

        return release

    def _check(self) -> None:
        if self._stopped or self._failure is not None:
            raise WriterError("the writer was stopped")
        self._destination.check_in_place()

    def _raise_failure(self) -> None:
        error = self._failure
        if isinstance(error, WriterError):
            raise error
        if error is not None:
            raise WriterError(
                f"a shard could not be written to {self._destination.folder}: {error}"
            ) from error

    def _show_progress(self) -> None:
        if self._progress is not None:
            written = len(self._entries)
            self._progress.update(
                self._progress.task_ids[0], completed=written, total=written + len(self._under_way)
            )


def _start_progress(name: str) -> Any:
    from rich.progress import Progress

    progress = Progress(transient=True)
    progress.add_task(f"shards to {name}", total=None)
    progress.start()
    return progress
