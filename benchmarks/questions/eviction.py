"""What do shuffled epochs cost when a quarter of the data may be kept?"""

from __future__ import annotations

import os
import tempfile

from benchmarks import eviction
from benchmarks.questions.base import Bar, Case, Question
from benchmarks.systems.base import Data, System

_SHAPES = {
    "two threads": (1, 2, "threads"),
    "two processes": (1, 2, "processes"),
    "2 ranks x 2 processes": (2, 2, "processes"),
    "4 ranks x 1 process": (4, 1, "processes"),
}
_BLOCKS = (0.05, 0.15)
_JOBS = "two jobs"


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Bytes from a web server over those of Belady's rule for whole shards, as benchmarks/eviction.

    Of both blocks, 5 and 15 % of the dataset, the worse one is told.
    """
    del system, data, variant
    form, shape = case.name.split(", ")
    is_short = seconds < 0.1
    if shape == _JOBS:
        return _sharing(form, is_short=is_short)
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as scratch:
        folder = os.path.join(scratch, "data")
        eviction.write(folder, form, *((2_000, 1 << 16) if is_short else (40_000, 1 << 20)))
        found = [
            eviction.measure(folder, eviction.Run(form, *_SHAPES[shape], block), scratch)
            for block in _BLOCKS[is_short:]
        ]
    worst = max(found, key=lambda one: one.came / one.belady)
    return {
        "value": worst.came / worst.belady,
        "came": worst.came,
        "belady": worst.belady,
        "least": worst.least,
        "requests": float(worst.requests),
    }


def _sharing(form: str, *, is_short: bool) -> dict[str, float]:
    """Bytes of two jobs on one folder over those of each alone under half of the limit."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as scratch:
        folder = os.path.join(scratch, "data")
        eviction.write(folder, form, *((2_000, 1 << 16) if is_short else (12_000, 1 << 18)))
        run = eviction.Run(form, 1, 2, "threads", _BLOCKS[-1], seeds=(1, 2))
        came, alone = eviction.sharing(folder, run, scratch)
    return {"value": came / alone, "came": came, "alone": alone}


QUESTION = Question(
    name="eviction",
    title="Three shuffled epochs with room for a quarter",
    heading="How much is downloaded again if a quarter of the data fits in the cache?",
    unit="x Belady",
    cases=tuple(
        Case(
            f"{form}, {shape}",
            "",
            Bar(at_most=1.05 if kind == "threads" else 1.08),
            ours=True,
        )
        for form in ("raw", "zstd")
        for shape, (_, _, kind) in _SHAPES.items()
    )
    + tuple(
        Case(f"{form}, {_JOBS}", "", Bar(at_most=1.1), ours=True, unit="x alone")
        for form in ("raw", "zstd")
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "Numbers are the bytes that mds downloads in three shuffled epochs, divided by those of "
        "Belady's rule, which knows all later reads and evicts the shard that is needed last. "
        "Rows name the compression ('raw' is none) and the workers. A row "
        "shows the worse of two runs, with a `shuffle_block_size` of 5 % and 15 % of the samples. "
        "In the rows 'two jobs', two jobs share a cache folder. Their bytes are divided by those "
        "of the same jobs alone: each has its own folder and half of the cache."
    ),
)
