"""How far a reader is served: up to which time it has all that it needs."""

from __future__ import annotations

from mds.process.fork_safe import new_lock


class ServedTime:
    """The times at which something is needed that is not there yet."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._put_off: set[int] = set()
        self._lock = new_lock()

    def begin(self, time: int) -> None:
        """Something is sent for, perhaps again."""
        with self._lock:
            self._put_off.discard(time)
            self._open[time] = self._open.get(time, 0) + 1

    def end(self, time: int, *, is_put_off: bool) -> None:
        """It came, or it was put off."""
        with self._lock:
            self._open[time] -= 1
            if not self._open[time]:
                del self._open[time]
            if is_put_off:
                self._put_off.add(time)

    def first(self, default: int) -> int:
        """The first of them; ``default`` when everything is there."""
        with self._lock:
            return min((*self._open, *self._put_off), default=default)
