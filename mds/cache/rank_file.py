"""Shared memory of a rank: a file without a name, for a process and its DataLoader workers.

A DataLoader gives every worker a copy of the dataset, and changes of the copy are not visible in
the main process. So state that a rank shares is in a memory file, which forked workers inherit and
spawned ones receive. A file without a name cannot be left behind and cannot collide with another.
The class that owns a `RankFile` decides what the file contains.
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
    """A file in memory without a name, with a lock that the kernel releases when a process dies.

    ``name`` is shown by /proc and need not be unique.
    """

    def __init__(self, name: str) -> None:
        self.descriptor = open_nameless(name)
        self._thread_lock = new_lock()
        self._maker: tuple[int, int] | None = None  # (this process, the one that pickled it)

    @property
    def owner(self) -> int:
        """Id of the rank's main process: the parent of a worker, else this process.

        Ranks that were forked from one process share the file; this id distinguishes them.
        """
        if not in_worker():
            return os.getpid()
        # The parent of a worker of the forkserver is the server: use the id in the pickle.
        maker, owner = self._maker or (None, None)
        return owner if maker == os.getpid() and owner is not None else os.getppid()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other threads and processes while the block runs."""
        with self._thread_lock:
            # A record lock belongs to the process and ends with it.
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    @staticmethod
    def is_handed_on() -> bool:
        """Whether an object is being pickled for a child process, which can share the file."""
        return context.get_spawning_popen() is not None

    def __getstate__(self) -> dict[str, Any]:
        return {"descriptor": reduction.DupFd(self.descriptor), "owner": self.owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.descriptor = state["descriptor"].detach()
        self._thread_lock = new_lock()
        self._maker = (os.getpid(), state["owner"])

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter is exiting, the kernel closes the file, and `os` may be cleared.
        if getattr(self, "descriptor", -1) >= 0 and not is_over():
            self.close()
