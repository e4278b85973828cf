"""Processes that share a folder, and the size that it has meanwhile; imported by the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

JOBS = os.path.join(os.path.dirname(__file__), "jobs.py")
SECONDS = 60


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
    """Looks at the size of a folder all the time; a file seen under two names counts once."""

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

    def _size(self):
        seen = {}
        for path, _, names in os.walk(self.folder):
            for name in names:
                try:
                    state = os.stat(os.path.join(path, name))
                except OSError:
                    continue
                seen[state.st_ino] = state.st_size
        return sum(seen.values())

    def _run(self):
        while not self._stop.wait(0.001):
            size = self._size()
            if size > self.most:
                size = min(size, self._size())
            self.most = max(self.most, size)
            self.looks += 1
