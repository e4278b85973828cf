"""How long until the first sample of a data set of 50,000 shards, and what memory does it take?"""

from __future__ import annotations

import functools
import os
import shutil
import time

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.suite.many import in_a_process_before, in_own_cache, many_shards
from benchmarks.suite.timing import private_bytes
from benchmarks.systems.base import Data, System

_SHARDS, _SAMPLES = 50_000, 16


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Seconds, or megabytes of private memory, of constructing and taking one sample.

    With the variant "again" a first data set has been made in this folder before, by a process that
    is gone; imports are over when the clock starts.
    """
    place = os.path.dirname(data.folder)
    many = Data("many", many_shards(place, _SHARDS, _SAMPLES), _SHARDS * _SAMPLES)
    two_shards = Data("many", many_shards(place, 2, _SAMPLES), 2 * _SAMPLES)
    cache = in_own_cache(many.folder, variant)
    try:
        if variant == "again":
            in_a_process_before(functools.partial(system.start, many, variant))
        system.start(two_shards, variant)  # whatever is imported late is imported now
        before, start_time = private_bytes(), time.perf_counter()
        held_objects = system.start(many, variant)
        took, after = time.perf_counter() - start_time, private_bytes()
        del held_objects
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    return {"value": (after - before) / 1e6 if case.unit == "MB" else took}


def _case(name: str, bar: Bar, variant: str, unit: str = "") -> Case:
    return Case(f"50,000 shards, {name}", "tokens", bar, only=(variant,), unit=unit)


QUESTION = Question(
    name="start",
    title="Constructing a data set of many shards and taking its first sample",
    heading="How soon does a dataset of 50,000 shards give its first sample?",
    unit="s",
    cases=(
        _case("first time", Bar(at_most=1.0), "first time"),
        _case("again", Bar(at_most=0.2), "again"),
        _case("first time, memory", Bar(), "first time", "MB"),
        _case("again, memory", Bar(at_most=20.0), "again", "MB"),
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "Rows show the time from opening the dataset to its first sample, and rows with 'memory' "
        "the growth of the process's private memory in this time. 'First time' starts with an "
        "empty cache, and 'again' is a new process that reuses what the first one stored. The "
        "limit is json.load of index.json. Libraries with another kind of index have no column."
    ),
)
