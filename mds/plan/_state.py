"""Position of a run, and the state dict that records it.

A `Position` is an epoch and a place in it. A place counts the samples, or the packs, of all ranks
since the epoch began; skipped steps count too. An order of samples can be continued from any place.
Packs are made window by window, so continuing them takes a `Cursor` as well, unless the place is
the beginning of an epoch. A `ResumePoint` is a position with the settings that the run keeps.

`parse_state` makes a resume point of the user's dict, and `emit_state` makes the dict. Five keys
are those of mosaicml-streaming, whole numbers that mean the same. A state of this library adds a
version, fingerprints of the data and of the order with the settings themselves, so that a state
which does not fit is refused with the differences, and a hash of the order so far. It is plain JSON
of about a kilobyte. A state without the added keys is read as one of mosaicml-streaming.

Version 3 is written. Every state has the same keys, and every key one type, because tools such as
torch.distributed.checkpoint take dicts apart and load only the keys that a fresh state has. So
everything of variable size (`TEXT_KEYS`) is one text of JSON::

    epoch, sample_in_epoch, num_canonical_nodes, shuffle_seed, initial_physical_nodes    int
    version                                                                              int
    unit                                            "samples" or "packs"                 str
    finished                                                                             bool
    order_hash                                      "" if unknown                        str
    cursor                                          {"cursors": [[0, 6]], "turn": 0}     JSON
    schedule, dataset, order, data                  an object or null                    JSON
    edits                                           a list                               JSON

If the position counts packs, or the run has a schedule or edits, mosaicml-streaming cannot continue
from it. Then ``num_canonical_nodes`` is negative, with the same absolute value: mosaicml-streaming
raises ValueError for it with every batching method and every shuffle.

Versions 1 and 2 are read. Version 1 has dicts in place of texts, and keys only where needed.
Version 2 has ``schedule``, ``edits``, ``unit`` and ``position`` beside them, and in
``sample_in_epoch`` a text. Only this module knows how the versions are spelled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import numbers
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from mds._words import plural
from mds.errors import StateError

#: Version of the states that are written; 1 and 2 are read as well.
VERSION = 3
#: What a position may count.
UNITS = ("samples", "packs")
#: Keys that states of mosaicml-streaming have.
KEYS = (
    "epoch",
    "sample_in_epoch",
    "num_canonical_nodes",
    "shuffle_seed",
    "initial_physical_nodes",
)
#: Keys whose values are texts of JSON.
TEXT_KEYS = ("cursor", "schedule", "edits", "dataset", "order", "data")
#: Keys of a state besides those of mosaicml-streaming.
_OWN_KEYS = ("version", "unit", "finished", "order_hash", *TEXT_KEYS)
#: All keys that a state of any version may have.
ALL_KEYS = frozenset({*KEYS, *_OWN_KEYS, "position", "keys"})

#: Most canonical nodes of an order: 64, the default of mosaicml-streaming, for each of 4,096 nodes.
#: The work of dealing samples out grows with them.
MAX_CANONICAL_NODES = 1 << 18
MAX_SAMPLES = 1 << 62
MAX_EPOCHS = 1 << 40
MAX_SEED = 1 << 64
_MIN_VALUES = {
    "epoch": -1,
    "sample_in_epoch": 0,
    "num_canonical_nodes": 1,
    "shuffle_seed": 0,
    "initial_physical_nodes": 1,
}
_MAX_VALUES = {
    "epoch": MAX_EPOCHS,
    "sample_in_epoch": MAX_SAMPLES,
    "num_canonical_nodes": MAX_CANONICAL_NODES,
    "shuffle_seed": MAX_SEED,
    "initial_physical_nodes": 1 << 20,
}
_MAX_PADDING_SAMPLES = 1 << 20  # samples; a step of 16,384 ranks with batches of 64
_MAX_FACTS, _MAX_TEXT = 64, 500  # entries of a mapping, letters of a text
MAX_EDITS = 10_000
_MAX_NUMBERS, _MAX_DEPTH = 1 << 20, 6  # values of schedule and edits, lists around a value
_MAX_DATA = 1 << 16  # values that name the data
_MAX_JSON = 1 << 25  # letters of a text of JSON
_MOVED = "see position"  # sample_in_epoch in version 2


class Cursor(NamedTuple):
    """Next pack of every canonical node.

    The documents of a canonical node are packed in windows, some thousand packs at a time, and
    canonical nodes give their packs in turns. With ``windows=((0, 7), (0, 6))`` and ``node=1``, the
    next pack is number 6 of the first window of canonical node 1.

    Attributes:
        windows: For each canonical node the number of its window, and of the next pack in it, both
            from 0.
        node: Canonical node that gives the next pack.
    """

    windows: tuple[tuple[int, int], ...]
    node: int = 0


class Position(NamedTuple):
    """Place in an epoch.

    Attributes:
        epoch: Epoch, from 0; -1 before the first one.
        place: Number of samples or packs, of all ranks, that came before in the epoch.
        unit: Unit of ``place``, "samples" or "packs".
        cursor: Next pack of every canonical node; None for samples, and where an epoch begins.
        is_finished: Whether the iteration of the epoch has ended, so that the next epoch comes.
    """

    epoch: int
    place: int = 0
    unit: str = "samples"
    cursor: Cursor | None = None
    is_finished: bool = False

    def following(self) -> Position:
        """Return the beginning of the next epoch. After epoch -1 that is epoch 0."""
        return Position(max(self.epoch, -1) + 1, 0, self.unit)


@dataclasses.dataclass(frozen=True)
class ResumePoint:
    """Position of a run, and the settings that the run keeps when it goes on from there.

    Attributes:
        position: Where the run goes on.
        num_canonical_nodes, shuffle_seed: Settings of the order; None if no state was loaded, so
            that the settings of the dataset hold.
        initial_physical_nodes: Nodes with which the run began; None if unknown, as in states of
            mosaicml-streaming before 0.7.
        version: Version of the state; None for a state of mosaicml-streaming.
        dataset, order: Facts about the data and the order, by name, which must be the same at a
            resume; None in states of mosaicml-streaming.
        order_hash: Hash of the samples so far.
        schedule: Schedule of the mixture as JSON, of which only the size is checked here.
        edits: Changes of the order while the training ran (weights, drops, skips) as JSON, of which
            only the size is checked here.
        data: Description of the data and the world. A dataset compares the digests of the shards
            in it, unless it is None; `initial_ranks` reads a part of it.
    """

    position: Position
    num_canonical_nodes: int | None = None
    shuffle_seed: int | None = None
    initial_physical_nodes: int | None = None
    version: int | None = None
    dataset: Mapping[str, Any] | None = None
    order: Mapping[str, Any] | None = None
    order_hash: str | None = None
    schedule: Mapping[str, Any] | None = None
    edits: tuple[Mapping[str, Any], ...] = ()
    data: Mapping[str, Any] | None = None

    @property
    def is_extended(self) -> bool:
        """Whether the keys of mosaicml-streaming alone cannot give the position of this point."""
        return _is_extended(self.position.unit, self.schedule, self.edits)

    @property
    def is_ours(self) -> bool:
        """Whether this library wrote the state, so that its position is exact to the sample."""
        return self.version is not None

    def at(self, position: Position) -> ResumePoint:
        """Return the same settings at another position."""
        return dataclasses.replace(self, position=position)

    @property
    def initial_ranks(self) -> tuple[int, int] | None:
        """Number of nodes and of all ranks of the world in which the run began; None if unknown.

        Some batching methods pad each stream for that world. It is ``data["padded_for"]`` if the
        world that wrote the state had itself resumed the run, and otherwise the world in ``data``.
        """
        data = self.data if self.is_ours and self.data is not None else {}
        world = data.get("padded_for", data)
        if not isinstance(world, Mapping):
            return None
        nodes, ranks = world.get("nodes"), world.get("ranks")
        if type(nodes) is not int or type(ranks) is not int or not 0 < nodes <= ranks:
            return None
        return None if ranks % nodes else (nodes, ranks)

    def check_place(self, epoch_size: int) -> None:
        """Raise StateError if the place is not in an epoch of ``epoch_size`` samples.

        The end of an epoch is allowed. Samples that are repeated so that all ranks get equally many
        move it beyond ``epoch_size``, so this check is a rough one.
        """
        place = self.position.place
        if not 0 <= place <= epoch_size + max(epoch_size, _MAX_PADDING_SAMPLES):
            raise StateError(
                f"the state has sample_in_epoch {place}, and an epoch of this "
                f"dataset has {plural(epoch_size, 'sample')}: it is of another dataset or "
                "epoch_size."
            )

    def check_unit(self, unit: str) -> None:
        """Raise StateError if the state counts samples and the run counts packs, or the reverse.

        ``unit`` is the unit of this run, "samples" or "packs".
        """
        if self.position.unit != unit:
            raise StateError(
                f"the state counts {self.position.unit}, {_OTHER_UNIT[unit]}, or start a new run."
            )

    def check(self, dataset: Mapping[str, Any], order: Mapping[str, Any]) -> None:
        """Raise StateError for other data or another order, naming the settings that differ.

        ``dataset`` and ``order`` are the facts of this run, as `Order.dataset_facts` and
        `Order.order_facts` return them. Facts that the state lacks are not compared.
        """
        has_one_now = "schedule" in order
        if self.is_ours and (self.schedule is None) == has_one_now:
            before, now, remedy = _OTHER_SCHEDULE[has_one_now]
            raise StateError(
                f"the state is of a run with{before} schedule, and this dataset has {now}: "
                f"{remedy}."
            )
        clauses = differences("dataset", self.dataset, dataset)
        clauses += differences("order", self.order, order)
        if clauses:
            # The five common keys alone are a position in samples. A position in packs, or of a run
            # with a schedule, cannot be given by them.
            remedy = "."
            if not self.is_extended:
                remedy = (
                    f", or keep only its five common keys ({', '.join(KEYS)}) to continue anyway; "
                    "samples may then be read twice or not at all."
                )
            raise StateError(
                f"the state does not fit this run: {'; '.join(clauses)}. Use the state's "
                f"values{remedy}"
            )


#: Ends of messages for a state of another unit, by the unit of this run.
_OTHER_UNIT = {
    "samples": "as its run had packing=, and this run has none. Give the same packing=",
    "packs": "and this run, which has packing=, counts packs. Go on without packing=",
}
#: Words of a message for a state with or without a schedule, by whether this run has one.
_OTHER_SCHEDULE = {
    True: ("out a", "one", "leave schedule= out"),
    False: (" a", "none", "give it the same schedule="),
}
#: Arguments that a value of a state depends on, which has another name.
_SETTINGS_OF = {
    "choose": " (a digest of epoch_size and of proportion, repeat and choose of the streams)",
    "schedule": " (a digest of the schedule)",
    "exact": " (remainder='repeat' is False, 'short' and 'mask' are True)",
    "global_batch_size": " (ranks times batch_size times microbatches of the StreamingDataLoader)",
}
#: Version of the orders of packs and of schedules, which their states record. Raise it when samples
#: come at other positions: states of other versions are refused.
ORDER_VERSION = 2
#: Facts of the orders that have a version, and the names under which it is recorded.
_VERSIONED = {"packing": "packing_order", "schedule": "schedule_order"}
#: Facts of an order of packs that a state lacks if they are None.
_PACKING_OPTIONS = ("packing_capacity", "packing_budget", "packing_separator")


def differences(kind: str, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Return clauses of a message on the values that differ, one for each.

    Args:
        kind: Subject of the values for the message, "dataset" or "order".
        before: Facts that the state recorded; None for a state without them.
        now: Facts of this run. Those that the state does not have are left out, except options of
            packing, which are None then.
    """
    if before is None:
        return []
    if "packing" in before and "packing" in now:
        absent = dict.fromkeys(_PACKING_OPTIONS)
        before, now = absent | dict(before), absent | dict(now)
    return [
        f"{kind} {name} was {_short(before[name])} and is {value!r}{_SETTINGS_OF.get(name, '')}"
        for name, value in now.items()
        if name in before and before[name] != value
    ]


def _is_extended(unit: Any, schedule: Any, edits: Any) -> bool:
    """Whether a state with these values needs more keys than those of mosaicml-streaming."""
    return (unit, schedule) != ("samples", None) or edits not in ((), [])


class _Written(Protocol):
    def to_json(self) -> dict[str, Any]:
        """Return the value as plain JSON."""


def json_of(value: _Written | None) -> dict[str, Any] | None:
    """Return a schedule as plain JSON, or None without one."""
    return None if value is None else value.to_json()


def parse_state(source: Mapping[str, Any] | ResumePoint) -> ResumePoint:
    """Return the resume point of a state, of this library or of mosaicml-streaming.

    A resume point is returned as it is. Raises StateError for missing keys, and for values that no
    run can have.
    """
    if isinstance(source, ResumePoint):
        return source
    if not isinstance(source, Mapping):
        raise StateError(
            f"a state is a dict with {', '.join(KEYS)}; got {type(source).__name__}. Give what "
            "state_dict() returned."
        )
    missing = [key for key in KEYS[:-1] if key not in source]
    if missing:
        present = _short(", ".join(map(str, source))).strip("'")
        raise StateError(
            f"the state has no {', '.join(missing)}; it has {present or 'nothing at all'}. Give "
            "what state_dict() of the dataset or of the StreamingDataLoader returned."
        )
    version = source.get("version")
    if version is not None:
        version = _as_int("version", version)
        if not 1 <= version <= VERSION:
            raise StateError(
                f"the state has version {_short(version)}, this library knows up to {VERSION}: "
                "update it."
            )
    _refuse_partial(source, version)
    if version == VERSION:
        source = _as_version_2(source)
    extension = _Extension() if version is None or version == 1 else _parse_extension(source)
    # Version 2 has the position under another key: copy it to the common keys, and read those.
    if extension.place is not None:
        epoch, place = extension.place
        source = {**source, "epoch": epoch, "sample_in_epoch": place}
    # The last common key, initial_physical_nodes, may be missing.
    values: dict[str, int] = {key: _as_int(key, source[key]) for key in KEYS[:-1]}
    # mosaicml-streaming uses a negative place in a slice, as a number from the end, so a state of
    # it may have one here, although it writes none.
    minima = {**_MIN_VALUES, "sample_in_epoch": -MAX_SAMPLES} if version is None else _MIN_VALUES
    nodes = source.get("initial_physical_nodes")
    if nodes is not None:
        values["initial_physical_nodes"] = _as_int("initial_physical_nodes", nodes)
    for key, value in values.items():
        if not minima[key] <= value <= _MAX_VALUES[key]:
            raise StateError(
                f"the state has {key} {_short(value)}; a run has {minima[key]} to "
                f"{_MAX_VALUES[key]}."
            )
    order = _facts("order", source.get("order"))
    _check_order(order or {})
    _check_cursor(extension, values["num_canonical_nodes"])
    position = Position(
        values.pop("epoch"),
        values.pop("sample_in_epoch"),
        extension.unit,
        extension.cursor,
        is_finished=_as_bool("finished", source.get("finished", False)),
    )
    return ResumePoint(
        position,
        **values,
        version=version,
        dataset=_facts("dataset", source.get("dataset")),
        order=order,
        order_hash=_text("order_hash", source.get("order_hash")) or None,
        schedule=extension.schedule,
        edits=extension.edits,
        data=_data(source.get("data")),
    )


def emit_state(point: ResumePoint) -> dict[str, Any]:
    """Return a resume point as plain JSON, with the keys of mosaicml-streaming.

    A point from a state of mosaicml-streaming gets only these keys, and others get all keys of
    version 3; see the top of this module.
    """
    position = point.position
    state: dict[str, Any] = {
        "epoch": position.epoch,
        "sample_in_epoch": position.place,
        **{key: getattr(point, key) for key in KEYS[2:]},
    }
    if not point.is_ours:
        return state
    if point.is_extended:
        state["num_canonical_nodes"] *= -1
    cursor = None
    if position.cursor is not None:
        cursor = {"cursors": position.cursor.windows, "turn": position.cursor.node}
    values = {"cursor": cursor, **{key: getattr(point, key) for key in TEXT_KEYS[1:]}}
    return {
        **state,
        "version": VERSION,
        "unit": position.unit,
        "finished": position.is_finished,
        "order_hash": point.order_hash or "",
        **{key: json.dumps(value, separators=(",", ":")) for key, value in values.items()},
    }


def _refuse_partial(source: Mapping[str, Any], version: int | None) -> None:
    """Raise StateError for a state that some tool saved or loaded only in part.

    A state of version 2 lists its optional keys in ``keys``: "schedule", "edits" or, for a key of
    ``position``, "position.cursors" and "position.turn". Without its key ``version``, a state of
    this library is known by its other keys.
    """
    if version is not None and version < VERSION and "cursor" in source:
        raise StateError(
            f"the state is made of parts of two states: it has version {version}, and keys of "
            f"version {VERSION}, which were not in the checkpoint. Load all keys of the checkpoint "
            "unchanged; torch.distributed.checkpoint.format_utils.dcp_to_torch_save does that."
        )
    needed = list(source["keys"]) if isinstance(source.get("keys"), (list, tuple)) else []
    if version == 2:
        needed += ["unit", "position"]
    elif version == VERSION:
        needed += [*KEYS, *_OWN_KEYS]
    elif isinstance(source["sample_in_epoch"], str) and source["sample_in_epoch"] == _MOVED:
        needed += ["version", "unit", "position"]
    elif version is None and (_is_marked(source) or "unit" in source or "cursor" in source):
        needed += [*KEYS, *_OWN_KEYS]
    position = source.get("position")
    position_keys = position if isinstance(position, Mapping) else {}
    missing = [
        key
        for key in dict.fromkeys(map(str, needed[:_MAX_FACTS]))  # each once, in this order
        # "position.turn" is missing if "turn" is not in position; "edits" has no second part, "".
        if key not in source and key.partition(".")[2] not in position_keys
    ]
    if missing:
        raise StateError(
            f"the state is a part of one: it has no {', '.join(missing)}. Save and load all keys "
            "that state_dict() returned."
        )


def _is_marked(source: Mapping[str, Any]) -> bool:
    """Whether the number of canonical nodes is negative, as with packs, a schedule or edits."""
    nodes = source["num_canonical_nodes"]
    return type(nodes) is int and -MAX_CANONICAL_NODES <= nodes < 0


def _as_version_2(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a complete state of version 3 with values in place of texts, as version 2 has them.

    Raises StateError for a text that is not JSON, and for keys that contradict each other.
    """
    # The value None of "data" is that of users who set it, so that no data are compared.
    texts = {**source, "data": "null"} if source["data"] is None else source
    values = {key: _parse_json(key, texts[key]) for key in TEXT_KEYS}
    cursor = values.pop("cursor")
    if cursor is not None and (
        not isinstance(cursor, Mapping) or not {"cursors", "turn"} <= set(cursor)
    ):
        raise StateError(
            f"the state has cursor {_short(cursor)}; expected null or cursors and turn."
        )
    nodes = _as_int("num_canonical_nodes", source["num_canonical_nodes"])
    if _is_extended(source["unit"], values["schedule"], values["edits"]) != (nodes < 0):
        raise StateError(
            f"the state has num_canonical_nodes {_short(nodes)}, unit {_short(source['unit'])}, "
            f"schedule {_short(values['schedule'])} and edits {_short(values['edits'])}; the "
            "number is negative with packs, a schedule or edits, and only then. Load the keys of "
            "one state."
        )
    position = {"epoch": source["epoch"], "in_epoch": source["sample_in_epoch"], **(cursor or {})}
    return {**source, **values, "num_canonical_nodes": abs(nodes), "position": position}


def _parse_json(key: str, text: Any) -> Any:
    """Return the value of a text of JSON. Raises StateError for anything else."""
    if isinstance(text, str) and len(text) <= _MAX_JSON:
        # RecursionError for deep lists; ValueError for other texts, and numbers of many digits.
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    raise StateError(f"the state has {key} {_short(text)}; expected a text of JSON.")


@dataclasses.dataclass(frozen=True)
class _Extension:
    """Additions of a state of version 2 and of its layout, empty for version 1.

    Attributes:
        place: Epoch and place in it, not checked yet.
        unit: Unit of the place, "samples" or "packs".
        node: Canonical node that gives the next pack; checked even if there is no cursor.
        cursor: Next pack of every canonical node; None if the state has no cursors.
        schedule, edits: Copies of JSON values, of which only the size is checked.
    """

    place: tuple[Any, Any] | None = None
    unit: str = "samples"
    node: int = 0
    cursor: Cursor | None = None
    schedule: Mapping[str, Any] | None = None
    edits: tuple[Mapping[str, Any], ...] = ()


def _parse_extension(source: Mapping[str, Any]) -> _Extension:
    """Return the additions of a state of version 2. Raises StateError if they are malformed."""
    unit = source.get("unit")
    if unit not in UNITS:
        raise StateError(f"the state has unit {_short(unit)}; expected {' or '.join(UNITS)}.")
    position = source.get("position")
    if not isinstance(position, Mapping) or not {"epoch", "in_epoch"} <= set(position):
        raise StateError(
            f"the state has position {_short(position)}; expected a dict with epoch and in_epoch."
        )
    schedule = source.get("schedule")
    if not isinstance(schedule, Mapping | None):
        raise StateError(f"the state has schedule {_short(schedule)}; expected a dict.")
    edits = source.get("edits", ())
    if not isinstance(edits, (list, tuple)) or not all(isinstance(e, Mapping) for e in edits):
        raise StateError(f"the state has edits {_short(edits)}; expected a list of dicts.")
    if len(edits) > MAX_EDITS:
        raise StateError(
            f"the state has {plural(len(edits), 'edit')}; expected at most {MAX_EDITS}."
        )
    copier, node = _PlainCopier(_MAX_NUMBERS), _as_int("turn", position.get("turn", 0))
    windows = _parse_windows(position.get("cursors"))
    return _Extension(
        (position["epoch"], position["in_epoch"]),
        unit,
        node,
        None if windows is None else Cursor(windows, node),
        copier.plain("schedule", schedule, 0),
        tuple(copier.plain("edits", edit, 0) for edit in edits),
    )


def _parse_windows(pairs: Any) -> tuple[tuple[int, int], ...] | None:
    """Return the window and the pack of each canonical node, None if the state has no cursors.

    Raises StateError for anything but a list of pairs of numbers.
    """
    if pairs is None:
        return None
    is_list = isinstance(pairs, (list, tuple)) and len(pairs) <= MAX_CANONICAL_NODES
    if not is_list or not all(isinstance(c, (list, tuple)) and len(c) == 2 for c in pairs):
        raise StateError(
            f"the state has cursors {_short(pairs)}; expected a window and a pack for each "
            "canonical node."
        )
    windows = tuple((_as_int("cursors", w), _as_int("cursors", p)) for w, p in pairs)
    if not all(0 <= number <= MAX_SAMPLES for window in windows for number in window):
        raise StateError(f"the state has cursors {_short(pairs)}; they count from 0.")
    return windows


def _check_order(order: Mapping[str, Any]) -> None:
    """Raise StateError for a state in which samples come at other positions than here."""
    for fact, version in _VERSIONED.items():
        if fact in order and order.get(version) != ORDER_VERSION:
            raise StateError(
                f"the state is of a run with {fact}= by another version of mds, which gave samples "
                "to ranks in another order. Start a new run, without the state, or finish this one "
                "with that version."
            )


def _check_cursor(extension: _Extension, canonical_nodes: int) -> None:
    """Raise StateError for a cursor that does not fit the number of canonical nodes."""
    cursor = extension.cursor
    if not 0 <= extension.node < canonical_nodes:
        raise StateError(
            f"the state has turn {extension.node} and num_canonical_nodes "
            f"{canonical_nodes}; it is one of them, counted from 0."
        )
    if cursor is not None and len(cursor.windows) != canonical_nodes:
        raise StateError(
            f"the state has {len(cursor.windows)} cursors and num_canonical_nodes "
            f"{canonical_nodes}; each canonical node has one."
        )


class _PlainCopier:
    """Copier of nested JSON values, which refuses values that are too many or too large.

    A state may come from any file, so what is copied of it is limited.

    Args:
        max_values: Most values of all copies together; a list or a mapping counts as one, and each
            value in it as one more.
    """

    def __init__(self, max_values: int) -> None:
        self._remaining = max_values

    def plain(self, key: str, value: Any, depth: int) -> Any:
        """Return a copy of a value that JSON can hold.

        Args:
            key: Key of the state, for messages.
            value: Value to copy.
            depth: Number of lists and mappings around it.

        Raises StateError for a value of another type, and for one that is too large.
        """
        self._remaining -= 1
        if self._remaining < 0 or depth > _MAX_DEPTH:
            raise StateError(f"the state has {key} that is too large or nested too deeply.")
        if isinstance(value, Mapping):
            if not all(isinstance(name, str) and len(name) <= _MAX_TEXT for name in value):
                raise StateError(f"the state has {key} with a name that is not a short text.")
            return {name: self.plain(key, item, depth + 1) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            if len(value) > self._remaining:
                raise StateError(f"the state has {key} with {len(value)} entries in a list.")
            return [self.plain(key, item, depth + 1) for item in value]
        is_huge = isinstance(value, int) and value.bit_length() > 64
        is_plain = value is None or isinstance(value, (bool, str, int, float))
        if not is_plain or is_huge or (isinstance(value, str) and len(value) > _MAX_TEXT):
            raise StateError(
                f"the state has {key} with {_short(value)}; expected short texts and numbers."
            )
        return value


def _as_int(key: str, value: Any) -> int:
    """Return a whole number of any type as an int. Raises StateError for anything else."""
    # Some checkpoint formats load integers as numpy, torch or float numbers. The type's name also
    # recognizes the truth values of numpy.
    if type(value).__name__ not in {"bool", "bool_"}:
        with contextlib.suppress(TypeError, ValueError):
            return operator.index(value)
        if isinstance(value, numbers.Real) and float(value).is_integer():
            return int(float(value))
    raise StateError(f"the state has {key} {_short(value)}; expected a whole number.")


def _as_bool(key: str, value: Any) -> bool:
    """Return a truth value of Python or numpy as a bool. Raises StateError for anything else."""
    if type(value).__name__ in {"bool", "bool_"}:
        return bool(value)
    raise StateError(f"the state has {key} {_short(value)}; expected True or False.")


def _facts(key: str, value: Any) -> dict[str, Any] | None:
    """Return a copy of a mapping of names to texts, numbers, truth values or None; or None.

    ``key`` is the key of the state that has the mapping, "dataset" or "order". Raises StateError
    for any other value.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise StateError(f"the state has {key} {_short(value)}; expected a dict.")
    if len(value) > _MAX_FACTS:
        raise StateError(f"the state has {len(value)} entries in {key}; expected a few.")
    for name, fact in value.items():
        is_plain = fact is None or isinstance(fact, (bool, str, int, float))
        is_huge = isinstance(fact, int) and fact.bit_length() > 64
        if not (isinstance(name, str) and is_plain) or is_huge or len(str(fact)) > _MAX_TEXT:
            raise StateError(
                f"the state has {key} with {_short(name)}: {_short(fact)}; expected short texts "
                "and numbers."
            )
    return dict(value)


def _data(value: Any) -> dict[str, Any] | None:
    """Return a copy of the state's ``data``, a nested mapping; None if it has none.

    Raises StateError for any other value.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise StateError(f"the state has data {_short(value)}; expected a dict.")
    data: dict[str, Any] = _PlainCopier(_MAX_DATA).plain("data", value, 0)
    return data


def _text(key: str, value: Any) -> str | None:
    """Return a short text or None as it is. Raises StateError for anything else."""
    if value is None or (isinstance(value, str) and len(value) <= _MAX_TEXT):
        return value
    raise StateError(f"the state has {key} {_short(value)}; expected a short text.")


def _short(value: Any) -> str:
    """Return a value of a state for a message: as repr() shows it, cut off if it is long.

    A number that is too long to be shown is described instead.
    """
    text = repr(value) if not isinstance(value, (str, int)) else repr(_text_of(value))
    text = text.strip("'") if isinstance(value, int) else text  # numbers without quotes
    return text if len(text) <= _MAX_TEXT else f"{text[:60]}..."


def _text_of(value: Any) -> str:
    """Return str() of a value, or the size in bits of a number of hundreds of digits or more.

    Python refuses to write numbers of thousands of digits.
    """
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"a number of {value.bit_length()} bits"
    return str(value)
