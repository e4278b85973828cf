"""Orders of the samples of an epoch: lookups from positions to sample ids.

An order is that of a stream or of several together, before the partition over ranks. There are
three kinds:

- `UnshuffledOrder`: shard after shard.
- `RandomAccessOrder`: of a shuffle that computes any position alone.
- `SequentialOrder`: of a shuffle that is generated from the front. A small order is held in memory,
  as the narrowest integers that hold its ids. A large one is generated in windows while it is read.

Sample ids come out of two functions: a shuffle maps positions to *virtual ids*, and a `Resampling`
maps these to sample ids. Virtual ids count the samples that the epoch takes, from 0 on, shard after
shard. A shard of which an epoch takes two copies has two *virtual shards*
(`mds.plan._sampling`).

The ids of a canonical node are generated in *windows*: arrays of some consecutive ids.

Processes of a node may share an order that takes long to compute in a file, and `attach` it here.
"""

from __future__ import annotations

import abc
import copy
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from mds._process.fork_safe import cached_property
from mds._shardfile.hashing import digest
from mds.shuffle import RandomAccessShuffle, SequentialShuffle, Shuffle, ShuffleSpec
from mds.shuffle._base import equal_cut
from mds.shuffle._shard_parts import cut_by_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Integers = NDArray[Any]
    Lookup = Callable[[Ids], Ids]

#: Samples below which every process computes an order for itself.
SMALL_ORDER_SAMPLES = 2_000_000
_CHUNK_SAMPLES = 1 << 16


class Resampling(Protocol):
    """Choice of the samples of an epoch: virtual shards for a shuffle, and their sample ids.

    See `mds.plan._sampling` for virtual shards and virtual ids.

    Attributes:
        samples: Number of chosen samples.
        top: Bound of the sample ids, which are below it.
        is_plain: Whether every sample is chosen once.
        is_identity: Whether virtual ids are sample ids.
    """

    samples: int
    top: int
    is_plain: bool
    is_identity: bool

    @property
    def virtual_shards(self) -> Ids:
        """Samples of each virtual shard."""

    def to_sample_ids(self, virtual: Ids) -> Ids:
        """Return the sample id of each virtual id."""

    def find(self, sample: int) -> Ids:
        """Return all virtual ids of a sample."""

    def key(self) -> str:
        """Return a digest of all that the samples depend on."""

    def data_key(self) -> str:
        """Return a digest of the data from which samples are chosen, the same in every epoch."""


class ShuffleParams(NamedTuple):
    """Parameters of a shuffle in one epoch.

    Attributes:
        nodes: Number of canonical nodes.
        seed: Seed of the run.
        epoch: Number of the epoch.
        block: Samples of a shuffle block (``shuffle_block_size``), the stretch of the order within
            which a sample is moved. Algorithms without blocks ignore it.
        cut: First position of each canonical node, and the end; None (default) for nodes of equally
            many samples.
    """

    nodes: int
    seed: int
    epoch: int
    block: int
    cut: tuple[int, ...] | None = None

    def starts(self, samples: int) -> Ids:
        """Return the first position of each node, of so many samples, and the end: (nodes + 1,)."""
        if self.cut is not None:
            return np.array(self.cut, np.int64)
        return equal_cut(samples, self.nodes)


class SampleCosts(Protocol):
    """Cost of each sample of a dataset, such as its tokens, by which canonical nodes are cut."""

    @property
    def key(self) -> str:
        """Digest of all costs."""

    def take(self, ids: Ids) -> Ids:
        """Return the cost of each of the samples ``ids``, int64."""


_MAX_KEPT_CUTS = 1 << 12  # a schedule has one for each stream
_cuts_by_key: dict[str, tuple[int, ...] | None] = {}


class StreamOrder(abc.ABC):
    """Order of samples: a function from the positions 0 to ``samples`` - 1 to sample ids.

    Each canonical node has a range of positions; see `starts`.

    Args:
        resampling: Choice of the samples of the epoch.
        params: Parameters of the shuffle.
        small: Samples below which every process computes the order for itself.

    Attributes:
        samples: Samples of the epoch.
    """

    def __init__(
        self, resampling: Resampling, params: ShuffleParams, small: int = SMALL_ORDER_SAMPLES
    ) -> None:
        self.resampling, self.params, self.small = resampling, params, small
        self.samples = resampling.samples
        self._stored: Lookup | None = None  # the lookup that `attach` was given

    @property
    @abc.abstractmethod
    def is_cheap(self) -> bool:
        """Whether a process computes the order about as fast as it would read it from a file."""

    @property
    def parts(self) -> list[StreamOrder]:
        """This order; orders of several parts list all of them."""
        return [self]

    @abc.abstractmethod
    def generate(self, nodes: Sequence[int]) -> Iterator[Integers]:
        """Yield the sample ids of canonical nodes, in arrays of consecutive ids.

        ``nodes`` are numbers of canonical nodes, ascending.
        """

    @abc.abstractmethod
    def new_lookup(self) -> Lookup:
        """Return a function from positions to ids, which is fastest if positions ascend."""

    @abc.abstractmethod
    def find(self, sample: int) -> Ids:
        """Return all positions of a sample, ascending."""

    @abc.abstractmethod
    def name(self) -> str:
        """Return the name of the algorithm, with its version."""

    def lookup(self) -> Lookup:
        """Return the lookup that was attached, or a new one."""
        return self._stored or self.new_lookup()

    def materialize(self) -> Lookup:
        """Return a lookup that may hold all sample ids in memory, for callers that need all."""
        return self.lookup()

    def attach(self, stored: Lookup) -> None:
        """Make `lookup` return ``stored`` from now on, such as a lookup in a file of the ids."""
        self._stored = stored

    def starts(self) -> Ids:
        """Return the first position of each canonical node, and the end; int64 (nodes + 1,)."""
        return self.params.starts(self.samples)

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Narrowest integer type that holds all sample ids of the order."""
        return np.min_scalar_type(max(self.resampling.top - 1, 0))

    def key(self) -> str:
        """Return a digest of all that the order depends on: orders with one digest are the same."""
        *params, node_starts = self.params
        return digest(self.name(), *params, *(node_starts or ()), self.resampling.key())

    def cut_by(self, costs: SampleCosts) -> None:
        """Cut the canonical nodes so that all have about the same cost, exact to a sample.

        Call it before ids are computed. Shuffles without a `Shuffle.shard_sequence` stay as they
        are. The last cuts are kept, since a cut takes a pass through all costs.
        """
        nodes, resampling = self.params.nodes, self.resampling
        if nodes == 1:
            return
        # If every sample comes once, the virtual shards are the same in every epoch.
        data = resampling.data_key() if resampling.is_plain else resampling.key()
        key = digest(self.name(), nodes, self.params.seed, data, costs.key)
        if key not in _cuts_by_key:
            while len(_cuts_by_key) >= _MAX_KEPT_CUTS:
                _cuts_by_key.pop(next(iter(_cuts_by_key)), None)
            _cuts_by_key[key] = self._new_cut(costs)
        self.params = self.params._replace(cut=_cuts_by_key[key])

    def _new_cut(self, costs: SampleCosts) -> tuple[int, ...] | None:
        """Return where canonical nodes end by the cost of their samples; None by their number."""
        sequence, resampling = self.shard_sequence(), self.resampling
        if sequence is None:
            return None
        return cut_by_cost(
            resampling.virtual_shards,
            sequence,
            self.params.nodes,
            lambda virtual: costs.take(resampling.to_sample_ids(virtual)),
        )

    def shard_sequence(self) -> Ids | None:
        """Return the virtual shards in the sequence that is cut into canonical nodes, int64.

        None if canonical nodes can only have equally many samples.
        """
        return np.arange(len(self.resampling.virtual_shards))

    def __getstate__(self) -> dict[str, Any]:
        # A pickled order lacks what belongs to this process: an attached lookup, and the array of
        # all ids of a `SequentialOrder`.
        return self.__dict__ | {"_stored": None, "_lookup_of_all": None}


class UnshuffledOrder(StreamOrder):
    """Order without a shuffle: shard after shard."""

    @property
    def is_cheap(self) -> bool:
        """Whether ids follow from positions by arithmetic, or the order is small.

        Only a resampling that is not plain may have to list drawn samples first.
        """
        return self.resampling.is_plain or self.samples < self.small

    def generate(self, nodes: Sequence[int]) -> Iterator[Integers]:
        """Yield the sample ids of canonical nodes, in windows."""
        starts = self.starts().tolist()
        for node in nodes:
            for start in range(starts[node], starts[node + 1], _CHUNK_SAMPLES):
                yield self.resampling.to_sample_ids(
                    np.arange(start, min(start + _CHUNK_SAMPLES, starts[node + 1]))
                )

    def new_lookup(self) -> Lookup:
        """Return the lookup of the resampling: positions are virtual ids."""
        return self.resampling.to_sample_ids

    def find(self, sample: int) -> Ids:
        """Return all positions of a sample, which are its virtual ids."""
        return np.sort(self.resampling.find(sample))

    def name(self) -> str:
        """Return the name of the order without a shuffle, as stored orders and keys have it."""
        return "straight"


class ShuffledOrder(StreamOrder):
    """Order in which a shuffle puts the virtual ids of the epoch's samples.

    Args:
        resampling, params, small: As in `StreamOrder`.
        algo: Name of the shuffle, such as "py1e".
        algorithm: Class of the shuffle.
    """

    def __init__(
        self,
        resampling: Resampling,
        params: ShuffleParams,
        algo: str,
        algorithm: type[Shuffle],
        small: int = SMALL_ORDER_SAMPLES,
    ) -> None:
        super().__init__(resampling, params, small)
        self.algo, self.algorithm = algo, algorithm

    def name(self) -> str:
        """Return the name of the shuffle, and its version if it has one."""
        version = self.algorithm.version
        return f"{self.algo}.{version}" if version else self.algo

    def shard_sequence(self) -> Ids | None:
        """Return the virtual shards in the sequence that the shuffle cuts, or None."""
        return self.algorithm.shard_sequence(self._shuffle_spec())

    def _new_shuffle(self) -> Shuffle:
        """Return the shuffle of this epoch, which knows the sizes of the virtual shards."""
        return self.algorithm(self._shuffle_spec())

    def _shuffle_spec(self) -> ShuffleSpec:
        return ShuffleSpec(self.resampling.virtual_shards, *self.params)


class RandomAccessOrder(ShuffledOrder):
    """Order of a shuffle that computes the virtual id at any position alone."""

    is_cheap = True

    @cached_property
    def shuffle(self) -> RandomAccessShuffle:
        """Shuffle of this epoch, from positions to virtual ids."""
        shuffle = self._new_shuffle()
        assert isinstance(shuffle, RandomAccessShuffle)
        return shuffle

    def at_epoch(self, epoch: int) -> RandomAccessOrder:
        """Return the order of the same samples in another epoch.

        It is right only if every epoch takes every sample once, as the choice of samples is kept.
        """
        order = copy.copy(self)
        order.params = self.params._replace(epoch=epoch)
        # Store the value of the cached property, which would otherwise make a new shuffle: that
        # takes longer than to change the epoch of this one.
        vars(order)["shuffle"] = self.shuffle.at_epoch(epoch)
        return order

    @cached_property
    def first_id(self) -> int:
        """Sample id of virtual id 0.

        If every sample comes once, each sample id is its virtual id plus this one.
        """
        return int(self.resampling.to_sample_ids(np.zeros(1, np.int64))[0])

    def generate(self, nodes: Sequence[int]) -> Iterator[Integers]:
        """Yield the sample ids of canonical nodes, in windows."""
        for node in nodes:
            for virtual in self.shuffle.windows(node):
                yield self.resampling.to_sample_ids(virtual)

    def take(self, positions: Ids) -> Ids:
        """Return the sample ids at positions."""
        return self.resampling.to_sample_ids(self.shuffle.ids_at(positions))

    def new_lookup(self) -> Lookup:
        """Return `take`, which is quick for positions in any sequence."""
        return self.take

    def find(self, sample: int) -> Ids:
        """Return all positions of a sample, ascending, by the inverse of the shuffle."""
        return np.sort(self.shuffle.find(self.resampling.find(sample)))


class SequentialOrder(ShuffledOrder):
    """Order of a shuffle that is generated from the front, canonical node by canonical node."""

    _lookup_of_all: ArrayLookup | None = None  # set by `materialize`

    @property
    def is_cheap(self) -> bool:
        """Whether the order is small enough to be computed by every process for itself."""
        return self.samples < self.small

    def new_shuffle(self) -> SequentialShuffle:
        """Return a new shuffle of this epoch: a shuffle changes while it generates ids.

        It takes little memory, a few numbers for each virtual shard.
        """
        shuffle = self._new_shuffle()
        assert isinstance(shuffle, SequentialShuffle)
        return shuffle

    def generate(self, nodes: Sequence[int], keep: int = 0) -> Iterator[Integers]:
        """Yield the sample ids of canonical nodes, in arrays of consecutive ids.

        Args:
            nodes: Numbers of the canonical nodes, ascending.
            keep: Samples of a canonical node up to which the shuffle may hold all of its ids in
                memory to save time, if this is more than the shuffle's own bound.
        """
        shuffle = self.new_shuffle()
        shuffle.keep = max(shuffle.keep, keep)
        for node in nodes:
            yield from self._windows(shuffle, node)

    def new_lookup(self) -> Lookup:
        """Return a lookup of all ids in memory, or else one that generates ids when asked.

        Ids are held in memory if they already are, if they are few, or if the shuffle itself needs
        memory for all of them. The other lookup takes less memory, and is quick only while its
        positions ascend.
        """
        if self._lookup_of_all is not None or self.is_cheap or self.algorithm.needs_all_samples:
            return self.materialize()
        shuffle = self.new_shuffle()  # one for all nodes, as it can begin any node
        return StreamingLookup(self.starts(), lambda node: self._windows(shuffle, node))

    def materialize(self) -> Lookup:
        """Return a lookup that holds all ids in an array, which is computed at the first call."""
        if self._lookup_of_all is None:
            ids = np.empty(self.samples, self.id_dtype)
            start = 0
            for window in self.generate(range(self.params.nodes)):
                ids[start : start + len(window)] = window
                start += len(window)
            self._lookup_of_all = ArrayLookup(ids)
        return self._lookup_of_all

    def _windows(self, shuffle: SequentialShuffle, node: int) -> Iterator[Integers]:
        """Yield the sample ids of a canonical node, in arrays of consecutive ids."""
        if self.resampling.is_identity:  # virtual ids are sample ids, in any integer type
            yield from shuffle.windows(node)
            return
        for virtual in shuffle.windows(node):
            yield self.resampling.to_sample_ids(virtual.astype(np.int64, copy=False))

    def find(self, sample: int) -> Ids:
        """Return all positions of a sample, by a search through the ids of all positions."""
        take = self.lookup()
        parts = [np.zeros(0, np.int64)]
        for start in range(0, self.samples, _CHUNK_SAMPLES):
            positions = np.arange(start, min(start + _CHUNK_SAMPLES, self.samples))
            parts.append(positions[take(positions) == sample])
        return np.concatenate(parts)


# Positions go back only to repeat samples shortly before the end, so that ranks get equally many.
# They go back further than this with thousands of ranks on a node; then the node is generated anew.
_MAX_LOOKBACK_SAMPLES = 1 << 12


class ArrayLookup:
    """Lookup in an array of all sample ids, by position."""

    def __init__(self, ids: NDArray[Any]) -> None:
        self._ids = ids

    def __call__(self, positions: Ids) -> Ids:
        """Return the sample ids at positions."""
        return self._ids[positions].astype(np.int64, copy=False)


class StreamingLookup:
    """Lookup that generates ids from the front of each canonical node, as far as they are needed.

    It is made for callers whose positions ascend within a node, from call to call. A position of
    which the id is no longer kept makes it generate its node again from the front.

    Args:
        starts: First position of each canonical node, and the end.
        windows: Function that generates the ids of a node, in arrays of consecutive ids.
    """

    def __init__(self, starts: Ids, windows: Callable[[int], Iterator[NDArray[Any]]]) -> None:
        self._starts, self._windows = starts, windows
        self._buffers: dict[int, _WindowBuffer] = {}

    def __call__(self, positions: Ids) -> Ids:
        """Return the sample ids at positions."""
        # Each canonical node has a buffer of its latest ids, which moves ahead with the positions.
        node = np.searchsorted(self._starts, positions, side="right") - 1
        out = np.empty(len(positions), np.int64)
        for k in np.unique(node).tolist():
            mine = node == k
            places = positions[mine] - self._starts[k]  # counted from the front of the node
            buffer = self._buffers.get(k)
            if buffer is None or int(places.min()) < buffer.first:
                buffer = self._buffers[k] = _WindowBuffer(self._windows(k))
            out[mine] = buffer.take(places)
        return out


class _WindowBuffer:
    """Latest ids of a canonical node, which are generated as they are needed.

    A *place* counts the ids of the node from 0. The buffer holds a stretch of places::

        place     0 ......... first ............ first + len(buffer) ......
                  forgotten  |  in the buffer   |  not generated yet

    Args:
        windows: Ids of the node in order, as arrays of consecutive ids.

    Attributes:
        first: Place of the first id in the buffer.
    """

    def __init__(self, windows: Iterator[NDArray[Any]]) -> None:
        self._windows = windows
        self._buffer: NDArray[Any] = np.zeros(0, np.int64)
        self.first = 0

    def take(self, places: Ids) -> Ids:
        """Return the ids at places of the node, and generate ids up to the last of them.

        No place may be before ``first``. Afterwards, places that are more than
        ``_MAX_LOOKBACK_SAMPLES`` before the lowest one may be forgotten.
        """
        # The first place to keep, and the last one to generate.
        low, high = int(places.min()) - _MAX_LOOKBACK_SAMPLES, int(places.max())
        pieces = [self._buffer] if len(self._buffer) else []
        end = self.first + len(self._buffer)
        while end <= high:
            # A copy, since the next window may overwrite this one.
            pieces.append(next(self._windows).copy())
            end += len(pieces[-1])
            # Forget pieces that are wholly before the first place to keep.
            while pieces and self.first + len(pieces[0]) <= low:
                self.first += len(pieces.pop(0))
        self._buffer = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        out = self._buffer[places - self.first]
        if low - self.first > len(self._buffer) // 2:
            # More than half of the buffer may be forgotten: copy the rest, which frees its memory.
            self._buffer = self._buffer[low - self.first :].copy()
            self.first = low
        return out
