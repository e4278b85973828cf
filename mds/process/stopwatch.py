"""Stopwatch of the making of batches: seconds by phase, in a few readings of the clock a batch.

Work that follows other work is told apart by a reading between the two. Readings between the
decoding of a sample and its functions would cost more than many a function, so a third of a batch
is decoded before its functions are called. Code of the caller that has samples decoded by itself
(``__getitem__`` of a class), and filters, are timed for one sample, which stands for the batch. A
wait for a shard tells itself, in the thread that waits, to the stopwatch that runs there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

#: What the making of a batch consists of: until a request is answered, until its bytes are there,
#: decompressing them; decoding samples; functions of the caller's; making one batch of them;
#: sending it to another process.
PHASES = ("request", "transfer", "unpack", "decode", "functions", "collate", "crossing")
_REQUEST, _TRANSFER, _UNPACK, _DECODE, _FUNCTIONS, _COLLATE, _CROSSING = range(len(PHASES))

Clock = Callable[[], float]
#: Seconds of each of `PHASES` that a batch took, and last the processor time of the thread that
#: made it. Where functions are known by one sample alone they may be too many and decoding too few,
#: even below zero; sums of many batches are right.
Making = tuple[float, ...]

STRETCHES = 3  # of a batch, each decoded before its functions are called
MAX_SWITCHES = 5  # readings between decoding and functions in a batch


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
        self._sample_start = self._of_one = 0.0
        self._phase = _DECODE  # the phase while samples are produced
        self._switches = self._undecoded = self._together = 0
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
        self._switches = MAX_SWITCHES
        self.is_armed = True
        _running.watch = self

    def end_samples(self, samples: int = 0) -> None:
        """Record the samples decoded and given to functions since the last reading."""
        of_functions = self._of_one * samples
        self._of_one = 0.0
        self._seconds[self._phase] += self._lap() - of_functions
        self._seconds[_FUNCTIONS] += of_functions

    def end_functions(self) -> None:
        """Charge the time since the last reading to functions of the user."""
        self._seconds[_FUNCTIONS] += self._lap()

    def end_collating(self) -> None:
        """Charge the time since the last reading to collating."""
        self._seconds[_COLLATE] += self._lap()

    def take(self) -> Making:
        """Return the seconds since the last call, and stop until `start`."""
        _running.watch = None
        seconds = (*self._seconds, max(0.0, self._processor() - self._processor_begun))
        self._seconds = [0.0] * len(PHASES)
        return seconds

    # ------------------------------------------------------------------ samples by stretches

    def expect(self, samples: int) -> None:
        """Begin a batch of so many samples."""
        self._undecoded, self._together = samples, -(-samples // STRETCHES)
        self._phase = _DECODE

    @property
    def stretch(self) -> int:
        """Number of samples to decode before their functions run, at least one."""
        return max(1, min(self._undecoded, self._together))

    def begin_functions(self, samples: int) -> None:
        """Record that so many samples are decoded and their functions begin."""
        self._undecoded -= samples
        self._switch(_FUNCTIONS)

    def begin_decoding(self) -> None:
        """End the time of functions; more samples are decoded now."""
        self._switch(_DECODE)

    def _switch(self, phase: int) -> None:
        if self._switches and phase != self._phase:
            self._switches -= 1
            self._seconds[self._phase] += self._lap()
            self._phase = phase

    # ------------------------------------------------------------------ one sample for all

    def begin_sample(self) -> None:
        """Begin the time of the user's code for one sample, which decodes it at any time."""
        self.is_armed = False
        self._sample_start = self._clock()

    def end_sample(self) -> None:
        """End the time of the user's code."""
        self._of_one += self._clock() - self._sample_start

    def leave_functions(self) -> None:
        """Begin the decoding of the sample by the user's code."""
        self._of_one += self._clock()

    def resume_functions(self) -> None:
        """End the decoding of the sample; the user's code runs again."""
        self._of_one -= self._clock()

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

    def _lap(self) -> float:
        now = self._clock()
        spent, self._last = max(0.0, now - self._last - self._waited), now
        self._waited = 0.0
        return spent


def join_makings(makings: Iterable[Making], crossing: float = 0.0) -> Making:
    """Return the seconds of several batches together, and of their way."""
    totals: list[float] = [sum(each) for each in zip(*makings, strict=True)]
    totals[_CROSSING] += crossing
    return tuple(totals)


def running_watch() -> Stopwatch | None:
    """Return the stopwatch that runs in this thread."""
    return _running.watch
