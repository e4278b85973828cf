"""How long does one sample take, asked for by its number?"""

from __future__ import annotations

import random

from benchmarks.questions.base import Bar, Case, Question, first_samples, must_equal
from benchmarks.suite.timing import calls
from benchmarks.systems.base import Data, System


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Samples per second of ``dataset[i]`` over all numbers, shuffled."""
    get = system.getter(data, variant)
    for number, expected in enumerate(first_samples(data)):
        must_equal(get(number), expected)
    numbers = [*range(data.count)]
    random.Random(7).shuffle(numbers)
    return calls(get, numbers, seconds=seconds)


QUESTION = Question(
    name="random_access",
    title="Random access, dataset[i]",
    heading="How fast is `dataset[i]`?",
    unit="samples/s",
    cases=(
        Case("tokens", "tokens", Bar(of_limit=0.8, of_peers=5.0)),
        Case("text", "text", Bar(of_limit=0.8, of_peers=5.0)),
    ),
    measure=measure,
    note="`dataset[i]` reads one sample. The numbers `i` are shuffled.",
)
