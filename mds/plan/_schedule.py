"""Schedule of a mixture: the shares of streams as a function of the progress of the training.

A `Schedule` is what a user writes, checked when it is made. A `ScheduledRun` is a schedule with the
names of a dataset's streams and the weights that were set while it ran; it gives the `Mixture`,
which counts the samples of each stream. A `ScheduledEpoch` is the part of a run that an epoch has.

A *step* is a global batch of the run, counted since the training began. A *milestone* (a knot of
the schedule) is a point of the training, in the unit of the schedule, from which on it has other
weights. A *pass* goes once through all samples that a stream gives. A *share* is a weight divided
by the sum of all weights, as an integer in units of 1 / ``ONE``: so all machines compute the same.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import numbers
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from mds._arguments import takes_names
from mds._shardfile.hashing import digest
from mds._words import Between, Exhausted, Unit
from mds.errors import ConfigError, PlanError
from mds.plan._mixture import MAX_STEPS, MAX_STREAMS, ONE, Mixture, ShareSpan
from mds.plan._state import ORDER_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan._row_counts import RowCounts

    Weights = tuple[tuple[str, float], ...]
    Ids = NDArray[np.int64]


BETWEEN = get_args(Between)
UNITS = get_args(Unit)
EXHAUSTED = get_args(Exhausted)
# States keep these words, with which schedules were written first.
_STORED_WORDS = {"hold": "steps", "repeat": "again"}
_WORD_OF = {stored: word for word, stored in _STORED_WORDS.items()}
MAX_KNOTS = 1 << 12
MAX_CHANGES = 1000  # of the weights while a training runs
_MAX_AT = 1 << 62  # end of the milestones
_COUNTED = "must be a whole number of at least 1."
_MAX_PASSES = 1 << 40
_EXAMPLE = "{0: {'web': 0.9, 'math': 0.1}, 1000: {'web': 0.5, 'math': 0.5}}"


class Schedule:
    """Shares of streams that change during a run.

    - ``knots`` (Mapping[int, Mapping[str, float] | Sequence[float]]): Milestones of the training,
      and for each the weights of the streams by name, or in a list for a list of streams. One
      milestone is 0; ``"5ba"``, as in Composer, is 5. Weights need not sum to one; a stream that
      is left out gives nothing.
    - ``between`` ("hold", "linear" or "cosine", default 'hold'): Shares between two milestones:
      ``"hold"`` keeps those of the first one, ``"linear"`` is a straight line, ``"cosine"`` begins
      and ends slowly.
    - ``unit`` ("steps", "samples" or "tokens", default 'steps'): Unit of milestones, counted since
      the training began, over all epochs. ``"steps"`` are global batches; ``"samples"`` and
      ``"tokens"`` are rounded up to whole global batches.
    - ``tokens_per_sample`` (int | None, default None, tokens): Required with ``unit="tokens"``,
      unless samples are packed.
    - ``exhausted`` ("repeat", "stop" or "error", default 'repeat'): Behavior when a stream has
      given all its samples: ``"repeat"`` begins another pass, shuffled anew; ``"stop"`` ends the
      training before the first global batch that needs more; ``"error"`` refuses the epoch with
      that batch.
    - ``max_passes`` (int | Mapping[str, int] | None, default None, passes): Most passes through
      each stream, or by name through some of them. None is one pass with ``"stop"`` and
      ``"error"``. With ``"repeat"`` an epoch that would need more passes is refused when it begins.

    Raises ConfigError for arguments that make no schedule.

    >>> Schedule({0: {"web": 8, "math": 2}, 1000: {"web": 1, "math": 1}}, between="linear")
    Schedule({0: {'web': 8, 'math': 2}, 1000: {'web': 1, 'math': 1}}, between='linear')
    """

    #: Pairs of a milestone and its weights, as pairs of names and numbers, or its temperature.
    knots: tuple[tuple[int, Any], ...]
    is_temperature = False

    @takes_names
    def __init__(
        self,
        knots: Mapping[int, Mapping[str, float] | Sequence[float]],
        between: Between = "hold",
        unit: Unit = "steps",
        *,
        tokens_per_sample: int | None = None,
        exhausted: Exhausted = "repeat",
        max_passes: int | Mapping[str, int] | None = None,
    ) -> None:
        self._set(between, unit, tokens_per_sample, exhausted, max_passes)
        self.knots = tuple(
            (milestone, check_weights(weights, f"at {milestone}"))
            for milestone, weights in _sorted_knots(knots)
        )

    @classmethod
    def temperature(
        cls,
        knots: Mapping[int, float],
        between: Between = "linear",
        unit: Unit = "steps",
        *,
        tokens_per_sample: int | None = None,
        exhausted: Exhausted = "repeat",
        max_passes: int | Mapping[str, int] | None = None,
    ) -> Schedule:
        """Return a schedule in which a stream of n samples has weight ``n ** (1 / temperature)``.

        - ``knots`` (Mapping[int, float]): Temperature at each milestone. With 1 the shares of
          streams are their sizes; higher temperatures make shares more equal.
        - ``between`` (str, default 'linear'): How the temperature changes until the next milestone.
          This and the other arguments are those of `Schedule`, where the default is 'hold'.

        Raises ConfigError for a temperature that is not a positive number.

        >>> Schedule.temperature({0: 1.0, 50_000: 3.0})
        Schedule.temperature({0: 1.0, 50000: 3.0})
        """
        pairs = []
        for milestone, degree in _sorted_knots(knots):
            if not _is_number(degree) or not 0 < degree < math.inf:
                raise ConfigError(
                    f"schedule: the temperature at {milestone} is {degree!r}; it must be a "
                    "positive number, 1 for shares by size."
                )
            pairs.append((milestone, float(degree)))
        # The constructor takes weights, so give it any, to be replaced below. It checks the rest.
        schedule = cls(
            {0: {"any": 1}},
            between,
            unit,
            tokens_per_sample=tokens_per_sample,
            exhausted=exhausted,
            max_passes=max_passes,
        )
        schedule.is_temperature, schedule.knots = True, tuple(pairs)
        return schedule

    def _set(self, between: Any, unit: Any, tokens: Any, exhausted: Any, max_passes: Any) -> None:
        """Store all arguments but the milestones. Raises ConfigError for invalid ones.

        ``tokens`` is ``tokens_per_sample``; the other names are those of the class.
        """
        self.between, self.unit, self.exhausted = between, unit, exhausted
        self.tokens_per_sample, self.max_passes = tokens, max_passes
        for argument, value, choices in (
            ("between", between, BETWEEN),
            ("unit", unit, UNITS),
            ("exhausted", exhausted, EXHAUSTED),
        ):
            if value not in choices:
                word = _WORD_OF.get(value) if isinstance(value, str) else None
                way_out = (
                    f"write {argument}={word!r}."
                    if word in choices
                    else f"choose one of {', '.join(choices)}."
                )
                raise ConfigError(f"schedule: no {argument} {value!r}: {way_out}")
        if unit != "tokens" and tokens is not None:
            raise ConfigError(
                "schedule: unit='tokens' and tokens_per_sample= must be given together or not at "
                f"all, got unit {unit!r} and tokens_per_sample {tokens!r}."
            )
        if tokens is not None and not (_is_whole(tokens) and 1 <= tokens < _MAX_AT):
            raise ConfigError(f"schedule: tokens_per_sample {tokens!r} {_COUNTED}")
        counts = max_passes.values() if isinstance(max_passes, Mapping) else [max_passes]
        for count in counts:
            if count is not None and not (_is_whole(count) and 1 <= count <= _MAX_PASSES):
                raise ConfigError(f"schedule: max_passes {count!r} {_COUNTED}")

    @property
    def names(self) -> set[str]:
        """Names of the streams that the schedule names, in weights or in ``max_passes``."""
        limits = self.max_passes if isinstance(self.max_passes, Mapping) else {}
        if self.is_temperature:  # then milestones have a temperature, and no weights by name
            return set(limits)
        return {*limits, *(name for _, weights in self.knots for name, _ in weights)}

    def most_passes(self, names: Sequence[str]) -> Mapping[str, int] | None:
        """Return the most passes through each stream that is limited, None without any limit.

        ``names`` are those of all streams.
        """
        if isinstance(self.max_passes, Mapping):
            return self.max_passes
        if self.max_passes is None and self.exhausted == "repeat":
            return None
        # Without max_passes= a stream gives one pass.
        return dict.fromkeys(names, self.max_passes or 1)

    @property
    def kind(self) -> str:
        """Kind of the values at milestones, which is their key in JSON."""
        return "temperature" if self.is_temperature else "knots"

    def weights_of(self, value: Any, names: Sequence[str], samples: Sequence[int]) -> Weights:
        """Return the weights that the value of a milestone stands for: weights, or a temperature.

        Args:
            value: Value of the milestone in ``knots``.
            names: Names of the streams.
            samples: Samples of a pass of each stream.
        """
        if not self.is_temperature:
            weights: Weights = value
            return weights
        pairs = zip(names, samples, strict=True)
        return tuple((name, float(n) ** (1.0 / value) if n else 0.0) for name, n in pairs)

    def to_json(self) -> dict[str, Any]:
        """Return the schedule as plain JSON, without options that have their default.

        States have this JSON, so its words are those of the first version (`_STORED_WORDS`).
        """
        # Pairs as lists: the keys of a JSON object would be texts.
        written: dict[str, Any] = {
            self.kind: [
                [milestone, dict(v) if isinstance(v, tuple) else v] for milestone, v in self.knots
            ],
            "between": _STORED_WORDS.get(self.between, self.between),
        }
        if self.unit != "steps":
            written["unit"] = self.unit
        if self.tokens_per_sample is not None:
            written["tokens_per_sample"] = int(self.tokens_per_sample)
        if self.exhausted != "repeat":
            written["spent"] = self.exhausted
        if isinstance(self.max_passes, Mapping):
            written["max_passes"] = {str(name): int(n) for name, n in self.max_passes.items()}
        elif self.max_passes is not None:
            written["max_passes"] = int(self.max_passes)
        return written

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Schedule:
        """Return the schedule that `to_json` gave. Raises ConfigError for any other JSON."""
        options = dict(written)
        try:
            if "spent" in options:
                options["exhausted"] = options.pop("spent")
            for name in ("between", "exhausted"):
                if name in options:
                    options[name] = _WORD_OF.get(options[name], options[name])
            if "temperature" in options:
                return cls.temperature(dict(options.pop("temperature")), **options)
            return cls(dict(options.pop("knots")), **options)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"expected a schedule as Schedule writes it, got {str(written)[:100]}."
            ) from error

    def step_of(self, milestone: int, batch: int) -> int:
        """Return the first global batch, of ``batch`` samples, at a milestone or after it."""
        # Size of a global batch in each unit.
        size = {"steps": 1, "samples": batch, "tokens": batch * (self.tokens_per_sample or 1)}
        return -(-milestone // size[self.unit])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        """Return the call that makes the schedule, without arguments that have their default."""
        options = self.to_json()
        call = "Schedule.temperature" if self.is_temperature else "Schedule"
        knots = options.pop(self.kind)
        options["between"] = self.between
        if self.between == ("linear" if self.is_temperature else "hold"):
            del options["between"]
        if options.pop("spent", None) is not None:
            options["exhausted"] = self.exhausted
        settings = "".join(f", {name}={value!r}" for name, value in options.items())
        return f"{call}({dict(knots)}{settings})"


@dataclasses.dataclass(frozen=True)
class ScheduledRun:
    """Schedule of a run, with the weights that were set while the training ran.

    Methods take ``samples``, the samples of a pass of each stream, and ``batch``, the samples of a
    global batch: the schedule becomes shares by step only with them.

    Attributes:
        schedule: Schedule as the user wrote it.
        names: Names of the streams of the dataset.
        live: Weights that were set while the training ran, as pairs of a step and the weights. They
            hold from that step on; milestones of the schedule after it no longer count.

    Raises ConfigError for names that no stream has.
    """

    schedule: Schedule
    names: tuple[str, ...]
    live: tuple[tuple[int, Weights], ...] = ()
    #: Unit in which steps are counted: "steps" are global batches.
    unit = "steps"

    def __post_init__(self) -> None:
        if len(self.names) > MAX_STREAMS:
            raise ConfigError(f"a schedule can have at most {MAX_STREAMS} streams.")
        self.check_names(self.schedule.names)
        if len(self.live) > MAX_CHANGES:
            raise ConfigError(
                f"the weights were set {MAX_CHANGES} times during this run, which is the maximum. "
                "Write the weights as a Schedule."
            )
        for _, weights in self.live:
            self.check_names({name for name, _ in weights})

    def check_names(self, named: set[str]) -> None:
        """Raise ConfigError if a schedule or weights name streams that the dataset does not have.

        ``named`` are the names that they have.
        """
        unknown = sorted(named - set(self.names))
        if unknown:
            raise ConfigError(
                f"the schedule names {', '.join(unknown)}, but the streams are "
                f"{', '.join(self.names)}. Use the same names in both."
            )

    def with_weights(self, step: int, weights: Mapping[str, float]) -> ScheduledRun:
        """Return the same run with the weights ``weights`` from ``step`` on.

        They replace all live weights of this step or a later one.
        """
        checked = check_weights(weights, f"from step {step}")
        live = tuple((begin, before) for begin, before in self.live if begin < step)
        return dataclasses.replace(self, live=(*live, (step, checked)))

    def to_json(self) -> dict[str, Any]:
        """Return the schedule as written and the names of the streams, as plain JSON.

        Live weights are not part of it: a state records them as edits.
        """
        return {"streams": list(self.names), **self.schedule.to_json()}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> ScheduledRun:
        """Return the run that `to_json` gave, without live weights.

        Raises ConfigError for any other JSON.
        """
        names = written.get("streams")
        if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
            raise ConfigError(f"a schedule needs streams with names, got {str(names)[:60]!r}.")
        schedule = {key: value for key, value in written.items() if key != "streams"}
        return cls(Schedule.from_json(schedule), tuple(names))

    def mixture(self, samples: Sequence[int], batch: int) -> Mixture:
        """Return the mixture of the streams by the schedule and the live weights.

        It counts the samples of each stream in the first steps of the run. ``samples`` are those of
        a pass of each stream, ``batch`` those of a global batch. Raises ConfigError if a stream
        without samples has a share.
        """
        return _mixture(self, tuple(samples), batch)

    def epoch_steps(self, epoch_size: int, batch: int) -> int:
        """Return the number of global batches of an epoch of ``epoch_size`` samples."""
        return -(-epoch_size // batch)

    def late_milestones(self) -> list[tuple[int, int]]:
        """Return pairs of a milestone and the later point at which it takes effect: none here."""
        return []

    def facts(self, samples: Sequence[int], batch: int, epoch_size: int) -> dict[str, Any]:
        """Return the settings that a resumed run must have, as plain JSON.

        Args:
            samples: Samples of a pass of each stream.
            batch: Samples of a global batch.
            epoch_size: Samples of an epoch.
        """
        return {
            "global_batch_size": batch,
            "epoch_steps": self.epoch_steps(epoch_size, batch),
            "schedule": self.key(samples, batch),
            "schedule_order": ORDER_VERSION,
        }

    def spans(self, samples: Sequence[int], batch: int) -> list[ShareSpan]:
        """Return the spans of shares as the schedule was written, without live weights.

        A span goes from one milestone to the next; in it, shares are constant or follow a curve.
        The last one has no end.

        Args:
            samples: Samples of a pass of each stream.
            batch: Samples of a global batch.

        Raises ConfigError if a stream without samples has a share.
        """
        # Shares of all streams by step. Of several milestones in one step the last one holds.
        points: dict[int, tuple[int, ...]] = {}
        for milestone, value in self.schedule.knots:
            step = self.schedule.step_of(milestone, batch)
            if step >= MAX_STEPS:
                raise ConfigError(
                    f"schedule: milestone {milestone} is beyond the largest step of a training."
                )
            weights = self.schedule.weights_of(value, self.names, samples)
            points[step] = self.shares(weights, samples, f"at {milestone}")
        spans: list[ShareSpan] = []
        between = self.schedule.between
        for (step, shares), (next_step, next_shares) in itertools.pairwise(points.items()):
            if between == "hold" or shares == next_shares:
                spans.append(ShareSpan(step, shares))
            else:
                length = next_step - step
                spans.append(ShareSpan(step, shares, next_shares, length, between))
        last = max(points)
        spans.append(ShareSpan(last, points[last]))
        return spans

    def limits(self, samples: Sequence[int]) -> list[int] | None:
        """Return the most samples that each stream may give in the whole run, None without a limit.

        ``samples`` are the samples of a pass of each stream.
        """
        by_name = self.schedule.most_passes(self.names)
        if by_name is None:
            return None
        # Numbers that fit into 64 bits.
        return [
            min(n * by_name.get(name, _MAX_PASSES), 1 << 62)
            for name, n in zip(self.names, samples, strict=True)
        ]

    def largest_shares(self, samples: Sequence[int]) -> list[float]:
        """Return the largest share that the schedule, as written, gives to each stream: 0 to 1.

        ``samples`` are the samples of a pass of each stream.
        """
        # Shares are largest at milestones, where spans begin. The batch size decides only at which
        # steps these are, so any does.
        begins = [span.begin for span in self.spans(samples, 1)]
        maxima = [max(column) for column in zip(*begins, strict=True)]
        return [value / ONE for value in maxima]

    def key(self, samples: Sequence[int], batch: int) -> str:
        """Return a digest of the schedule as written: shares by step, limits and names.

        A resumed run must have the same one. ``samples`` are the samples of a pass of each stream,
        ``batch`` those of a global batch.
        """
        exhausted = _STORED_WORDS.get(self.schedule.exhausted, self.schedule.exhausted)
        facts = repr(([tuple(s) for s in self.spans(samples, batch)], exhausted))
        limits = repr(self.limits(samples))
        return digest(facts, limits, *self.names)

    def shares(self, weights: Weights, samples: Sequence[int], place: str) -> tuple[int, ...]:
        """Return the shares of all streams by weights, in units of 1 / ONE.

        They are rounded by largest remainders: all are rounded down, and those that lose most get
        one unit more, so that the sum is ``ONE``. A stream that the weights do not name gets 0.

        Args:
            weights: Pairs of a stream's name and its weight.
            samples: Samples of a pass of each stream.
            place: Where the weights are, for messages, such as "at 1000".

        Raises ConfigError if a stream with a weight has no samples.
        """
        by_name = dict(weights)
        # Fractions have no rounding errors, so the result is the same on all machines.
        exact = [Fraction(by_name.get(name, 0)) for name in self.names]
        for name, weight, n in zip(self.names, exact, samples, strict=True):
            if weight and not n:
                raise ConfigError(
                    f"schedule: stream {name!r} has a weight {place} but no samples. Leave the "
                    "stream out."
                )
        total = sum(exact)
        if not total:
            raise ConfigError(
                f"schedule: all weights {place} are zero. Give at least one stream a positive "
                "weight."
            )
        parts = [ONE * weight / total for weight in exact]
        shares = [math.floor(part) for part in parts]
        # Largest remainder (part - share) first; of equal ones the earlier stream.
        by_remainder = sorted(range(len(parts)), key=lambda i: (shares[i] - parts[i], i))
        for i in by_remainder[: ONE - sum(shares)]:
            shares[i] += 1
        return tuple(shares)


@functools.lru_cache(maxsize=32)
def _mixture(run: ScheduledRun, samples: tuple[int, ...], batch: int) -> Mixture:
    """Return the mixture of a run, with its live weights; `ScheduledRun.mixture`, but cached."""
    if not run.live:
        return Mixture(run.spans(samples, batch), batch)
    mixture = _mixture(dataclasses.replace(run, live=()), samples, batch)
    for step, weights in run.live:
        mixture = _changed(mixture, step, run.shares(weights, samples, f"from step {step}"))
    return mixture


@functools.lru_cache(maxsize=32)
def _changed(mixture: Mixture, step: int, shares: tuple[int, ...]) -> Mixture:
    """Return `Mixture.changed`, the same object for equal changes, as it keeps counts of rows."""
    return mixture.changed(step, shares)


def check_weights(weights: Any, place: str) -> Weights:
    """Return weights by name as pairs of a name and a number of Python, after a check.

    Args:
        weights: Weights as the user gave them, by name of a stream, or in a list, whose streams
            have their numbers as names: [0.9, 0.1] is {"0": 0.9, "1": 0.1}.
        place: Where the weights are, for messages, such as "at 1000".

    Raises ConfigError for anything but names, or a list, of numbers of at least 0, not all 0.
    """
    if isinstance(weights, (list, tuple, np.ndarray)):  # of streams without names
        weights = {str(number): weight for number, weight in enumerate(weights)}
    if not isinstance(weights, Mapping) or not weights:
        raise ConfigError(
            f"schedule: the weights {place} are {weights!r}; expected a dict of stream names and "
            "weights, or a list of weights. Name the streams, as in StreamingDataset({'web': "
            "Stream(...), 'math': Stream(...)}), and write {'web': 0.9, 'math': 0.1}."
        )
    for name, weight in weights.items():
        if not isinstance(name, str):
            raise ConfigError(
                f"schedule: {name!r} {place} is not the name of a stream. Use a text."
            )
        if not _is_number(weight) or not 0 <= weight < math.inf:
            raise ConfigError(
                f"schedule: the weight of {name!r} {place} is {weight!r}; it must be a number of "
                "at least 0."
            )
    if not any(weights.values()):
        raise ConfigError(
            f"schedule: all weights {place} are zero. Give at least one stream a positive weight."
        )
    return tuple((name, _plain(weight)) for name, weight in weights.items())


def _sorted_knots(knots: Any) -> list[tuple[int, Any]]:
    """Return milestones with their values, ascending. Raises ConfigError if 0 is missing.

    ``knots`` is a dict, or a list of pairs of a milestone and its value.
    """
    if isinstance(knots, Mapping):
        knots = {_milestone_meant(milestone): value for milestone, value in knots.items()}
    is_pairs = isinstance(knots, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in knots
    )
    if is_pairs and len({milestone for milestone, _ in knots}) == len(knots):
        knots = dict(knots)
    if not isinstance(knots, Mapping) or not knots:
        raise ConfigError(
            f"schedule: expected a dict of milestones, got {str(knots)[:60]!r}. Write {_EXAMPLE}."
        )
    if len(knots) > MAX_KNOTS:
        raise ConfigError(
            f"schedule: {len(knots):,} milestones; at most {MAX_KNOTS:,} are allowed."
        )
    for milestone in knots:
        if not _is_whole(milestone) or not 0 <= milestone < _MAX_AT:
            raise ConfigError(
                f"schedule: milestone {milestone!r} must be a whole number from 0 to 2**62 - 1."
            )
    if 0 not in knots:
        raise ConfigError(
            f"schedule: the first milestone is {min(knots)}. Add a milestone at 0, the beginning "
            "of the training."
        )
    return [(int(milestone), knots[milestone]) for milestone in sorted(knots)]


def _milestone_meant(milestone: Any) -> Any:
    """Return the number in a text such as "5ba" (5 batches, of Composer), else the milestone."""
    digits = milestone.removesuffix("ba") if isinstance(milestone, str) else ""
    return int(digits) if digits.isdecimal() and digits != milestone else milestone


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _plain(value: Any) -> float:
    """Return a number of any type as an int or a float."""
    return int(value) if isinstance(value, numbers.Integral) else float(value)


@dataclasses.dataclass(frozen=True, eq=False)
class ScheduledEpoch:
    """Part of a run that an epoch has: steps ``first`` to ``last`` - 1.

    Attributes:
        mixture: Samples of each stream in the steps of the run.
        first, last: First step of the epoch, and the step after its last one. Steps are global
            batches, or windows of packs.
        largest_shares: Largest share of each stream in the schedule as it was written.
        rows: Samples that each canonical node gives of each stream; None if samples are packed.
    """

    mixture: Mixture
    first: int
    last: int
    largest_shares: tuple[float, ...]
    rows: RowCounts | None = None

    def sample_ranges(self) -> list[tuple[int, int]]:
        """Return for each stream the first sample that the epoch takes of it, and the end.

        Samples of a stream are numbered since the training began, through all its passes.
        """
        first, last = self.mixture.counts(np.array([self.first, self.last])).tolist()
        return list(zip(first, last, strict=True))


def scheduled_epoch(
    run: ScheduledRun,
    samples: Sequence[int],
    batch: int,
    epoch: int,
    epoch_size: int,
    canonical: int,
) -> ScheduledEpoch:
    """Return the part of a run that an epoch has: as many steps as every epoch, or fewer.

    With ``exhausted="stop"`` it ends before the first step that needs more samples of a stream than
    its passes have. A canonical node may need more of its part a few steps before the whole stream
    would.

    Args:
        run: Schedule of the run.
        samples: Samples of a pass through each stream.
        batch: Samples of a global batch.
        epoch: Number of the epoch.
        epoch_size: Samples of an epoch.
        canonical: Number of canonical nodes.

    Raises PlanError if a stream would give more samples than its passes have.
    """
    mixture, steps = run.mixture(samples, batch), run.epoch_steps(epoch_size, batch)
    first, last = epoch * steps, (epoch + 1) * steps
    if last >= MAX_STEPS:
        raise PlanError(
            f"epoch {epoch} of {steps:,} {run.unit} ends beyond the {MAX_STEPS:,} {run.unit} that "
            "a schedule can have."
        )
    from mds.plan._row_counts import RowCounts

    rows = RowCounts.of(mixture, samples, canonical) if run.unit == "steps" else None
    limits = run.limits(samples)
    if limits is not None:
        end, stream = _end(mixture, rows, samples, limits, last)
        if end < last and run.schedule.exhausted != "stop":
            name = run.names[stream]
            passes = limits[stream] // max(samples[stream], 1)
            unit = run.unit[:-1]
            raise PlanError(
                f"stream {name!r} reaches its limit of {passes} pass{'es' * (passes > 1)} after "
                f"{unit} {end:,}, within epoch {epoch} ({run.unit} {first:,} to {last - 1:,}). "
                "Give it a smaller weight, more max_passes or a smaller epoch_size, or end there "
                "with exhausted='stop'."
            )
        last = min(last, end)
        first = min(first, last)
    return ScheduledEpoch(mixture, first, last, tuple(run.largest_shares(samples)), rows)


def _end(
    mixture: Mixture, rows: RowCounts | None, samples: Sequence[int], limits: list[int], last: int
) -> tuple[int, int]:
    """Return the first step that needs more samples of a stream than its limit, and the stream.

    Args:
        mixture: Samples of each stream in the steps of the run.
        rows: Samples that each row gives of each stream, if there are rows.
        samples: Samples of a pass through each stream.
        limits: Most samples that each stream may give.
        last: End of the epoch; a step after it need not be exact.
    """
    ends = [mixture.steps_of(i, limit) for i, limit in enumerate(limits)]
    end = min(ends)
    stream = ends.index(end)
    if rows is None or rows.rows == 1:
        return end, stream
    # Rows give about equally many samples, so none is near its limit before half of that of the
    # stream has come.
    last = min(last, end)
    counts = mixture.counts(np.array([last]))[0]
    if (2 * counts <= limits).all():
        return end, stream
    passes = np.array(
        [limit // max(count, 1) for limit, count in zip(limits, samples, strict=True)]
    )
    excess = rows.first_excess(rows.sizes * passes[:, None], last)
    return excess or (end, stream)
