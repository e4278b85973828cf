"""The part of an epoch that one worker goes through, audited on the way."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mds.epochs import Turn
from mds.plan import summands
from mds.state import emit_state

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.plan import EpochPlan
    from mds.world import World

    Ids = npt.NDArray[np.int64]


class Part:
    """The ids of worker ``world.worker`` in a plan, from its ``start``-th on.

    ``sum_to(n)`` is the order hash's sum over the first ``n`` ids: of each block the running sums
    are made in one go when it is planned, so that a batch costs a lookup.
    """

    def __init__(self, plan: EpochPlan, world: World, start: int = 0) -> None:
        self.plan, self.world, self.start = plan, world, start
        # Per block: ids before it, and the sums after each of its ids.
        self._sums: collections.deque[tuple[int, npt.NDArray[np.uint64]]] = collections.deque()
        self._planned = 0
        self._sum = np.uint64(0)

    def blocks(self) -> Iterator[Ids]:
        """The ids in 1-D arrays, without padding."""
        world, at = self.world, self.start
        place = (world.node, world.rank_of_node, world.worker_of_rank)
        for block in self.plan.blocks(*place, self.start):
            marks = self.plan.marks(*place, at, at + len(block))
            at += len(block)
            real = block >= 0
            ids = block[real]
            self._note(summands(marks[real], ids))
            yield ids

    def _note(self, added: npt.NDArray[np.uint64]) -> None:
        sums = np.cumsum(added, dtype=np.uint64) + self._sum
        if len(sums):
            self._sums.append((self._planned, sums))
            self._planned += len(sums)
            self._sum = sums[-1]

    def sum_to(self, taken: int) -> int:
        """The sum over the first ``taken`` ids, modulo 2**64; ``taken`` never goes down."""
        if not taken:
            return 0
        sums = self._sums
        while len(sums) > 1 and taken > sums[0][0] + len(sums[0][1]):
            sums.popleft()
        before, block = sums[0]
        return int(block[taken - before - 1])


class Masked(Part):
    """A part in which every batch of every rank is full, and a mask tells what is padding.

    In the place of padding comes the id before it, or sample 0 for a worker without any; such a
    sample is read and then masked.
    """

    def __init__(self, plan: EpochPlan, world: World, start: int = 0) -> None:
        super().__init__(plan, world, start)
        self.masks: collections.deque[npt.NDArray[np.bool_]] = collections.deque()

    def blocks(self) -> Iterator[Ids]:
        """The ids in 1-D arrays, as many on every rank."""
        world, last = self.world, np.int64(0)
        batch, workers = self.plan.shape.batch, world.workers_per_rank
        # Whole batches that are padding on all ranks come from cutting the steps by workers.
        mine = len(range(world.worker_of_rank, self.plan.steps, workers)) * batch
        at, left = self.start, mine - self.start
        place = (world.node, world.rank_of_node, world.worker_of_rank)
        for whole in self.plan.blocks(*place, self.start):
            block = whole[: max(left, 0)]
            left -= len(block)
            real = block >= 0
            places = np.maximum.accumulate(np.where(real, np.arange(len(block)), -1))
            filled = np.where(places >= 0, block[places], last)
            if len(filled):
                last = filled[-1]
                self.masks.append(real)
                marks = self.plan.marks(*place, at, at + len(filled))
                self._note(np.where(real, summands(marks, filled), np.uint64(0)))
                at += len(filled)
                yield filled

    def next_mask(self, size: int) -> npt.NDArray[np.bool_]:
        """Which of the next ``size`` samples count."""
        parts = []
        while size:
            mask = self.masks.popleft()
            parts.append(mask[:size])
            if len(mask) > size:
                self.masks.appendleft(mask[size:])
            size -= len(parts[-1])
        return np.concatenate(parts)


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
