"""Is a slow run told why it is slow?"""

from __future__ import annotations

from benchmarks import causes
from benchmarks.questions.base import Bar, Case, Question
from benchmarks.systems.base import Data, System


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """How many of the trainings with a cause in them `loader.report()` does not name rightly."""
    del system, data, case, variant
    rounds = 1 if seconds < 0.1 else causes.ROUNDS
    wrong = {
        cause: sum(causes.ask(cause, number).named != cause for number in range(rounds))
        for cause in causes.CAUSES
    }
    return {"value": float(sum(wrong.values())), **{k: float(v) for k, v in wrong.items()}}


QUESTION = Question(
    name="causes",
    title="Six causes of a slow run, ten times each: how many are not named",
    unit="of 60",
    cases=(
        Case(
            "latency, bandwidth, decoding, collate, trainer, cache", "", Bar(at_most=3), ours=True
        ),
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "Trainings of two seconds: a proxy holds requests back or lets few bytes through, decoding "
        "or collating burns the processor, the trainer sleeps, a cache has room for a fifth. The "
        "rounds differ in the number and kind of workers (none, threads, processes) and the size "
        "of batches. `loader.report()` is asked at the end."
    ),
)
