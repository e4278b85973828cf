"""Processes that share a folder, and the size that it has meanwhile; imported by the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

JOBS = os.path.join(os.path.dirname(__file__), "jobs.py")
SECONDS = 600


def start(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, JOBS, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def finish(process, seconds=SECONDS):
    """Fail with what a process said unless it ended well, in time."""
    _, said = process.communicate(timeout=seconds)
    assert process.returncode == 0, said.decode()[-2000:]


class Watch:
    """Looks at the size of a folder all the time.

    A look takes a while, in which one file may go and another come, so a look alone may see more
    than ever was. What two looks in a row have seen was there between them, all at one time: a
    file that was replaced meanwhile has another inode, since the earlier look holds on to its own.
    """

    def __init__(self, folder):
        self.folder, self.most, self.looks = folder, 0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _look(self):
        """Sizes by path and inode, with descriptors that keep the system from reusing an inode."""
        sizes, descriptors = {}, []
        for path, _, names in os.walk(self.folder):
            for name in names:
                file = os.path.join(path, name)
                try:
                    descriptors.append(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW))
                except OSError:
                    continue
                state = os.fstat(descriptors[-1])
                sizes[file, state.st_ino] = state.st_size
        return sizes, descriptors

    def _run(self):
        before, descriptors_before = {}, []
        while not self._stop.wait(0.001):
            now, descriptors = self._look()
            both = now.keys() & before.keys()
            self.most = max(self.most, sum(min(now[file], before[file]) for file in both))
            self.looks += 1
            for descriptor in descriptors_before:
                os.close(descriptor)
            before, descriptors_before = now, descriptors
        for descriptor in descriptors_before:
            os.close(descriptor)
