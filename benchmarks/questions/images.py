"""How many decoded images a second reach a trainer?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.suite.timing import rate
from benchmarks.systems.base import Batching, Data, System


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Images per second, decoded, cropped to 224 x 224 and stacked to a uint8 tensor."""
    batching = Batching(case.size, case.workers, case.shuffled)
    begin = system.images(data, batching, variant)
    batch = next(iter(begin()))
    if tuple(batch["image"].shape) != (case.size, 224, 224, 3):
        raise AssertionError(f"a batch is {tuple(batch['image'].shape)}")
    del batch
    return rate_of_images(begin, case, seconds)


def rate_of_images(
    begin: Callable[[], Iterator[Any]], case: Case, seconds: float
) -> dict[str, float]:
    """Images per second of an epoch; a batch takes so long that two seconds are the least."""
    return rate(
        begin,
        seconds=seconds if seconds < 0.5 else max(seconds, 2.0),
        units=case.size,
        warm=max(1, 2 * case.workers),
        chunk=1,
    )


def case_of(kind: str, name: str, workers: int, only: str, bar: Bar) -> Case:
    """Shuffled batches of 32 pictures, by workers of one kind."""
    return Case(
        f"{kind}, 32 a batch, {name}",
        "images",
        bar,
        size=32,
        workers=workers,
        shuffled=True,
        only=(only,),
    )


QUESTION = Question(
    name="images",
    title="Decoded images",
    heading="How many decoded images per second?",
    unit="images/s",
    cases=(
        case_of("images", "0 workers", 0, "processes", Bar()),
        case_of("images", "2 workers", 2, "processes", Bar(of_limit=0.95)),
        case_of("images", "1 thread", 1, "threads", Bar()),
        case_of("images", "2 threads", 2, "threads", Bar()),
    ),
    measure=measure,
    note=(
        "All libraries decode with the same decoder, cut the middle 224 x 224 pixels and stack "
        "shuffled batches. Workers are processes; threads are for mds only. The limit uses files "
        "in memory and torch's DataLoader. With 0 workers, ArrayRecord + Grain appears too fast: "
        "its threads read ahead before the clock starts."
    ),
)
