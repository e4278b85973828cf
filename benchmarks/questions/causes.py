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
    unit="wrong answers in 60 runs",
    cases=(Case("every cause that report() can name", "", Bar(at_most=3), ours=True),),
    measure=measure,
    more_is_better=False,
    note=(
        "Twelve slow trainings of two seconds run five times each, with different kinds and "
        "numbers of workers and batch sizes. An answer is wrong if the report does not name the "
        "cause."
    ),
)
