"""Account of a trainer's waits: each is charged to what the batch took for which it waited.

A batch tells the seconds of its making by phase (`mds.process.stopwatch`), and a wait is divided as
they are: workers that are busy are what a trainer waits for, and phases are what they are busy
with. Between two batches the trainer is at its own work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mds.process.stopwatch import PHASES

if TYPE_CHECKING:
    from mds.process.stopwatch import Making

MUCH_IDLE = 0.75  # of `WaitAccount.idle`; two other programs on the same cores make it 0.5


class WaitAccount:
    """Sums of one iteration of a loader, in seconds.

    ``batches`` came; for the first of them ``first`` passed, in which workers began. Of the others
    ``waited`` is the sum of the waits and ``worked`` that of the time between them.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.first = self.waited = self.worked = 0.0
        self._charged = [0.0] * len(PHASES)
        self._made = [0.0] * len(PHASES)
        self._processor = 0.0
        self._last = 0.0

    @property
    def charged(self) -> dict[str, float]:
        """The seconds waited, by the phases of `PHASES` that they are charged to."""
        return _by_phase(self._charged)

    @property
    def made(self) -> dict[str, float]:
        """The seconds of making the batches, by phase; of several workers more than passed."""
        return _by_phase(self._made)

    @property
    def idle(self) -> float:
        """Share of decoding, functions and collating in which the processor did nothing, 0 to 1."""
        made = self.made
        own = made["decode"] + made["functions"] + made["collate"]
        return max(0.0, own - self._processor) / own if own > 0.0 else 0.0

    @property
    def cores(self) -> float:
        """Cores that the makers of batches kept busy on average while the trainer ran."""
        whole = self.waited + self.worked
        return self._processor / whole if whole > 0.0 else 0.0

    def add(self, asked: float, came: float, making: Making | None) -> None:
        """Record when a batch was asked for and when it came.

        ``making`` is None for one that came with an earlier one.
        """
        self.batches += 1
        if making is not None:
            *phases, processor = making
            self._made = [a + b for a, b in zip(self._made, phases, strict=True)]
            self._processor += processor
        if self.batches == 1:
            self.first = came - asked
        else:
            self.worked += max(0.0, asked - self._last)
            self.waited += max(0.0, came - asked)
            self._charge(max(0.0, came - asked), making)
        self._last = came

    def _charge(self, wait: float, making: Making | None) -> None:
        phases = () if making is None else making[:-1]
        whole = sum(phases)
        if whole <= 0.0:
            self._charged[-1] += wait  # it was there: what is left is its way
            return
        self._charged = [a + wait * b / whole for a, b in zip(self._charged, phases, strict=True)]

    def __repr__(self) -> str:
        return (
            f"<WaitAccount: {self.batches} batches, {self.waited:.3g} s waited, "
            f"{self.worked:.3g} s at work>"
        )


def _by_phase(seconds: Sequence[float]) -> dict[str, float]:
    """Return sums by phase, none of which is below zero (see `Making`)."""
    found = dict(zip(PHASES, seconds, strict=True))
    too_few = min(found["decode"], 0.0)
    return {**found, "decode": found["decode"] - too_few, "functions": found["functions"] + too_few}
