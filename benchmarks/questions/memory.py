"""What memory does a worker process take for itself, and does it grow?"""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.suite.timing import consume
from benchmarks.systems.base import Batching, Data, System

_EPOCHS = 3


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Megabytes of the largest worker at the end of the last of three epochs.

    Counted is what it has written itself (private dirty pages): what it shares with its parent and
    pages of the data in the system's cache cost nothing.
    """
    batching = Batching(case.size, case.workers, shuffled=True)
    ask = system.images if data.workload == "images" else system.batches
    begin = ask(data, batching, variant)
    sizes = []
    for _ in range(_EPOCHS):
        batches = begin()
        peak = 0
        while consume(batches, 8):
            peak = max([peak, *map(_dirty, _children())])
        sizes.append(peak / 1e6)
    if not max(sizes):
        raise RuntimeError("no worker process was found")
    return {"value": sizes[-1], "first_epoch": sizes[0]}


def _children() -> Iterator[int]:
    """Processes that this one has started, and theirs (Linux)."""
    processes = {os.getpid()}
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has just ended
    for pid in sorted(parents):
        if parents[pid] in processes:
            processes.add(pid)
            yield pid


def _dirty(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(
                int(line.split()[1]) * 1024 for line in file if line.startswith("Private_Dirty:")
            )
    except OSError:
        return 0


QUESTION = Question(
    name="memory",
    title="Memory of a worker",
    heading="How much memory does a worker process take?",
    unit="MB",
    cases=(
        Case("tokens, 32 a batch, 2 workers", "tokens", Bar(at_most=60.0), size=32, workers=2),
        Case("images, 32 a batch, 2 workers", "images", Bar(at_most=60.0), size=32, workers=2),
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "Numbers are the private memory that the largest worker process has written by the end of "
        "the third epoch, without what it inherited. Decoding images fragments the heap of a "
        "worker, so mds tells glibc to return large blocks. HF datasets (Arrow) uses `map`, and "
        "lancedb `permutation`."
    ),
)
