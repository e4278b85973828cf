"""What does writing cost?"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.suite.workloads import WORKLOADS
from benchmarks.systems.base import Data, System

_DISTINCT = 64  # samples, in the processor's cache


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Microseconds of CPU a sample, of all threads and processes, into a memory file system.

    So much is written before that imports and the first pages are paid for.
    """
    workload = WORKLOADS[case.workload]
    samples_in_memory = [*workload.samples(_DISTINCT, None)]
    folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)

    def write(count: int) -> float:
        place = os.path.join(folder, "out")
        os.makedirs(place)
        samples = (samples_in_memory[number % _DISTINCT] for number in range(count))
        before = _cpu()
        system.write_as(case.workload, workload.columns, samples, place, variant)
        used = _cpu() - before
        shutil.rmtree(place)
        return used

    try:
        count = max(_DISTINCT, int(case.size * min(1.0, seconds)))
        write(count // 4)
        return {"value": write(count) / count * 1e6}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cpu() -> float:
    used = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


QUESTION = Question(
    name="write",
    title="Writing, CPU of all threads and processes",
    heading="What does writing cost?",
    unit="µs/sample",
    cases=(
        Case("8 KB tokens", "tokens", Bar(of={"grain": 1.0}), size=32_768),
        Case("text and json", "text", size=16_384),
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "Samples are written to files in memory. The processor time of all threads and processes "
        "counts. The limit writes the values to one plain file, and their end positions to "
        "another. Ours alone stores a digest of each file, as it does by default."
    ),
)
