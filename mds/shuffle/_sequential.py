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

from mds.shuffle._base import Shuffle
from mds.shuffle._shard_parts import part_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mds.shuffle._base import ShuffleSpec


CHUNK = 1 << 17  # samples that are handled together, if the algorithm leaves a choice


class SequentialShuffle(Shuffle):
    """Shuffle that is generated from the front, node by node, by one random generator.

    Subclasses implement `prepare` and `generate`. They draw from the generator that `generate`
    gets, and keep no generator themselves. They should override `advance` if the draws of a node
    can be repeated faster than its ids can be made.

    >>> class WholeShards(SequentialShuffle):  # shards in random order; for one canonical node
    ...     def prepare(self):
    ...         return np.random.default_rng([self.spec.seed, self.spec.epoch])
    ...
    ...     def generate(self, node, rng):
    ...         ends = np.cumsum(self.spec.sizes)
    ...         for shard in rng.permutation(len(ends)):
    ...             yield np.arange(ends[shard] - self.spec.sizes[shard], ends[shard])
    >>> spec = mds.shuffle.ShuffleSpec(np.array([2, 2, 2]), 1, seed=2, epoch=0, block_size=8)
    >>> np.concatenate([*WholeShards(spec).windows(0)]).tolist()
    [4, 5, 0, 1, 2, 3]
    """

    #: Most samples of a node for which a subclass may keep all ids in memory to save time.
    keep = 1 << 23

    def __init__(self, spec: ShuffleSpec) -> None:
        super().__init__(spec)
        # Samples of a window, for subclasses that choose it: a worker may read several nodes in
        # turn, and holds a window of each.
        self.chunk = max(CHUNK // spec.num_canonical_nodes, 1 << 13)
        rng = self.prepare()
        self._node_states = [save_generator(rng)]  # of the generator where each node begins
        # The next node, and a generator that has drawn all numbers of the nodes before it; None
        # while a node is generated.
        self._ready: tuple[int, np.random.Generator] | None = (0, rng)

    @abc.abstractmethod
    def prepare(self) -> np.random.Generator:
        """Prepare the nodes and return the generator from which the first node draws."""

    @abc.abstractmethod
    def generate(self, node: int, rng: np.random.Generator) -> Iterator[NDArray[np.integer]]:
        """Yield the ids of a node in windows, drawing from ``rng``.

        The next node draws from the same generator, so exactly the draws of this one must be taken.

        A window may be overwritten when the next one is asked for.
        """

    def advance(self, node: int, rng: np.random.Generator) -> None:
        """Draw from the generator what `generate` would draw for a node, without its ids."""
        for _ in self.generate(node, rng):
            continue

    def windows(self, node: int) -> Iterator[NDArray[np.integer]]:
        """Yield the ids of canonical node ``node`` in order, in windows of any length.

        A window may be overwritten when the next one is asked for.
        """
        # A node draws after all nodes before it, so go through the draws of those first.
        while len(self._node_states) <= node:
            last = len(self._node_states) - 1
            rng = self._generator_for(last)
            self.advance(last, rng)
            self._record_end(last, rng)
        rng = self._generator_for(node)
        yield from self.generate(node, rng)
        self._record_end(node, rng)

    def _generator_for(self, node: int) -> np.random.Generator:
        """Return a generator in the state in which a node begins to draw.

        The caller may draw from it, since it is kept nowhere else.
        """
        if self._ready is not None and self._ready[0] == node:
            rng = self._ready[1]
            self._ready = None
            return rng
        return restore_generator(self._node_states[node])

    def _record_end(self, node: int, rng: np.random.Generator) -> None:
        """Keep ``rng``, which has drawn all numbers of a node, for the next node.

        Its state is recorded as well, for iterations that come to the next node later. State k is
        that before node k, so it is new only if there are ``node`` + 1 states.
        """
        self._ready = node + 1, rng
        if len(self._node_states) == node + 1:
            self._node_states.append(save_generator(rng))


def save_generator(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a random generator."""
    return dict(rng.bit_generator.state)


def restore_generator(state: dict[str, Any]) -> np.random.Generator:
    """Return a new random generator (PCG64) in a state that `save_generator` returned."""
    bits = np.random.PCG64(0)
    bits.state = state  # type: ignore[assignment]
    return np.random.Generator(bits)


def group_parts(sizes: NDArray[np.int64], target: int) -> Iterator[tuple[int, int]]:
    """Cut parts into runs of at least ``target`` samples; yield the first part and the end of each.

    ``sizes`` are the samples of each part. Sizes of 5, 5, 5, 5, 5 and a target of 8 give the runs
    (0, 2), (2, 4) and (4, 5), of which the last may be smaller.
    """
    ends = np.cumsum(sizes)
    first, start = 0, 0  # part and sample at which the next run begins
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
        # A part of at most one sample draws no random number, so it needs no call.
        if count > 1:
            rng.shuffle(ids[offset : offset + count])
        offset += count
    return ids


def advance_parts(size: NDArray[np.int64], rng: np.random.Generator) -> None:
    """Draw from the generator what `shuffle_parts` would draw for parts of these sizes.

    What a shuffle draws depends only on the number of elements, so another array is shuffled.
    """
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
    """Yield the ids of parts end to end, in which one range after the other is shuffled.

    Args:
        parts: First id of each part, and samples of each part.
        ranges: First place of each range and its end, counted in samples from the first part on.
            Ranges begin in ascending order and may overlap; an id in two ranges is shuffled twice.
            Ids that no range covers stay where they are.
        rng: Generator of the shuffles.

    Ids are yielded once no further range covers them. So after the range (0, 70), if (40, 130) is
    the next one, places 0 to 39 are yielded, and 40 to 69 are moved to the front of the window.

    A window may be overwritten when the next one is asked for: all are parts of one buffer, because
    fresh memory for each would cost as much as the shuffle.
    """
    begin, size = parts
    ends = np.cumsum(size)
    total = int(ends[-1]) if len(ends) else 0
    longest = max((last - first for first, last in ranges), default=0)
    has_small_ids = total == 0 or int((begin + size).max()) <= 1 << 32
    # A shuffle of 32-bit ids is quicker if they are many, and draws the same numbers.
    kind = np.dtype(np.uint32 if has_small_ids and longest >= _NARROW_FROM else np.int64)
    # When a range begins, no more ids of earlier ranges are pending than the longest range has.
    window = np.empty(min(2 * longest, total), kind)
    # Number of ids that were yielded, and that were written to the window. The id of place p is at
    # p - yielded in the window.
    yielded = filled = 0
    for i, (first, last) in enumerate(ranges):
        while filled < last:
            step = min(filled + CHUNK, last)
            window[filled - yielded : step - yielded] = _ids_between(
                begin, size, ends, (filled, step), kind
            )
            filled = step
        rng.shuffle(window[first - yielded : last - yielded])
        # Yield the ids before the next range, and move the others to the front of the window.
        until = min(ranges[i + 1][0], filled) if i + 1 < len(ranges) else filled
        if until > yielded:
            yield window[: until - yielded]
            pending = window[until - yielded : filled - yielded].copy()
            window[: len(pending)] = pending
            yielded = until
    # Ids behind the last range, which are not shuffled.
    for start in range(yielded, total, CHUNK):
        yield _ids_between(begin, size, ends, (start, min(start + CHUNK, total)), kind)


def advance_ranges(ranges: Sequence[tuple[int, int]], rng: np.random.Generator) -> None:
    """Draw from the generator what `shuffle_ranges` would draw for these ranges.

    What a shuffle draws depends only on the number of elements, so another array is shuffled.
    """
    scratch = np.empty(max((last - first for first, last in ranges), default=0), np.int64)
    # Large arrays of 32-bit elements are shuffled more quickly.
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

    Parts with the first ids (20, 0) and the sizes (3, 5) have the ids 22, 0, 1 at the places 2 to
    4.

    Args:
        begin, size: First id and number of samples of each part.
        ends: Place at which each part ends, the cumulated sizes: (3, 8) in the example.
        bounds: First place and end; there is at least one place.
        kind: Type of the returned ids.
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
