"""What does it cost to call functions of the user?"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.suite.timing import consume
from benchmarks.systems.base import Batching, Data, System

_CHUNKS = 12  # measured in turns, with the function and without
_BATCHES = 300  # of a chunk; 32 may be ready in the workers when it begins


def same(sample: Any) -> Any:
    """A function of a sample that does nothing."""
    return sample


def same_with_rng(sample: Any, rng: np.random.Generator) -> Any:
    """The same, with a generator of its own."""
    del rng
    return sample


def shift(columns: dict[str, Any]) -> dict[str, Any]:
    """A function of columns that changes them: inputs and labels of a language model."""
    tokens = columns["tokens"]
    tokens += 1
    return {"inputs": tokens[:, :-1], "labels": tokens[:, 1:]}


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Microseconds a sample, or the time of a batch over that of one without the function."""
    if case.size:
        plain = system.with_function(data, _batching(case), variant, "", same)
        mapped = system.with_function(data, _batching(case), variant, "map_batches", shift)
        without, with_it = _in_turns(
            plain, mapped, _BATCHES, seconds, time.perf_counter, statistics.median
        )
        return {"value": with_it / without, "without": case.size / without}
    function = same_with_rng if variant == "rng" else same
    plain = system.with_function(data, Batching(0), variant, "", function)
    mapped = system.with_function(data, Batching(0), variant, "map", function)
    without, with_it = _in_turns(plain, mapped, 8192, seconds, time.process_time)
    call = _call_of(function)
    return {"value": max(0.0, (with_it - without) - call) * 1e6, "function": call * 1e6}


def _batching(case: Case) -> Batching:
    return Batching(case.size, case.workers, case.shuffled)


def _in_turns(
    plain: Callable[[], Iterator[Any]],
    mapped: Callable[[], Iterator[Any]],
    chunk: int,
    seconds: float,
    clock: Callable[[], float],
    choose: Callable[[list[float]], float] = min,
) -> tuple[float, float]:
    """Seconds of an item of each, ``choose`` of those of some chunks measured in turns."""
    endless = [_endless(begin) for begin in (plain, mapped)]
    for items in endless:
        consume(items, chunk)
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + max(seconds, 0.2)
    for number in range(1000):
        for step, items in enumerate(endless):
            start_time = clock()
            consume(items, chunk)
            times[step].append((clock() - start_time) / chunk)
        if number >= _CHUNKS and time.perf_counter() > end:
            break
    return choose(times[0]), choose(times[1])


def _endless(begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    return itertools.chain.from_iterable(begin() for _ in itertools.count())


def _call_of(function: Callable[..., Any]) -> float:
    """Seconds of a call of the function alone, the least of some rounds."""
    arguments = {"rng": None} if function is same_with_rng else {}
    best_time = float("inf")
    for _ in range(5):
        start_time = time.process_time()
        for _ in range(20_000):
            function(None, **arguments)
        best_time = min(best_time, (time.process_time() - start_time) / 20_000)
    return best_time


QUESTION = Question(
    name="functions",
    title="Calls of functions of the user",
    heading="What does it cost to call your functions?",
    unit="µs/sample",
    cases=(
        Case("map, a sample", "small", Bar(at_most=0.4), only=("plain",), ours=True, shuffled=True),
        Case("map with rng", "small", Bar(at_most=5), only=("rng",), ours=True, shuffled=True),
        Case(
            "map_batches, tokens, 32 a batch, 2 workers",
            "tokens",
            Bar(at_most=1.25),
            size=32,
            workers=2,
            shuffled=True,
            only=("processes",),
            ours=True,
            unit="times",
        ),
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "The rows 'map' show the processor time per sample that `map()` adds to a loop, without "
        "the time of your function itself; 0 means too short to measure. With 'rng', `map()` also "
        "sets up a random generator for each sample. The row 'map_batches' shows the time per "
        "batch with a function that makes inputs and labels from tokens, divided by the time "
        "without it."
    ),
)
