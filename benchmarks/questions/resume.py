"""How long does it take to go on at the half of an epoch of 100 million samples?"""

from __future__ import annotations

import functools
import os
import shutil
import time
from typing import Any

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.suite.many import in_a_process_before, in_own_cache, many_shards
from benchmarks.suite.timing import private_bytes
from benchmarks.systems.base import Data, System

_SHARDS, _SAMPLES = 50_000, 2_000
_FEW = 500  # shards in a smoke test


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Seconds from a constructed data set to the first sample after the half of its epoch.

    "first" has an empty cache folder, "again" one in which a process that is gone did the same.
    """
    place = os.path.dirname(data.folder)
    shards = _FEW if data.count < 10_000 else _SHARDS
    many = Data("many", many_shards(place, shards, _SAMPLES), shards * _SAMPLES)
    two_shards = Data("many", many_shards(place, 2, _SAMPLES), 2 * _SAMPLES)
    cache = in_own_cache(many.folder, variant)
    try:
        if variant.endswith("again"):
            in_a_process_before(functools.partial(_first, system, many, variant))
        _first(system, two_shards, variant)
        before = private_bytes()
        took, held_objects = _first(system, many, variant)
        grown = private_bytes() - before
        del held_objects
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    return {"value": took, "bytes": grown}


def _first(system: System, data: Data, variant: str) -> tuple[float, Any]:
    dataset = system.half_way(data, variant)
    start_time = time.perf_counter()
    samples = iter(dataset)
    next(samples)
    return time.perf_counter() - start_time, samples


def _case(name: str, bar: Bar, variant: str, *, ours: bool = False) -> Case:
    return Case(name, "tokens", bar, only=(variant,), ours=ours)


QUESTION = Question(
    name="resume",
    title="Going on at the half of 100,000,000 shuffled samples",
    heading="How long does it take to resume in the middle of 100,000,000 shuffled samples?",
    unit="s",
    cases=(
        _case("py1e, first time", Bar(), "py1e first"),
        _case("py1e, again", Bar(at_most=1.0), "py1e again", ours=True),
        _case("seekable", Bar(at_most=0.1), "seekable", ours=True),
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "The clock runs from an opened dataset of 50,000 shards to the next sample, without "
        "workers. Rows name the `shuffle_algo`. `py1e` computes the order of the epoch once "
        "('first time') and stores it for later processes ('again'); `seekable` computes the "
        "sample at each position directly."
    ),
)
