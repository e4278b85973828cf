"""The order of the samples of an epoch before they are dealt: from positions to sample ids.

Three kinds. *Straight*: not shuffled. *Seekable*: computed at any position. *Drawn*: one of the
incumbent's shuffles, which can only be produced from the front; a small one is held whole, as the
narrowest integers that hold it, a large one is produced in windows while it is read. What takes
long to compute a node may keep in a file, and attach here.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mds.plan.digests import digest
from mds.plan.reading import Held, Windowed
from mds.shuffle import DrawnShuffle, Seekable, ShuffleSpec, find_shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Take = Callable[[Ids], Ids]

SMALL = 2_000_000  # samples of an order that every process computes and holds for itself
_CHUNK = 1 << 16


class Samples(Protocol):
    """Which samples take part: units for a shuffle, and sample ids of big ids."""

    samples: int
    top: int  # sample ids are below
    is_plain: bool

    @property
    def units(self) -> Ids:
        """The sizes of the units."""

    def look_up(self, big: Ids) -> Ids:
        """Sample ids of big ids."""

    def find(self, sample: int) -> Ids:
        """All big ids of a sample."""

    def key(self) -> str:
        """A name for all that the samples depend on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """Which epoch of which shuffle: canonical nodes, seed, epoch, samples of a block."""

    nodes: int
    seed: int
    epoch: int
    block: int


class Order(abc.ABC):
    """Positions 0 to ``samples`` - 1, in sections for canonical nodes, and the ids at them."""

    def __init__(self, chosen: Samples, turn: Turn) -> None:
        self.chosen, self.turn = chosen, turn
        self.samples = chosen.samples
        self._stored: Take | None = None

    @property
    @abc.abstractmethod
    def is_light(self) -> bool:
        """Whether it is as well computed by every process as read from a file."""

    @abc.abstractmethod
    def windows(self, node: int) -> Iterator[Ids]:
        """The sample ids of a canonical node in order."""

    @abc.abstractmethod
    def read(self) -> Take:
        """A function from positions to sample ids; cheapest when positions ascend."""

    @abc.abstractmethod
    def find(self, sample: int) -> Ids:
        """All positions of a sample, ascending."""

    @abc.abstractmethod
    def key(self) -> str:
        """A name for all that the order depends on."""

    def reader(self) -> Take:
        """What `attach` gave, else a new `read`."""
        return self._stored or self.read()

    def attach(self, stored: Take) -> None:
        """Let sample ids come from somewhere else from now on."""
        self._stored = stored

    def starts(self) -> Ids:
        """Where each canonical node begins, and the end."""
        nodes = self.turn.nodes
        return np.arange(nodes + 1, dtype=np.int64) * self.samples // nodes

    @property
    def kind(self) -> np.dtype[Any]:
        """The narrowest integers that hold its sample ids."""
        return np.min_scalar_type(max(self.chosen.top - 1, 0))


class StraightOrder(Order):
    """Shard after shard."""

    @property
    def is_light(self) -> bool:
        """Unless many samples were listed one by one."""
        return self.chosen.is_plain or self.samples < SMALL

    def windows(self, node: int) -> Iterator[Ids]:
        """The sample ids of a canonical node in order."""
        first, last = self.starts()[node : node + 2].tolist()
        for at in range(first, last, _CHUNK):
            yield self.chosen.look_up(np.arange(at, min(at + _CHUNK, last)))

    def read(self) -> Take:
        """Sample ids by the table alone."""
        return self.chosen.look_up

    def find(self, sample: int) -> Ids:
        """Positions by the table alone."""
        return np.sort(self.chosen.find(sample))

    def key(self) -> str:
        """A name for all that the order depends on."""
        return digest("straight", self.turn.nodes, self.chosen.key())


class SeekableOrder(Order):
    """Computed position by position."""

    is_light = True

    def __init__(self, chosen: Samples, turn: Turn) -> None:
        super().__init__(chosen, turn)
        self._made: Seekable | None = None

    @property
    def shuffle(self) -> Seekable:
        """The algorithm, made when it is first needed."""
        if self._made is None:
            turn = self.turn
            spec = ShuffleSpec(self.chosen.units, turn.nodes, turn.seed, turn.epoch, turn.block)
            self._made = Seekable(spec)
        return self._made

    def windows(self, node: int) -> Iterator[Ids]:
        """The sample ids of a canonical node in order."""
        for big in self.shuffle.windows(node):
            yield self.chosen.look_up(big)

    def take(self, positions: Ids) -> Ids:
        """Sample ids of positions."""
        return self.chosen.look_up(self.shuffle.take(positions))

    def read(self) -> Take:
        """Sample ids of positions."""
        return self.take

    def find(self, sample: int) -> Ids:
        """Positions by going backwards."""
        return np.sort(self.shuffle.find(self.chosen.find(sample)))

    def key(self) -> str:
        """A name for all that the order depends on."""
        return digest("seekable", *dataclasses.astuple(self.turn), self.chosen.key())


class DrawnOrder(Order):
    """One of the incumbent's shuffles, by its name ``algo``."""

    def __init__(self, chosen: Samples, turn: Turn, algo: str) -> None:
        super().__init__(chosen, turn)
        self.algo = algo
        self._kind = find_shuffle(algo)
        self._held: Held | None = None

    @property
    def is_light(self) -> bool:
        """When it is small."""
        return self.samples < SMALL

    def made(self) -> DrawnShuffle:
        """The algorithm, anew: it keeps numbers for every unit."""
        turn = self.turn
        spec = ShuffleSpec(self.chosen.units, turn.nodes, turn.seed, turn.epoch, turn.block)
        shuffle = self._kind(spec)
        assert isinstance(shuffle, DrawnShuffle)
        return shuffle

    def windows(self, node: int) -> Iterator[Ids]:
        """The sample ids of a canonical node in order."""
        return self.windows_of(self.made(), node)

    def windows_of(self, shuffle: DrawnShuffle, node: int) -> Iterator[Ids]:
        """The same from an algorithm that was made."""
        for big in shuffle.windows(node):
            yield self.chosen.look_up(big.astype(np.int64, copy=False))

    def read(self) -> Take:
        """Sample ids of positions, held or produced along the way."""
        if self._held is None and not (self.is_light or self._kind.is_whole):
            shuffle = self.made()
            return Windowed(self.starts(), lambda node: self.windows_of(shuffle, node))
        if self._held is None:
            self._held = Held(self._whole())
        return self._held

    def _whole(self) -> NDArray[Any]:
        ids = np.empty(self.samples, self.kind)
        shuffle = self.made()
        at = 0
        for node in range(self.turn.nodes):
            for window in self.windows_of(shuffle, node):
                ids[at : at + len(window)] = window
                at += len(window)
        return ids

    def find(self, sample: int) -> Ids:
        """Positions by looking through all of them."""
        take = self.reader()
        found = [np.zeros(0, np.int64)]
        for at in range(0, self.samples, _CHUNK):
            positions = np.arange(at, min(at + _CHUNK, self.samples))
            found.append(positions[take(positions) == sample])
        return np.concatenate(found)

    def key(self) -> str:
        """A name for all that the order depends on."""
        return digest(self.algo, *dataclasses.astuple(self.turn), self.chosen.key())
