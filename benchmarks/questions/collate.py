"""How many samples a second come through a collate function of the caller's, in two workers?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.suite.timing import family_seconds, rate
from benchmarks.systems.base import Batching, Data, System

_PAGE = 4096
_WARM, _CHUNK = 48, 16  # batches, where an epoch has enough of them


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Samples per second of shuffled batches, a byte of each page of which is read.

    ``per_cpu_second`` is of all processes.
    """
    begin = system.collated(data, Batching(case.size, case.workers, case.shuffled), variant)
    batches = data.count // case.size
    warm, chunk = min(_WARM, batches // 2), max(1, min(_CHUNK, batches // 8))
    noted: list[tuple[int, float]] = []

    def metered() -> Iterator[int]:
        for number, batch in enumerate(begin()):
            yield _touch(batch)
            if number >= warm and number % chunk == 0:
                noted.append((number, family_seconds()))

    measured = rate(metered, seconds=seconds, units=case.size, warm=warm, chunk=chunk)
    if len(noted) > 1:
        (first, first_time), (last, ended) = noted[0], noted[-1]
        measured["per_cpu_second"] = (last - first) * case.size / max(ended - first_time, 1e-9)
    return measured


def _touch(batch: Any) -> int:
    import torch

    tokens = batch["tokens"] if isinstance(batch, dict) else batch
    pages = tokens.view(-1).view(torch.uint8)
    return int(pages[::_PAGE].sum()) + int(pages[-1])


def _case(size: int, variant: str, bar: Bar) -> Case:
    return Case(
        f"tokens, {size} a batch, own collate, 2 {variant}",
        "tokens",
        bar,
        size=size,
        workers=2,
        shuffled=True,
        only=(variant,),
    )


QUESTION = Question(
    name="collate",
    title="Batches that a function of the caller's makes",
    heading="How fast are batches of your own `collate_fn`?",
    unit="samples/s",
    cases=(
        _case(32, "processes", Bar(of={"plain": 2.0, "litdata": 3.0})),
        _case(256, "processes", Bar(of={"plain": 1.0, "litdata": 1.0})),
        _case(32, "threads", Bar()),
    ),
    measure=measure,
    note=(
        "Your function, here a call of torch's default_collate, makes shuffled batches in two "
        "processes. Threads, in the last row (mds only), are slower, because the function holds "
        "the interpreter's lock."
    ),
)
