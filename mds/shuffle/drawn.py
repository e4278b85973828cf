"""Shuffles whose random numbers come from one generator, canonical node after canonical node.

They cannot be entered in the middle: what a node draws begins where the node before it ended. So a
node is produced in windows, and where the generator stood at the beginning of each node is kept.
The price of a node is that of its own samples, plus once the drawing for all nodes before it.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.shuffle.spans import fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mds.shuffle.spans import ShuffleSpec

CHUNK = 1 << 17  # samples handled together where the algorithm leaves a choice


class DrawnShuffle(abc.ABC):
    """One epoch's order, to be produced node by node.

    ``spec`` is what it depends on. Subclasses draw in ``draw`` and keep no generator.
    """

    is_whole = False  # whether it has to hold all samples at once
    keep = 1 << 23  # samples of a node for all of which memory may be taken to save time

    def __init__(self, spec: ShuffleSpec) -> None:
        self.spec = spec
        self.starts = spec.node_starts()
        # Nodes may be read side by side, each with a window of its own.
        self.chunk = max(CHUNK // spec.num_canonical_nodes, 1 << 13)
        rng = self.begin()
        self._saved = [save(rng)]  # where the generator stands when a node begins
        self._next: tuple[int, np.random.Generator] | None = (0, rng)  # it stands at this node

    @abc.abstractmethod
    def begin(self) -> np.random.Generator:
        """Prepare the nodes; the generator as the first node finds it."""

    @abc.abstractmethod
    def draw(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """The ids of a node in windows; ``rng`` is left as the next node finds it.

        A window is good until the next one is asked for.
        """

    def skip(self, node: int, rng: np.random.Generator) -> None:
        """Draw what a node draws, for the sake of the nodes behind it."""
        for _ in self.draw(node, rng):
            continue

    def windows(self, node: int) -> Iterator[NDArray[np.integer]]:
        """The ids of canonical node ``node`` in order, in windows of any length.

        A window is good until the next one is asked for.
        """
        while len(self._saved) <= node:
            last = len(self._saved) - 1
            rng = self._at(last)
            self.skip(last, rng)
            self._done(last, rng)
        rng = self._at(node)
        yield from self.draw(node, rng)
        self._done(node, rng)

    def _at(self, node: int) -> np.random.Generator:
        if self._next is not None and self._next[0] == node:
            rng = self._next[1]
            self._next = None
            return rng
        return restore(self._saved[node])

    def _done(self, node: int, rng: np.random.Generator) -> None:
        self._next = node + 1, rng
        if len(self._saved) == node + 1:
            self._saved.append(save(rng))


def save(rng: np.random.Generator) -> dict[str, Any]:
    """Where a generator stands."""
    return dict(rng.bit_generator.state)


def restore(state: dict[str, Any]) -> np.random.Generator:
    """A generator that stands there."""
    bits = np.random.PCG64(0)
    bits.state = state  # type: ignore[assignment]
    return np.random.Generator(bits)


def groups(sizes: NDArray[np.int64], target: int) -> Iterator[tuple[int, int]]:
    """Runs of parts, first and last + 1, that have about ``target`` samples together."""
    ends = np.cumsum(sizes)
    first, done = 0, 0
    while first < len(sizes):
        last = int(np.searchsorted(ends, done + target, side="left")) + 1
        last = min(last, len(sizes))
        yield first, last
        first, done = last, int(ends[last - 1])


def shuffle_parts(
    begin: NDArray[np.int64], size: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """The ids of parts, one after the other, each shuffled in itself."""
    ids = fill(begin, size)
    at = 0
    for count in size.tolist():
        # Nothing is drawn for a part of one sample, or of none.
        if count > 1:
            rng.shuffle(ids[at : at + count])
        at += count
    return ids


def skip_parts(size: NDArray[np.int64], rng: np.random.Generator) -> None:
    """Draw what shuffling parts of these sizes draws."""
    scratch = np.empty(int(size.max(initial=0)), np.int64)
    for count in size.tolist():
        if count > 1:
            rng.shuffle(scratch[:count])
