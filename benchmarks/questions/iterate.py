"""How many samples a second does a loop over the data set see, in one process?"""

from __future__ import annotations

from benchmarks.questions.base import Bar, Case, Question, first_samples, must_equal
from benchmarks.suite.timing import rate
from benchmarks.systems.base import Data, System


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Samples per second after the first 64 of an epoch."""
    begin = system.iterate(data, case.shuffled, variant)
    if not case.shuffled:
        samples = begin()
        for expected in first_samples(data):
            must_equal(next(samples), expected)
        del samples
    return rate(begin, seconds=seconds, warm=64, chunk=256)


QUESTION = Question(
    name="iterate",
    title="Iterating samples in one process",
    heading="How many samples per second does a loop see?",
    unit="samples/s",
    cases=(
        Case("tokens, in order", "tokens", Bar(of_limit=0.9, of={"litdata": 1.2})),
        Case("tokens, shuffled", "tokens", Bar(of_limit=0.9, of={"litdata": 1.2}), shuffled=True),
        Case("text, in order", "text", Bar(of_limit=0.95, of={"litdata": 1.0})),
        Case("text, shuffled", "text", Bar(of_limit=0.95, of={"litdata": 1.0}), shuffled=True),
    ),
    measure=measure,
    note=(
        "A loop takes each sample, a dict of decoded columns, and does nothing with it. Rows "
        "name the workload and the order. Copying takes most of the time for tokens, and "
        "parsing JSON for text."
    ),
)
