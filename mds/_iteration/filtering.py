"""Filter of samples while iterating: broken samples, and those that a function refuses.

Whether a sample is dropped is known only when one worker has read it. So a batch consists of the
kept samples of a fixed number of places, and is never filled from later places. The number of steps
is that of the unfiltered order, equal on all ranks. A position counts places, so a resumed run
has the same samples at the same places. The price is batches of different sizes;
`select(where=...)` decides before the first epoch and gives full batches.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from mds.errors import ConfigError, EncodingError, FormatError, FunctionError
from mds.transforms._chain import FunctionChain, Link

if TYPE_CHECKING:
    from mds.transforms._runner import SampleRunner

# Errors of one sample. A failing store or a missing shard concerns others too, and is raised.
_BROKEN = (EncodingError, FormatError)

#: Dropped samples that are listed; further ones are counted.
MAX_LISTED_SAMPLES = 10_000


class SkippedSample(NamedTuple):
    """Number of a sample that was skipped, and the reason in words."""

    sample: int
    reason: str


class Fate(enum.Enum):
    """Outcome for one place of the order."""

    KEPT = "kept"
    DROPPED = "dropped"
    BROKEN = "broken"  # dropped before all functions were called with it
    PADDING = "padding"  # with remainder="mask": a place without a sample


class SampleFilter:
    """Filter that drops samples which cannot be decoded, and those that a function refuses.

    Args:
        skip_broken: Whether samples that cannot be decoded are dropped instead of an error.
        chain: Functions of the user, among them filters.

        is_decided: Whether the dataset has only samples that the filters keep, because
            ``select(where=...)`` has called them. Then its numbers are those of kept samples.

    ``keeps_everything`` is whether nothing can be dropped.
    """

    __slots__ = ("chain", "is_decided", "keeps_everything", "skip_broken")

    def __init__(
        self,
        *,
        skip_broken: bool = False,
        chain: FunctionChain | None = None,
        is_decided: bool = True,
    ) -> None:
        self.skip_broken, self.is_decided = skip_broken, is_decided
        self.chain = FunctionChain() if chain is None else chain
        self.keeps_everything = not skip_broken and not self.chain.drops

    def with_function(
        self, kind: str, function: Callable[..., Any], call: str = ""
    ) -> SampleFilter:
        """Return a filter with one more function, which is called after the others.

        The arguments are those of `Link.parse`.
        """
        from mds.transforms._collate import ColumnFunction

        is_ours = isinstance(function, ColumnFunction)
        link = Link.parse(kind, function, is_ours=is_ours, call=call)
        return SampleFilter(
            skip_broken=self.skip_broken,
            chain=self.chain.with_link(link),
            is_decided=self.is_decided and kind != "filter",
        )

    def as_decided(self) -> SampleFilter:
        """Return the filter of a dataset of samples that it has kept.

        Functions that draw random numbers may decide otherwise in an epoch.
        """
        return SampleFilter(
            skip_broken=self.skip_broken,
            chain=self.chain,
            is_decided=self.is_decided or not self.chain.is_keyed,
        )

    def refuse_numbers(self, call: str, call_end: str) -> None:
        """Raise ConfigError if the filters have not decided yet: numbers would count all samples.

        Args:
            call: What the user wrote, for the message.
            call_end: End of the call that gives it by ``select(where=...)``, such as ".limit(100)".
        """
        if self.is_decided:
            return
        filters = ", ".join(link.name for link in self.chain.links if link.kind == "filter")
        raise ConfigError(
            f"{call} needs to know the samples in advance, but {filters} decides while samples "
            f"are read. Write dataset.select(where=function){call_end}, which decides before the "
            "first epoch."
        )

    def judge(
        self,
        number: int,
        get: Callable[[int], Any],
        report: Callable[[SkippedSample], None],
        runner: SampleRunner,
        key: int,
    ) -> tuple[Any, Fate]:
        """Return a sample after all functions, and whether it is kept, dropped or broken.

        The sample is None if it is broken. Errors of a sample are raised unless `skip_broken`.

        Args:
            number: Number of the sample.
            get: Returns the sample of a number, before the functions.
            report: Called with the sample and the reason if it is dropped.
            runner: Calls the functions.
            key: Key of the random numbers of the functions.
        """
        try:
            sample, is_kept, is_complete = runner.judge(get(number), key)
        except (*_BROKEN, FunctionError) as error:
            cause = error.__cause__ if isinstance(error, FunctionError) else error
            if not self.skip_broken or not isinstance(cause, _BROKEN):
                raise
            report(SkippedSample(number, f"{type(cause).__name__}: {cause}"))
            return None, Fate.BROKEN
        if is_kept:
            return sample, Fate.KEPT
        report(SkippedSample(number, "dropped by the filter"))
        # A dropped sample may fill an empty batch, but only if all functions changed it.
        return (sample, Fate.DROPPED) if is_complete else (None, Fate.BROKEN)


class DropCount:
    """Dropped samples of a dataset, since it was made or since `take`.

    Attributes:
        listed: The first dropped samples.
        count: Number of all dropped samples.
        empty: Number of batches of which no sample was kept.
    """

    def __init__(self) -> None:
        self.listed: list[SkippedSample] = []
        # ``_listed_before`` counts samples that `take` has removed; they count toward the limit.
        self.count = self.empty = self._listed_before = 0

    def report(self, skipped: SkippedSample) -> None:
        """Add one dropped sample."""
        self.add((skipped,), 1)

    def add(self, listed: tuple[SkippedSample, ...], count: int, empty: int = 0) -> None:
        """Add dropped samples, for instance those that a worker process reported.

        Args:
            listed: The first of them.
            count: Number of all of them.
            empty: Number of batches of which no sample was kept.
        """
        # Samples beyond the limit are counted and not listed, to bound memory.
        self.listed.extend(listed[: MAX_LISTED_SAMPLES - self._listed_before - len(self.listed)])
        self.count += count
        self.empty += empty

    def take(self) -> tuple[list[SkippedSample], int]:
        """Return the list and the number, and start again from an empty list and 0."""
        reported = self.listed, self.count
        self._listed_before += len(self.listed)
        self.listed, self.count = [], 0
        return reported

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return {"dropped_samples": self.count, "empty_batches": self.empty}
