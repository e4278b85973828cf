"""What a question is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from benchmarks.systems.base import Data, System


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """Bar for this library, as a share of other systems in the same run.

    ``of_limit``: share of the limit. ``of_peers``: share of the best peer. ``of``: shares of
    single systems by name. ``at_most``: an absolute bound, for what is better when it is small.
    """

    of_limit: float | None = None
    of_peers: float | None = None
    of: dict[str, float] = dataclasses.field(default_factory=dict)
    at_most: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One line of a table."""

    name: str
    workload: str
    bar: Bar = Bar()
    size: int = 0  # samples of a batch
    workers: int = 0
    shuffled: bool = False
    only: tuple[str, ...] = ()  # variants of ours that this case is about
    ours: bool = False  # asked of this library and the limit alone
    unit: str = ""  # where it is not the question's


Measure = Callable[[System, Data, Case, str, float], dict[str, float]]


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question: ``measure(system, data, case, variant, seconds)`` gives {"value": ..., ...}.

    ``heading``: the question as readers ask it, above its table. ``title``: a short form for the
    plot. ``note``: at most five sentences on what is measured, the rows, the columns and the limit.
    """

    name: str
    title: str
    heading: str
    unit: str
    cases: tuple[Case, ...]
    measure: Measure
    more_is_better: bool = True
    note: str = ""


def first_samples(data: Data, count: int = 4) -> list[dict[str, Any]]:
    """Return the first samples of a workload, with which the output of an adapter is compared.

    They are kept beside the data in the form in which they were made.
    """
    import os
    import pickle

    with open(os.path.join(os.path.dirname(data.folder), "first.pickle"), "rb") as file:
        return pickle.load(file)[:count]  # type: ignore[no-any-return]


def must_equal(actual: Any, expected: dict[str, Any]) -> None:
    """Raise when a system's sample is not the one that was written.

    A system that stores one column alone may hand it out without its name.
    """
    import numpy as np

    if not isinstance(actual, dict):
        actual = dict.fromkeys(expected, actual) if len(expected) == 1 else actual
    for name, value in expected.items():
        if not np.array_equal(np.asarray(actual[name]), np.asarray(value)):
            raise AssertionError(f"column {name!r}: {actual[name]!r} instead of {value!r}")
