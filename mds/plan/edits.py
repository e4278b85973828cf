"""Edits of an order: what was changed while a training ran, each from a place of it on.

An edit is plain JSON with the place from which it holds, so that the past stays as it was: a state
carries all of them, in the order in which they were made. Places of the last two count what the
state counts, samples or packs of all ranks, from the beginning of an epoch.

    {"step": 1200, "weights": {"web": 0.5, "math": 0.5}}      other weights of a schedule
    {"step": 1200, "weights": {...}, "window": 37}            the same with packs
    {"epoch": 0, "from": 4096, "skip": 512}                   so many places never come
    {"epoch": 0, "from": 4096, "drop": [77], "why": "noise"}  samples that never come from there on

A drop in a run of packs has ``windows``, too: of each canonical node the first window that had not
begun, which is packed without the documents. Weights hold from a ``window`` of the run on.

In an order of samples another sample of the same stream comes for each dropped one. Each epoch has
*spare samples* for each stream: all samples of the stream, in an order that follows from the seed
and the epoch. Dropped samples are replaced by the next spare ones, in the order in which they were
dropped. A spare sample that was dropped itself is passed over. So a replacement depends on the
edits up to then and on nothing that comes later, in any world, and every other place stays as it
was. A spare sample may also come at its own place in the epoch: rows stay full, and nothing moves.

A replacement may be dropped later; then it is replaced in turn. Such a chain ends, as each of its
samples was dropped later than the one before. A lookup in a small table finds dropped samples.

In an order of packs a dropped document becomes padding in the windows that had begun, and is left
out of later ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds.errors import ConfigError, PlanError, StateError
from mds.plan.partition import Gaps
from mds.plan.state import MAX_CANONICAL_NODES, MAX_EPOCHS, MAX_SAMPLES
from mds.shuffle.permutation import derive_key, permute_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mds.plan.global_batches import GlobalBatches, Lookup
    from mds.plan.schedule import ScheduledRun

    Ids = NDArray[np.int64]
    Edit = Mapping[str, Any]


MAX_DROPPED = 100_000  # samples of a run; a selection leaves out more
MAX_WHY = 200  # letters
_SPARE_KEY = 0x72657376  # keys of spare samples are derived from it
_HINT_BITS = 16
_HINT_MASK = (1 << _HINT_BITS) - 1
_SPARE_CHUNK = 1 << 10  # spare samples that are computed at once
_MAX_SPARE_SAMPLES = 1 << 32  # of a stream


class Drop(NamedTuple):
    """Samples that never come from a place of an epoch on.

    ``windows``: of each canonical node the first that is packed without them; none: all are.
    """

    epoch: int
    begin: int
    ids: Ids
    windows: tuple[int, ...]


def apply_weights(run: ScheduledRun | None, edits: Iterable[Edit]) -> ScheduledRun | None:
    """Return the schedule of a run with the weights that were set while it ran."""
    for edit in edits:
        if run is not None and "weights" in edit:
            run = run.with_weights(edit.get("window", edit["step"]), edit["weights"])
    return run


def skips_of(edits: Iterable[Edit], epoch: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of places of an epoch that never come, each with its end."""
    return tuple(
        (edit["from"], edit["from"] + edit["skip"])
        for edit in edits
        if "skip" in edit and edit["epoch"] == epoch
    )


def place_after(skips: Sequence[tuple[int, int]], begin: int, count: int) -> int:
    """Return the place that comes ``given`` places after ``begin``."""
    return Gaps([(0, begin), *skips]).place(count) if skips else begin + count


def given_before(skips: Sequence[tuple[int, int]], begin: int, place: int) -> int:
    """Return how many places from ``begin`` on come before a place of an epoch."""
    return Gaps([(0, begin), *skips]).number(place)


def drops_of(edits: Iterable[Edit]) -> tuple[Drop, ...]:
    """Return the drops, oldest first."""
    return tuple(
        Drop(
            edit["epoch"],
            edit["from"],
            np.array(edit["drop"], np.int64),
            tuple(edit.get("windows", ())),
        )
        for edit in edits
        if "drop" in edit
    )


def describe_edit(edit: Edit) -> str:
    """Describe an edit in words."""
    if "weights" in edit:
        return f"other weights from step {edit['step']:,} on: {dict(edit['weights'])}"
    place = f"place {edit['from']:,} of epoch {edit['epoch']}"
    if "skip" in edit:
        return f"{edit['skip']:,} places skipped from {place} on"
    ids = ", ".join(map(str, edit["drop"][:4])) + ", ..." * (len(edit["drop"]) > 4)
    why = f" ({edit['why']})" if edit["why"] else ""
    return f"{len(edit['drop'])} samples dropped from {place} on: {ids}{why}"


def check_edits(
    edits: Iterable[Edit],
    run: ScheduledRun | None,
    per_stream: Mapping[str, int],
    *,
    is_packed: bool = False,
) -> None:
    """Refuse edits of a state that are none, or do not fit a run (StateError).

    ``per_stream``: how many samples each stream has, by what a message calls it. ``is_packed``:
    whether places count packs.
    """
    edits = list(edits)
    for edit in edits:
        kind = set(edit)
        if kind == {"step", "weights"} | ({"window"} if is_packed else set()):
            _check_weights(edit, run)
        elif kind == {"epoch", "from", "skip"}:
            last = MAX_SAMPLES - _within(edit, "from", 0, MAX_SAMPLES)
            _within(edit, "epoch", 0, MAX_EPOCHS)
            _within(edit, "skip", 1, last)
        elif kind - {"windows"} == {"epoch", "from", "drop", "why"}:
            _check_drop(edit, sum(per_stream.values()))
        else:
            raise StateError(
                f"the state has an edit of {', '.join(map(str, edit))[:100]}, which this library "
                "does not know: update it."
            )
    try:
        check_reserve(drops_of(edits), per_stream)
    except ConfigError as error:
        raise StateError(f"the state has an edit that is none: {error}") from error


def check_reserve(drops: Iterable[Drop], per_stream: Mapping[str, int]) -> None:
    """Refuse to drop more than the rest of a stream can stand in for (ConfigError).

    ``per_stream``: how many samples each stream has, by what a message calls it.
    """
    ids = _all_ids(drops)
    if len(ids) > MAX_DROPPED:
        raise too_many_dropped(f"{len(ids):,}")
    ends = np.cumsum(np.fromiter(per_stream.values(), np.int64))
    counts = np.bincount(np.searchsorted(ends, ids, side="right"), minlength=len(ends))
    for count, (title, size) in zip(counts.tolist(), per_stream.items(), strict=True):
        if 2 * count > size:
            raise ConfigError(
                f"{count:,} of the {size:,} samples of stream {title} would be dropped. "
                "Another of its samples takes the place of each, so half of a stream is the most: "
                "leave them out with select()."
            )


def too_many_dropped(count: str) -> ConfigError:
    """Return the error for more dropped samples than a state can hold."""
    return ConfigError(
        f"{count} samples would be dropped, and {MAX_DROPPED:,} is the most: leave them out with "
        "select()."
    )


def _all_ids(drops: Iterable[Drop]) -> Ids:
    parts = [drop.ids for drop in drops]
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def _check_weights(edit: Edit, run: ScheduledRun | None) -> None:
    from mds.plan.mixture import MAX_STEPS
    from mds.plan.schedule import check_weights

    step = _within(edit, "step", 0, MAX_STEPS - 1)
    if "window" in edit:
        _within(edit, "window", 0, MAX_STEPS - 1)
    try:
        weights = check_weights(edit["weights"], f"from step {step} on")
        if run is not None:
            run.check_names({name for name, _ in weights})
    except ConfigError as error:
        raise StateError(f"the state has an edit that is none: {error}") from error


def _check_drop(edit: Edit, samples: int) -> None:
    _within(edit, "epoch", 0, MAX_EPOCHS)
    _within(edit, "from", 0, MAX_SAMPLES)
    why, ids, windows = edit["why"], edit["drop"], edit.get("windows", [])
    if not isinstance(why, str) or len(why) > MAX_WHY:
        raise StateError(f"the state has an edit with why {str(why)[:60]!r}.")
    for name, value, maximum in (("drop", ids, samples), ("windows", windows, MAX_SAMPLES)):
        is_list = isinstance(value, (list, tuple))
        if not is_list or not all(type(n) is int and 0 <= n < maximum for n in value):
            raise StateError(
                f"the state has an edit with {name} {str(value)[:60]!r}; expected whole numbers "
                f"below {maximum}."
            )
    if len(windows) > MAX_CANONICAL_NODES:
        raise StateError(f"the state has an edit with {len(windows)} windows.")


def _within(edit: Edit, name: str, minimum: int, maximum: int) -> int:
    """Return a number of an edit, checked."""
    value = edit[name]
    if type(value) is not int or not minimum <= value <= maximum:
        raise StateError(
            f"the state has an edit with {name} {str(value)[:60]!r}; expected {minimum} to "
            f"{maximum}."
        )
    return value


class DropTable:
    """Dropped samples of an epoch, sorted by ``ids``, with the places from which they are dropped.

    ``follow``: the samples that take their places, which may be dropped themselves.
    """

    def __init__(self, ids: Ids, begins: Ids, follow: Ids) -> None:
        self.ids, self.begins, self.follow = ids, begins, follow
        self._hints = np.zeros(1 << _HINT_BITS, bool)
        self._hints[ids & _HINT_MASK] = True
        self._from_begin = not int(begins.max(initial=0))

    @classmethod
    def of(
        cls, drops: Iterable[Drop], per_stream: Sequence[int], seed: int, epoch: int
    ) -> DropTable:
        """Return the table of an epoch: samples dropped in it, or in an earlier one."""
        past_drops = [drop for drop in drops if drop.epoch <= epoch and len(drop.ids)]
        if not past_drops:
            return cls(*(np.zeros(0, np.int64) for _ in range(3)))
        every = np.concatenate([drop.ids for drop in past_drops])
        begins = np.repeat(
            [drop.begin if drop.epoch == epoch else 0 for drop in past_drops],
            [len(drop.ids) for drop in past_drops],
        )
        edits = np.repeat(np.arange(len(past_drops)), [len(drop.ids) for drop in past_drops])
        ids, first, positions = np.unique(every, return_index=True, return_inverse=True)
        earliest = np.full(len(ids), np.iinfo(np.int64).max)
        np.minimum.at(earliest, positions, begins)
        follow = np.empty(len(ids), np.int64)
        ends = np.cumsum(np.asarray(per_stream, np.int64))
        stream = np.searchsorted(ends, ids, side="right")
        for number in np.unique(stream).tolist():
            mine = np.flatnonzero(stream == number)
            mine = mine[np.argsort(first[mine], kind="stable")]
            size = int(per_stream[number])
            key = derive_key(_SPARE_KEY, seed, epoch, number)
            follow[mine] = _replacements(
                ids[mine], edits[first[mine]], int(ends[number]) - size, size, key
            )
        return cls(ids, earliest, follow)

    def __len__(self) -> int:
        return len(self.ids)

    def replace(self, ids: Ids, marks: Callable[[], Ids]) -> Ids:
        """Return the ids of steps and slots with dropped samples replaced.

        ``marks`` gives their places in the epoch, where that matters.
        """
        may = np.flatnonzero(self._hints[ids & _HINT_MASK])
        if not len(may):
            return ids
        flat = ids.reshape(-1)
        may = may[self._find(flat[may]) >= 0]
        if len(may):
            when = np.zeros(len(may), np.int64) if self._from_begin else marks().reshape(-1)[may]
            flat = flat.copy() if not flat.flags.writeable else flat
            flat[may] = self.at(flat[may], when)
        return flat.reshape(ids.shape)

    def at(self, ids: Ids, marks: Ids) -> Ids:
        """Return what comes for samples at places of the epoch: themselves unless dropped there."""
        ids = ids.copy()
        moving = np.arange(len(ids) if len(self.ids) else 0)
        while len(moving):
            positions = self._find(ids[moving])
            is_dropped = (positions >= 0) & (self.begins[positions] <= marks[moving])
            moving = moving[is_dropped]
            ids[moving] = self.follow[positions[is_dropped]]
        return ids

    def sources(self, sample: int) -> list[int]:
        """Return the samples that this one replaces somewhere, and itself."""
        sources, waiting = [], [sample]
        while waiting:
            sources.append(waiting.pop())
            waiting += self.ids[self.follow == sources[-1]].tolist()
        return sources

    def _find(self, ids: Ids) -> Ids:
        """Return the positions of ids in the table, -1 for those that are not in it."""
        nearest = np.searchsorted(self.ids, ids)
        nearest[nearest == len(self.ids)] = 0
        positions: Ids = np.where(self.ids[nearest] == ids, nearest, -1)
        return positions


class DroppedBatches:
    """Global batches of an epoch in which samples are replaced; see `GlobalBatches`."""

    def __init__(self, batches: GlobalBatches, table: DropTable) -> None:
        self._batches, self._table = batches, table
        self.count, self.shares, self.filled = batches.count, batches.shares, batches.filled
        self.marks = batches.marks
        self.canonical_nodes_of = batches.canonical_nodes_of

    def block(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots."""
        ids = self._batches.block(steps, slots, lookups)
        return self._table.replace(ids, lambda: self.marks(steps, slots))

    def whole(self, first: int, last: int, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of all slots of the steps ``first`` to ``last`` - 1."""
        ids = self._batches.whole(first, last, lookups)
        slots = np.arange(ids.shape[1])
        return self._table.replace(ids, lambda: self.marks(np.arange(first, last), slots))

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of a stream's order, whatever comes there."""
        return self._batches.find(stream, positions)


class _Candidate(NamedTuple):
    sample: int
    edit: int  # that drops it, counted on for those that none does


def _replacements(ids: Ids, edits: Ids, first: int, size: int, key: int) -> list[int]:
    """Return the samples of a stream that replace ``ids``, dropped by edits in this order."""
    reserve = _spare_samples(dict(zip(ids.tolist(), edits.tolist(), strict=True)), first, size, key)
    replacements = []
    for edit in edits.tolist():
        spare = next((candidate for candidate in reserve if candidate.edit > edit), None)
        if spare is None:
            raise PlanError(
                f"more samples are dropped than the {size:,} samples of their stream can stand in "
                "for: leave them out with select()."
            )
        replacements.append(spare.sample)
    return replacements


def _spare_samples(
    dropped: dict[int, int], first: int, size: int, key: int
) -> Iterator[_Candidate]:
    """Yield the spare samples of a stream in their order, and the edit that drops each."""
    never, size = 1 << 62, min(size, _MAX_SPARE_SAMPLES)
    for start in range(0, size, _SPARE_CHUNK):
        numbers = np.arange(start, min(start + _SPARE_CHUNK, size))
        keys = np.full(len(numbers), key, np.uint64)
        sizes = np.full(len(numbers), size, np.int64)
        for sample in (permute_below(numbers, sizes, keys) + first).tolist():
            yield _Candidate(sample, dropped.get(sample, never))


_NOT_HERE = 1 << 62


class PackDrops:
    """Documents that are dropped in an epoch of packs, by the edits of its run."""

    def __init__(self, edits: Iterable[Edit], epoch: int) -> None:
        self._drops = [drop for drop in drops_of(edits) if drop.epoch <= epoch and len(drop.ids)]
        self._epoch = epoch
        nothing = np.zeros(0, np.int64)
        every = np.concatenate([nothing, *(drop.ids for drop in self._drops)])
        begins = [drop.begin if drop.epoch == epoch else 0 for drop in self._drops]
        self._ids, positions = np.unique(every, return_inverse=True)
        self._begins = np.full(len(self._ids), _NOT_HERE)
        np.minimum.at(
            self._begins, positions, np.repeat(begins, [len(drop.ids) for drop in self._drops])
        )

    def remaining(self, ids: Ids, node: int, window: int) -> Ids:
        """Return the samples of a window of a canonical node that are packed."""
        dropped = [
            drop.ids
            for drop in self._drops
            if drop.epoch < self._epoch or not drop.windows or window >= drop.windows[node]
        ]
        return ids[~np.isin(ids, np.concatenate(dropped))] if dropped else ids

    def mask(self, ids: Ids, places: Ids) -> NDArray[np.bool_]:
        """Return a mask of the pieces that are padding, of packs at places of the epoch."""
        if not len(self._ids):
            return np.zeros(len(ids), bool)
        nearest = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        mask: NDArray[np.bool_] = (self._ids[nearest] == ids) & (self._begins[nearest] <= places)
        return mask
