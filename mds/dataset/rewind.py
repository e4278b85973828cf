"""From a state back to its data and its order: what came in a step, and when a sample comes.

Everything is computed from the state and the indexes of its data; of samples, only those that are
shown are fetched.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds.dataset.epoch_counter import EpochStart
from mds.dataset.samples import Samples
from mds.dataset.stream import Stream
from mds.errors import ConfigError, StateError
from mds.plan.schedule import ScheduledRun
from mds.plan.state import ResumePoint, differences, parse_state
from mds.world import World

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds.plan import EpochPlan

    Ids = NDArray[np.int64]

_ROWS_AT_ONCE = 1 << 16
_SETTINGS = frozenset(
    (
        "shuffle",
        "shuffle_algo",
        "shuffle_block_size",
        "sampling_method",
        "sampling_granularity",
        "batching_method",
        "exact",
    )
)


class StepRow(NamedTuple):
    """A sample of a global batch: the rank that gets it, its number, and where it is stored.

    ``stream`` is a name, of the schedule or else of the folder; ``file`` is the shard's.
    """

    rank: int
    sample: int
    stream: str
    shard: int
    file: str
    row: int


class Seen(NamedTuple):
    """Where a sample comes: epoch, step of the training, rank, and whether that is over."""

    epoch: int
    step: int
    rank: int
    is_over: bool


class Rewind:
    """A state with its data.

    - ``state`` (Mapping[str, Any]): What ``state_dict()`` of a loader or a dataset gave.
    - ``places`` (Sequence[str], default ()): Where the streams are now; none: as the state says.

    Raises StateError for a state that does not lead back to its order or fits other data, and what
    reading an index raises.
    """

    def __init__(self, state: Mapping[str, Any], places: Sequence[str] = ()) -> None:
        self.point = parse_state(state)
        data = _data_of(self.point)
        try:
            self.dataset = Samples(
                streams=_streams(data, places, self.point),
                topology=World(data["nodes"], data["ranks"] // data["nodes"], 1, 0),
                batch_size=data["batch_size"],
                partition_algo=data.get("partition_algo", "relaxed"),
                epoch_size=data.get("epoch_size"),
                shuffle_seed=self.point.shuffle_seed,
                num_canonical_nodes=self.point.num_canonical_nodes,
                schedule=(
                    None
                    if self.point.schedule is None
                    else ScheduledRun.from_json(self.point.schedule).schedule
                ),
                **{k: v for k, v in (self.point.order or {}).items() if k in _SETTINGS},
            )
        except (ConfigError, TypeError, KeyError, ZeroDivisionError) as error:
            raise StateError(f"the state does not lead back to its order: {error}") from error
        self.dataset.load_state_dict(state)
        self._plans: dict[int, EpochPlan] = {}
        self.steps_per_epoch = self.plan(0).steps

    def plan(self, epoch: int) -> EpochPlan:
        """The order of a whole epoch."""
        if epoch not in self._plans:
            start = EpochStart(epoch, self.point.at(epoch, 0))
            self._plans[epoch] = self.dataset._order.plan(start, self.dataset._world())
        return self._plans[epoch]

    @property
    def position(self) -> tuple[int, int]:
        """The epoch, and the step of the training that comes next."""
        epoch = max(self.point.epoch, 0)
        step = -(-self.point.sample_in_epoch // self.plan(epoch).shape.global_batch)
        return epoch, epoch * self.steps_per_epoch + step

    def place_of(self, step: int) -> tuple[int, int]:
        """The epoch of a step of the training, and the step in it. Raises StateError beyond."""
        epoch, inside = divmod(step, max(self.steps_per_epoch, 1))
        if step < 0 or not self.steps_per_epoch or inside >= self.plan(epoch).steps:
            raise StateError(
                f"step {step:,}: epochs of this run have {self.steps_per_epoch:,} steps, and none "
                "of them has that one. Steps are counted from 0."
            )
        return epoch, inside

    def rows(self, step: int) -> list[StepRow]:
        """The samples of a global batch, rank by rank."""
        epoch, inside = self.place_of(step)
        shards, found = self.dataset._shards, []
        facts = self.dataset.shards
        names = self._names()
        for rank, ids in enumerate(self.plan(epoch).batch(inside).tolist()):
            for sample in ids:
                if sample >= 0:
                    shard, row = shards.locate(sample)
                    stream = int(shards.stream_per_shard[shard])
                    own = shard - int(shards.shard_offset_per_stream[stream])
                    file = facts[shard].raw.basename
                    found.append(StepRow(rank, sample, names[stream], own, file, row))
        return found

    def find(self, sample: int) -> list[Seen]:
        """Where a sample came, and where it comes in the epoch of the state."""
        last, now = self.position
        if not 0 <= sample < self.dataset.num_samples:
            raise StateError(
                f"sample {sample:,}: the data have {self.dataset.num_samples:,}, counted from 0 "
                "through all streams."
            )
        return [
            Seen(epoch, step := epoch * self.steps_per_epoch + place.step, place.rank, step < now)
            for epoch in range(last + 1)
            for place in self.plan(epoch).locate(sample)
        ]

    def batches(self) -> Iterator[Ids]:
        """The sorted ids of all global batches since the training began."""
        for epoch in itertools.count():
            plan = self.plan(epoch)
            self._plans = {0: self._plans[0]}
            if not plan.steps:
                return
            lookups = [order.lookup() for order in plan.orders]
            size = max(1, _ROWS_AT_ONCE // plan.shape.global_batch)
            for first in range(0, plan.steps, size):
                last = min(first + size, plan.steps)
                yield from np.sort(plan.global_batches.whole(first, last, lookups), axis=1)

    def _names(self) -> list[str]:
        """Names of the streams: the schedule's, else of their folders, else their numbers."""
        run = self.dataset._order.schedule
        if run is not None:
            return list(run.names)
        folders = [stream.folder.rstrip("/") for stream in self.dataset.streams]
        names = [folder.rpartition("/")[2] for folder in folders]
        return names if len({*names}) == len(names) else [str(i) for i in range(len(names))]


class Difference(NamedTuple):
    """How two runs differ: reasons, and the first step with other samples, if one was found.

    ``steps`` is how many were compared.
    """

    reasons: list[str]
    step: int | None
    steps: int


def compare(
    first: Mapping[str, Any], second: Mapping[str, Any], places: Sequence[str] = ()
) -> Difference:
    """The first step at which two runs differ, up to the later of their positions, and why.

    - ``first``, ``second`` (Mapping[str, Any]): Their states.
    - ``places`` (Sequence[str], default ()): Where the streams are now, the same for both.

    Raises what `Rewind` raises.
    """
    a, b = parse_state(first), parse_state(second)
    reasons = differences("dataset", a.dataset, b.dataset or {})
    reasons += differences("order", a.order, b.order or {})
    for name in ("num_canonical_nodes", "shuffle_seed"):
        then, now = getattr(a, name), getattr(b, name)
        if then != now:
            reasons.append(f"{name} was {then} and is {now}")
    for edit in a.edits:
        if edit not in b.edits:
            reasons.append(f"only the first was changed at step {edit.get('step')}: {edit}")
    for edit in b.edits:
        if edit not in a.edits:
            reasons.append(f"only the second was changed at step {edit.get('step')}: {edit}")
    runs = Rewind(first, places), Rewind(second, places)
    steps = max(run.position[1] for run in runs)
    pairs = itertools.zip_longest(*(itertools.islice(run.batches(), steps) for run in runs))
    for step, (one, other) in enumerate(pairs):
        if one is None or other is None or not np.array_equal(one, other):
            return Difference(reasons, step, steps)
    return Difference(reasons, None, steps)


def _data_of(point: ResumePoint) -> Mapping[str, Any]:
    """What a state says of its data, checked as far as it is used."""
    data = point.data
    if data is None or not {"streams", "batch_size", "ranks", "nodes"} <= set(data):
        raise StateError(
            "the state does not say what its data are: it was written by an earlier version, by "
            "another library, or by a dataset without a batch size."
        )
    if "selected" in data:
        raise StateError(
            f"the state is of {data['selected']:,} samples that select(), limit() or split() "
            "chose, and it does not know which. Ask the dataset's own plan, mds.plan.EpochPlan."
        )
    if point.unit != "samples":
        raise StateError(f"the state counts {point.unit}; steps are told of samples only.")
    whole = {name: data[name] for name in ("batch_size", "ranks", "nodes")}
    for name, value in whole.items():
        if type(value) is not int or not 1 <= value <= 1 << 32:
            raise StateError(f"the state has data with {name} {str(value)[:60]!r}.")
    streams = data["streams"]
    if not isinstance(streams, list) or not all(
        isinstance(one, Mapping) and isinstance(one.get("at"), str) for one in streams
    ):
        raise StateError("the state has data whose streams say no place.")
    return data


def _streams(
    data: Mapping[str, Any], places: Sequence[str], point: ResumePoint
) -> list[Stream] | dict[str, Stream]:
    """The streams of a state, at their places or at others."""
    told = data["streams"]
    if places and len(places) != len(told):
        raise StateError(
            f"the state is of {len(told)} streams, and {len(places)} places were given: give one "
            "for each, in their order."
        )
    found = []
    for number, one in enumerate(told):
        place = places[number] if places else f"{data.get('root', '')}{one['at']}"
        if "***" in place or "?..." in place:
            raise StateError(
                f"the state names stream {number} as {place}, without its secrets: say where it is."
            )
        share = {k: one[k] for k in ("proportion", "repeat", "choose", "format") if k in one}
        where: dict[str, Any] = {"remote" if "://" in place else "local": place}
        found.append(Stream(**where, **share))
    if point.schedule is None:
        return found
    return dict(zip(ScheduledRun.from_json(point.schedule).names, found, strict=True))
