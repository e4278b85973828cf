"""Schedule of packed documents: windows of so many tokens each, mixed by shares of the tokens.

A run of packs has one sequence of windows since the training began, over all epochs, each for as
many tokens. Document j of a stream is due where the stream's share of the tokens, summed up over
windows, passes j - 1/2 times its mean length. So the documents of any window follow from whole
numbers alone, and the windows do not depend on ranks, workers or batches. What a knot counts
becomes the first window that begins there or later, so a schedule is followed to within a window.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds.errors import ConfigError
from mds.plan.mixture import MAX_STEPS, ONE, Mixture, ShareSpan
from mds.plan.packing import MAX_WINDOW_DOCUMENTS
from mds.plan.schedule import Schedule, ScheduledRun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from mds.plan.packing import Packing

    Ids = NDArray[np.int64]


class Documents(NamedTuple):
    """The documents of a stream: how many are ``stored``, and their tokens as they are packed."""

    stored: int
    tokens: int


class TokenMixture(Mixture):
    """Documents of each stream in the windows before a window, of ``epoch_tokens`` / ``windows``.

    ``shares`` has the share of the tokens of each stream, in windows.
    """

    def __init__(
        self, shares: Mixture, documents: Sequence[Documents], epoch_tokens: int, windows: int
    ) -> None:
        self.batch, self.streams = 1, shares.streams
        self._shares, self._documents = shares, documents
        self._tokens, self._windows = epoch_tokens, windows

    def integral(self, steps: Ids) -> Ids:
        """Integrals of the shares before windows, (windows, streams), in windows of ONE."""
        return self._shares.integral(steps)

    def counts(self, steps: Ids) -> Ids:
        """Documents of each stream in the windows before each of ``steps``, (steps, streams).

        Raises PlanError for a window that no run reaches.
        """
        self._shares.counts(steps[:0])
        due = self.integral(steps).tolist()
        found = [[self._come(i, share) for i, share in enumerate(row)] for row in due]
        return np.array(found, np.int64).reshape(len(steps), self.streams)

    def _come(self, stream: int, integral: int) -> int:
        """The documents of a stream that are due, by the nearest whole number."""
        count, tokens = self._documents[stream]
        whole = 2 * self._windows * ONE * tokens
        return (2 * integral * self._tokens * count + whole // 2) // whole if tokens else 0

    def steps_of_turns(self, stream: int, turns: Ids) -> Ids:
        """The windows in which documents of a stream come; MAX_STEPS - 1: they never do."""

        def due(window: int) -> int:
            return self._come(stream, int(self.integral(np.array([window]))[0, stream]))

        every = range(MAX_STEPS)
        found = [bisect.bisect_right(every, turn, key=due) - 1 for turn in turns.tolist()]
        return np.array(found, np.int64)

    def tokens(self, steps: Ids) -> NDArray[np.float64]:
        """About the tokens of each stream in the windows before each of ``steps``."""
        means = [tokens / max(count, 1) for count, tokens in self._documents]
        found: NDArray[np.float64] = self.counts(steps) * np.array(means)
        return found


@dataclasses.dataclass(frozen=True)
class PackedRun(ScheduledRun):
    """A schedule for packs of documents, whose steps are windows; live weights hold from them on.

    An epoch has so many ``windows`` for ``epoch_tokens`` together. ``step_tokens``: of a global
    batch, where knots count these.
    """

    documents: tuple[Documents, ...] = ()
    epoch_tokens: int = 1
    windows: int = 1
    step_tokens: int = 1
    unit = "windows"

    @classmethod
    def of(
        cls,
        run: ScheduledRun,
        documents: Sequence[Documents],
        choose: Sequence[int],
        epoch_size: int,
        window: int,
        step_tokens: int,
    ) -> PackedRun:
        """A run for windows of about ``window`` documents.

        ``choose``: documents that a pass takes of each stream; ``epoch_size``: of an epoch.
        """
        taken = sum(_taken(choose, documents))
        tokens = max(epoch_size * taken // max(sum(choose), 1), 1)
        windows = [1, -(-epoch_size // window)]
        for count, of_stream in documents:
            # Of short documents alone a window has no more than are packed at once.
            windows.append(-(-tokens * count // (MAX_WINDOW_DOCUMENTS * max(of_stream, 1))))
        step = step_tokens if run.schedule.unit == "steps" else 1
        return cls(run.schedule, run.names, run.live, tuple(documents), tokens, max(windows), step)

    def epoch_steps(self, epoch_size: int, batch: int) -> int:
        """Windows of an epoch."""
        del epoch_size, batch
        return self.windows

    def facts(self, samples: Sequence[int], batch: int, epoch_size: int) -> dict[str, Any]:
        """What a state must agree with; the global batch only where knots count these."""
        del epoch_size
        found: dict[str, Any] = {"epoch_windows": self.windows}
        if self.schedule.unit == "steps":
            found["global_batch_size"] = batch
        return {**found, "schedule": self.key(samples, batch)}

    def stretches(self, samples: Sequence[int], batch: int) -> list[ShareSpan]:
        """The shares of the tokens as the schedule was written, in windows."""
        del batch
        return _by_windows(self).stretches(_taken(samples, self.documents), 1)

    def mixture(self, samples: Sequence[int], batch: int) -> TokenMixture:
        """The documents that windows have of streams of so many a pass.

        Raises ConfigError when a stream without tokens has a share.
        """
        del batch
        shares = _by_windows(self).mixture(_taken(samples, self.documents), 1)
        return TokenMixture(shares, self.documents, self.epoch_tokens, self.windows)

    def window_of(self, milestone: int) -> int:
        """Return the first window that begins at a milestone or after it."""
        return -(-milestone * self.step_tokens * self.windows // self.epoch_tokens)

    def late_milestones(self) -> list[tuple[int, int]]:
        """Return milestones inside a window, and where each takes effect, in their unit.

        A delay of one step, or of a hundredth of the time before, is left out.
        """
        effects = []
        for milestone, _ in self.schedule.knots:
            tokens = self.window_of(milestone) * self.epoch_tokens // self.windows
            effect = -(-tokens // self.step_tokens)
            if effect > milestone + max(1, milestone // 100):
                effects.append((milestone, effect))
        return effects


def _taken(samples: Sequence[int], documents: Sequence[Documents]) -> tuple[int, ...]:
    """Tokens that a pass of so many samples takes of each stream."""
    both = zip(samples, documents, strict=True)
    return tuple(n * tokens // max(count, 1) for n, (count, tokens) in both)


@functools.lru_cache(maxsize=32)
def _by_windows(run: PackedRun) -> ScheduledRun:
    """The run with knots that count windows."""
    return _by_steps(run, run.window_of)


def _by_steps(run: ScheduledRun, step_of: Callable[[int], int]) -> ScheduledRun:
    """A run with knots at steps; of those at one step the last one holds."""
    told = run.schedule.to_json()
    kind = "temperature" if run.schedule.is_temperature else "knots"
    told[kind] = [[step_of(at), value] for at, value in told[kind]]
    rest = {key: value for key, value in told.items() if key not in {"unit", "tokens_per_sample"}}
    return ScheduledRun(Schedule.from_json(rest), run.names, run.live)


def first_shares(run: ScheduledRun, samples: Sequence[int]) -> list[float]:
    """The share of each stream with which a training begins, whatever knots count.

    Raises ConfigError when a stream without samples has a share, at any time.
    """
    return _by_steps(run, int).mixture(samples, 1).shares(0)


def check_packed_schedule(schedule: Schedule, packing: Packing) -> None:
    """Refuse what the knots of a schedule cannot count with packs (ConfigError)."""
    if schedule.unit == "samples" or schedule.tokens_per_sample is not None:
        what = "unit='samples'" if schedule.unit == "samples" else "tokens_per_sample="
        raise ConfigError(
            f"schedule: {what} and packing=: documents have different lengths, which are known. "
            "Use unit='tokens' without tokens_per_sample=, or unit='steps'."
        )
    if schedule.unit == "steps" and packing.capacity is None:
        raise ConfigError(
            "schedule: unit='steps' and Packing(budget=...): how many tokens a step has is not "
            "known before its documents are. Use unit='tokens'."
        )
