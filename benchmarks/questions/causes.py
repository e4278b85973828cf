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
    unit="of 60",
    cases=(Case("every cause that report() can name", "", Bar(at_most=3), ours=True),),
    measure=measure,
    more_is_better=False,
    note=(
        "Trainings of two seconds: a proxy holds requests back or lets few bytes through. Decoding,"
        " functions or collating burn the processor, or a function sleeps. Shards are compressed, "
        "batches are large, the trainer sleeps, or a cache has room for a fifth. The rounds differ "
        "in the number and kind of workers (none, threads, processes) and the size of batches. "
        "`loader.report()` is asked at the end."
    ),
)
