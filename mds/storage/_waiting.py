"""Log lines about waits that are longer than five seconds, at growing intervals.

    with waiting("bytes of", url):
        ...

A wait is an entry of a dictionary, which took 0.56 microseconds. One thread of the process sleeps
until the oldest wait is late, then logs its operation, target and duration, and the number of other
late waits. The lines come after 5, 10, 20, 40, ... seconds of trouble of the whole process: on a
slow link hundreds of transfers would repeat the same line. The thread ends before a fork and when
no wait is left.

The hooks of tenacity cannot do this: they run between tries, and a stalled read, or a lock of
another process, blocks inside one. A retry describes its failures in ``note``, by the hook
``before_sleep``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from mds._process.fork_safe import call_in_child, new_condition
from mds._redaction import get_logger

FIRST_LINE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 300.0
_END_SECONDS = 1.0

log = get_logger("mds.storage")


class waiting:  # noqa: N801 - used as a statement
    """Context manager around a wait for an operation on a target, such as "bytes of" and a URL.

    ``note`` is added to log lines about the wait; it may change meanwhile. So is the text that
    ``hint`` returns, unless there is a note. ``since`` is the time by `time.monotonic` at which the
    wait began.
    """

    __slots__ = ("hint", "note", "operation", "since", "target")

    def __init__(self, operation: str, target: str) -> None:
        self.operation, self.target = operation, target
        self.note = ""
        self.hint: Callable[[], str] | None = None
        self.since = 0.0

    def __enter__(self) -> waiting:
        self.since = time.monotonic()
        _Waits.waits[id(self)] = self
        if _Waits.thread is None:
            _Waits.start()
        return self

    def __exit__(self, *_: object) -> None:
        _Waits.waits.pop(id(self), None)


class WaitingLines:
    """The schedule and the text of log lines about waits; ``write`` is called with each."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        # Seconds between the next line and the one after it; they double with each line.
        self._pause = FIRST_LINE_SECONDS
        # Time by `time.monotonic` before which no line is written; the first may come at once.
        self._next = float("-inf")

    def look(self, now: float, waits: Sequence[waiting]) -> float:
        """Write a line if a wait is late and a line is due; return the time of the next check.

        ``now`` and the result are times by `time.monotonic`; ``waits`` are not empty.
        """
        oldest = min(waits, key=lambda wait: wait.since)
        if now - oldest.since < FIRST_LINE_SECONDS:
            return max(oldest.since + FIRST_LINE_SECONDS, self._next)
        if now >= self._next:
            if now > self._next + self._pause:  # long after the last late wait
                self._pause = FIRST_LINE_SECONDS
            self._write(_line(now, oldest, waits))
            self._next = now + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        return self._next


def _line(now: float, oldest: waiting, waits: Sequence[waiting]) -> str:
    """Return the log line about the oldest wait and the number of other late ones."""
    other_waits = sum(now - wait.since >= FIRST_LINE_SECONDS for wait in waits) - 1
    hint = oldest.hint() if oldest.hint is not None and not oldest.note else ""
    return (
        f"Waiting for {oldest.operation} {oldest.target} for {now - oldest.since:.0f} s"
        + (f" ({oldest.note})" if oldest.note else "")
        + (f", and for {other_waits} more." if other_waits else ".")
        + hint
    )


class _Waits:
    """The waits of this process and the thread that watches them.

    Attributes:
        waits: Waits that go on now, by their `id`.
        thread: The thread that watches; None if none runs. A thread that is no longer this one has
            been stopped.
        changed: Lock for changes of ``thread``, by which `stop` also wakes the thread.
        lines: The log lines.
    """

    waits: ClassVar[dict[int, waiting]] = {}
    thread: ClassVar[threading.Thread | None] = None
    changed = new_condition()
    lines = WaitingLines(lambda line: log.warning("%s", line))

    @classmethod
    def start(cls) -> None:
        """Start the thread unless it runs."""
        with cls.changed:
            if cls.thread is None:
                cls.thread = threading.Thread(target=cls._run, name="mds-waiting", daemon=True)
                cls.thread.start()

    @classmethod
    def stop(cls) -> None:
        """End the thread if it runs; the next wait starts another."""
        with cls.changed:
            thread, cls.thread = cls.thread, None
            cls.changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_SECONDS)

    @classmethod
    def resume(cls) -> None:
        """Start the thread if there are waits, such as after a fork."""
        if cls.waits:
            cls.start()

    @classmethod
    def forget(cls) -> None:
        """Drop the waits of the parent in a forked child."""
        cls.waits.clear()
        cls.thread = None

    @classmethod
    def _run(cls) -> None:
        """Check the waits until none is left or `stop` ends this thread.

        `stop` sets ``thread`` to None or another thread, so each comparison asks: was I stopped?
        """
        # A new wait becomes late after all present ones, so it need not wake this thread.
        while waits := list(cls.waits.values()):
            wake_time = cls.lines.look(time.monotonic(), waits)
            with cls.changed:
                if cls.thread is threading.current_thread():
                    cls.changed.wait(wake_time - time.monotonic())
                if cls.thread is not threading.current_thread():
                    return
        with cls.changed:
            if cls.thread is not threading.current_thread():
                return
            cls.thread = None
        # A wait that began meanwhile may have relied on this thread.
        cls.resume()


call_in_child(_Waits.forget)
# A process should have no other threads when it forks: Python warns of them.
os.register_at_fork(before=_Waits.stop, after_in_parent=_Waits.resume)
