"""Sequential shuffles: one random generator, drawn canonical node after canonical node.

They cannot begin in the middle, because a node draws its first number after the last one of the
node before it. So a node is generated in windows, and the state of the generator at the beginning
of each node is kept. A node costs the time for its own samples, and once that for the draws of all
nodes before it.
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

    Subclasses implement `prepare` and `generate`. They draw from the generator that `generate`
    gets, and keep no generator themselves.
    """

    #: Samples of a node up to which memory for all of them may be taken to save time.
    keep = 1 << 23

    def __init__(self, spec: ShuffleSpec) -> None:
        super().__init__(spec)
        # A worker may read several nodes in turn, and holds a window of each.
        self.chunk = max(CHUNK // spec.num_canonical_nodes, 1 << 13)
        rng = self.prepare()
        self._node_states = [save_generator(rng)]  # of the generator where each node begins
        # A generator that has drawn all numbers of the nodes before this one.
        self._ready: tuple[int, np.random.Generator] | None = (0, rng)

    @abc.abstractmethod
    def prepare(self) -> np.random.Generator:
        """Prepare the nodes and return the generator from which the first node draws."""

    @abc.abstractmethod
    def generate(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """Yield the ids of a node in windows, drawing from ``rng``, then used by the next node.

        A window may be overwritten when the next one is asked for.
        """

    def advance(self, node: int, rng: np.random.Generator) -> None:
        """Advance the generator by the draws of a node, as `generate` would."""
        for _ in self.generate(node, rng):
            continue

    def windows(self, node: int) -> Iterator[NDArray[np.integer]]:
        """Yield the ids of canonical node ``node`` in order, in windows of any length.

        A window may be overwritten when the next one is asked for.
        """
        while len(self._node_states) <= node:
            last = len(self._node_states) - 1
            rng = self._generator_for(last)
            self.advance(last, rng)
            self._record_end(last, rng)
        rng = self._generator_for(node)
        yield from self.generate(node, rng)
        self._record_end(node, rng)

    def _generator_for(self, node: int) -> np.random.Generator:
        """Return a generator in the state in which a node begins to draw; the caller owns it."""
        if self._ready is not None and self._ready[0] == node:
            rng = self._ready[1]
            self._ready = None
            return rng
        return restore_generator(self._node_states[node])

    def _record_end(self, node: int, rng: np.random.Generator) -> None:
        """Keep a generator that has drawn all numbers of a node, for the next node.

        Its state is recorded too, unless an earlier call recorded the state after this node.
        """
        self._ready = node + 1, rng
        if len(self._node_states) == node + 1:
            self._node_states.append(save_generator(rng))


def save_generator(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a random generator."""
    return dict(rng.bit_generator.state)


def restore_generator(state: dict[str, Any]) -> np.random.Generator:
    """Return a random generator in that state."""
    bits = np.random.PCG64(0)
    bits.state = state  # type: ignore[assignment]
    return np.random.Generator(bits)


def group_parts(sizes: NDArray[np.int64], target: int) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive parts of about ``target`` samples: the first, and the end.

    ``sizes`` are the samples of each part.
    """
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
    """Return the ids of parts end to end, each part shuffled within itself.

    ``begin`` and ``size`` are the first ids and the samples of the parts.
    """
    ids = part_ids(begin, size)
    offset = 0
    for count in size.tolist():
        # A part of at most one sample draws no random number.
        if count > 1:
            rng.shuffle(ids[offset : offset + count])
        offset += count
    return ids


def advance_parts(size: NDArray[np.int64], rng: np.random.Generator) -> None:
    """Advance the generator as `shuffle_parts` of these sizes would, without any ids."""
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
    """Yield the ids of parts end to end, with one range after the other shuffled in place.

    Args:
        parts: First ids and samples of the parts.
        ranges: First place of each range and its end. Ranges begin in ascending order and may
            overlap; ids that no range covers stay where they are.
        rng: Generator of the shuffles.

    A window may be overwritten when the next one is asked for: all are parts of one buffer, because
    fresh memory for each would cost as much as the shuffle.
    """
    begin, size = parts
    ends = np.cumsum(size)
    total = int(ends[-1]) if len(ends) else 0
    longest = max((last - first for first, last in ranges), default=0)
    small = total == 0 or int((begin + size).max()) <= 1 << 32
    kind = np.dtype(np.uint32 if small and longest >= _NARROW_FROM else np.int64)
    # When a range begins, no more ids of earlier ranges are pending than the longest range has.
    window = np.empty(min(2 * longest, total), kind)
    yielded = filled = 0  # ids that were yielded, and ids that were written to the window
    for i, (first, last) in enumerate(ranges):
        while filled < last:
            step = min(filled + CHUNK, last)
            window[filled - yielded : step - yielded] = _ids_between(
                begin, size, ends, (filled, step), kind
            )
            filled = step
        rng.shuffle(window[first - yielded : last - yielded])
        # Ids before the next range are final.
        until = min(ranges[i + 1][0], filled) if i + 1 < len(ranges) else filled
        if until > yielded:
            yield window[: until - yielded]
            pending = window[until - yielded : filled - yielded].copy()
            window[: len(pending)] = pending
            yielded = until
    for start in range(yielded, total, CHUNK):
        yield _ids_between(begin, size, ends, (start, min(start + CHUNK, total)), kind)


def advance_ranges(ranges: Sequence[tuple[int, int]], rng: np.random.Generator) -> None:
    """Advance the generator as `shuffle_ranges` of these ranges would, without any ids."""
    # What a shuffle draws depends only on the number of elements.
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
    """Return the ids at the places ``bounds[0]`` to ``bounds[1]`` - 1 of parts laid end to end.

    ``begin``, ``size`` and ``ends`` are the first ids, the samples and the ends of the parts;
    ``kind`` is the type of the returned ids.
    """
    first, last = bounds
    first_part = int(np.searchsorted(ends, first, side="right"))
    end_part = int(np.searchsorted(ends, last, side="left")) + 1
    begins, sizes = begin[first_part:end_part].copy(), size[first_part:end_part].copy()
    # Cut off what the first part has before the range, and the last part after it.
    skipped = first - int(ends[first_part] - size[first_part])
    begins[0] += skipped
    sizes[0] -= skipped
    sizes[-1] -= int(ends[end_part - 1]) - last
    return part_ids(begins, sizes, kind)
