"""Stopwatch of the making of batches: seconds by phase, in a few readings of the clock a batch.

The stages of a batch take turns in one thread, so a reading between two stages is enough. Readings
between the decoding of a sample and its functions would cost more than many a function, so a third
of a batch is decoded before its functions are called. The user's ``__getitem__``, which has samples
decoded by itself, and filters are timed for one sample, which stands for the batch. A thread that
waits for a shard adds the wait to the stopwatch that runs in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

#: What the making of a batch consists of: until a request is answered, until its bytes are there,
#: decompressing them; decoding samples; functions of the caller's; making one batch of them;
#: sending it to another process.
PHASES = ("request", "transfer", "unpack", "decode", "functions", "collate", "crossing")
_REQUEST, _TRANSFER, _UNPACK, DECODE, FUNCTIONS, COLLATE, _CROSSING = range(len(PHASES))

Clock = Callable[[], float]
#: Seconds of each of `PHASES` that a batch took, and last the processor time of the thread that
#: made it. Where functions are known by one sample alone they may be too many and decoding too few,
#: even below zero; sums of many batches are right.
Making = tuple[float, ...]


class _RunningWatch(threading.local):
    watch: Stopwatch | None = None


_running = _RunningWatch()


class Stopwatch:
    """Seconds by phase of what one thread makes.

    ``clock``: a clock with a reading before and after what is timed. ``processor``: the processor
    time of the thread that calls.
    """

    def __init__(
        self, clock: Clock = time.perf_counter, processor: Clock = time.thread_time
    ) -> None:
        self._clock, self._processor = clock, processor
        self._processor_begun = 0.0
        self._seconds = [0.0] * len(PHASES)
        self._last = 0.0
        self._waited = 0.0  # since the last reading
        self._sample_start = self._function_seconds = 0.0
        #: Whether the caller's part of the next sample is to be timed.
        self.is_armed = False

    @property
    def last(self) -> float:
        """The time of the last reading."""
        return self._last

    def start(self) -> None:
        """Begin, or go on after `take`, with the thread that calls."""
        self._waited = 0.0
        self._last = self._clock()
        self._processor_begun = self._processor()
        self.is_armed = True
        _running.watch = self

    def charge(self, phase: int) -> None:
        """Charge the time since the last reading to a phase."""
        now = self._clock()
        spent = now - self._last - self._waited
        if spent > 0.0:
            self._seconds[phase] += spent
        self._last, self._waited = now, 0.0

    def take(self, samples: int = 1) -> Making:
        """Return the seconds since the last call, and stop until `start`.

        ``samples``: how many the timed sample stands for.
        """
        _running.watch = None
        if self._function_seconds:
            moved, self._function_seconds = self._function_seconds * samples, 0.0
            self._seconds[DECODE] -= moved
            self._seconds[FUNCTIONS] += moved
        seconds = (*self._seconds, max(0.0, self._processor() - self._processor_begun))
        self._seconds = [0.0] * len(PHASES)
        return seconds

    # ------------------------------------------------------------------ one sample for all

    def begin_sample(self) -> None:
        """Begin the time of the user's code for one sample, which decodes it at any time."""
        self.is_armed = False
        self._sample_start = self._clock()

    def end_sample(self) -> None:
        """End the time of the user's code."""
        self._function_seconds += self._clock() - self._sample_start

    def leave_functions(self) -> None:
        """Begin the decoding of the sample by the user's code."""
        self._function_seconds += self._clock()

    def resume_functions(self) -> None:
        """End the decoding of the sample; the user's code runs again."""
        self._function_seconds -= self._clock()

    # ------------------------------------------------------------------ waits

    def add_wait(self, seconds: float, shares: Sequence[float]) -> None:
        """Record a wait for bytes since the last reading, in seconds.

        ``shares``: how it divides among requests, transfers and decompression.
        """
        share_sum = sum(shares)
        if share_sum <= 0.0:
            shares, share_sum = (0.0, 1.0, 0.0), 1.0
        for phase, share in zip((_REQUEST, _TRANSFER, _UNPACK), shares, strict=True):
            self._seconds[phase] += seconds * share / share_sum
        self._waited += seconds


def join_makings(makings: Iterable[Making], crossing: float = 0.0) -> Making:
    """Return the seconds of several batches together, and of their way."""
    totals: list[float] = [sum(each) for each in zip(*makings, strict=True)]
    totals[_CROSSING] += crossing
    return tuple(totals)


def running_watch() -> Stopwatch | None:
    """Return the stopwatch that runs in this thread."""
    return _running.watch
