"""Edits of an order: changes that were made while a training ran.

An edit is plain JSON. It holds from a place of the run on, so what came before stays as it was. A
state has all edits, in the order in which they were made::

    {"step": 1200, "weights": {"web": 0.5, "math": 0.5}}      weights, from a step on
    {"step": 1200, "weights": {...}, "window": 37}            the same with packs: from a window on
    {"epoch": 0, "from": 4096, "skip": 512}                   512 places that are skipped
    {"epoch": 0, "from": 4096, "drop": [77], "why": "noise"}  samples that are dropped from there on

Places count samples, or packs, of all ranks since the epoch began. A drop in a run with packs also
has ``windows``: for each canonical node the first window that had not begun. That window and later
ones are packed without the documents.

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
    """Samples that are dropped from a place of an epoch on.

    Attributes:
        epoch, begin: Epoch, and the place in it.
        ids: Sample ids.
        windows: For each canonical node the first window that is packed without the samples. If
            empty, all windows are.
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
    """Return the ranges of places of an epoch that are skipped, each as its first and its end."""
    return tuple(
        (edit["from"], edit["from"] + edit["skip"])
        for edit in edits
        if "skip" in edit and edit["epoch"] == epoch
    )


def place_after(skips: Sequence[tuple[int, int]], begin: int, count: int) -> int:
    """Return the place after ``count`` places from ``begin`` on that are not skipped."""
    return Gaps([(0, begin), *skips]).place(count) if skips else begin + count


def given_before(skips: Sequence[tuple[int, int]], begin: int, place: int) -> int:
    """Return the number of places from ``begin`` to ``place`` that are not skipped."""
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
    """Raise StateError for edits of a state that are malformed or do not fit a run.

    Args:
        edits: Edits of the state.
        run: Schedule of the run, if there is one.
        per_stream: Samples of each stream, by its name in messages.
        is_packed: Whether places count packs.
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
    """Raise ConfigError if more than half of the samples of a stream are dropped.

    ``per_stream`` has the samples of each stream, by its name in messages.
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
    """Return all dropped samples, sorted, each once."""
    parts = [drop.ids for drop in drops]
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def _check_weights(edit: Edit, run: ScheduledRun | None) -> None:
    """Raise StateError for malformed weights, or weights of streams that the run does not have."""
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
    """Raise StateError for a malformed drop of a dataset with so many samples."""
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
    """Return a number of an edit. Raises StateError if it is out of range."""
    value = edit[name]
    if type(value) is not int or not minimum <= value <= maximum:
        raise StateError(
            f"the state has an edit with {name} {str(value)[:60]!r}; expected {minimum} to "
            f"{maximum}."
        )
    return value


class DropTable:
    """Dropped samples of an epoch and their replacements.

    Args:
        ids: Dropped samples, sorted.
        begins: Place of the epoch from which each is dropped.
        follow: Replacement of each, which may be dropped as well.
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
        """Return the table of an epoch: of samples that were dropped in it, or before.

        ``per_stream`` has the samples of each stream, ``seed`` is the seed of the run.
        """
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
        """Return ids with dropped samples replaced.

        ``marks`` returns the places of all ids in the epoch; it is called only if they are needed.
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
        """Return the samples that come at places of the epoch instead of dropped ones.

        A sample that is not dropped at its place stays. ``marks`` are the places of ``ids``.
        """
        ids = ids.copy()
        moving = np.arange(len(ids) if len(self.ids) else 0)
        while len(moving):
            positions = self._find(ids[moving])
            is_dropped = (positions >= 0) & (self.begins[positions] <= marks[moving])
            moving = moving[is_dropped]
            ids[moving] = self.follow[positions[is_dropped]]
        return ids

    def sources(self, sample: int) -> list[int]:
        """Return a sample, and the samples that it replaces at some place."""
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
    """Global batches in which dropped samples are replaced; see `GlobalBatches`."""

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
        """Return the steps and slots of positions of a stream's order, replaced or not."""
        return self._batches.find(stream, positions)


class _SpareSample(NamedTuple):
    """Spare sample, and the number of the edit that drops it, larger than all for none."""

    sample: int
    edit: int


def _replacements(ids: Ids, edits: Ids, first: int, size: int, key: int) -> list[int]:
    """Return the replacement of each dropped sample of a stream.

    Args:
        ids: Dropped samples, in the order in which they were dropped.
        edits: Number of the edit that drops each.
        first, size: First sample id and number of samples of the stream.
        key: Key of the order of spare samples.
    """
    spare_samples = _spare_samples(
        dict(zip(ids.tolist(), edits.tolist(), strict=True)), first, size, key
    )
    replacements = []
    for edit in edits.tolist():
        spare = next((each for each in spare_samples if each.edit > edit), None)
        if spare is None:
            raise PlanError(
                f"more samples are dropped than the {size:,} samples of their stream can replace: "
                "leave them out with select()."
            )
        replacements.append(spare.sample)
    return replacements


def _spare_samples(
    dropped: dict[int, int], first: int, size: int, key: int
) -> Iterator[_SpareSample]:
    """Yield the spare samples of a stream in their order.

    ``dropped`` has the number of the edit by dropped sample.
    """
    never, size = 1 << 62, min(size, _MAX_SPARE_SAMPLES)
    for start in range(0, size, _SPARE_CHUNK):
        numbers = np.arange(start, min(start + _SPARE_CHUNK, size))
        keys = np.full(len(numbers), key, np.uint64)
        sizes = np.full(len(numbers), size, np.int64)
        for sample in (permute_below(numbers, sizes, keys) + first).tolist():
            yield _SpareSample(sample, dropped.get(sample, never))


_NEVER_DROPPED = 1 << 62  # a place after all others


class PackDrops:
    """Documents that are dropped in an epoch of packs.

    Args:
        edits: Edits of the run.
        epoch: Number of the epoch.
    """

    def __init__(self, edits: Iterable[Edit], epoch: int) -> None:
        self._drops = [drop for drop in drops_of(edits) if drop.epoch <= epoch and len(drop.ids)]
        self._epoch = epoch
        nothing = np.zeros(0, np.int64)
        every = np.concatenate([nothing, *(drop.ids for drop in self._drops)])
        begins = [drop.begin if drop.epoch == epoch else 0 for drop in self._drops]
        self._ids, positions = np.unique(every, return_inverse=True)
        self._begins = np.full(len(self._ids), _NEVER_DROPPED)
        np.minimum.at(
            self._begins, positions, np.repeat(begins, [len(drop.ids) for drop in self._drops])
        )

    def remaining(self, ids: Ids, node: int, window: int) -> Ids:
        """Return the documents ``ids`` of a window without those that it is packed without."""
        dropped = [
            drop.ids
            for drop in self._drops
            if drop.epoch < self._epoch or not drop.windows or window >= drop.windows[node]
        ]
        return ids[~np.isin(ids, np.concatenate(dropped))] if dropped else ids

    def mask(self, ids: Ids, places: Ids) -> NDArray[np.bool_]:
        """Return a mask of the pieces that are padding.

        ``ids`` are the documents of the pieces, ``places`` those of their packs in the epoch.
        """
        if not len(self._ids):
            return np.zeros(len(ids), bool)
        nearest = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        mask: NDArray[np.bool_] = (self._ids[nearest] == ids) & (self._begins[nearest] <= places)
        return mask
