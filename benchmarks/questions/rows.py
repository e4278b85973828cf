"""How fast do 256 random samples come in one call?"""

from __future__ import annotations

import random

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.suite.timing import calls
from benchmarks.systems.base import Data, System


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Samples per second of ``dataset[[...]]`` with ``case.size`` random numbers."""
    get = system.rows(data, variant)
    numbers = [*range(data.count)]
    random.Random(7).shuffle(numbers)
    batches = [numbers[start : start + case.size] for start in range(0, data.count, case.size)]
    return calls(get, batches, seconds=seconds, units=case.size)


QUESTION = Question(
    name="rows",
    title="256 random rows in one call, dataset[[...]]",
    heading="How fast are 256 random rows in one call?",
    unit="samples/s",
    cases=(Case("tokens", "tokens", Bar(of_limit=0.5), size=256),),
    measure=measure,
    note=(
        "One call, such as `dataset[[...]]` in mds, reads 256 samples with shuffled numbers. The "
        "limit indexes one NumPy array."
    ),
)
