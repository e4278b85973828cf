"""Clocks: units per second of an iterator, seconds of a call, and memory of this process.

Consumption costs as little as Python allows (a deque of length 0 fed from C), so that what is
measured is the system and not the loop around it.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import multiprocessing
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
    """Units per second of one epoch after its first ``warm`` items, for ``seconds`` at most.

    ``units``: samples of an item (a batch has many). Every sample is met for the first time, as in
    training, so one that maps files pays for their pages here. What the beginning costs is told
    apart, as ``first``: seconds from ``begin()`` to the first item. ``per_cpu_second`` counts
    processor time of this process, which a busy machine disturbs less.
    """
    started = time.perf_counter()
    items = begin()
    if not consume(items, 1):
        raise RuntimeError("the epoch is empty")
    first = time.perf_counter() - started
    consume(items, warm - 1)
    return {"first": first, **_timed(items, seconds, units, chunk)}


def calls(
    call: Callable[[Any], Any], arguments: list[Any], *, seconds: float, units: int = 1
) -> dict[str, float]:
    """Units per second of a function called once with each argument, for ``seconds`` at most."""
    call(arguments[0])
    return _timed(map(call, arguments[1:]), seconds, units, max(1, 256 // units))


def _timed(items: Iterator[Any], seconds: float, units: int, chunk: int) -> dict[str, float]:
    item_count = 0
    start_time, cpu_begun = time.perf_counter(), time.process_time()
    while True:
        consumed = consume(items, chunk)
        item_count += consumed
        elapsed = time.perf_counter() - start_time
        if consumed < chunk or elapsed > seconds:
            break
    cpu = time.process_time() - cpu_begun
    if not item_count:
        raise RuntimeError("there was nothing left to time after the first items")
    return {"value": item_count * units / elapsed, "per_cpu_second": item_count * units / cpu}


def private_bytes(pid: int | str = "self") -> int:
    """Memory that belongs to a process alone (Linux), in bytes."""
    total = 0
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                total += int(line.split()[1]) * 1024
    return total


def family_seconds() -> float:
    """Processor time of this process and its living children (Linux)."""
    total, tick = time.process_time(), os.sysconf("SC_CLK_TCK")
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError), open(f"/proc/{child.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / tick
    return total


def settle_cpus() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
