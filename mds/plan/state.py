"""Checkpoint of a run: the resume point, parsed from a user's dict and written as one.

Five keys are those of the incumbent and mean the same. Ours adds a version, fingerprints of the
dataset and of the order parameters with the parameters themselves, so that a state which does not
fit is refused with the differences, and a hash of the order so far. It is plain JSON of about a
kilobyte. A state without our keys is taken for the incumbent's.

Version 2 is written only where version 1 cannot say it: positions counted in packs, a schedule of
the mixture, edits of the order. Its position lies under a key of its own, and those of the
incumbent hold a text, so neither library takes a count of packs for one of samples.
"""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import operator
from collections.abc import Mapping
from typing import Any

from mds.errors import StateError

#: The version of a state without extensions, and of one with any of them.
VERSION, EXTENDED_VERSION = 1, 2
#: What a position may count.
UNITS = ("samples", "packs")
KEYS = (
    "epoch",
    "sample_in_epoch",
    "num_canonical_nodes",
    "shuffle_seed",
    "initial_physical_nodes",
)

#: Canonical nodes that an order may have: 64, the incumbent's default, for each of 4,096 nodes. The
#: work of dealing samples out grows with them.
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
_MAX_NUMBERS, _MAX_DEPTH = 1 << 20, 6
_MAX_DATA = 1 << 16  # values that name the data
_MOVED = "see position"  # what a key of the incumbent holds where it would mean another thing


@dataclasses.dataclass(frozen=True)
class ResumePoint:
    """Resume point: the position of a run in its order, and what it must keep to go on.

    The one form of a position, from the dict that a user loads to the plan of a worker.
    ``initial_physical_nodes`` None: unknown, in states of the incumbent before 0.7. ``version``
    None: written by the incumbent.

    ``unit``: what ``sample_in_epoch`` counts, "samples" or "packs". ``cursors``: of each canonical
    node the window and the pack in it that come next, where it counts packs, and ``turn`` the
    canonical node whose turn it is. ``schedule``, ``edits`` and ``data`` are plain values, checked
    for their size alone; their writer checks the rest. ``data`` names the data for people and is
    never compared; `world_begun` reads its nodes and ranks. ``is_finished``: the iteration of
    the epoch has ended, and the next epoch comes.
    """

    epoch: int
    sample_in_epoch: int
    num_canonical_nodes: int
    shuffle_seed: int
    initial_physical_nodes: int | None = None
    version: int | None = None
    dataset: Mapping[str, Any] | None = None
    order: Mapping[str, Any] | None = None
    order_hash: str | None = None
    unit: str = "samples"
    cursors: tuple[tuple[int, int], ...] | None = None
    turn: int = 0
    schedule: Mapping[str, Any] | None = None
    edits: tuple[Mapping[str, Any], ...] = ()
    data: Mapping[str, Any] | None = None
    is_finished: bool = False

    @property
    def is_extended(self) -> bool:
        """Whether it says what a state of version 1 cannot."""
        return self.unit != "samples" or self.schedule is not None or bool(self.edits)

    @property
    def is_ours(self) -> bool:
        """Whether this library wrote it: then the position is honoured to the sample."""
        return self.version is not None

    def at(self, epoch: int, sample_in_epoch: int) -> ResumePoint:
        """The same run at another position, with the cursors where it is the same one."""
        is_here = (epoch, sample_in_epoch) == (self.epoch, self.sample_in_epoch)
        return dataclasses.replace(
            self,
            epoch=epoch,
            sample_in_epoch=sample_in_epoch,
            cursors=self.cursors if is_here else None,
            turn=self.turn if is_here else 0,
            is_finished=self.is_finished and is_here,
        )

    @property
    def world_begun(self) -> tuple[int, int] | None:
        """Nodes and ranks for which batches by stream are padded, None where it is unknown.

        Those of the world that wrote the state, unless that one had itself gone on from another.
        """
        data = self.data if self.is_ours and self.data is not None else {}
        begun = data.get("padded_for", data)
        if not isinstance(begun, Mapping):
            return None
        nodes, ranks = begun.get("nodes"), begun.get("ranks")
        if type(nodes) is not int or type(ranks) is not int or not 0 < nodes <= ranks:
            return None
        return None if ranks % nodes else (nodes, ranks)

    def following(self) -> ResumePoint:
        """The beginning of the next epoch."""
        return self.at(self.epoch + 1, 0)

    def check_position(self, epoch_size: int) -> None:
        """Refuse a position that an epoch of so many samples cannot have (StateError).

        Its end is fine, and lies behind the last sample where ranks were padded to be even.
        """
        if not 0 <= self.sample_in_epoch <= epoch_size + max(epoch_size, _MAX_PADDING_SAMPLES):
            raise StateError(
                f"the state has sample_in_epoch {self.sample_in_epoch}, and an epoch of this "
                f"dataset has {epoch_size} samples: it is of another dataset or epoch_size."
            )

    def check_unit(self, *, is_packed: bool) -> None:
        """Refuse to go on counting packs where samples were counted, or samples for packs."""
        if self.unit == ("packs" if is_packed else "samples"):
            return
        now = "and this run counts packs: it was made without packing=. Go on without it"
        if not is_packed:
            now = "of a run with packing=, and this one has none. Give the same packing="
        raise StateError(f"the state counts {self.unit}, {now}, or begin anew.")

    def check(self, dataset: Mapping[str, Any], order: Mapping[str, Any]) -> None:
        """Refuse to go on with other data or another order than the state's (StateError)."""
        has_schedule = "schedule" in order
        if self.is_ours and (self.schedule is not None) != has_schedule:
            had, has = ("out a", "one") if has_schedule else (" a", "none")
            way_out = "leave schedule= out" if has_schedule else "give it the same schedule="
            raise StateError(
                f"the state is of a run with{had} schedule, and this dataset has {has}: {way_out}."
            )
        found = differences("dataset", self.dataset, dataset)
        found += differences("order", self.order, order)
        if found:
            # A position that counts packs, or is of a schedule, means nothing without them.
            way_out = "."
            if not self.is_extended:
                way_out = (
                    f", or keep only its five common keys ({', '.join(KEYS)}) to go on regardless; "
                    "samples may then come twice or not at all."
                )
            raise StateError(
                f"the state does not fit this run: {'; '.join(found)}. Use the state's "
                f"values{way_out}"
            )


#: Which arguments a digest in a state depends on.
_SETTINGS_OF = {
    "choose": " (a digest of epoch_size and of proportion, repeat and choose of the streams)",
    "schedule": " (a digest of the schedule)",
}


def differences(what: str, then: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Return clauses on the values that differ, of those that the state knows."""
    if then is None:
        return []
    return [
        f"{what} {name} was {_short(then[name])} and is {value!r}{_SETTINGS_OF.get(name, '')}"
        for name, value in now.items()
        if name in then and then[name] != value
    ]


def parse_state(source: Mapping[str, Any] | ResumePoint) -> ResumePoint:
    """The resume point of what ``state_dict`` gave, of this library or of the incumbent.

    Raises StateError when keys are missing, are no such numbers, or are outside of what a run can
    have.
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
        found = _short(", ".join(map(str, source))).strip("'")
        raise StateError(
            f"the state has no {', '.join(missing)}; it has {found or 'nothing at all'}. Give what "
            "state_dict() of the dataset or of the StreamingDataLoader returned."
        )
    version = source.get("version")
    if version is not None:
        version = _as_int("version", version)
        if not 1 <= version <= EXTENDED_VERSION:
            raise StateError(
                f"the state has version {_short(version)}, this library knows up to "
                f"{EXTENDED_VERSION}: update it."
            )
    _refuse_partial(source, version)
    extension = _extension(source) if version == EXTENDED_VERSION else {}
    if extension:
        source = {**source, **extension.pop("position")}
    values: dict[str, Any] = {key: _as_int(key, source[key]) for key in KEYS[:-1]}
    # A slice of the incumbent's: its own states never have it, its plan does take it.
    least = {**_MIN_VALUES, "sample_in_epoch": -MAX_SAMPLES} if version is None else _MIN_VALUES
    nodes = source.get("initial_physical_nodes")
    if nodes is not None:
        values["initial_physical_nodes"] = _as_int("initial_physical_nodes", nodes)
    for key, value in values.items():
        if not least[key] <= value <= _MAX_VALUES[key]:
            raise StateError(
                f"the state has {key} {_short(value)}; a run has {least[key]} to "
                f"{_MAX_VALUES[key]}."
            )
    cursors = extension.get("cursors")
    if not 0 <= extension.get("turn", 0) < values["num_canonical_nodes"]:
        raise StateError(
            f"the state has turn {extension['turn']} and num_canonical_nodes "
            f"{values['num_canonical_nodes']}; it is one of them, counted from 0."
        )
    # A schedule has one row of windows, for documents of all canonical nodes.
    rows = values["num_canonical_nodes"] if extension.get("schedule") is None else 1
    if cursors is not None and len(cursors) != rows:
        raise StateError(
            f"the state has {len(cursors)} cursors and num_canonical_nodes "
            f"{values['num_canonical_nodes']}; each canonical node has one, and a run with a "
            "schedule one in all."
        )
    return ResumePoint(
        **values,
        **extension,
        version=version,
        dataset=_facts("dataset", source.get("dataset")),
        order=_facts("order", source.get("order")),
        order_hash=_text("order_hash", source.get("order_hash")),
        data=_data(source.get("data")),
        is_finished=_as_bool("finished", source.get("finished", False)),
    )


def emit_state(state: ResumePoint) -> dict[str, Any]:
    """The state as plain JSON, with the keys of the incumbent."""
    found: dict[str, Any] = {key: getattr(state, key) for key in KEYS}
    if state.is_ours and state.is_extended:
        found |= {"sample_in_epoch": _MOVED, "version": EXTENDED_VERSION}
        found["unit"] = state.unit
        position: dict[str, Any] = {"epoch": state.epoch, "in_epoch": state.sample_in_epoch}
        if state.cursors is not None:
            position["cursors"] = [list(cursor) for cursor in state.cursors]
            position["turn"] = state.turn
        found["position"] = position
        if state.schedule is not None:
            found["schedule"] = dict(state.schedule)
        if state.edits:
            found["edits"] = [dict(edit) for edit in state.edits]
        # By these a state shows that it is whole.
        found["keys"] = _extended_keys(found)
    elif state.is_ours:
        found["version"] = VERSION
    if state.is_ours:
        if state.is_finished:
            found["finished"] = True
        for key in ("dataset", "order", "order_hash", "data"):
            value = getattr(state, key)
            if value is not None:
                found[key] = dict(value) if isinstance(value, Mapping) else value
    return found


def _extended_keys(state: Mapping[str, Any]) -> list[str]:
    """Return the keys of a state that only some states of version 2 have."""
    keys = [key for key in ("schedule", "edits") if key in state]
    return keys + [f"position.{key}" for key in ("cursors", "turn") if key in state["position"]]


def moved_state(
    state: Mapping[str, Any], epoch: int, sample_in_epoch: int, *, is_finished: bool = False
) -> dict[str, Any]:
    """Return a state that `emit_state` gave, at another position."""
    moved = {key: value for key, value in state.items() if key != "finished"}
    if is_finished:
        moved["finished"] = True
    if "position" in state:
        moved["epoch"] = epoch
        moved["position"] = {"epoch": epoch, "in_epoch": sample_in_epoch}
        return {**moved, "keys": _extended_keys(moved)}
    return {**moved, "epoch": epoch, "sample_in_epoch": sample_in_epoch}


def _refuse_partial(source: Mapping[str, Any], version: int | None) -> None:
    """Refuse a state of which keys were lost on the way (StateError)."""
    needed = list(source["keys"]) if isinstance(source.get("keys"), (list, tuple)) else []
    if version == EXTENDED_VERSION:
        needed += ["unit", "position"]
    elif isinstance(source["sample_in_epoch"], str) and source["sample_in_epoch"] == _MOVED:
        needed += ["version", "unit", "position"]
    position = source.get("position")
    inside = position if isinstance(position, Mapping) else {}
    missing = [
        key
        for key in dict.fromkeys(map(str, needed[:_MAX_FACTS]))
        if key.partition(".")[2] not in inside and key not in source
    ]
    if missing:
        raise StateError(
            f"the state is a part of one: it has no {', '.join(missing)}. Some tools, as "
            "torch.distributed.checkpoint, load only the keys that a fresh state has. Save the "
            "state as one text, json.dumps(state), and load json.loads(text)."
        )


def _extension(source: Mapping[str, Any]) -> dict[str, Any]:
    """What version 2 adds, with the position under the names of version 1."""
    unit = source.get("unit")
    if unit not in UNITS:
        raise StateError(f"the state has unit {_short(unit)}; expected {' or '.join(UNITS)}.")
    position = source.get("position")
    if not isinstance(position, Mapping) or not {"epoch", "in_epoch"} <= set(position):
        raise StateError(
            f"the state has position {_short(position)}; expected a dict with epoch and in_epoch."
        )
    schedule = source.get("schedule")
    if schedule is not None and not isinstance(schedule, Mapping):
        raise StateError(f"the state has schedule {_short(schedule)}; expected a dict.")
    edits = source.get("edits", ())
    if not isinstance(edits, (list, tuple)) or not all(isinstance(e, Mapping) for e in edits):
        raise StateError(f"the state has edits {_short(edits)}; expected a list of dicts.")
    if len(edits) > MAX_EDITS:
        raise StateError(f"the state has {len(edits)} edits; expected at most {MAX_EDITS}.")
    room = _Room(_MAX_NUMBERS)
    return {
        "position": {"epoch": position["epoch"], "sample_in_epoch": position["in_epoch"]},
        "unit": unit,
        "cursors": _cursors(position.get("cursors")),
        "turn": _as_int("turn", position.get("turn", 0)),
        "schedule": None if schedule is None else room.plain("schedule", schedule, 0),
        "edits": tuple(room.plain("edits", edit, 0) for edit in edits),
    }


def _cursors(value: Any) -> tuple[tuple[int, int], ...] | None:
    if value is None:
        return None
    is_list = isinstance(value, (list, tuple)) and len(value) <= MAX_CANONICAL_NODES
    if not is_list or not all(isinstance(c, (list, tuple)) and len(c) == 2 for c in value):
        raise StateError(
            f"the state has cursors {_short(value)}; expected a window and a pack for each "
            "canonical node."
        )
    found = tuple((_as_int("cursors", w), _as_int("cursors", p)) for w, p in value)
    if not all(0 <= number <= MAX_SAMPLES for cursor in found for number in cursor):
        raise StateError(f"the state has cursors {_short(value)}; they count from 0.")
    return found


class _Room:
    """Plain values of a nested dict as far as there is room for them."""

    def __init__(self, most: int) -> None:
        self._left = most

    def plain(self, key: str, value: Any, depth: int) -> Any:
        """A copy of what JSON could hold; StateError for anything else, or for more than fits."""
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise StateError(f"the state has {key} that is too large or nested too deeply.")
        if isinstance(value, Mapping):
            if not all(isinstance(name, str) and len(name) <= _MAX_TEXT for name in value):
                raise StateError(f"the state has {key} with a name that is not a short text.")
            return {name: self.plain(key, one, depth + 1) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            if len(value) > self._left:
                raise StateError(f"the state has {key} with {len(value)} entries in a list.")
            return [self.plain(key, one, depth + 1) for one in value]
        is_huge = isinstance(value, int) and value.bit_length() > 64
        is_plain = value is None or isinstance(value, (bool, str, int, float))
        if not is_plain or is_huge or (isinstance(value, str) and len(value) > _MAX_TEXT):
            raise StateError(
                f"the state has {key} with {_short(value)}; expected short texts and numbers."
            )
        return value


def _as_int(key: str, value: Any) -> int:
    # Checkpoints come back as numpy, torch or float numbers from some formats.
    if type(value).__name__ not in {"bool", "bool_"}:
        with contextlib.suppress(TypeError, ValueError):
            return operator.index(value)
        if isinstance(value, numbers.Real) and float(value).is_integer():
            return int(float(value))
    raise StateError(f"the state has {key} {_short(value)}; expected a whole number.")


def _as_bool(key: str, value: Any) -> bool:
    if type(value).__name__ in {"bool", "bool_"}:
        return bool(value)
    raise StateError(f"the state has {key} {_short(value)}; expected True or False.")


def _facts(key: str, value: Any) -> dict[str, Any] | None:
    """A mapping of names to plain values, as far as it is one."""
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
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise StateError(f"the state has data {_short(value)}; expected a dict.")
    found: dict[str, Any] = _Room(_MAX_DATA).plain("data", value, 0)
    return found


def _text(key: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and len(value) <= _MAX_TEXT):
        return value
    raise StateError(f"the state has {key} {_short(value)}; expected a short text.")


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, (str, int)) else repr(_text_of(value))
    text = text.strip("'") if isinstance(value, int) else text
    return text if len(text) <= _MAX_TEXT else f"{text[:60]}..."


def _text_of(value: Any) -> str:
    """The text of a plain value; of a number of thousands of digits its size."""
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"a number of {value.bit_length()} bits"
    return str(value)
