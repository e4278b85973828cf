"""How long does one sample take, asked for by its number?"""

from __future__ import annotations

import random

from benchmarks.questions.base import Bar, Case, Question, first_samples, must_equal
from benchmarks.suite.timing import calls
from benchmarks.systems.base import Data, System


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Samples per second of ``dataset[i]`` over random numbers."""
    get = system.getter(data, variant)
    for number, wanted in enumerate(first_samples(data)):
        must_equal(get(number), wanted)
    draw = random.Random(7)
    numbers = [draw.randrange(data.count) for _ in range(256)]
    fast = calls(get, numbers, seconds=0.05)["value"]
    # Enough numbers that most of the data is visited, as many as fit into the time.
    numbers = [draw.randrange(data.count) for _ in range(max(256, int(fast * seconds / 2)))]
    return calls(get, numbers, seconds=seconds)


QUESTION = Question(
    name="random_access",
    title="Random access, dataset[i]",
    unit="samples/s",
    cases=(
        Case("tokens", "tokens", Bar(of_limit=0.8, of_peers=5.0)),
        Case("text", "text", Bar(of_limit=0.8, of_peers=5.0)),
    ),
    measure=measure,
)
