"""How many samples a second reach a trainer as batches of tensors?"""

from __future__ import annotations

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.suite.timing import rate
from benchmarks.systems.base import Batching, Data, System


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Samples per second of shuffled batches."""
    batching = Batching(case.size, case.workers, case.shuffled)
    begin = system.batches(data, batching, variant)
    batch = next(iter(begin()))
    tokens = batch["tokens"] if isinstance(batch, dict) else batch
    if tuple(tokens.shape) != (case.size, 2048) or "Tensor" not in type(tokens).__name__:
        raise AssertionError(f"a batch is {type(tokens).__name__} {tuple(tokens.shape)}")
    del batch, tokens
    warm = max(2, 4 * case.workers)
    return rate(begin, seconds=seconds, units=case.size, warm=warm, chunk=4)


def _cases() -> tuple[Case, ...]:
    cases = []
    for size in (32, 256):
        for workers in (0, 1, 2):
            bar = (
                Bar(of_limit=0.6, of_peers=3.5)
                if not workers
                else Bar(of_peers=1.2, of={"plain": 1.0})
            )
            cases.append(
                Case(
                    f"tokens, {size} a batch, {workers} worker{'s' * (workers != 1)}",
                    "tokens",
                    bar,
                    size=size,
                    workers=workers,
                    shuffled=True,
                    only=("processes",),
                )
            )
        cases.append(
            Case(
                f"tokens, {size} a batch, threads",
                "tokens",
                Bar(),
                size=size,
                workers=2,
                shuffled=True,
                only=("threads",),
            )
        )
    return tuple(cases)


QUESTION = Question(
    name="batches",
    title="Batches of tensors",
    heading="How many samples per second reach the trainer in batches?",
    unit="samples/s",
    cases=_cases(),
    measure=measure,
    note=(
        "A loop takes shuffled batches of 32 or 256 samples as tensors. Workers are processes; "
        "the rows 'threads' use two threads (mds only). The limit indexes one NumPy array, in the "
        "workers of torch's DataLoader if a row has workers."
    ),
)
