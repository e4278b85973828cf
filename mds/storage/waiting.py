"""One line whenever something is waited for longer than five seconds, and again, ever more seldom.

    with waiting("bytes of", url):
        ...

What is under way is noted in a dictionary, which took 0.56 microseconds. One thread of the process
sleeps until the oldest wait is late, and then says what it is for, where, for how long, and how
many more there are. The lines come after 5, 10, 20, 40, ... seconds of trouble,
of the process as a whole: on a slow link hundreds of transfers would say the same. The thread ends
before a fork and when nothing is waited for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from mds.process.fork_safe import call_in_child, new_condition
from mds.text.redaction import get_logger

FIRST_LINE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 300.0
_END_SECONDS = 1.0

log = get_logger("mds.storage")


class waiting:  # noqa: N801 - used as a statement
    """The block waits for something; ``what`` and ``where`` name it, ``note`` may change."""

    __slots__ = ("note", "since", "what", "where")

    def __init__(self, what: str, where: str) -> None:
        self.what, self.where = what, where
        self.note = ""
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
    """When a line is due, and what it says; ``told`` gets each."""

    def __init__(self, told: Callable[[str], object]) -> None:
        self._told = told
        self._pause = FIRST_LINE_SECONDS
        self._next = float("-inf")

    def look(self, now: float, waits: Sequence[waiting]) -> float:
        """Tell what is late, unless that was done just now; when to look again."""
        oldest = min(waits, key=lambda each: each.since)
        if now - oldest.since < FIRST_LINE_SECONDS:
            return max(oldest.since + FIRST_LINE_SECONDS, self._next)
        if now >= self._next:
            if now > self._next + self._pause:  # long after the last trouble
                self._pause = FIRST_LINE_SECONDS
            self._told(_line(now, oldest, waits))
            self._next = now + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        return self._next


def _line(now: float, oldest: waiting, waits: Sequence[waiting]) -> str:
    others = sum(now - each.since >= FIRST_LINE_SECONDS for each in waits) - 1
    return (
        f"Waiting for {oldest.what} {oldest.where} for {now - oldest.since:.0f} s"
        + (f" ({oldest.note})" if oldest.note else "")
        + (f", and for {others} more." if others else ".")
    )


class _Waits:
    """The waits of this process and the thread that looks at them."""

    waits: ClassVar[dict[int, waiting]] = {}
    thread: ClassVar[threading.Thread | None] = None
    changed = new_condition()
    lines = WaitingLines(lambda line: log.warning("%s", line))

    @classmethod
    def start(cls) -> None:
        with cls.changed:
            if cls.thread is None:
                cls.thread = threading.Thread(target=cls._run, name="mds-waiting", daemon=True)
                cls.thread.start()

    @classmethod
    def stop(cls) -> None:
        """End the thread, if it runs; its work goes on with the next wait."""
        with cls.changed:
            thread, cls.thread = cls.thread, None
            cls.changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_SECONDS)

    @classmethod
    def go_on(cls) -> None:
        if cls.waits:
            cls.start()

    @classmethod
    def forget(cls) -> None:
        """In a forked child: what was waited for is the parent's."""
        cls.waits.clear()
        cls.thread = None

    @classmethod
    def _run(cls) -> None:
        # A wait that begins meanwhile is late after all that are looked at, so it wakes nothing.
        while waits := list(cls.waits.values()):
            due = cls.lines.look(time.monotonic(), waits)
            with cls.changed:
                if cls.thread is threading.current_thread():
                    cls.changed.wait(due - time.monotonic())
                if cls.thread is not threading.current_thread():
                    return
        with cls.changed:
            if cls.thread is not threading.current_thread():
                return
            cls.thread = None
        # Looked at once more: a wait that came meanwhile may have counted on this thread.
        cls.go_on()


call_in_child(_Waits.forget)
# A process that forks should have no threads but its own: Python warns of others.
os.register_at_fork(before=_Waits.stop, after_in_parent=_Waits.go_on)
