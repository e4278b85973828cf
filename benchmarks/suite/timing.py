"""Clocks: units per second of an iterator, seconds of a call, and memory of this process.

Consumption costs as little as Python allows (a deque of length 0 fed from C), so that what is
measured is the system and not the loop around it.
"""

from __future__ import annotations

import collections
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any


def consume(items: Iterator[Any], count: int) -> int:
    """Take up to ``count`` items and drop them; how many there were."""
    counter = itertools.count()
    collections.deque(zip(itertools.islice(items, count), counter, strict=False), maxlen=0)
    return next(counter)


def rate(
    begin: Callable[[], Iterator[Any]],
    *,
    seconds: float,
    units: int = 1,
    warm: int = 1,
    chunk: int = 64,
) -> dict[str, float]:
    """Units per second after the first ``warm`` items of each epoch, over ``seconds`` at least.

    ``units``: samples of an item (a batch has many). Epochs are begun until the time is up; what
    their beginning costs is told apart, as ``first``: seconds from ``begin()`` to the first item.
    ``per_cpu_second`` counts processor time of this process, which a busy machine disturbs less.
    """
    spent, cpu, done, first = 0.0, 0.0, 0, None
    while spent < seconds:
        started = time.perf_counter()
        items = begin()
        if not consume(items, 1):
            raise RuntimeError("the epoch is empty")
        if first is None:
            first = time.perf_counter() - started
        consume(items, warm - 1)
        begun, cpu_begun = time.perf_counter(), time.process_time()
        got = 0
        while True:
            now = consume(items, chunk)
            got += now
            elapsed = time.perf_counter() - begun
            if now < chunk or spent + elapsed > seconds:
                break
        spent += elapsed
        cpu += time.process_time() - cpu_begun
        done += got
        if not got:
            raise RuntimeError(f"the epoch has no more than {warm} items: nothing to time")
        del items  # what the system keeps for an iteration is given back outside of the clock
    assert first is not None
    return {"value": done * units / spent, "first": first, "per_cpu_second": done * units / cpu}


def calls(
    call: Callable[[Any], Any], arguments: list[Any], *, seconds: float, units: int = 1
) -> dict[str, float]:
    """Units per second of a function called with each argument, in turn, for ``seconds``."""
    call(arguments[0])
    spent, cpu, done = 0.0, 0.0, 0
    while spent < seconds:
        begun, cpu_begun = time.perf_counter(), time.process_time()
        done += consume(map(call, arguments), len(arguments))
        spent += time.perf_counter() - begun
        cpu += time.process_time() - cpu_begun
    return {"value": done * units / spent, "per_cpu_second": done * units / cpu}


def private_bytes(pid: int | str = "self") -> int:
    """Memory that belongs to a process alone (Linux), in bytes."""
    total = 0
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                total += int(line.split()[1]) * 1024
    return total


def settle_cpus() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
