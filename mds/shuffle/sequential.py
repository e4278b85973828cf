"""Sequential shuffles: one random generator, drawn canonical node after canonical node.

They cannot be entered in the middle: what a node draws begins where the node before it ended. So a
node is produced in windows, and where the generator stood at the beginning of each node is kept.
The price of a node is that of its own samples, plus once the drawing for all nodes before it.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.shuffle.base import Shuffle
from mds.shuffle.shard_parts import part_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mds.shuffle.base import ShuffleSpec


CHUNK = 1 << 17  # samples handled together where the algorithm leaves a choice


class SequentialShuffle(Shuffle):
    """Shuffle that is generated from the front, node by node, by one random generator.

    ``spec`` is what it depends on. Subclasses draw in ``generate`` and keep no generator.
    """

    keep = 1 << 23  # samples of a node for all of which memory may be taken to save time

    def __init__(self, spec: ShuffleSpec) -> None:
        super().__init__(spec)
        # Nodes may be read side by side, each with a window of its own.
        self.chunk = max(CHUNK // spec.num_canonical_nodes, 1 << 13)
        rng = self.prepare()
        self._saved = [save_generator(rng)]  # where the generator stands when a node begins
        self._next: tuple[int, np.random.Generator] | None = (0, rng)  # it stands at this node

    @abc.abstractmethod
    def prepare(self) -> np.random.Generator:
        """Prepare the nodes; the generator as the first node finds it."""

    @abc.abstractmethod
    def generate(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """Yield the ids of a node in windows; ``rng`` is left as the next node finds it.

        A window is good until the next one is asked for.
        """

    def advance(self, node: int, rng: np.random.Generator) -> None:
        """Advance the generator past a node, as `generate` would."""
        for _ in self.generate(node, rng):
            continue

    def windows(self, node: int) -> Iterator[NDArray[np.integer]]:
        """Yield the ids of canonical node ``node`` in order, in windows of any length.

        A window is good until the next one is asked for.
        """
        while len(self._saved) <= node:
            last = len(self._saved) - 1
            rng = self._at(last)
            self.advance(last, rng)
            self._done(last, rng)
        rng = self._at(node)
        yield from self.generate(node, rng)
        self._done(node, rng)

    def _at(self, node: int) -> np.random.Generator:
        if self._next is not None and self._next[0] == node:
            rng = self._next[1]
            self._next = None
            return rng
        return restore_generator(self._saved[node])

    def _done(self, node: int, rng: np.random.Generator) -> None:
        self._next = node + 1, rng
        if len(self._saved) == node + 1:
            self._saved.append(save_generator(rng))


def save_generator(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a random generator."""
    return dict(rng.bit_generator.state)


def restore_generator(state: dict[str, Any]) -> np.random.Generator:
    """Return a random generator in that state."""
    bits = np.random.PCG64(0)
    bits.state = state  # type: ignore[assignment]
    return np.random.Generator(bits)


def group_parts(sizes: NDArray[np.int64], target: int) -> Iterator[tuple[int, int]]:
    """Yield runs of parts, first and last + 1, of about ``target`` samples each."""
    ends = np.cumsum(sizes)
    first, start = 0, 0
    while first < len(sizes):
        last = int(np.searchsorted(ends, start + target, side="left")) + 1
        last = min(last, len(sizes))
        yield first, last
        first, start = last, int(ends[last - 1])


def shuffle_parts(
    begin: NDArray[np.int64], size: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the ids of parts, one after the other, each shuffled in itself."""
    ids = part_ids(begin, size)
    offset = 0
    for count in size.tolist():
        # A part of at most one sample draws no random number.
        if count > 1:
            rng.shuffle(ids[offset : offset + count])
        offset += count
    return ids


def advance_parts(size: NDArray[np.int64], rng: np.random.Generator) -> None:
    """Advance the generator as shuffling parts of these sizes would."""
    scratch = np.empty(int(size.max(initial=0)), np.int64)
    for count in size.tolist():
        if count > 1:
            rng.shuffle(scratch[:count])


# Beyond the second-level cache a shuffle of 4-byte numbers is faster than one of 8-byte numbers,
# below it is slower (measured: 16 and 21 ns a sample at 4 million, 11 and 8 at 262,144).
_NARROW_FROM = 1 << 20


def shuffle_ranges(
    parts: tuple[NDArray[np.int64], NDArray[np.int64]],
    ranges: Sequence[tuple[int, int]],
    rng: np.random.Generator,
) -> Iterator[NDArray[np.integer]]:
    """Yield the ids of ``parts``, with every range (first, last + 1) shuffled in turn.

    Slices begin in ascending order and may overlap; what no slice covers stays as it is. A window
    is good until the next one is asked for: all are parts of one buffer, because fresh memory for
    each would cost as much as the shuffle.
    """
    begin, size = parts
    ends = np.cumsum(size)
    total = int(ends[-1]) if len(ends) else 0
    longest = max((last - first for first, last in ranges), default=0)
    small = total == 0 or int((begin + size).max()) <= 1 << 32
    kind = np.dtype(np.uint32 if small and longest >= _NARROW_FROM else np.int64)
    # Of a slice before, no more than the length of a slice is pending when the next begins.
    window = np.empty(min(2 * longest, total), kind)
    yielded = filled = 0  # how many were given out, and how many were filled in
    for i, (first, last) in enumerate(ranges):
        while filled < last:
            step = min(filled + CHUNK, last)
            window[filled - yielded : step - yielded] = _ids_between(
                begin, size, ends, (filled, step), kind
            )
            filled = step
        rng.shuffle(window[first - yielded : last - yielded])
        # What no later slice reaches is final.
        until = min(ranges[i + 1][0], filled) if i + 1 < len(ranges) else filled
        if until > yielded:
            yield window[: until - yielded]
            pending = window[until - yielded : filled - yielded].copy()
            window[: len(pending)] = pending
            yielded = until
    for start in range(yielded, total, CHUNK):
        yield _ids_between(begin, size, ends, (start, min(start + CHUNK, total)), kind)


def advance_ranges(ranges: Sequence[tuple[int, int]], rng: np.random.Generator) -> None:
    """Advance the generator as shuffling ranges would."""
    scratch = np.empty(max((last - first for first, last in ranges), default=0), np.int64)
    narrow = scratch.view(np.uint32) if len(scratch) >= _NARROW_FROM else scratch
    for first, last in ranges:
        rng.shuffle(narrow[: last - first])


def _ids_between(
    begin: NDArray[np.int64],
    size: NDArray[np.int64],
    ends: NDArray[np.int64],
    bounds: tuple[int, int],
    kind: np.dtype[Any],
) -> NDArray[np.integer]:
    """Ids number ``wanted[0]`` to ``wanted[1]`` - 1 of the parts."""
    first, last = bounds
    a = int(np.searchsorted(ends, first, side="right"))
    b = int(np.searchsorted(ends, last, side="left")) + 1
    begins, sizes = begin[a:b].copy(), size[a:b].copy()
    before = first - int(ends[a] - size[a])
    begins[0] += before
    sizes[0] -= before
    sizes[-1] -= int(ends[b - 1]) - last
    return part_ids(begins, sizes, kind)
