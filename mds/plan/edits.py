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
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds.errors import ConfigError, StateError
from mds.plan.gaps import Gaps
from mds.plan.mixture import MAX_STEPS
from mds.plan.schedule import check_weights
from mds.plan.state import MAX_CANONICAL_NODES, MAX_EPOCHS, MAX_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from mds.plan.schedule import ScheduledRun

    Ids = NDArray[np.int64]
    Edit = Mapping[str, Any]

MAX_DROPPED = 100_000  # samples of a run; a selection leaves out more
MAX_WHY = 200  # letters


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
