"""The order of the samples of an epoch before they are dealt: from positions to sample ids.

Three kinds. *Straight*: not shuffled. *Seekable*: computed at any position. *Drawn*: one of the
incumbent's shuffles, which can only be produced from the front; a small one is held whole, as the
narrowest integers that hold it, a large one is produced in windows while it is read. What takes
long to compute a node may keep in a file, and attach here.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from mds.plan.digests import digest
from mds.plan.reading import Held, Windowed
from mds.shuffle import DrawnShuffle, Seekable, ShuffleSpec, find_shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Integers = NDArray[Any]
    Take = Callable[[Ids], Ids]

SMALL = 2_000_000  # samples of an order that every process computes and holds for itself
_CHUNK = 1 << 16


class Samples(Protocol):
    """Which samples take part: units for a shuffle, and sample ids of big ids."""

    samples: int
    top: int  # sample ids are below
    is_plain: bool  # every sample once
    is_same: bool  # big ids are sample ids

    @property
    def units(self) -> Ids:
        """The sizes of the units."""

    def look_up(self, big: Ids) -> Ids:
        """Sample ids of big ids."""

    def find(self, sample: int) -> Ids:
        """All big ids of a sample."""

    def key(self) -> str:
        """A name for all that the samples depend on."""

    def data_key(self) -> str:
        """A name for what they are chosen from, the same in every epoch."""


class Turn(NamedTuple):
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
    def produce(self, nodes: Sequence[int]) -> Iterator[Integers]:
        """The sample ids of ascending canonical nodes, in windows."""

    @abc.abstractmethod
    def read(self) -> Take:
        """A function from positions to sample ids; cheapest when positions ascend."""

    @abc.abstractmethod
    def find(self, sample: int) -> Ids:
        """All positions of a sample, ascending."""

    @abc.abstractmethod
    def name(self) -> str:
        """The algorithm, with whatever it depends on beside units and turn."""

    def reader(self) -> Take:
        """What `attach` gave, else a new `read`."""
        return self._stored or self.read()

    def hold(self) -> Take:
        """A reader that may hold all sample ids in memory, for those who want them all."""
        return self.reader()

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

    def key(self) -> str:
        """A name for all that the order depends on."""
        return digest(self.name(), *self.turn, self.chosen.key())

    def __getstate__(self) -> dict[str, Any]:
        # What is held or attached is of this process.
        return self.__dict__ | {"_stored": None, "_held": None}


class StraightOrder(Order):
    """Shard after shard."""

    @property
    def is_light(self) -> bool:
        """Unless many samples were listed one by one."""
        return self.chosen.is_plain or self.samples < SMALL

    def produce(self, nodes: Sequence[int]) -> Iterator[Integers]:
        """The sample ids of canonical nodes, in windows."""
        starts = self.starts().tolist()
        for node in nodes:
            for at in range(starts[node], starts[node + 1], _CHUNK):
                yield self.chosen.look_up(np.arange(at, min(at + _CHUNK, starts[node + 1])))

    def read(self) -> Take:
        """Sample ids by the table alone."""
        return self.chosen.look_up

    def find(self, sample: int) -> Ids:
        """Positions by the table alone."""
        return np.sort(self.chosen.find(sample))

    def name(self) -> str:
        """Its own."""
        return "straight"


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

    def produce(self, nodes: Sequence[int]) -> Iterator[Integers]:
        """The sample ids of canonical nodes, in windows."""
        for node in nodes:
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

    def name(self) -> str:
        """Its own."""
        return "seekable"


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

    def produce(self, nodes: Sequence[int], keep: int = 0) -> Iterator[Integers]:
        """The sample ids of canonical nodes, in windows.

        ``keep``: samples of a node up to which memory for all of them may be taken to save time.
        """
        shuffle = self.made()
        shuffle.keep = max(shuffle.keep, keep)
        for node in nodes:
            yield from self._windows(shuffle, node)

    def read(self) -> Take:
        """Sample ids of positions, held or produced along the way."""
        if self._held is not None or self.is_light or self._kind.is_whole:
            return self.hold()
        shuffle = self.made()
        return Windowed(self.starts(), lambda node: self._windows(shuffle, node))

    def hold(self) -> Take:
        """Sample ids of positions, all held."""
        if self._held is None:
            ids = np.empty(self.samples, self.kind)
            at = 0
            for window in self.produce(range(self.turn.nodes)):
                ids[at : at + len(window)] = window
                at += len(window)
            self._held = Held(ids)
        return self._held

    def _windows(self, shuffle: DrawnShuffle, node: int) -> Iterator[Integers]:
        if self.chosen.is_same:
            yield from shuffle.windows(node)
            return
        for big in shuffle.windows(node):
            yield self.chosen.look_up(big.astype(np.int64, copy=False))

    def find(self, sample: int) -> Ids:
        """Positions by looking through all of them."""
        take = self.reader()
        found = [np.zeros(0, np.int64)]
        for at in range(0, self.samples, _CHUNK):
            positions = np.arange(at, min(at + _CHUNK, self.samples))
            found.append(positions[take(positions) == sample])
        return np.concatenate(found)

    def name(self) -> str:
        """The name of the shuffle."""
        return self.algo
