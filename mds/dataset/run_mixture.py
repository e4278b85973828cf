"""The mixture of a run with a schedule, from its state: as it was and as it will be."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mds.errors import StateError
from mds.plan import PackPlan

if TYPE_CHECKING:
    from mds.dataset.rewind import Rewind
    from mds.plan.mixture import Mixture


class RunMixture(NamedTuple):
    """Names of the streams, samples of a pass through each, and how many come by any step."""

    names: tuple[str, ...]
    samples: tuple[int, ...]
    mixture: Mixture
    until: int


def read_mixture(rewind: Rewind, until: int | None = None) -> RunMixture:
    """The mixture of a run up to step ``until``.

    Without it up to a quarter beyond the last change, the step of the state, or an epoch. Raises
    StateError for a run without a schedule.
    """
    epoch, now = rewind.position
    found = rewind.plan(epoch)
    plan = found.plan if isinstance(found, PackPlan) else found
    run, scheduled = plan.schedule, plan.scheduled
    if run is None or scheduled is None:
        raise StateError(
            "the state is of a run without a schedule: the shares of its streams are those of "
            "their sizes, repeat= and choose=, and stay."
        )
    if until is None:
        batch = plan.shape.global_batch
        last = max(run.schedule.step_of(at, batch) for at, _ in run.schedule.knots)
        last = max([last, *(at for at, _ in run.live)])
        until = max(last + last // 4, now, rewind.steps_per_epoch, 1)
    return RunMixture(run.names, tuple(map(int, plan.choose)), scheduled.mixture, until)
