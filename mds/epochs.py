"""Which epoch comes next, agreed between a dataset object and its copies in worker processes.

A DataLoader gives every worker a copy of the dataset, and the object in the main process never
sees that an epoch began. So the count lives in a nameless file in memory, inherited by forked
workers and handed to spawned ones, guarded by a record lock that the kernel drops with its owner.
Nothing has a name, so nothing is left behind and nothing can collide. It is touched once an epoch
by each worker. Ranks that were forked from one parent keep separate records in it, by owner.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import context, reduction
from typing import Any, NamedTuple

_REMEMBERED = 8  # iterations whose workers may still be arriving


class Turn(NamedTuple):
    """One started iteration: its epoch, and the state that it was resumed from, if any."""

    epoch: int
    resume: Mapping[str, Any] | None


class EpochBook:
    """The iterations started so far in this rank, and the state waiting for the next one."""

    def __init__(self) -> None:
        self._fd = _nameless_file()
        self._threads = threading.Lock()
        self._maker: tuple[int, int] | None = None  # (this process, who pickled it for us)
        self._begin(_blank())

    def claim(self, group: int, worker: int) -> Turn:
        """The turn of this worker's new iteration.

        Workers of one iteration say the same ``group`` and get the same turn; a worker that asks
        twice with the same group begins another iteration.
        """
        with self._record() as record:
            turns = record["turns"]
            if turns and turns[-1]["group"] == group and worker not in turns[-1]["workers"]:
                turns[-1]["workers"].append(worker)
            else:
                resume = record["pending"]
                record["pending"] = None
                epoch = record["next_epoch"]
                if resume is not None:
                    record["loaded"] = resume
                    # A state from before the first epoch asks for the first.
                    epoch = max(int(resume["epoch"]), 0)
                turns.append(
                    {"group": group, "workers": [worker], "epoch": epoch, "resume": resume}
                )
                del turns[:-_REMEMBERED]
                record["next_epoch"] = epoch + 1
            return Turn(turns[-1]["epoch"], turns[-1]["resume"])

    def load(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration begin from ``state``, whatever epoch it is of."""
        with self._record() as record:
            record["pending"] = dict(state)

    @property
    def pending(self) -> Mapping[str, Any] | None:
        """The loaded state that no iteration has begun from yet."""
        with self._record() as record:
            return dict(record["pending"]) if record["pending"] is not None else None

    @property
    def loaded(self) -> Mapping[str, Any] | None:
        """The state that was last loaded, begun from or not; its seed and nodes stay in force."""
        with self._record() as record:
            state = record["pending"] if record["pending"] is not None else record["loaded"]
            return dict(state) if state is not None else None

    @property
    def last(self) -> Turn | None:
        """The iteration that was started last."""
        with self._record() as record:
            if not record["turns"]:
                return None
            return Turn(record["turns"][-1]["epoch"], record["turns"][-1]["resume"])

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration will be, unless a state is loaded."""
        with self._record() as record:
            return int(record["next_epoch"])

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        with self._record() as record:
            record["next_epoch"] = int(epoch)

    @contextmanager
    def _record(self) -> Iterator[dict[str, Any]]:
        """This rank's record, under the lock; what the block changes is kept."""
        with self._threads:
            # A record lock belongs to a process and goes with it.
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                book = _read(self._fd)
                owner = str(self._rank_process())
                # A rank forked from the maker goes on from what the maker had.
                before = json.dumps(book.get(owner, book[book["maker"]]))
                record = json.loads(before)
                yield record
                if json.dumps(record) != before:
                    book[owner] = record
                    _write(self._fd, book)
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def _rank_process(self) -> int:
        """The process that owns the iterations: the parent of a worker, else this one."""
        from mds.topology import in_worker

        if not in_worker():
            return os.getpid()
        # The parent of a worker of the forkserver is the server: there the pickle tells.
        here, owner = self._maker or (None, None)
        return owner if here == os.getpid() and owner is not None else os.getppid()

    def __getstate__(self) -> dict[str, Any]:
        with self._record() as record:
            copy = dict(record)
        owner = self._rank_process()
        if context.get_spawning_popen() is not None:  # a child that shares the book
            return {"fd": reduction.DupFd(self._fd), "owner": owner}
        return {"record": copy}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._threads = threading.Lock()
        if "fd" in state:
            self._fd = state["fd"].detach()
            self._maker = (os.getpid(), state["owner"])
            return
        self._fd = _nameless_file()
        self._maker = None
        self._begin(state["record"])

    def _begin(self, record: Mapping[str, Any]) -> None:
        maker = str(self._rank_process())
        _write(self._fd, {"maker": maker, maker: record})

    def close(self) -> None:
        """Give the file back; closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # Memory without a name: letting go of it is all there is to do. When the interpreter ends
        # so does the process, and `os` may be gone already.
        if getattr(self, "_fd", -1) >= 0 and not is_over():
            self.close()


def _blank() -> dict[str, Any]:
    return {"next_epoch": 0, "pending": None, "loaded": None, "turns": []}


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mds-epochs")
    with tempfile.TemporaryFile() as file:  # gone from its folder as soon as it is made
        return os.dup(file.fileno())


def _read(fd: int) -> dict[str, Any]:
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    book: dict[str, Any] = json.loads(data) if data else {}
    return book


def _write(fd: int, book: Mapping[str, Any]) -> None:
    data = json.dumps(book).encode()
    # Longer first: a reader parses up to the end of the file, and trailing blanks are no harm.
    size = os.fstat(fd).st_size
    os.pwrite(fd, data.ljust(size), 0)
