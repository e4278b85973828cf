"""Where a plan begins, and with which seed and nodes: from a state, or from the parameters."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from mds.errors import ConfigError, StateError
from mds.state import State, parse_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mds.plan.spec import OrderSpec
    from mds.world import World


class Beginning(NamedTuple):
    """Epoch and position, and what a state keeps in force.

    ``is_precise``: the position is honoured to the sample.
    """

    epoch: int
    sample_in_epoch: int
    canonical: int
    seed: int
    initial: int | None
    is_precise: bool = True

    @classmethod
    def find(
        cls,
        spec: OrderSpec,
        world: World,
        epoch: int,
        resume: Mapping[str, Any] | State | None,
        initial: int | None,
    ) -> Beginning:
        """The beginning of ``epoch``, or of the state's epoch when that is not before it."""
        if epoch < 0:
            raise ConfigError(f"epoch {epoch} must not be negative.")
        canonical = spec.canonical_nodes(world.num_nodes)
        if resume is not None:
            state = parse_state(resume)
            # Our states from before the first epoch ask for the first.
            if (max(state.epoch, 0) if state.is_ours else state.epoch) >= epoch:
                return cls(
                    max(state.epoch, 0),
                    state.sample_in_epoch,
                    state.num_canonical_nodes,
                    state.shuffle_seed,
                    state.initial_physical_nodes,
                    state.is_ours,
                )
            text = (
                f"the state is of epoch {state.epoch} and epoch {epoch} was asked for: ask for "
                f"epoch {state.epoch} to go on from the state"
            )
            if state.is_ours:
                raise StateError(f"{text}.")
            if state.epoch >= 0:
                warnings.warn(f"{text}; nothing of it is used.", stacklevel=3)
        return cls(epoch, 0, canonical, spec.shuffle_seed, initial)

    def following(self) -> Beginning:
        """The beginning of the next epoch."""
        return self._replace(epoch=self.epoch + 1, sample_in_epoch=0)
