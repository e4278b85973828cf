"""Anonymous shared memory of a rank: a nameless file of a process and its DataLoader workers.

A DataLoader gives every worker a copy of the dataset, and what happens to the copy is not seen in
the process that asks. So what a rank shares is in memory without a name, inherited by forked
workers and handed to spawned ones. Nothing has a name, so nothing is left behind and nothing can
collide. What is in the file is the business of the class that has one.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import context, reduction
from typing import Any

from mds.process.fork_safe import new_lock
from mds.process.mmaps import open_nameless
from mds.world import in_worker


class RankFile:
    """A nameless file in memory, with a lock that the kernel drops with its owner."""

    def __init__(self, name: str) -> None:
        self.descriptor = open_nameless(name)
        self._thread_lock = new_lock()
        self._maker: tuple[int, int] | None = None  # (this process, the one that pickled it)

    @property
    def owner(self) -> int:
        """The process that the rank is: the parent of a worker, else this one.

        Ranks that were forked from one process share the file, and are told apart by it.
        """
        if not in_worker():
            return os.getpid()
        # The parent of a worker of the forkserver is the server: there the pickle tells.
        maker, owner = self._maker or (None, None)
        return owner if maker == os.getpid() and owner is not None else os.getppid()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the other threads and processes out for the block."""
        with self._thread_lock:
            # A record lock belongs to a process and goes with it.
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    @staticmethod
    def is_handed_on() -> bool:
        """Whether what is being pickled goes to a child process, which can share the file."""
        return context.get_spawning_popen() is not None

    def __getstate__(self) -> dict[str, Any]:
        return {"descriptor": reduction.DupFd(self.descriptor), "owner": self.owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.descriptor = state["descriptor"].detach()
        self._thread_lock = new_lock()
        self._maker = (os.getpid(), state["owner"])

    def close(self) -> None:
        """Give the file back; closing twice is fine."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # Memory without a name: letting go of it is all there is to do. When the interpreter ends
        # so does the process, and `os` may be gone already.
        if getattr(self, "descriptor", -1) >= 0 and not is_over():
            self.close()
