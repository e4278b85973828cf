"""A gate before a server that limits requests: after an answer 429, all processes wait.

The time until which the server wants no requests is the time of a small file, so every process of
this user finds it without asking the server. The first one that meets it takes the lock of the file
and waits; the others wait for the lock. A request that finds the gate open pays one `stat`, about a
microsecond.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from mds.process.fork_safe import new_event
from mds.storage.control_files import private_temporary_folder
from mds.storage.http_client import StatusError
from mds.storage.locks import open_locks
from mds.storage.waiting import waiting
from mds.text.redaction import get_logger

T = TypeVar("T")

log = get_logger("mds.storage")

_TOO_MANY = 429
#: Seconds to wait if the server does not say how many, and the most to wait at a time.
_DEFAULT, _LONGEST = 10.0, 900.0
#: Seconds after which a request fails like any other.
_TIMEOUT = 3600.0
#: How the Hub says it: ``"api";r=0;t=57``, t being seconds.
_RESETS = re.compile(r"\bt=(\d+)")


class RequestGate:
    """The gate of one server, for all processes of this user on a machine."""

    def __init__(self, server: str) -> None:
        self.server = server
        name = hashlib.blake2s(server.encode(), digest_size=8).hexdigest()
        self._path = os.path.join(private_temporary_folder(), f"gate-{name}")

    def run(self, ask: Callable[[], T]) -> T:
        """Call ``ask`` and return its value; call it again whenever the server asks to wait."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            if self._seconds() > 0:
                self._wait()
            try:
                return ask()
            except Exception as error:
                answer = _too_many(error)
                if answer is None or time.monotonic() > deadline:
                    raise
                self._close(_seconds_of(answer.headers))

    def _seconds(self) -> float:
        """Return the seconds for which the gate stays closed; 0 or less if it is open."""
        try:
            return min(os.stat(self._path).st_mtime - time.time(), _LONGEST)
        except FileNotFoundError:
            return 0.0

    def _close(self, seconds: float) -> None:
        with open(self._path, "ab"):
            until = time.time() + max(seconds, self._seconds())
            os.utime(self._path, (until, until))

    def _wait(self) -> None:
        """Wait until the gate is open: one process for the time, the others for its lock."""
        lock = open_locks(f"{self._path}.lock")
        try:
            with waiting("the end of its limit of requests,", self.server):
                lock.wait_lock(0)
                while (seconds := self._seconds()) > 0:
                    log.warning(
                        "%s: too many requests (429); going on in %.1f s.", self.server, seconds
                    )
                    new_event().wait(seconds)
        finally:
            lock.close()


def _too_many(error: BaseException) -> StatusError | None:
    """Return the answer that asks to wait, which is the error or its cause."""
    for answer in (error, error.__cause__):
        if isinstance(answer, StatusError) and answer.status == _TOO_MANY:
            return answer
    return None


def _seconds_of(headers: Mapping[str, str]) -> float:
    seconds = str(headers.get("retry-after") or "").strip()
    if seconds.isdecimal():
        return float(seconds)
    resets = _RESETS.search(str(headers.get("ratelimit") or ""))
    return float(resets[1]) if resets else _DEFAULT
