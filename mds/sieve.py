"""Samples left out while iterating: broken ones, and those that a filter refuses.

What is left out is known only when it is read, and by one worker. To keep ranks equal and
positions exact all the same, the place of a sample that is left out is filled by the next good
sample of the same worker (which then comes again at its own place), or by the last one at the end.
So every worker yields as many samples as planned, the position counts places, and a resumed run
meets the same samples at the same places. What is left out is reported by number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from mds.errors import ConfigError, EncodingError, FormatError

# Faults of a sample. A store that fails or a shard that is missing is no reason to go on.
_BROKEN = (EncodingError, FormatError)


class LeftOut(NamedTuple):
    """A sample that was not yielded, by its number, and why."""

    sample: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Sieve:
    """What is left out: samples that do not decode, and samples that ``keep`` refuses."""

    skip_broken: bool = False
    keep: Callable[[Any], bool] | None = None

    @property
    def is_open(self) -> bool:
        """Whether nothing can be left out."""
        return not self.skip_broken and self.keep is None

    def sift(
        self,
        numbers: Iterable[int],
        get: Callable[[int], Any],
        report: Callable[[LeftOut], None],
    ) -> Iterator[Any]:
        """One good sample for each number.

        Raises ConfigError when there is not a single good one to fill the places with.
        """
        empty = 0  # places whose sample was left out and that wait for a good one
        good: list[Any] = []
        for number in numbers:
            try:
                sample = get(number)
            except _BROKEN as error:
                if not self.skip_broken:
                    raise
                report(LeftOut(number, f"{type(error).__name__}: {error}"))
                empty += 1
                continue
            if self.keep is not None and not self.keep(sample):
                report(LeftOut(number, "refused by the filter"))
                empty += 1
                continue
            good = [sample]
            for _ in range(empty + 1):
                yield sample
            empty = 0
        if empty and not good:
            raise ConfigError(
                f"all {empty} samples of a worker were left out, so that none can fill their "
                "places. Look at dataset.left_out, or select() the samples beforehand."
            )
        for _ in range(empty):
            yield good[0]
