"""Checkpoint of a run: the resume point, parsed from a user's dict and written as one.

Five keys are those of the incumbent and mean the same. Ours adds a version, fingerprints of the
dataset and of the order parameters with the parameters themselves, so that a state which does not
fit is refused with the differences, and a hash of the order so far. It is plain JSON of about a
kilobyte. A state without our keys is taken for the incumbent's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import operator
from collections.abc import Mapping
from typing import Any

from mds.errors import StateError

VERSION = 1
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
_MIN_VALUES = {
    "epoch": -1,
    "sample_in_epoch": 0,
    "num_canonical_nodes": 1,
    "shuffle_seed": 0,
    "initial_physical_nodes": 1,
}
_MAX_VALUES = {
    "epoch": 1 << 40,
    "sample_in_epoch": MAX_SAMPLES,
    "num_canonical_nodes": MAX_CANONICAL_NODES,
    "shuffle_seed": 1 << 64,
    "initial_physical_nodes": 1 << 20,
}
_MAX_PADDING_SAMPLES = 1 << 20  # samples; a step of 16,384 ranks with batches of 64
_MAX_FACTS, _MAX_TEXT = 64, 500  # entries of a mapping, letters of a text


@dataclasses.dataclass(frozen=True)
class ResumePoint:
    """Resume point: the position of a run in its order, and what it must keep to go on.

    The one form of a position, from the dict that a user loads to the plan of a worker.
    ``initial_physical_nodes`` None: unknown, in states of the incumbent before 0.7. ``version``
    None: written by the incumbent.
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

    @property
    def is_ours(self) -> bool:
        """Whether this library wrote it: then the position is honoured to the sample."""
        return self.version is not None

    def at(self, epoch: int, sample_in_epoch: int) -> ResumePoint:
        """The same run at another position."""
        return dataclasses.replace(self, epoch=epoch, sample_in_epoch=sample_in_epoch)

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

    def check(self, dataset: Mapping[str, Any], order: Mapping[str, Any]) -> None:
        """Refuse to go on with other data or another order than the state's (StateError)."""
        found = differences("dataset", self.dataset, dataset)
        found += differences("order", self.order, order)
        if found:
            raise StateError(
                f"the state does not fit this run: {'; '.join(found)}. Use the state's values, or "
                "keep only its five common keys to go on regardless "
                f"({', '.join(KEYS)})."
            )


def differences(what: str, then: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Sentences on the values that differ, of those that the state knows."""
    if then is None:
        return []
    return [
        f"{what} {name} was {_short(then[name])} and is {value!r}"
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
        raise StateError(f"a state is a dict with {', '.join(KEYS)}; got {type(source).__name__}.")
    missing = [key for key in KEYS[:-1] if key not in source]
    if missing:
        found = _short(", ".join(map(str, source))).strip("'")
        raise StateError(f"the state has no {', '.join(missing)}; it has {found}.")
    version = source.get("version")
    if version is not None:
        version = _as_int("version", version)
        if not 1 <= version <= VERSION:
            raise StateError(
                f"the state has version {version}, this library knows up to {VERSION}: update it."
            )
    values = {key: _as_int(key, source[key]) for key in KEYS[:-1]}
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
    return ResumePoint(
        **values,
        version=version,
        dataset=_facts("dataset", source.get("dataset")),
        order=_facts("order", source.get("order")),
        order_hash=_text("order_hash", source.get("order_hash")),
    )


def emit_state(state: ResumePoint) -> dict[str, Any]:
    """The state as plain JSON, with the keys of the incumbent."""
    found = {key: getattr(state, key) for key in KEYS}
    if state.is_ours:
        found["version"] = state.version
        for key in ("dataset", "order", "order_hash"):
            value = getattr(state, key)
            if value is not None:
                found[key] = dict(value) if isinstance(value, Mapping) else value
    return found


def _as_int(key: str, value: Any) -> int:
    # Checkpoints come back as numpy, torch or float numbers from some formats.
    if type(value).__name__ not in {"bool", "bool_"}:
        with contextlib.suppress(TypeError, ValueError):
            return operator.index(value)
        if isinstance(value, numbers.Real) and float(value).is_integer():
            return int(float(value))
    raise StateError(f"the state has {key} {_short(value)}; expected a whole number.")


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
