"""A stopwatch for the phases of making a batch, and the times of transfers, by few clock readings.

The stages of a batch take turns in one thread, so the clock is read between stages. Reading it
between the decoding of each sample and its functions would cost more than most functions, so a
third of a batch is decoded before its functions are called. Filters, and a ``__getitem__`` of the
user that decodes samples itself, are timed for one sample, which represents the batch. A thread
that waits for a shard adds the wait to the stopwatch that runs in it. `TransferTimes` tells which
part of the wait was for answers, for bytes and for decompression.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mds._process.fork_safe import new_lock

#: Phases of a batch: waiting for the response to a request; for its bytes; decompressing them;
#: decoding samples; functions of the user; collating the samples; sending the batch to another
#: process.
PHASES = ("request", "transfer", "unpack", "decode", "functions", "collate", "crossing")
_REQUEST, _TRANSFER, _UNPACK, DECODE, FUNCTIONS, COLLATE, _CROSSING = range(len(PHASES))

Clock = Callable[[], float]
#: Seconds of a batch in each of `PHASES`, and last the processor time of the thread that made it,
#: shape (8,). If functions are timed for one sample only, their time may be too large and that of
#: decoding too small, even negative; sums over many batches are right.
Making = tuple[float, ...]


class _RunningWatch(threading.local):
    """The stopwatch that runs in each thread."""

    watch: Stopwatch | None = None


_running = _RunningWatch()


class Stopwatch:
    """Seconds by phase of the batches that one thread makes.

    `start` begins a batch, `charge` adds the time since the last reading of the clock to a phase,
    and `take` ends the batch. Functions of the user that run while samples are decoded are timed
    for one sample of a batch, which represents the others (`begin_sample`, `end_sample`).

    Args:
        clock: Function that returns the time in seconds (default: `time.perf_counter`).
        processor: Function that returns the processor time of the calling thread in seconds
            (default: `time.thread_time`).
    """

    def __init__(
        self, clock: Clock = time.perf_counter, processor: Clock = time.thread_time
    ) -> None:
        self._clock, self._processor = clock, processor
        self._processor_begun = 0.0
        self._seconds = [0.0] * len(PHASES)
        self._last = 0.0
        self._waited = 0.0  # seconds of waits since the last reading
        self._sample_start = 0.0  # when the timed sample began
        self._function_seconds = 0.0  # spent in the user's functions for the timed sample
        #: Whether the functions of the next sample are timed.
        self.is_armed = False

    @property
    def last(self) -> float:
        """Time of the last reading, in seconds."""
        return self._last

    def start(self) -> None:
        """Start to measure a batch that the calling thread makes, at first or after `take`.

        Waits of this thread are added to this stopwatch until `take`, see `running_watch`.
        """
        self._waited = 0.0
        self._last = self._clock()
        self._processor_begun = self._processor()
        self.is_armed = True
        _running.watch = self

    def charge(self, phase: int) -> None:
        """Add the time since the last reading of the clock to a phase, an index in `PHASES`.

        Waits in that time are left out, since `add_wait` has added them to other phases.
        """
        now = self._clock()
        spent = now - self._last - self._waited
        if spent > 0.0:
            self._seconds[phase] += spent
        self._last, self._waited = now, 0.0

    def take(self, samples: int = 1) -> Making:
        """Return the seconds of each phase since `start`, and stop.

        ``samples`` is the number of samples that the timed sample represents (default 1).
        """
        _running.watch = None
        # Functions of the user ran between the decoding of samples, so their time was charged to
        # decoding. One sample was timed (`begin_sample`): move the time of all samples accordingly.
        if self._function_seconds:
            moved, self._function_seconds = self._function_seconds * samples, 0.0
            self._seconds[DECODE] -= moved
            self._seconds[FUNCTIONS] += moved
        seconds = (*self._seconds, max(0.0, self._processor() - self._processor_begun))
        self._seconds = [0.0] * len(PHASES)
        return seconds

    # ------------------------------------------------------------------ one sample for all

    def begin_sample(self) -> None:
        """Begin to time the user's code for one sample, which decodes the sample itself."""
        self.is_armed = False
        self._sample_start = self._clock()

    def end_sample(self) -> None:
        """End the time of the user's code for the sample."""
        self._function_seconds += self._clock() - self._sample_start

    def leave_functions(self) -> None:
        """Interrupt the time of the user's code, which begins to decode."""
        # Together with `resume_functions`, this subtracts the length of the interruption.
        self._function_seconds += self._clock()

    def resume_functions(self) -> None:
        """Continue the time of the user's code, which has decoded; undoes `leave_functions`."""
        self._function_seconds -= self._clock()

    # ------------------------------------------------------------------ waits

    def add_wait(self, seconds: float, shares: Sequence[float]) -> None:
        """Record that the thread waited for bytes since the last reading of the clock.

        Args:
            seconds: Length of the wait.
            shares: Proportions of requests, transfers and decompression in it, shape (3,). They
                need not add up to 1. If all are 0, the whole wait counts as transfer.
        """
        share_sum = sum(shares)
        if share_sum <= 0.0:
            shares, share_sum = (0.0, 1.0, 0.0), 1.0
        for phase, share in zip((_REQUEST, _TRANSFER, _UNPACK), shares, strict=True):
            self._seconds[phase] += seconds * share / share_sum
        self._waited += seconds


def join_makings(makings: Iterable[Making], crossing: float = 0.0) -> Making:
    """Return the sum of the seconds of several batches, phase by phase.

    ``crossing`` is the time in seconds of sending them to another process (default 0).
    """
    totals: list[float] = [sum(each) for each in zip(*makings, strict=True)]
    totals[_CROSSING] += crossing
    return tuple(totals)


def running_watch() -> Stopwatch | None:
    """Return the stopwatch that runs in this thread, or None."""
    return _running.watch


# --------------------------------------------------------------------- transfers


class TransferSeconds(NamedTuple):
    """Seconds of all transfers, and the number of requests.

    Attributes:
        request: Until requests were answered.
        transfer: From the answers until all bytes arrived, with decompression meanwhile.
        unpack: Decompression.
        requests: Number of requests.
    """

    request: float = 0.0
    transfer: float = 0.0
    unpack: float = 0.0
    requests: int = 0

    def since(self, earlier: TransferSeconds) -> TransferSeconds:
        """Return the seconds and requests since the time of ``earlier``, which are older sums."""
        return TransferSeconds(
            self.request - earlier.request,
            self.transfer - earlier.transfer,
            self.unpack - earlier.unpack,
            self.requests - earlier.requests,
        )

    @property
    def shares(self) -> tuple[float, float, float]:
        """The seconds of requests, transfers without decompression, and decompression."""
        return self.request, max(0.0, self.transfer - self.unpack), self.unpack


class TransferTimes:
    """Sums of the seconds of all requests of a process, over all its threads.

    Three readings of the clock per request distinguish a distant store from a slow one. Two per
    piece of a compressed file measure decompression. ``clock`` returns the time in seconds.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self._sums = TransferSeconds()
        self._lock = new_lock()

    def add(self, request: float, transfer: float, unpack: float = 0.0, requests: int = 0) -> None:
        """Add seconds of requests, transfers and decompression, and a number of requests."""
        with self._lock:
            old = self._sums
            self._sums = TransferSeconds(
                old.request + request,
                old.transfer + transfer,
                old.unpack + unpack,
                old.requests + requests,
            )

    def now(self) -> TransferSeconds:
        """Return the present sums."""
        return self._sums

    def answered(self, start: float) -> Callable[[], None]:
        """Record that a request was answered now; return the function to call at its last byte.

        That function adds the times of the request to the sums. ``start`` is the time by `clock` at
        which the request was sent.
        """
        answer_time = self.clock()

        def ended() -> None:
            self.add(answer_time - start, self.clock() - answer_time, requests=1)

        return ended


#: The transfer times of this process.
TIMES = TransferTimes()
