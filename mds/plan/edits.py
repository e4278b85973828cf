"""Edits of an order: what was changed while a training ran, each from a step of the training on.

An edit is plain JSON with its ``step``, so that the past stays as it was: a state carries all of
them, in the order in which they were made.

    {"step": 1200, "weights": {"web": 0.5, "math": 0.5}}     other weights of a schedule
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mds.errors import ConfigError, StateError
from mds.plan.mixture import MAX_STEPS
from mds.plan.schedule import check_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mds.plan.schedule import ScheduledRun


def apply_weights(
    run: ScheduledRun | None, edits: Iterable[Mapping[str, Any]]
) -> ScheduledRun | None:
    """The schedule of a run with the weights that were set meanwhile."""
    for edit in edits:
        if run is not None and "weights" in edit:
            run = run.with_weights(edit["step"], edit["weights"])
    return run


def check_edits(edits: Iterable[Mapping[str, Any]], run: ScheduledRun | None) -> None:
    """Refuse edits of a state that are none, or do not go with a schedule (StateError)."""
    for edit in edits:
        step = edit.get("step")
        if type(step) is not int or not 0 <= step < MAX_STEPS:
            raise StateError(f"the state has an edit from step {str(step)[:60]!r} on.")
        if set(edit) != {"step", "weights"}:
            raise StateError(
                f"the state has an edit of {', '.join(map(str, edit))[:100]}, which this library "
                "does not know: update it."
            )
        try:
            weights = check_weights(edit["weights"], f"from step {step} on")
            if run is not None:
                run.check_names({name for name, _ in weights})
        except ConfigError as error:
            raise StateError(f"the state has an edit that is none: {error}") from error
