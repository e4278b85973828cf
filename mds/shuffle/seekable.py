r"""seekable: a random-access shuffle, of which any position is computed alone.

Shards are put in a random line, anew in every epoch, and dealt to canonical nodes, whose shares
stay the same. The line of a node is cut into cells of 2**bits samples, and each cell of the output
takes its samples from a window of line cells around it (`Cells`)::

    line      | cell 0 | cell 1 | cell 2 | cell 3 | cell 4 |     shards in the order of the epoch
                         \________ window ________/
    output    | cell 0 | cell 1 | cell 2 | cell 3 | cell 4 |     cell 2 takes from cells 1, 2, 3

Each step can be undone, so every sample comes exactly once, and `find` gives the positions of a
sample.

The samples of a shard are spread evenly over a block, as by py1e, and shards are read one after the
other. The window wraps around at the ends of a node, so no sample is mixed less than another. A
shard that is large against the block is first shuffled within itself (`Line`). Nothing is drawn,
and only a few numbers for each shard are kept; an id costs about 0.1 us.

`SeekableGroup` computes ids of several orders, such as the streams of a global batch, in as many
numpy calls as one order takes: the calls cost more than the ids of a small request.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds.errors import PlanError
from mds.process.fork_safe import cached_property
from mds.shuffle.base import RandomAccessShuffle, ShuffleGroup
from mds.shuffle.permutation import (
    KeyedOrders,
    derive_key,
    finish_keys,
    hash_counters,
    keyed_order,
    partial_key,
    permute,
    permute_below,
    rounds_for,
    unpermute,
)
from mds.shuffle.shard_parts import split_at_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from mds.shuffle.base import ShuffleSpec

    Ids = NDArray[np.int64]
    Numbers = Any  # one integer for all places, or an array with an integer for each place

_TAG = 0x5EEC  # first number of all keys, so that no other algorithm has the same ones
# Second number of a key: what the key is for.
_FOR_DEAL, _FOR_LINE, _FOR_SLOTS, _FOR_CELLS, _FOR_SHARDS = range(5)
_NODE_SHIFT = 40  # bits of the number of a cell within its node; the node is counted above them
_MAX_KEPT_PARTS = 1 << 19  # of orders in other epochs, 24 bytes each


class Seekable(RandomAccessShuffle):
    """Keyed permutation within a sliding window; see the module's docstring.

    Attributes:
        parts: Parts of shards of each canonical node, the same in every epoch.
        cells: Cells of all canonical nodes, with the keys of the epoch.
        line: Line of the parts in the order of the epoch.

    Raises PlanError for a block of no samples.
    """

    uses_blocks = True

    def __init__(self, spec: ShuffleSpec) -> None:
        if spec.block_size < 1:
            raise PlanError(
                f"shuffle_block_size {spec.block_size}: seekable needs blocks of at least 1 sample."
            )
        super().__init__(spec)
        self.parts = _deal_shards(spec)
        samples, shards = spec.samples, max(len(self.parts.first_ids), 1)
        smallest = min(spec.block_size, max(samples // spec.num_canonical_nodes, 1))
        # A cell of at least the root of the block: then every cell of the window is reached.
        bits = (smallest - 1).bit_length() + 1 >> 1
        mean = samples // shards
        # A shard then lives for about a block, its own length included, as with py1e.
        spread = max(spec.block_size - mean, spec.block_size // 2)
        lengths = np.diff(self.starts)
        count = np.maximum(-(-lengths >> bits), 1)
        window = np.minimum(max(spread >> bits, 1), count)
        first_counters = np.arange(spec.num_canonical_nodes) << _NODE_SHIFT
        self.cells = Cells(bits, lengths, count, window, first_counters, 0, 0, rounds_for(bits))
        self._set_epoch_keys()

    def at_epoch(self, epoch: int) -> Seekable:
        """Return the shuffle of another epoch, which shares the arrays that all epochs share."""
        shuffle = copy.copy(self)
        shuffle.spec = dataclasses.replace(self.spec, epoch=epoch)
        shuffle._set_epoch_keys()  # noqa: SLF001 - of the same class
        return shuffle

    def _set_epoch_keys(self) -> None:
        """Set the keys and the line of the epoch."""
        parts, block = self.parts, self.spec.block_size
        self.cells = self.cells._replace(
            slot_key=self._key(_FOR_SLOTS), cell_key=self._key(_FOR_CELLS)
        )
        order = keyed_order(self._key(_FOR_LINE), len(parts.first_ids), parts.nodes)
        # Longer shards are shuffled within themselves, so that neighbours in a shard get as far
        # apart as with py1e (measured: without this 4 % less for shards of a fifth of a block,
        # 0.4 % for a tenth).
        max_unshuffled = max(block // 16, 1)
        self.line = Line(
            parts.first_ids[order], parts.sizes[order], max_unshuffled, self._key(_FOR_SHARDS)
        )

    @classmethod
    def group(cls, shuffles: Mapping[int, RandomAccessShuffle]) -> ShuffleGroup:
        """Return a group of shuffles of this class, by number, whose ids are computed together."""
        return SeekableGroup(shuffles)

    def partial_keys(self) -> list[int]:
        """Return the keys of the line, slots, cells and shards, before the epoch is added to them.

        `finish_keys` adds the number of the epoch.
        """
        purposes = (_FOR_LINE, _FOR_SLOTS, _FOR_CELLS, _FOR_SHARDS)
        return [partial_key(_TAG, purpose, self.spec.seed) for purpose in purposes]

    def _key(self, purpose: int) -> int:
        return derive_key(_TAG, purpose, self.spec.seed, self.spec.epoch)

    def ids_at(self, positions: Ids) -> Ids:
        """Return the ids at positions of the order, int64."""
        node = self._nodes_of(positions)
        start = self.starts[node]
        return self.line.ids(self.cells.of(node).line_places(positions - start) + start)

    def find(self, ids: Ids) -> Ids:
        """Return the positions in the order of ids: the inverse of `ids_at`."""
        line_places = self.line.places(ids)
        node = self._nodes_of(line_places)
        start = self.starts[node]
        return self.cells.of(node).output_places(line_places - start) + start

    def _nodes_of(self, positions: Ids) -> Ids:
        """Return the canonical node of each position, or a single number if it is the same one."""
        if self.spec.num_canonical_nodes == 1 or not len(positions):
            return np.zeros((), np.int64)
        ends = np.array([positions.min(), positions.max()])
        first, last = np.searchsorted(self.starts, ends, side="right") - 1
        # A worker mostly reads one node, and arithmetic with its numbers alone is quicker.
        if first == last:
            return np.asarray(first)
        return np.searchsorted(self.starts, positions, side="right") - 1


class _DealtParts(NamedTuple):
    """Parts of shards, dealt to canonical nodes.

    Attributes:
        first_ids, sizes: First id and number of samples of each part.
        nodes: Canonical node of each part, ascending; None if there is one node.
    """

    first_ids: Ids
    sizes: Ids
    nodes: Ids | None


def _deal_shards(spec: ShuffleSpec) -> _DealtParts:
    """Return the parts of shards that each canonical node has, the same in every epoch.

    Shards are laid out in an order by the seed and cut where a node ends, without empty ones.
    """
    sizes = spec.sizes
    first_ids = np.cumsum(sizes) - sizes
    if len(sizes) and not int(sizes.min()):
        first_ids, sizes = first_ids[sizes > 0], sizes[sizes > 0]
    if spec.num_canonical_nodes == 1:
        return _DealtParts(first_ids, sizes, None)
    order = keyed_order(derive_key(_TAG, _FOR_DEAL, spec.seed), len(sizes))
    parts = split_at_nodes(first_ids[order], sizes[order], spec)
    nodes = np.repeat(np.arange(spec.num_canonical_nodes), np.diff(parts.edges))
    return _DealtParts(parts.begin, parts.size, nodes)


# ------------------------------------------------------------------------------- cells


class Cells(NamedTuple):
    """Cells of canonical nodes, by which places in the output take samples from the line.

    A field is one number for all places, or an array with the number of the node of each place.

    Slot s of output cell c takes its sample from the line like this::

        lane   = permute(s) by slot_key and c            which of the 2**bits lanes
        source = c - (lane * window / 2**bits - window / 2)   the line cell, around the ends
        sample = permute(lane) by cell_key and source    which sample of that cell

    A lane is so a sample of a line cell, and output cells that take the same lane are different
    ones: each step can be undone.

    Attributes:
        bits: Binary logarithm of the samples of a cell.
        samples: Samples of the node.
        count: Cells of the node.
        window: Line cells from which an output cell takes its samples.
        first_counter: Counter of the node's first cell, by which cells are hashed.
        slot_key, cell_key: Keys of the two permutations.
        rounds: Feistel rounds of the permutations.
    """

    bits: Numbers
    samples: Numbers
    count: Numbers
    window: Numbers
    first_counter: Numbers
    slot_key: Numbers
    cell_key: Numbers
    rounds: int

    def of(self, indexes: Any) -> Cells:
        """Return the fields at these indexes, one for each place.

        Fields that are one number for all stay. `Seekable` keeps a number for each canonical node,
        so its indexes are the nodes of places.
        """
        fields: tuple[Any, ...] = self
        return Cells._make(each if np.ndim(each) == 0 else each[indexes] for each in fields)

    def line_places(self, output_places: Ids) -> Ids:
        """Return the places in the line from which places of the output take their samples."""
        return self._repeat_until_inside(output_places, Cells._to_line)

    def output_places(self, line_places: Ids) -> Ids:
        """Return the places in the output of places in the line: inverse of `line_places`."""
        return self._repeat_until_inside(line_places, Cells._to_output)

    def _repeat_until_inside(self, places: Ids, step: Callable[[Cells, Ids], Ids]) -> Ids:
        """Return places after a step, repeated for those that it moves beyond the node's end.

        The last cell of a node may be larger than the samples that remain for it. Repeating a
        permutation of the larger range until the place is inside keeps it a permutation.
        """
        out = step(self, places)
        outside = np.flatnonzero(out >= self.samples)
        while len(outside):
            outside_cells = self.of(outside)
            again = step(outside_cells, out[outside])
            out[outside] = again
            outside = outside[again >= outside_cells.samples]
        return out

    def _to_line(self, place: Ids) -> Ids:
        """Return the place in the line of each place in the output, maybe beyond the node's end.

        Slot, lane, source and sample are those of the formulas of `Cells`.
        """
        cell = place >> self.bits
        slot = (place - (cell << self.bits)).astype(np.uint32)
        lane = permute(slot, self._keys(self.slot_key, cell), self._word_bits, self.rounds)
        source = self._wrap(cell - self._shift(lane))
        keys = self._keys(self.cell_key, source)
        sample = permute(lane, keys, self._word_bits, self.rounds)
        source <<= self.bits
        source += sample
        return source

    def _to_output(self, place: Ids) -> Ids:
        """Return the place in the output of each place in the line: the inverse of `_to_line`.

        It takes the steps of the formulas of `Cells` in reverse order.
        """
        source = place >> self.bits
        sample = (place - (source << self.bits)).astype(np.uint32)
        keys = self._keys(self.cell_key, source)
        lane = unpermute(sample, keys, self._word_bits, self.rounds)
        cell = self._wrap(source + self._shift(lane))
        slot = unpermute(lane, self._keys(self.slot_key, cell), self._word_bits, self.rounds)
        cell <<= self.bits
        cell += slot
        return cell

    @property
    def _word_bits(self) -> Any:
        """Field ``bits`` as `permute` takes it: one number, or uint32 of shape (n,)."""
        return self.bits if np.ndim(self.bits) == 0 else self.bits.astype(np.uint32)

    def _keys(self, key: Numbers, cell: Ids) -> NDArray[np.uint64]:
        """Return the key of each cell, uint64: a hash of the cell by a key of the epoch."""
        return hash_counters(key, cell + self.first_counter)

    def _shift(self, lane: NDArray[np.uint32]) -> Ids:
        """Return the number of cells by which a lane moves ahead in the output.

        Lanes are spread evenly from half a window back (negative) to half a window ahead.
        """
        ahead: Ids = np.multiply(lane, self.window, dtype=np.int64)
        ahead >>= self.bits
        ahead -= self.window >> 1
        return ahead

    def _wrap(self, cell: Ids) -> Ids:
        """Wrap numbers of cells around the ends of the node, in place."""
        cell += (cell < 0) * self.count
        cell -= (cell >= self.count) * self.count
        return cell


# ------------------------------------------------------------------------------- line of shards


class Line:
    """Parts of shards end to end, in the order of an epoch: from a place in it to an id and back.

    A lookup is a binary search in the ends of the parts.

    Args:
        first_ids, sizes: First id and number of samples of each part.
        max_unshuffled: Samples up to which a part keeps its order; a longer one is shuffled within
            itself.
        key: Key of these shuffles.
    """

    def __init__(self, first_ids: Ids, sizes: Ids, max_unshuffled: int, key: int) -> None:
        self.first_ids, self.sizes, self.key = first_ids, sizes, key
        self.max_unshuffled = max_unshuffled
        self.ends = np.cumsum(sizes)
        self.has_long = bool(len(sizes)) and int(sizes.max()) > max_unshuffled

    def ids(self, places: Ids) -> Ids:
        """Return the id at each place of the line, int64."""
        # Find the part of each place and the offset in it, shuffled if the part is long.
        part = np.searchsorted(self.ends, places, side="right")
        size = self.sizes[part]
        offset = places - (self.ends[part] - size)
        if self.has_long:
            _shuffle_long_parts(offset, size, part, self.max_unshuffled, self.key)
        offset += self.first_ids[part]
        return offset

    def places(self, ids: Ids) -> Ids:
        """Return the places of ids: the inverse of `ids`."""
        order, sorted_first_ids = self._parts_by_id
        part = order[np.searchsorted(sorted_first_ids, ids, side="right") - 1]
        size = self.sizes[part]
        offset = ids - self.first_ids[part]
        if self.has_long:
            _shuffle_long_parts(offset, size, part, self.max_unshuffled, self.key, inverse=True)
        offset += self.ends[part] - size
        return offset

    @cached_property
    def _parts_by_id(self) -> tuple[NDArray[np.intp], Ids]:
        """Order of the parts by their first ids, and the sorted first ids."""
        order = np.argsort(self.first_ids)
        return order, self.first_ids[order]


def _shuffle_long_parts(
    offsets: Ids,
    sizes: Ids,
    parts: Ids,
    max_unshuffled: Numbers,
    key: Numbers,
    *,
    inverse: bool = False,
) -> None:
    """Shuffle offsets within parts that are long, in place.

    Args:
        offsets: Offset of each sample in its part.
        sizes: Size of the part of each sample.
        parts: Number of the part of each sample, by which its key is made.
        max_unshuffled, key: As of a `Line`: one number for all samples, or one each.
        inverse: Whether to undo the shuffle.
    """
    is_long = np.flatnonzero(sizes > max_unshuffled)
    if len(is_long):
        keys = hash_counters(key if np.ndim(key) == 0 else key[is_long], parts[is_long])
        offsets[is_long] = permute_below(offsets[is_long], sizes[is_long], keys, inverse=inverse)


# ------------------------------------------------------------------------------- groups


class _OrderEpoch(NamedTuple):
    """Order of a group in one epoch.

    Attributes:
        keys: Keys of slots, cells and shards.
        first_ids, sizes: First id and size of each part, in the order of the epoch.
        ends: End of each part in the lines of all orders laid end to end.
    """

    keys: tuple[np.uint64, ...]
    first_ids: Ids
    sizes: Ids
    ends: Ids


class SeekableGroup(ShuffleGroup):
    """Several seekable orders, by their numbers, whose ids are computed together.

    The fields of all orders are joined: an array has an entry for each order, for each canonical
    node of each order, or for each part of each order. `_order_epochs` computes what depends on the
    epoch.

    Args:
        shuffles: Orders (`Seekable`) by numbers that the caller chooses.
    """

    def __init__(self, shuffles: Mapping[int, Any]) -> None:
        super().__init__(shuffles)
        self.shuffles: dict[int, Any]
        orders = list(shuffles.values())
        self._index_of_number = np.zeros(max(shuffles) + 1, np.int64)
        self._index_of_number[list(shuffles)] = np.arange(len(orders))
        # By order.
        self._samples = np.array([each.spec.samples for each in orders])
        self._nodes = np.array([each.spec.num_canonical_nodes for each in orders])
        parts = [each.parts for each in orders]
        self._keyed_orders = KeyedOrders([(len(each.first_ids), each.nodes) for each in parts])
        self._partial_keys = np.array([each.partial_keys() for each in orders], np.uint64).T
        self._samples_before, self._first_node = _starts(self._samples), _starts(self._nodes)
        self._first_part = self._keyed_orders.starts[:-1]
        self._rounds = np.array([each.cells.rounds for each in orders])
        self._distinct_rounds = np.unique(self._rounds).tolist()
        self._shard_keys = np.empty(len(orders), np.uint64)
        self._max_unshuffled = np.array([each.line.max_unshuffled for each in orders])
        self._has_long = any(each.line.has_long for each in orders)
        # By canonical node.
        self._node_starts = np.concatenate([each.starts[:-1] for each in orders])
        distinct_bits = {each.cells.bits for each in orders}
        bits = np.repeat([each.cells.bits for each in orders], self._nodes)
        samples, count, window, first_counter = (
            np.concatenate([getattr(each.cells, name) for each in orders])
            for name in ("samples", "count", "window", "first_counter")
        )
        slot_key, cell_key = (np.empty(len(bits), np.uint64) for _ in range(2))
        self._cells = Cells(
            # Shifts by one number are quicker.
            bits if len(distinct_bits) > 1 else distinct_bits.pop(),
            *(samples, count, window, first_counter, slot_key, cell_key),
            rounds=0,
        )
        # By part, as dealt and in the order of the epoch.
        self._dealt_first_ids = np.concatenate([each.first_ids for each in parts])
        self._dealt_sizes = np.concatenate([each.sizes for each in parts])
        self._first_ids, self._sizes, self._ends = (
            np.empty_like(self._dealt_first_ids) for _ in range(3)
        )
        self._epochs: dict[tuple[int, int], _OrderEpoch] = {}
        self._set_epochs(np.arange(len(orders)), np.array([each.spec.epoch for each in orders]))

    def at_epochs(self, numbers: Ids, epochs: Ids) -> SeekableGroup:
        """Return a group in which some orders are of other epochs.

        ``epochs`` has the new epoch of the order with the number beside it in ``numbers``.
        """
        # Arrays that depend on epochs are copied; the others are shared.
        group = copy.copy(self)
        cells = self._cells
        group._cells = cells._replace(  # noqa: SLF001 - of the same class
            slot_key=cells.slot_key.copy(), cell_key=cells.cell_key.copy()
        )
        for name in ("_shard_keys", "_first_ids", "_sizes", "_ends"):
            setattr(group, name, getattr(self, name).copy())
        group._set_epochs(self._index_of_number[numbers], epochs)  # noqa: SLF001 - same class
        return group

    def _set_epochs(self, orders: Ids, epochs: Ids) -> None:
        """Set the keys and the lines of orders to those of epochs.

        ``orders`` are indexes of orders in the group; ``epochs`` has the epoch of each.
        """
        pairs, kept_epochs = list(zip(orders.tolist(), epochs.tolist(), strict=True)), self._epochs
        # Compute the epochs of orders that are not kept, then copy all into the joined arrays.
        is_new = np.array([pair not in kept_epochs for pair in pairs])
        if is_new.any():
            if sum(len(each.sizes) for each in kept_epochs.values()) > _MAX_KEPT_PARTS:
                kept_epochs = {pair: kept_epochs[pair] for pair in pairs if pair in kept_epochs}
            # A new table each time, since threads may ask at the same time.
            self._epochs = kept_epochs = {
                **kept_epochs,
                **self._order_epochs(orders[is_new], epochs[is_new]),
            }
        for order, epoch in pairs:
            self._copy_epoch(order, kept_epochs[order, epoch])

    def _order_epochs(self, orders: Ids, epochs: Ids) -> dict[tuple[int, int], _OrderEpoch]:
        """Return orders in epochs, by pairs of an order's index and its epoch.

        All are computed together, with as many numpy calls as one takes.
        """
        line_keys, *keys = (finish_keys(partial[orders], epochs) for partial in self._partial_keys)
        keyed_orders = self._keyed_orders.subset(orders)
        lengths = np.diff(keyed_orders.starts)
        parts = keyed_orders.orders(np.repeat(line_keys, lengths))
        parts += np.repeat(self._first_part[orders], lengths)
        first_ids, sizes = self._dealt_first_ids[parts], self._dealt_sizes[parts]
        # Ends in the lines of all orders, not only of those that are computed here.
        before = self._samples_before[orders] - _starts(self._samples[orders])
        ends = sizes.cumsum() + np.repeat(before, lengths)
        edges = itertools.pairwise(keyed_orders.starts.tolist())
        pairs = zip(orders.tolist(), epochs.tolist(), strict=True)
        return {
            pair: _OrderEpoch(
                keys_of_order,
                first_ids[first:last].copy(),
                sizes[first:last].copy(),
                ends[first:last].copy(),
            )
            for pair, (first, last), keys_of_order in zip(
                pairs, edges, zip(*keys, strict=True), strict=True
            )
        }

    def _copy_epoch(self, order: int, epoch: _OrderEpoch) -> None:
        """Copy the keys and the line of one order in an epoch into the joined arrays.

        ``order`` is the index of the order in the group.
        """
        node, part = int(self._first_node[order]), int(self._first_part[order])
        nodes = slice(node, node + int(self._nodes[order]))
        slot_key, cell_key, self._shard_keys[order] = epoch.keys
        self._cells.slot_key[nodes], self._cells.cell_key[nodes] = slot_key, cell_key
        parts = slice(part, part + len(epoch.sizes))
        self._first_ids[parts], self._sizes[parts] = epoch.first_ids, epoch.sizes
        self._ends[parts] = epoch.ends

    def ids_at(self, numbers: Ids, positions: Ids) -> Ids:
        """Return the id at each position of the order with the number beside it, int64.

        The steps are those of `Seekable.ids_at` and `Line.ids`, on the joined arrays.
        """
        order = self._index_of_number[numbers]
        # Node k begins at k * samples // nodes, so this is the last that begins at or before it.
        node = ((positions + 1) * self._nodes[order] - 1) // self._samples[order]
        node += self._first_node[order]
        start = self._node_starts[node]
        line_places = self._line_places(order, node, positions - start)
        line_places += start
        line_places += self._samples_before[order]
        part = self._ends.searchsorted(line_places, side="right")
        size = self._sizes[part]
        line_places -= self._ends[part] - size
        offset = line_places
        if self._has_long:
            part_of_order = part - self._first_part[order]
            max_unshuffled, keys = self._max_unshuffled[order], self._shard_keys[order]
            _shuffle_long_parts(offset, size, part_of_order, max_unshuffled, keys)
        offset += self._first_ids[part]
        return offset

    def _line_places(self, order: Ids, node: Ids, places: Ids) -> Ids:
        """Return the place in its node's line of each place in its node's output.

        ``order`` and ``node`` have the indexes of the order and of the node of each place.
        """
        if len(self._distinct_rounds) == 1:
            cells = self._cells._replace(rounds=self._distinct_rounds[0])
            return cells.of(node).line_places(places)
        rounds, out = self._rounds[order], np.empty(len(places), np.int64)
        for count in self._distinct_rounds:
            mine = np.flatnonzero(rounds == count)
            cells = self._cells._replace(rounds=count)
            out[mine] = cells.of(node[mine]).line_places(places[mine])
        return out


def _starts(lengths: Ids) -> Ids:
    """Return the start of each of these lengths when they are laid end to end."""
    return np.cumsum(lengths) - lengths
