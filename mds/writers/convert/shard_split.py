"""Shard boundaries: which samples share a shard, a pure function of their sizes, in order.

Parts arrive one after another as runs of sample bytes. Laid end to end they are one stream per
split, and a shard is a range of it; where parts begin and end leaves no trace. The rule is the
writer's own (FORMAT.md), so a conversion by many processes gives the shards of one MDSWriter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mds.errors import WriterError
from mds.format.layout import MAX_SIZE

Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes ``start`` to ``end`` of the run that a part left for a split."""

    part: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard to be made: ``sizes`` of its samples, the pieces that hold them, bytes to append."""

    split: int
    number: int
    sizes: Sizes
    pieces: tuple[Piece, ...]
    padding: bytes = b""


class ShardCutter:
    """Cuts one split. ``overhead`` is the size of a shard without samples; 0 limit is no limit."""

    def __init__(
        self, split: int, *, size_limit: int, overhead: int, max_shard_size: int = MAX_SIZE - 1
    ) -> None:
        self.split = split
        self.samples = 0
        self.shards = 0
        self._limit = size_limit
        self._overhead = overhead
        self._max_shard_size = max_shard_size
        self._pieces: list[Piece] = []
        self._sizes: list[Sizes] = []
        self._count = 0
        self._room = size_limit - overhead

    def holds(self, part: int) -> bool:
        """Whether bytes of a part still wait for their shard."""
        return any(piece.part == part for piece in self._pieces)

    def feed(self, part: int, length: int, sizes: Sizes) -> Iterator[Shard]:
        """Take the run of a part, ``length`` bytes, and samples that end within what was fed."""
        if length:
            self._pieces.append(Piece(part, 0, length))
        self.samples += len(sizes)
        if not self._limit:
            self._take(sizes)
            return
        costs = np.cumsum(sizes + 4)
        start = 0
        while start < len(sizes):
            spent = int(costs[start - 1]) if start else 0
            stop = max(start, int(np.searchsorted(costs, spent + self._room, side="right")))
            if stop == start:
                # Not even one fits: what there is becomes a shard, even an empty first one, and
                # then the sample is taken whatever its size.
                yield self._cut()
                stop = start + 1
            self._take(sizes[start:stop])
            start = stop

    def finish(self, padding: bytes = b"", sizes: Sizes | None = None) -> Iterator[Shard]:
        """The last shard, if there is one; ``padding`` completes the samples of ``sizes``."""
        if sizes is not None:
            yield from self.feed(-1, 0, sizes)
        if self._count:
            yield self._cut(padding)

    def leftover_bytes(self) -> int:
        """Bytes fed that belong to no sample yet."""
        held = sum(piece.end - piece.start for piece in self._pieces)
        return held - sum(int(sizes.sum()) for sizes in self._sizes)

    def drop_leftover(self) -> None:
        """Forget the leftover."""
        self._pieces, _ = self._split_pieces(sum(int(sizes.sum()) for sizes in self._sizes))

    def _take(self, sizes: Sizes) -> None:
        self._sizes.append(sizes)
        self._count += len(sizes)
        self._room -= int(sizes.sum()) + 4 * len(sizes)
        if not self._limit and -self._room > self._max_shard_size:
            raise WriterError(
                f"a single shard of {-self._room} bytes: offsets end at {self._max_shard_size}. "
                "Set a size_limit."
            )

    def _cut(self, padding: bytes = b"") -> Shard:
        sizes = np.concatenate(self._sizes) if self._sizes else np.zeros(0, np.int64)
        pieces, self._pieces = self._split_pieces(int(sizes.sum()) - len(padding))
        number, self.shards = self.shards, self.shards + 1
        self._sizes, self._count, self._room = [], 0, self._limit - self._overhead
        return Shard(self.split, number, sizes, tuple(pieces), padding)

    def _split_pieces(self, size: int) -> tuple[list[Piece], list[Piece]]:
        taken: list[Piece] = []
        for number, piece in enumerate(self._pieces):
            length = piece.end - piece.start
            if length > size:
                cut = piece.start + size
                rest = [Piece(piece.part, cut, piece.end), *self._pieces[number + 1 :]]
                return ([*taken, Piece(piece.part, piece.start, cut)] if size else taken), rest
            taken.append(piece)
            size -= length
        return taken, []
