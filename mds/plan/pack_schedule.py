"""Schedule of packed documents: windows of equally many tokens, mixed by shares of the tokens.

A run with packs and a schedule has one sequence of windows since the training began, over all
epochs. Each window is planned for equally many tokens. Document j of a stream is due where the
stream's share of the tokens, summed over windows, passes j - 1/2 times the mean length of its
documents. So the documents of any window follow from integers alone, and windows do not depend on
ranks, workers or batches. A milestone becomes the first window that begins there or later, so a
schedule is followed to within a window.
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
    """Documents of a stream.

    Attributes:
        stored: Number of documents.
        tokens: Their tokens as packed: without those that are cut or left out.
    """

    stored: int
    tokens: int


class TokenMixture(Mixture):
    """Documents of each stream in the first windows of a run.

    Args:
        shares: Shares of the tokens of each stream, by window.
        documents: Documents of each stream.
        epoch_tokens: Tokens of an epoch.
        windows: Windows of an epoch.
    """

    def __init__(
        self, shares: Mixture, documents: Sequence[Documents], epoch_tokens: int, windows: int
    ) -> None:
        self.batch, self.streams = 1, shares.streams
        self._shares, self._documents = shares, documents
        self._tokens, self._windows = epoch_tokens, windows

    def integral(self, steps: Ids) -> Ids:
        """Return the sum of the shares in the windows before each of ``steps``, in 1 / ONE.

        It is int64 of shape (steps, streams).
        """
        return self._shares.integral(steps)

    def counts(self, steps: Ids) -> Ids:
        """Return the documents of each stream in the windows before each of ``steps``.

        They are int64 of shape (steps, streams). Raises PlanError for a window beyond `MAX_STEPS`.
        """
        self._shares.counts(steps[:0])
        shares_due = self.integral(steps).tolist()
        counts = [
            [self._due_documents(i, share) for i, share in enumerate(row)] for row in shares_due
        ]
        return np.array(counts, np.int64).reshape(len(steps), self.streams)

    def _due_documents(self, stream: int, integral: int) -> int:
        """Return the number of documents of a stream that are due, rounded to the nearest one.

        ``integral`` is the sum of its shares in the windows before, in units of 1 / ONE. A window
        has epoch_tokens / windows tokens, and a document tokens / count, so the number is::

            integral / ONE * (epoch_tokens / windows) / (tokens / count)

        It is 0 for a stream without tokens.
        """
        # Numbers of any size, as Python has them: the products exceed 64 bits.
        count, tokens = self._documents[stream]
        denominator = 2 * self._windows * ONE * tokens
        return (
            (2 * integral * self._tokens * count + denominator // 2) // denominator if tokens else 0
        )

    def steps_of_samples(self, stream: int, sample_numbers: Ids) -> Ids:
        """Return the windows in which documents of a stream come, MAX_STEPS - 1 for never.

        ``sample_numbers`` count the documents of the stream since the training began.
        """

        def due(window: int) -> int:
            """Return the documents of the stream that come before a window."""
            return self._due_documents(stream, int(self.integral(np.array([window]))[0, stream]))

        all_windows = range(MAX_STEPS)
        windows = [
            bisect.bisect_right(all_windows, number, key=due) - 1
            for number in sample_numbers.tolist()
        ]
        return np.array(windows, np.int64)

    def tokens(self, steps: Ids) -> NDArray[np.float64]:
        """Return about how many tokens of each stream are in the windows before each of ``steps``.

        The estimate takes each document to have the mean length of its stream. It is float64 of
        shape (steps, streams).
        """
        means = [tokens / max(count, 1) for count, tokens in self._documents]
        tokens: NDArray[np.float64] = self.counts(steps) * np.array(means)
        return tokens


@dataclasses.dataclass(frozen=True)
class PackedRun(ScheduledRun):
    """Schedule of a run with packs; its steps are windows, and live weights hold from a window on.

    The arguments ``samples`` of its methods are the documents of each stream in a pass. ``batch``
    and ``epoch_size`` are those of `ScheduledRun` and are not used for counting windows.

    Attributes:
        documents: Documents of each stream.
        epoch_tokens: Tokens of an epoch.
        windows: Windows of an epoch.
        step_tokens: Tokens of a unit of milestones: of a global batch, or 1.
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
        """Return a run with its schedule counted in windows.

        Args:
            run: Run as the schedule was written.
            documents: Documents of each stream.
            choose: Documents that a pass takes of each stream.
            epoch_size: Documents of an epoch.
            window: Approximate number of documents of a window.
            step_tokens: Tokens of a global batch.
        """
        # The documents of an epoch are as long as those of a pass on average:
        # epoch_size * (tokens of a pass / documents of a pass), at least 1.
        pass_tokens = sum(_pass_tokens(choose, documents))
        epoch_tokens = max(epoch_size * pass_tokens // max(sum(choose), 1), 1)
        # Lower bounds of the number of windows, each rounded up; the largest holds.
        window_bounds = [1, -(-epoch_size // window)]
        for count, stream_tokens in documents:
            # All windows have about as many tokens. A schedule may take all tokens of a window from
            # this stream, with epoch_tokens / (stream_tokens / count) documents for an epoch. Even
            # then no window may exceed MAX_WINDOW_DOCUMENTS.
            window_bounds.append(
                -(-epoch_tokens * count // (MAX_WINDOW_DOCUMENTS * max(stream_tokens, 1)))
            )
        return cls(
            run.schedule,
            run.names,
            run.live,
            documents=tuple(documents),
            epoch_tokens=epoch_tokens,
            windows=max(window_bounds),
            step_tokens=step_tokens if run.schedule.unit == "steps" else 1,
        )

    def epoch_steps(self, epoch_size: int, batch: int) -> int:
        """Return the number of windows of an epoch."""
        del epoch_size, batch
        return self.windows

    def facts(self, samples: Sequence[int], batch: int, epoch_size: int) -> dict[str, Any]:
        """Return the settings that a resumed run must have, as plain JSON.

        ``samples`` are the documents of a pass of each stream, ``batch`` the packs of a global
        batch.
        """
        del epoch_size  # the number of windows says the same
        facts: dict[str, Any] = {"epoch_windows": self.windows}
        if self.schedule.unit == "steps":
            facts["global_batch_size"] = batch
        return {**facts, "schedule": self.key(samples, batch)}

    def spans(self, samples: Sequence[int], batch: int) -> list[ShareSpan]:
        """Return the spans of shares of the tokens as the schedule was written, in windows."""
        del batch
        return _by_windows(self).spans(_pass_tokens(samples, self.documents), 1)

    def mixture(self, samples: Sequence[int], batch: int) -> TokenMixture:
        """Return the documents of each stream in the first windows.

        ``samples`` are the documents of a pass of each stream. Raises ConfigError if a stream
        without tokens has a share.
        """
        del batch
        shares = _by_windows(self).mixture(_pass_tokens(samples, self.documents), 1)
        return TokenMixture(shares, self.documents, self.epoch_tokens, self.windows)

    def window_of(self, milestone: int) -> int:
        """Return the first window that begins at a milestone or after it."""
        return -(-milestone * self.step_tokens * self.windows // self.epoch_tokens)

    def late_milestones(self) -> list[tuple[int, int]]:
        """Return pairs of a milestone and the later point at which it takes effect.

        Both are in the unit of milestones. A milestone inside a window takes effect with the next
        window. Delays of one step, or of up to a hundredth of the milestone, are left out.
        """
        effects = []
        for milestone, _ in self.schedule.knots:
            # Tokens before the window, and the same in the unit of milestones, rounded up.
            tokens = self.window_of(milestone) * self.epoch_tokens // self.windows
            effect = -(-tokens // self.step_tokens)
            if effect > milestone + max(1, milestone // 100):
                effects.append((milestone, effect))
        return effects


def _pass_tokens(samples: Sequence[int], documents: Sequence[Documents]) -> tuple[int, ...]:
    """Return the tokens of each stream in a pass that takes ``samples`` documents of each.

    ``documents`` are all documents of each stream, whose mean length counts.
    """
    both = zip(samples, documents, strict=True)
    return tuple(n * tokens // max(count, 1) for n, (count, tokens) in both)


@functools.lru_cache(maxsize=32)
def _by_windows(run: PackedRun) -> ScheduledRun:
    """Return the run with milestones counted in windows."""
    return _by_steps(run, run.window_of)


def _by_steps(run: ScheduledRun, step_of: Callable[[int], int]) -> ScheduledRun:
    """Return a run whose milestones are counted in steps, by a function from milestone to step.

    If several milestones are at one step, the last one holds.
    """
    written = run.schedule.to_json()
    kind = "temperature" if run.schedule.is_temperature else "knots"
    written[kind] = [[step_of(milestone), value] for milestone, value in written[kind]]
    options = {
        key: value for key, value in written.items() if key not in {"unit", "tokens_per_sample"}
    }
    return ScheduledRun(Schedule.from_json(options), run.names, run.live)


def first_shares(run: ScheduledRun, samples: Sequence[int]) -> list[float]:
    """Return the shares of all streams at the beginning of a run, from 0 to 1.

    ``samples`` are the samples of a pass of each stream. Milestones may be in any unit, as all
    begin at 0. Raises ConfigError if a stream without samples has a share at any milestone.
    """
    return _by_steps(run, int).mixture(samples, 1).shares(0)


def check_packed_schedule(schedule: Schedule, packing: Packing) -> None:
    """Raise ConfigError for milestones in a unit that cannot be counted with packs."""
    if schedule.unit == "samples" or schedule.tokens_per_sample is not None:
        option = "unit='samples'" if schedule.unit == "samples" else "tokens_per_sample="
        raise ConfigError(
            f"schedule: {option} and packing=: documents have different lengths, which are known. "
            "Use unit='tokens' without tokens_per_sample=, or unit='steps'."
        )
    if schedule.unit == "steps" and packing.capacity is None:
        raise ConfigError(
            "schedule: unit='steps' and Packing(budget=...): how many tokens a step has is not "
            "known before its documents are. Use unit='tokens'."
        )
