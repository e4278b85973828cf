"""Edits of an order: changes that were made while a training ran.

An edit is plain JSON. It holds from a place of the run on, so what came before stays as it was. A
state has all edits, in the order in which they were made::

    {"step": 1200, "weights": {"web": 0.5, "math": 0.5}}      weights, from a step on
    {"step": 1200, "weights": {...}, "window": 37}            the same with packs: from a window on,
                                                               which has its first pack in the step
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

from mds._words import plural
from mds.errors import ConfigError, PlanError, StateError
from mds.plan._partition import Gaps
from mds.plan._state import MAX_EPOCHS, MAX_SAMPLES, Position
from mds.shuffle._permutation import derive_key, permute_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mds.plan._global_batches import GlobalBatches, Lookup
    from mds.plan._schedule import ScheduledRun

    Ids = NDArray[np.int64]
    Edit = Mapping[str, Any]


MAX_DROPPED = 100_000  # samples of a run; a selection leaves out more
MAX_WHY = 200  # letters
#: Keys of new weights, by the unit of places.
_KEYS_OF_WEIGHTS = {"samples": {"step", "weights"}, "packs": {"step", "weights", "window"}}
_SPARE_KEY = 0x72657376  # keys of spare samples are derived from it
_HINT_BITS = 16
_HINT_MASK = (1 << _HINT_BITS) - 1
_SPARE_CHUNK = 1 << 10  # spare samples that are computed at once
_MAX_SPARE_SAMPLES = 1 << 32  # of a stream
_NEVER_DROPPED = 1 << 62  # a number of a drop, or a place of an epoch, after all others


class Drop(NamedTuple):
    """Samples that are dropped from a place of an epoch on, and in all later epochs.

    Attributes:
        epoch, begin: Epoch, and the place in it.
        ids: Sample ids, int64 (n,).
        windows: With packs, for each canonical node the first window of this epoch that is packed
            without the samples. If empty, all windows are. Empty without packs.
    """

    epoch: int
    begin: int
    ids: Ids
    windows: tuple[int, ...]


def apply_weights(run: ScheduledRun | None, edits: Iterable[Edit]) -> ScheduledRun | None:
    """Return the schedule of a run with the weights that were set while it ran.

    ``run`` is the schedule before any edit, or None for a run without one, which stays None.
    """
    for edit in edits:
        if run is not None and "weights" in edit:
            # A schedule of packs counts windows instead of steps.
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
    """Return the place after ``count`` places from ``begin`` on that are not skipped.

    ``skips`` are ranges of places, each as its first and its end. With (12, 15) skipped, 4 places
    from 10 on are 10, 11, 15 and 16, and the place after them is 17.
    """
    # All places before ``begin`` are a gap, too, so that places are counted from there on.
    return Gaps([(0, begin), *skips]).place(count) if skips else begin + count


def position_after(begin: Position, count: int, edits: Iterable[Edit]) -> Position:
    """Return the position ``count`` samples of all ranks after ``begin``.

    Places of steps that ``edits`` skip are passed over.
    """
    place = place_after(skips_of(edits, begin.epoch), begin.place, count)
    return Position(begin.epoch, place)


def given_before(skips: Sequence[tuple[int, int]], begin: int, place: int) -> int:
    """Return the number of places from ``begin`` up to ``place`` (excluded) that are not skipped.

    ``skips`` are ranges of places, each as its first and its end. This is the inverse of
    `place_after`: with (12, 15) skipped, 4 places are given from 10 up to 17.
    """
    return Gaps([(0, begin), *skips]).number(place)


def drops_of(edits: Iterable[Edit]) -> tuple[Drop, ...]:
    """Return the drops among the edits of a state, in the order in which they were made."""
    return tuple(
        Drop(
            epoch=edit["epoch"],
            begin=edit["from"],
            ids=np.array(edit["drop"], np.int64),
            windows=tuple(edit.get("windows", ())),
        )
        for edit in edits
        if "drop" in edit
    )


def describe_edit(edit: Edit) -> str:
    """Return an edit in words, as in "512 places skipped from place 4,096 of epoch 0 on"."""
    if "weights" in edit:
        return f"new weights from step {edit['step']:,}: {dict(edit['weights'])}"
    place = f"place {edit['from']:,} of epoch {edit['epoch']}"
    if "skip" in edit:
        return f"{plural(edit['skip'], 'place')} skipped from {place} on"
    ids = ", ".join(map(str, edit["drop"][:4]))
    ids += ", ..." if len(edit["drop"]) > 4 else ""
    why = f" ({edit['why']})" if edit["why"] else ""
    count = len(edit["drop"])
    samples = plural(count, "sample")
    verb = "left out" if "windows" in edit else "replaced"  # of packs
    return f"{samples} {verb} from {place} on: {ids}{why}"


def check_edits(
    edits: Iterable[Edit],
    run: ScheduledRun | None,
    per_stream: Mapping[str, int],
    canonical_nodes: int,
    unit: str,
) -> None:
    """Raise StateError for edits of a state that are malformed or do not fit a run.

    Args:
        edits: Edits of the state.
        run: Schedule of the run, if there is one.
        per_stream: Samples of each stream, by its name in messages.
        canonical_nodes: Number of canonical nodes of the state.
        unit: Unit of places, "samples" or "packs".
    """
    edits = list(edits)
    for edit in edits:
        keys = set(edit)  # they tell the kind of the edit, see the top of the file
        if keys == _KEYS_OF_WEIGHTS[unit]:
            _check_weights(edit, run)
        elif keys == {"epoch", "from", "skip"}:
            places_after = MAX_SAMPLES - _number_in_range(edit, "from", 0, MAX_SAMPLES)
            _number_in_range(edit, "epoch", 0, MAX_EPOCHS)
            _number_in_range(edit, "skip", 1, places_after)
        elif keys - {"windows"} == {"epoch", "from", "drop", "why"}:
            _check_drop(edit, sum(per_stream.values()), canonical_nodes)
        else:
            raise StateError(
                f"the state has an edit of {', '.join(map(str, edit))[:100]}, which this version "
                "of the library does not know. Update it."
            )
    try:
        check_spare_samples(drops_of(edits), per_stream)
    except ConfigError as error:
        raise StateError(f"the state has an invalid edit: {error}") from error


def check_spare_samples(drops: Iterable[Drop], per_stream: Mapping[str, int]) -> None:
    """Raise ConfigError if more than half of a stream is dropped: it lacks spare samples then.

    Args:
        drops: All drops of the run.
        per_stream: Samples of each stream, by its name in messages. Sample ids count through the
            streams in this order.
    """
    ids = _all_ids(drops)
    if len(ids) > MAX_DROPPED:
        raise too_many_dropped(f"{len(ids):,}")
    ends = np.cumsum(np.fromiter(per_stream.values(), np.int64))
    # Dropped samples of each stream.
    counts = np.bincount(np.searchsorted(ends, ids, side="right"), minlength=len(ends))
    for count, (title, size) in zip(counts.tolist(), per_stream.items(), strict=True):
        if 2 * count > size:
            raise ConfigError(
                f"replace_samples() would drop {count:,} of the {plural(size, 'sample')} of stream "
                f"{title}. At most half of a stream can be dropped, because its other samples "
                "replace them. Leave these samples out with select() instead."
            )


def too_many_dropped(count: str) -> ConfigError:
    """Return the error for more dropped samples than a state can hold."""
    return ConfigError(
        f"replace_samples() would drop {count} samples; at most {MAX_DROPPED:,} are "
        "allowed. "
        "Leave these samples out with select() instead."
    )


def _all_ids(drops: Iterable[Drop]) -> Ids:
    """Return all dropped samples, sorted, each once."""
    parts = [drop.ids for drop in drops]
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def _check_weights(edit: Edit, run: ScheduledRun | None) -> None:
    """Raise StateError for an edit with malformed weights, or weights of unknown streams.

    ``run`` is the schedule, which knows the names of the streams; without one they are not checked.
    """
    from mds.plan._mixture import MAX_STEPS
    from mds.plan._schedule import check_weights

    step = _number_in_range(edit, "step", 0, MAX_STEPS - 1)
    if "window" in edit:
        _number_in_range(edit, "window", 0, MAX_STEPS - 1)
    try:
        weights = check_weights(edit["weights"], f"from step {step}")
        if run is not None:
            run.check_names({name for name, _ in weights})
    except ConfigError as error:
        raise StateError(f"the state has an invalid edit: {error}") from error


def _check_drop(edit: Edit, samples: int, canonical_nodes: int) -> None:
    """Raise StateError for a malformed drop, for so many samples and canonical nodes."""
    _number_in_range(edit, "epoch", 0, MAX_EPOCHS)
    _number_in_range(edit, "from", 0, MAX_SAMPLES)
    why, ids, windows = edit["why"], edit["drop"], edit.get("windows", [])
    if not isinstance(why, str) or len(why) > MAX_WHY:
        raise StateError(
            f"the state has an edit with why {str(why)[:60]!r}; expected a short text."
        )
    for name, value, maximum in (("drop", ids, samples), ("windows", windows, MAX_SAMPLES)):
        is_list = isinstance(value, (list, tuple))
        if not is_list or not all(type(n) is int and 0 <= n < maximum for n in value):
            raise StateError(
                f"the state has an edit with {name} {str(value)[:60]!r}; expected whole numbers "
                f"below {maximum}."
            )
    if windows and len(windows) != canonical_nodes:
        raise StateError(
            f"the state has an edit with {plural(len(windows), 'window')} and num_canonical_nodes "
            f"{canonical_nodes}; each canonical node has one."
        )


def _number_in_range(edit: Edit, name: str, minimum: int, maximum: int) -> int:
    """Return the number ``edit[name]``.

    Raises StateError if it is not an integer from ``minimum`` to ``maximum``.
    """
    value = edit[name]
    if type(value) is not int or not minimum <= value <= maximum:
        raise StateError(
            f"the state has an edit with {name} {str(value)[:60]!r}; expected {minimum} to "
            f"{maximum}."
        )
    return value


class DropTable:
    """Dropped samples of an epoch and their replacements.

    A *mark* is the place in the epoch at which a sample is due: a sample is replaced only at the
    places from which it is dropped. With these columns, sample 7 becomes 42 at place 200, and 51 at
    place 600, where 42 is dropped, too. It stays at place 50::

        ids               7    42
        begins          100   500
        replacements     42    51

    Args:
        ids: Sample ids of dropped samples, sorted, int64.
        begins: For each, the place of the epoch from which it is dropped, int64.
        replacements: For each, the sample id that comes instead, int64. It may be dropped as well,
            and is then replaced in turn.
    """

    def __init__(self, ids: Ids, begins: Ids, replacements: Ids) -> None:
        self.ids, self.begins, self.replacements = ids, begins, replacements
        # By the lowest bits of an id, whether a dropped sample has them. Nearly all samples are not
        # dropped, and this look rules out most of them without a search.
        self._may_be_dropped = np.zeros(1 << _HINT_BITS, bool)
        self._may_be_dropped[ids & _HINT_MASK] = True
        # Whether all samples are dropped from place 0 on, so that places do not matter.
        self._hold_from_beginning = not int(begins.max(initial=0))

    @classmethod
    def of(
        cls, drops: Iterable[Drop], per_stream: Sequence[int], seed: int, epoch: int
    ) -> DropTable:
        """Return the table of an epoch: of samples that were dropped in it, or before.

        Args:
            drops: Drops of the run, in the order in which they were made.
            per_stream: Number of samples of each stream.
            seed: Seed of the run.
            epoch: Number of the epoch.

        Raises PlanError if a stream has too few spare samples.
        """
        past_drops = [drop for drop in drops if drop.epoch <= epoch and len(drop.ids)]
        if not past_drops:
            return cls(*(np.zeros(0, np.int64) for _ in range(3)))
        # Columns of all dropped samples: id, place from which it is dropped (0 in an epoch after
        # that of the drop), and number of the drop.
        sizes = [len(drop.ids) for drop in past_drops]
        all_ids = np.concatenate([drop.ids for drop in past_drops])
        all_begins = np.repeat(
            [drop.begin if drop.epoch == epoch else 0 for drop in past_drops], sizes
        )
        all_drops = np.repeat(np.arange(len(past_drops)), sizes)
        # A sample may be dropped several times, and then counts from the earliest place on.
        ids, first_rows, rows_to_ids = np.unique(all_ids, return_index=True, return_inverse=True)
        begins = np.full(len(ids), np.iinfo(np.int64).max)
        np.minimum.at(begins, rows_to_ids, all_begins)
        replacements = np.empty(len(ids), np.int64)
        ends = np.cumsum(np.asarray(per_stream, np.int64))  # end of the sample ids of each stream
        stream_of = np.searchsorted(ends, ids, side="right")
        for stream in np.unique(stream_of).tolist():
            of_stream = np.flatnonzero(stream_of == stream)
            # Spare samples are given out in the order in which samples were dropped.
            of_stream = of_stream[np.argsort(first_rows[of_stream], kind="stable")]
            size = int(per_stream[stream])
            first_id = int(ends[stream]) - size
            key = derive_key(_SPARE_KEY, seed, epoch, stream)
            replacements[of_stream] = _replacements(
                ids[of_stream], all_drops[first_rows[of_stream]], first_id, size, key
            )
        return cls(ids, begins, replacements)

    def __len__(self) -> int:
        return len(self.ids)

    def replace(self, ids: Ids, marks: Callable[[], Ids]) -> Ids:
        """Return an array of sample ids of any shape, with dropped samples replaced.

        ``marks`` returns the places of all ids in the epoch, in the same shape. It is called only
        if places matter, as they take time to compute. The array is changed if it is writeable.
        """
        # Indexes of ids that may be in the table by their lowest bits, then of those that are.
        candidates = np.flatnonzero(self._may_be_dropped[ids & _HINT_MASK])
        if not len(candidates):
            return ids
        flat = ids.reshape(-1)
        candidates = candidates[self._find(flat[candidates]) >= 0]
        if not len(candidates):
            return ids
        if self._hold_from_beginning:
            places = np.zeros(len(candidates), np.int64)  # any place will do
        else:
            places = marks().reshape(-1)[candidates]
        flat = flat if flat.flags.writeable else flat.copy()
        flat[candidates] = self.at(flat[candidates], places)
        return flat.reshape(ids.shape)

    def at(self, ids: Ids, marks: Ids) -> Ids:
        """Return the samples that come at places of the epoch: ``ids``, or their replacements.

        Both arrays are int64 (n,); ``marks`` has the place of each id. A sample that is not dropped
        at its place stays.
        """
        ids = ids.copy()
        # Indexes of the samples that may still be replaced: a replacement may be dropped as well.
        unsettled = np.arange(len(ids) if len(self.ids) else 0)
        while len(unsettled):
            rows = self._find(ids[unsettled])
            is_dropped = (rows >= 0) & (self.begins[rows] <= marks[unsettled])
            unsettled = unsettled[is_dropped]
            ids[unsettled] = self.replacements[rows[is_dropped]]
        return ids

    def sources(self, sample: int) -> list[int]:
        """Return a sample, and all samples that it replaces at some place, directly or in turn.

        In the example of the class, these are 51, 42 and 7 for sample 51.
        """
        sources, waiting = [], [sample]
        while waiting:
            sources.append(waiting.pop())
            waiting += self.ids[self.replacements == sources[-1]].tolist()
        return sources

    def _find(self, ids: Ids) -> Ids:
        """Return the row of each id in the table, -1 for those that are not in it.

        The table must not be empty.
        """
        nearest = np.searchsorted(self.ids, ids)
        nearest[nearest == len(self.ids)] = 0  # after the last row; any row will differ
        rows: Ids = np.where(self.ids[nearest] == ids, nearest, -1)
        return rows


class DroppedBatches:
    """Global batches in which dropped samples are replaced; see `GlobalBatches`.

    Args:
        batches: Global batches before samples were dropped.
        table: Dropped samples and their replacements.
    """

    def __init__(self, batches: GlobalBatches, table: DropTable) -> None:
        self._batches, self._table = batches, table
        self.count, self.shares, self.filled = batches.count, batches.shares, batches.filled
        self.is_full = batches.is_full
        self.marks = batches.marks
        self.canonical_nodes_of = batches.canonical_nodes_of

    def block(self, steps: Ids, slots: Ids, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of steps and slots, int64 (steps, slots), -1 for padding."""
        ids = self._batches.block(steps, slots, lookups)
        # Places are computed only if `replace` needs them.
        return self._table.replace(ids, lambda: self.marks(steps, slots))

    def whole(self, first: int, last: int, lookups: Sequence[Lookup]) -> Ids:
        """Return the sample ids of all slots of the steps ``first`` to ``last`` - 1."""
        ids = self._batches.whole(first, last, lookups)
        slots = np.arange(ids.shape[1])
        # Places are computed only if `replace` needs them.
        return self._table.replace(ids, lambda: self.marks(np.arange(first, last), slots))

    def find(self, stream: int, positions: Ids) -> tuple[Ids, Ids]:
        """Return the steps and slots of positions of a stream's order.

        Dropped samples keep their slots, in which the replacements come.
        """
        return self._batches.find(stream, positions)


class _SpareSample(NamedTuple):
    """Sample of a stream that may replace a dropped one.

    Attributes:
        sample: Sample id.
        drop_number: Number of the first drop that drops this sample itself, counted from 0 in the
            order in which drops were made; `_NEVER_DROPPED`, which is larger, if none does.
    """

    sample: int
    drop_number: int


def _replacements(ids: Ids, drop_numbers: Ids, first: int, size: int, key: int) -> list[int]:
    """Return the replacement of each dropped sample of a stream: the next spare sample.

    For example, sample 7 is dropped by drop 0 and sample 42 by drop 1. If the spare samples are 42,
    7, 51, ..., then 42 replaces 7, as it was not dropped by then. For 42 it is 51, as 7 was.

    Args:
        ids: Dropped samples, in the order in which they were dropped.
        drop_numbers: Number of the drop that drops each.
        first, size: First sample id and number of samples of the stream.
        key: Key of the order of spare samples.

    Raises PlanError if the spare samples do not suffice.
    """
    spare_samples = _spare_samples(
        dict(zip(ids.tolist(), drop_numbers.tolist(), strict=True)), first, size, key
    )
    replacements = []
    for drop_number in drop_numbers.tolist():
        # The iterator continues after the last spare sample that was used or passed over. A spare
        # sample is passed over if it had been dropped itself by then.
        spare = next((each for each in spare_samples if each.drop_number > drop_number), None)
        if spare is None:
            raise PlanError(
                f"more samples are dropped than the {plural(size, 'sample')} of their stream can "
                "replace. "
                "Leave these samples out with select() instead."
            )
        replacements.append(spare.sample)
    return replacements


def _spare_samples(
    dropped: dict[int, int], first: int, size: int, key: int
) -> Iterator[_SpareSample]:
    """Yield the spare samples of a stream in their order: a permutation of all its samples.

    Args:
        dropped: Number of the drop that drops a sample, by sample id.
        first, size: First sample id and number of samples of the stream.
        key: Key of the permutation.
    """
    size = min(size, _MAX_SPARE_SAMPLES)
    for start in range(0, size, _SPARE_CHUNK):
        numbers = np.arange(start, min(start + _SPARE_CHUNK, size))
        keys = np.full(len(numbers), key, np.uint64)
        sizes = np.full(len(numbers), size, np.int64)
        for sample in (permute_below(numbers, sizes, keys) + first).tolist():
            yield _SpareSample(sample, dropped.get(sample, _NEVER_DROPPED))


class PackDrops:
    """Documents that are dropped in an epoch of packs.

    A window of documents that had begun when a document was dropped keeps its packs: pieces of the
    document become padding (`mask`). Later windows are packed without it (`remaining`).

    Args:
        edits: Edits of the run.
        epoch: Number of the epoch.
    """

    def __init__(self, edits: Iterable[Edit], epoch: int) -> None:
        self._drops = [drop for drop in drops_of(edits) if drop.epoch <= epoch and len(drop.ids)]
        self._epoch = epoch
        nothing = np.zeros(0, np.int64)  # to concatenate also if there are no drops
        all_ids = np.concatenate([nothing, *(drop.ids for drop in self._drops)])
        # Samples that were dropped in an earlier epoch are dropped from place 0 of this one.
        all_begins = np.repeat(
            [drop.begin if drop.epoch == epoch else 0 for drop in self._drops],
            [len(drop.ids) for drop in self._drops],
        )
        # Dropped documents, sorted, and the earliest place from which each is dropped.
        self._ids, positions = np.unique(all_ids, return_inverse=True)
        self._begins = np.full(len(self._ids), _NEVER_DROPPED)
        np.minimum.at(self._begins, positions, all_begins)

    def remaining(self, ids: Ids, node: int, window: int) -> Ids:
        """Return those of the documents ``ids`` of a window that are packed.

        Documents that were dropped before the window had begun are left out. ``node`` is the
        canonical node, ``window`` the number of its window in this epoch.
        """
        # `Drop.windows` counts windows of the epoch of the drop. In later epochs it holds for all.
        dropped = [
            drop.ids
            for drop in self._drops
            if drop.epoch < self._epoch or not drop.windows or window >= drop.windows[node]
        ]
        return ids[~np.isin(ids, np.concatenate(dropped))] if dropped else ids

    def mask(self, ids: Ids, places: Ids) -> NDArray[np.bool_]:
        """Return a mask of the pieces whose document is dropped, so that they become padding.

        A piece is a part of a document in a pack.

        Args:
            ids: Document of each piece, int64 (n,).
            places: For each piece, the place of its pack in the epoch, int64 (n,).
        """
        if not len(self._ids):
            return np.zeros(len(ids), bool)
        nearest = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        mask: NDArray[np.bool_] = (self._ids[nearest] == ids) & (self._begins[nearest] <= places)
        return mask
