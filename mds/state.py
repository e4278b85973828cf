"""The checkpoint of a run: a few numbers from which every later sample follows.

Five keys are those of the incumbent and mean the same. Ours adds a version, fingerprints of the
dataset and of the order parameters with the parameters themselves, so that a state which does not
fit is refused with the differences, and a hash of the order so far. It is plain JSON of about a
kilobyte. A state without our keys is taken for the incumbent's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mds.errors import StateError

VERSION = 1
KEYS = (
    "epoch",
    "sample_in_epoch",
    "num_canonical_nodes",
    "shuffle_seed",
    "initial_physical_nodes",
)


class State(NamedTuple):
    """Where a run stands, and what it must keep to go on.

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
        """Whether the state was written by this library."""
        return self.version is not None

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
        f"{what} {name} was {then[name]!r} and is {value!r}"
        for name, value in now.items()
        if name in then and then[name] != value
    ]


def parse_state(source: Mapping[str, Any] | State) -> State:
    """A state from what ``state_dict`` gave, of this library or of the incumbent.

    Raises StateError when keys are missing or are no such numbers.
    """
    if isinstance(source, State):
        return source
    if not isinstance(source, Mapping):
        raise StateError(f"a state is a dict with {', '.join(KEYS)}; got {type(source).__name__}.")
    missing = [key for key in KEYS[:-1] if key not in source]
    if missing:
        raise StateError(f"the state has no {', '.join(missing)}; it has {', '.join(source)}.")
    version = source.get("version")
    if version is not None and (not isinstance(version, int) or version > VERSION):
        raise StateError(
            f"the state has version {version!r}, this library knows up to {VERSION}: update it."
        )
    values = {key: _whole(key, source[key]) for key in KEYS[:-1]}
    nodes = source.get("initial_physical_nodes")
    state = State(
        **values,
        initial_physical_nodes=None if nodes is None else _whole("initial_physical_nodes", nodes),
        version=version,
        dataset=source.get("dataset"),
        order=source.get("order"),
        order_hash=source.get("order_hash"),
    )
    if state.num_canonical_nodes < 1:
        raise StateError(f"the state has num_canonical_nodes {state.num_canonical_nodes}.")
    return state


def emit_state(state: State) -> dict[str, Any]:
    """The state as plain JSON, with the keys of the incumbent."""
    found = {key: getattr(state, key) for key in KEYS}
    if state.is_ours:
        found["version"] = state.version
        for key in ("dataset", "order", "order_hash"):
            value = getattr(state, key)
            if value is not None:
                found[key] = dict(value) if isinstance(value, Mapping) else value
    return found


def _whole(key: str, value: Any) -> int:
    # Checkpoints come back as numpy or float numbers from some formats.
    try:
        number = int(value)
        if number == value:
            return number
    except (TypeError, ValueError, OverflowError):
        number = None
    raise StateError(f"the state has {key} {value!r}; expected a whole number.")
