"""How many photographs a second reach a trainer, decoded, cut at random, flipped, normalised?"""

from __future__ import annotations

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.questions.images import case_of, rate_of_images
from benchmarks.suite.workloads import CROP
from benchmarks.systems.base import Batching, Data, System


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Images per second, as float32 tensors (n, 3, 224, 224)."""
    begin = system.augmented(data, Batching(case.size, case.workers, case.shuffled), variant)
    batch = next(iter(begin()))
    if tuple(batch["image"].shape) != (case.size, 3, CROP, CROP):
        raise AssertionError(f"a batch is {tuple(batch['image'].shape)}")
    if "float32" not in str(batch["image"].dtype):
        raise AssertionError(f"a batch is of {batch['image'].dtype}")
    del batch
    return rate_of_images(begin, case, seconds)


QUESTION = Question(
    name="augmented",
    title="Photographs, augmented",
    heading="How many augmented photographs per second?",
    unit="images/s",
    cases=(
        case_of("photographs", "2 workers", 2, "processes", Bar(of_limit=0.97)),
        case_of("photographs", "2 threads", 2, "threads", Bar()),
    ),
    measure=measure,
    note=(
        "In all libraries, the same functions decode photographs, cut and flip them at random, "
        "and normalise batches. mds calls them in map() and `collate_fn`; its row of threads uses "
        "`mds.transforms.images()` instead. The limit uses files in memory and torch's "
        "DataLoader."
    ),
)
