"""Schedule of packed documents: windows of equally many tokens, mixed by shares of the tokens.

A run with packs and a schedule has a sequence of windows since the training began, over all epochs.
Each window is planned for equally many tokens. Document j of a stream is due where the stream's
share of the tokens, summed over windows, passes j - 1/2 times the mean length of its documents. So
the documents of any window follow from integers alone, and windows do not depend on ranks, workers
or batches. A milestone becomes the first window that begins there or later, so a schedule is
followed to within a window.

Each canonical node, or *row*, has such a sequence of its own, with documents of its own part of
each stream (`DocumentRows`), so that a machine reads its canonical nodes only. Window w of all rows
together has the documents that are due in w. So a window of the schedule has as many tokens as the
windows of all rows.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds.errors import ConfigError
from mds.plan._mixture import MAX_STEPS, ONE, Mixture, ShareSpan
from mds.plan._packing import MAX_WINDOW_DOCUMENTS
from mds.plan._row_counts import MIN_ROW_SAMPLES
from mds.plan._schedule import Schedule, ScheduledRun
from mds.plan._state import ORDER_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from mds.plan._packing import Packing

    Ids = NDArray[np.int64]


class Documents(NamedTuple):
    """Documents of a stream.

    Attributes:
        stored: Number of documents.
        tokens: Tokens of all these documents in packs: with separators, and without what the
            packing cuts off or leaves out.
    """

    stored: int
    tokens: int


class TokenMixture(Mixture):
    """Documents of each stream in the first windows of a run.

    It is a `Mixture` whose steps are windows and whose samples are documents. A share is a part of
    the tokens of a window; shares are integers in units of 1 / ``ONE``, so ``ONE`` is all tokens.

    Args:
        shares: Mixture by which each window has a share of the tokens for each stream.
        documents: Documents of each stream.
        epoch_tokens: Tokens of an epoch.
        windows: Windows of an epoch.
    """

    def __init__(
        self, shares: Mixture, documents: Sequence[Documents], epoch_tokens: int, windows: int
    ) -> None:
        # Not super().__init__: all methods that count are overridden. Shares are of one window, so
        # the batch is 1.
        self.batch, self.streams = 1, shares.streams
        self._shares, self.documents = shares, documents
        self._tokens, self._windows = epoch_tokens, windows

    def integral(self, steps: Ids) -> Ids:
        """Return the sum of the shares in the windows before each of ``steps``.

        It is int64 of shape (steps, streams), in units of 1 / ``ONE``. A stream that has half of
        the tokens in each of the first 4 windows has 2 * ``ONE`` at step 4.
        """
        return self._shares.integral(steps)

    def with_documents(self, documents: Sequence[Documents]) -> TokenMixture:
        """Return the mixture of other documents, such as those of a row, by the same shares."""
        return TokenMixture(self._shares, documents, self._tokens, self._windows)

    def counts(self, steps: Ids) -> Ids:
        """Return the documents of each stream in the windows before each of ``steps``.

        They are int64 of shape (steps, streams).
        """
        counts = [
            [self._due_documents(stream, integral) for stream, integral in enumerate(integrals)]
            for integrals in self.integral(steps).tolist()
        ]
        return np.array(counts, np.int64).reshape(len(steps), self.streams)

    def _due_documents(self, stream: int, integral: int) -> int:
        """Return the number of documents of a stream that come before a window.

        ``integral`` is the sum of the stream's shares in the windows before, in units of 1 / ONE. A
        window has epoch_tokens / windows tokens, and a document tokens / count on average, so the
        number is this, rounded to the nearest one::

            integral / ONE * (epoch_tokens / windows) / (tokens / count)

        It is 0 for a stream without tokens.
        """
        count, tokens = self.documents[stream]
        if not tokens:
            return 0
        # In Python's integers: the products exceed 64 bits. With an even denominator, adding half
        # of it before the division rounds to the nearest number.
        denominator = 2 * self._windows * ONE * tokens
        return (2 * integral * self._tokens * count + denominator // 2) // denominator

    def steps_of_samples(self, stream: int, sample_numbers: Ids) -> Ids:
        """Return the window in which each document of a stream comes, MAX_STEPS - 1 for never.

        ``sample_numbers`` count the documents of the stream since the training began. The window is
        the last one before which no more than so many documents come, found by bisection.
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
        means = [stream_tokens / max(count, 1) for count, stream_tokens in self.documents]
        tokens: NDArray[np.float64] = self.counts(steps) * np.array(means)
        return tokens


@dataclasses.dataclass(frozen=True)
class PackedRun(ScheduledRun):
    """Schedule of a run with packs; its steps are windows, and live weights hold from a window on.

    The arguments ``samples`` of its methods are the documents of each stream in a pass. ``batch``
    and ``epoch_size`` are those of `ScheduledRun` and are not used for counting windows.

    Attributes:
        documents: All documents of each stream.
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
        rows: int,
    ) -> PackedRun:
        """Return the run with packs of a schedule: how many tokens and windows an epoch has.

        Args:
            run: Run as the schedule was written.
            documents: Documents of each stream.
            choose: Documents that a pass takes of each stream.
            epoch_size: Documents of an epoch.
            window: Approximate number of documents of a window of one row.
            step_tokens: Tokens of a global batch.
            rows: Number of rows, the canonical nodes.
        """
        # The documents of an epoch are as long as those of a pass on average:
        # epoch_size * (tokens of a pass / documents of a pass), at least 1.
        pass_tokens = sum(_pass_tokens(choose, documents))
        epoch_tokens = max(epoch_size * pass_tokens // max(sum(choose), 1), 1)
        # Lower bounds of the number of windows, each rounded up; the largest holds.
        window_bounds = [1, -(-epoch_size // (window * rows))]
        for count, stream_tokens in documents:
            # A schedule may take all tokens of an epoch from this stream, which are
            # epoch_tokens / (stream_tokens / count) of its documents. Even then no window of a row
            # may exceed MAX_WINDOW_DOCUMENTS.
            most_documents = MAX_WINDOW_DOCUMENTS * rows
            window_bounds.append(
                -(-epoch_tokens * count // (most_documents * max(stream_tokens, 1)))
            )
        return cls(
            run.schedule,
            run.names,
            run.live,
            documents=tuple(documents),
            epoch_tokens=epoch_tokens,
            windows=max(window_bounds),
            step_tokens={"steps": step_tokens, "samples": 1, "tokens": 1}[run.schedule.unit],
        )

    def epoch_steps(self, epoch_size: int, batch: int) -> int:
        """Return the number of windows of an epoch."""
        del epoch_size, batch
        return self.windows

    def facts(self, samples: Sequence[int], batch: int, epoch_size: int) -> dict[str, Any]:
        """Return the settings that a resumed run must have, as plain JSON.

        ``samples`` are the documents of a pass of each stream, ``batch`` the packs of a global
        batch, which matters only if milestones count global batches.
        """
        del epoch_size  # it decides the number of windows, which is a setting here
        facts: dict[str, Any] = {"epoch_windows": self.windows}
        if self.schedule.unit == "steps":
            facts["global_batch_size"] = batch
        return {**facts, "schedule": self.key(samples, batch), "schedule_order": ORDER_VERSION}

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
        """Return the first window that begins at a milestone or after it.

        The milestone is at ``milestone * step_tokens`` tokens, and a window has
        ``epoch_tokens / windows`` tokens: their quotient is rounded up.
        """
        return -(-milestone * self.step_tokens * self.windows // self.epoch_tokens)

    def late_milestones(self) -> list[tuple[int, int]]:
        """Return pairs of a milestone and the later point at which it takes effect.

        Both are in the unit of milestones. A milestone inside a window takes effect with the next
        window. Delays of one step, or of up to a hundredth of the milestone, are left out.
        """
        effects = []
        for milestone, _ in self.schedule.knots:
            # Tokens before the window in which it takes effect, and the same in the unit of
            # milestones, rounded up.
            tokens = self.window_of(milestone) * self.epoch_tokens // self.windows
            effect = -(-tokens // self.step_tokens)
            if effect > milestone + max(1, milestone // 100):
                effects.append((milestone, effect))
        return effects


class DocumentRows:
    """Documents of each stream that each row of a schedule gives; `StreamRows`.

    A row has its own part of the documents of a stream, which are consecutive positions in the
    order of a pass, and goes through all passes of that part alone. Parts are cut by tokens, so
    they are through with a pass at the same time. A stream with few documents is not cut: its
    documents are dealt to the rows one after the other.

    Args:
        mixture: Documents of each stream in the windows of the run.
        starts: For each stream, the first position of each row in a pass, and the end.

    Attributes:
        rows: Number of rows.
        has_rows: Mask of the streams that are cut.
        starts, sizes: Position of the first document of each row in a pass, and the documents of
            the row; int64 (streams, rows). The whole stream, in each row, if it is not cut.
    """

    def __init__(self, mixture: TokenMixture, starts: Sequence[Ids]) -> None:
        edges = np.stack(starts)
        self.mixture, self.rows = mixture, edges.shape[1] - 1
        sizes = np.diff(edges, axis=1)
        self.has_rows = (sizes.min(axis=1) >= MIN_ROW_SAMPLES) & (self.rows > 1)
        self.sizes = np.where(self.has_rows[:, None], sizes, edges[:, -1:])
        self.starts = np.where(self.has_rows[:, None], edges[:, :-1], 0)
        # Of its documents, a row has given the same part as all rows together of all documents. So
        # they are size / pass times as many; both numbers are multiplied by the documents of a
        # pass, to stay whole.
        passes = edges[:, -1].tolist()
        self._mixtures = [
            mixture.with_documents(
                [
                    Documents(stored * size, tokens * max(pass_size, 1))
                    for (stored, tokens), size, pass_size in zip(
                        mixture.documents, sizes_of_row.tolist(), passes, strict=True
                    )
                ]
            )
            for sizes_of_row in sizes.T
        ]

    def counts(self, row: int, windows: Ids) -> Ids:
        """Return the documents of each stream that a row gives before each of some windows.

        They are int64 of shape (windows, streams).
        """
        counts = self._mixtures[row].counts(windows)
        if not self.has_rows.all():
            counts_in_turn = -(-(self.mixture.counts(windows) - row) // self.rows)
            counts = np.where(self.has_rows, counts, counts_in_turn)
        return counts

    def numbers(self, row: int, streams: Ids, numbers: Ids) -> Ids:
        """Return the number of documents of a row among those that `StreamPasses` numbers.

        Args:
            row: The row.
            streams: Stream of each document.
            numbers: Number of each among the documents of the stream that the row gives.
        """
        if self.has_rows.all():
            return numbers
        return np.where(self.has_rows[streams], numbers, numbers * self.rows + row)

    def before(self, step: int) -> Ids:
        """Return the documents that each row has given before a window, int64 (streams, rows)."""
        windows = np.array([step])
        counts = np.stack([mixture.counts(windows)[0] for mixture in self._mixtures], axis=1)
        return np.where(self.has_rows[:, None], counts, self.mixture.counts(windows)[0][:, None])

    def find(self, stream: int, row: int, number: int) -> tuple[int, int]:
        """Return the row and the window of a document, whose number is as of `numbers`."""
        if self.has_rows[stream]:
            mixture = self._mixtures[row]
        else:
            mixture, row = self.mixture, number % self.rows
        return row, int(mixture.steps_of_samples(stream, np.array([number]))[0])


def _pass_tokens(samples: Sequence[int], documents: Sequence[Documents]) -> tuple[int, ...]:
    """Return about how many tokens each stream has in a pass.

    ``samples`` are the documents that a pass takes of each stream. They are taken to have the mean
    length of all ``documents`` of the stream.
    """
    return tuple(
        documents_of_pass * tokens // max(count, 1)
        for documents_of_pass, (count, tokens) in zip(samples, documents, strict=True)
    )


@functools.lru_cache(maxsize=32)
def _by_windows(run: PackedRun) -> ScheduledRun:
    """Return a run that mixes tokens: the same schedule, with milestones counted in windows."""
    return _by_steps(run, run.window_of)


def _by_steps(run: ScheduledRun, step_of: Callable[[int], int]) -> ScheduledRun:
    """Return the same run with milestones counted in steps.

    ``step_of`` is the function from a milestone, in the unit of the schedule, to its step. If
    several milestones are at one step, the last one holds.
    """
    # Change the schedule in its JSON form: the milestones, and the unit to its default, "steps".
    written = run.schedule.to_json()
    kind = run.schedule.kind
    written[kind] = [[step_of(milestone), value] for milestone, value in written[kind]]
    options = {
        key: value for key, value in written.items() if key not in {"unit", "tokens_per_sample"}
    }
    return ScheduledRun(Schedule.from_json(options), run.names, run.live)


def first_shares(run: ScheduledRun, samples: Sequence[int]) -> list[float]:
    """Return the shares of all streams at the beginning of a run, from 0 to 1.

    ``samples`` are the samples of a pass of each stream. Raises ConfigError if a stream without
    samples has a share at any milestone.
    """
    # `int` takes each milestone as a step, whatever its unit is: the first one is 0 in all units.
    return _by_steps(run, int).mixture(samples, 1).shares(0)


def check_packed_schedule(schedule: Schedule, packing: Packing) -> None:
    """Raise ConfigError for milestones in a unit that cannot be counted with packs."""
    unit, tokens_per_sample = schedule.unit, schedule.tokens_per_sample
    if unit == "samples" or tokens_per_sample is not None:
        option = "unit='samples'" if tokens_per_sample is None else "tokens_per_sample="
        raise ConfigError(
            f"schedule: {option} does not work with packing=, which counts the tokens of each "
            "document. Use unit='tokens' without tokens_per_sample=, or unit='steps'."
        )
    if unit == "steps" and packing.capacity is None:
        raise ConfigError(
            "schedule: unit='steps' does not work with Packing(budget=...), because the number "
            "of tokens of a step is not known in advance. Use unit='tokens'."
        )
