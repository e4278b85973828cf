"""The part of an epoch that one worker goes through, and an iterator that can return to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from mds.epochs import Turn
from mds.state import emit_state

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mds.plan import EpochPlan
    from mds.world import World


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """The ids of worker ``world.worker`` in a plan, from its ``start``-th on."""

    plan: EpochPlan
    world: World
    start: int = 0

    def blocks(self) -> Iterator[npt.NDArray[np.int64]]:
        """The ids in 1-D arrays, -1 for padding."""
        world = self.world
        return self.plan.blocks(world.node, world.rank_of_node, world.worker_of_rank, self.start)


class _Source(Protocol):
    """What a Resumable needs of a dataset."""

    issued: int

    def samples(self, part: Part) -> Iterator[Any]: ...
    def go_to(self, turn: Turn, start: int) -> Part: ...


class Resumable:
    """An iterator over a part with the protocol of torchdata's StatefulDataLoader.

    That loader asks every worker's iterator for a state after each batch, and loads it into the
    iterator of the same worker later; the number of workers must then be the same.
    """

    def __init__(self, source: _Source, part: Part) -> None:
        self._source, self._part = source, part
        self._samples = source.samples(part)

    def __iter__(self) -> Resumable:
        return self

    def __next__(self) -> Any:
        return next(self._samples)

    def state_dict(self) -> dict[str, Any]:
        """The place in this worker's part."""
        return {
            "turn": emit_state(self._part.plan.state(0)),
            "taken": self._part.start + self._source.issued,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a place that ``state_dict`` gave to the same worker of as many."""
        turn = Turn(int(state["turn"]["epoch"]), state["turn"])
        self._part = self._source.go_to(turn, int(state["taken"]))
        self._source.issued = 0
        self._samples = self._source.samples(self._part)
