"""Does `loader.report()` name why a run is slow?"""

from __future__ import annotations

from benchmarks import causes
from benchmarks.questions.base import Bar, Case, Question
from benchmarks.systems.base import Data, System


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Count the trainings whose cause `loader.report()` does not name."""
    del system, data, case, variant
    rounds, length = (1, 0.3) if seconds < 0.1 else (causes.ROUNDS, 2.0)
    wrong = {
        situation: sum(
            causes.ask(situation, number, length).named != cause for number in range(rounds)
        )
        for situation, cause in causes.SITUATIONS.items()
    }
    return {"value": float(sum(wrong.values())), **{k: float(v) for k, v in wrong.items()}}


QUESTION = Question(
    name="causes",
    title="Twelve slow runs, five times each: how many causes are not named",
    heading="Does `loader.report()` name why a run is slow?",
    unit="reports",
    cases=(Case("cause not named", "", Bar(at_most=3), ours=True),),
    measure=measure,
    more_is_better=False,
    note=(
        "Twelve trainings, each slow for one known cause, run for two seconds, five times each, "
        "with different workers and batch sizes. The number counts the reports, of 60, that do "
        "not name the cause."
    ),
)
