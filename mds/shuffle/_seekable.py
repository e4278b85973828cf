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

Words: an *id* numbers a sample through all shards. A *part* is a run of ids of one shard that one
canonical node has; a shard is cut in parts where a node ends. The *line* lays parts end to end. A
*position* counts samples in the whole order, and a *place* counts them in the line or in the output
of one node.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds._process.fork_safe import cached_property
from mds.errors import PlanError
from mds.shuffle._base import RandomAccessShuffle, ShuffleGroup
from mds.shuffle._permutation import (
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
from mds.shuffle._shard_parts import split_at_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from mds.shuffle._base import ShuffleSpec

    Ids = NDArray[np.int64]
    Numbers = Any  # one integer for all places, or an array with an integer for each place

_TAG = 0x5EEC  # first number of all keys, so that no other algorithm has the same ones
# Second number of a key: what the key is for.
_FOR_DEAL, _FOR_LINE, _FOR_SLOTS, _FOR_CELLS, _FOR_SHARDS = range(5)
# The counter of a cell, by which it is hashed, is node << 40 | number of the cell in its node.
_NODE_SHIFT = 40
_MAX_KEPT_PARTS = 1 << 19  # parts that a group keeps of orders in all epochs, 24 bytes each


class Seekable(RandomAccessShuffle):
    """Keyed permutation within a sliding window; see the module's docstring.

    Attributes:
        parts: Parts of shards of each canonical node, the same in every epoch.
        cells: Cells of all canonical nodes, with the keys of the epoch. They move samples within
            the line of a node.
        line: Line of the parts of all nodes, in the order of the epoch. It tells the id at a place.

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
        # A cell has at least as many samples as its window has cells, so that it takes samples of
        # all of them: at least the square root of a block. Blocks of 2**18 have cells of 512.
        block = min(spec.block_size, max(spec.samples // spec.num_canonical_nodes, 1))
        bits = (block - 1).bit_length() + 1 >> 1
        # Samples over which those of a shard are spread. A shard then is in use for about a block,
        # its own length included, as with py1e.
        mean_part = spec.samples // max(len(self.parts.first_ids), 1)
        spread = max(spec.block_size - mean_part, spec.block_size // 2)
        lengths = np.diff(self.starts)
        count = np.maximum(-(-lengths >> bits), 1)  # lengths / 2**bits, rounded up
        self.cells = Cells(
            bits=bits,
            samples=lengths,
            count=count,
            window=np.minimum(max(spread >> bits, 1), count),
            first_counter=np.arange(spec.num_canonical_nodes) << _NODE_SHIFT,
            slot_key=0,
            cell_key=0,
            rounds=rounds_for(bits),
        )
        self._set_epoch_keys()

    def at_epoch(self, epoch: int) -> Seekable:
        """Return the shuffle of another epoch; arrays that are equal in all epochs are shared."""
        shuffle = copy.copy(self)
        shuffle.spec = dataclasses.replace(self.spec, epoch=epoch)
        shuffle._set_epoch_keys()  # noqa: SLF001 - of the same class
        return shuffle

    def _set_epoch_keys(self) -> None:
        """Set the keys of the cells, and the line, to those of the epoch in ``spec``."""
        parts, block = self.parts, self.spec.block_size
        self.cells = self.cells._replace(
            slot_key=self._key(_FOR_SLOTS), cell_key=self._key(_FOR_CELLS)
        )
        # Parts are sorted by hash within their nodes, and nodes stay in order.
        order = keyed_order(self._key(_FOR_LINE), len(parts.first_ids), parts.nodes)
        # Longer parts are shuffled within themselves, so that neighbours in a shard get as far
        # apart as with py1e. (Measured without this: 4 % less far for shards of a fifth of a
        # block, 0.4 % for a tenth.)
        max_unshuffled = max(block // 16, 1)
        self.line = Line(
            parts.first_ids[order], parts.sizes[order], max_unshuffled, self._key(_FOR_SHARDS)
        )

    @classmethod
    def shard_sequence(cls, spec: ShuffleSpec) -> Ids:
        """Return the shards that have samples in the sequence that is cut into canonical nodes."""
        shards = np.flatnonzero(spec.sizes)
        return shards[keyed_order(derive_key(_TAG, _FOR_DEAL, spec.seed), len(shards))]

    @classmethod
    def group(cls, shuffles: Mapping[int, RandomAccessShuffle]) -> ShuffleGroup:
        """Return a group of shuffles of this class, by number, whose ids are computed together."""
        return SeekableGroup(shuffles)

    def partial_keys(self) -> list[int]:
        """Return the keys of the line, slots, cells and shards, which lack only the epoch.

        `finish_keys` makes keys of any epoch of them. `SeekableGroup` does so for many orders at
        once.
        """
        purposes = (_FOR_LINE, _FOR_SLOTS, _FOR_CELLS, _FOR_SHARDS)
        return [partial_key(_TAG, purpose, self.spec.seed) for purpose in purposes]

    def _key(self, purpose: int) -> int:
        return derive_key(_TAG, purpose, self.spec.seed, self.spec.epoch)

    def ids_at(self, positions: Ids) -> Ids:
        """Return the ids at positions of the order, int64."""
        # Position -> place in the node's output -> place in the node's line -> id. The line of all
        # nodes lays those of the nodes end to end, so the same start is subtracted and added.
        node = self._nodes_of(positions)
        start = self.starts[node]
        line_places = self.cells.of(node).line_places(positions - start)
        return self.line.ids(line_places + start)

    def find(self, ids: Ids) -> Ids:
        """Return the position of each id in the order: the inverse of `ids_at`."""
        line_places = self.line.places(ids)
        node = self._nodes_of(line_places)
        start = self.starts[node]
        return self.cells.of(node).output_places(line_places - start) + start

    def _nodes_of(self, positions: Ids) -> Ids:
        """Return the canonical node of each position; an array of no dimension if all have one."""
        if self.spec.num_canonical_nodes == 1 or not len(positions):
            return np.zeros((), np.int64)
        ends = np.array([positions.min(), positions.max()])
        first, last = np.searchsorted(self.starts, ends, side="right") - 1
        # A worker mostly reads one node, and arithmetic with one number is quicker than with many.
        if first == last:
            return np.asarray(first)
        return np.searchsorted(self.starts, positions, side="right") - 1


class _DealtParts(NamedTuple):
    """Parts of shards, dealt to canonical nodes. All arrays have the shape (parts,).

    Attributes:
        first_ids, sizes: First id and number of samples of each part.
        nodes: Canonical node of each part, ascending; None if there is only one node.
    """

    first_ids: Ids
    sizes: Ids
    nodes: Ids | None


def _deal_shards(spec: ShuffleSpec) -> _DealtParts:
    """Return the parts of shards that each canonical node has, the same in every epoch.

    Shards are laid end to end, in an order that depends on the seed alone, and cut where a node
    ends. Shards without samples are left out.
    """
    sizes = spec.sizes
    first_ids = np.cumsum(sizes) - sizes
    if spec.num_canonical_nodes == 1:
        is_filled = sizes > 0
        return _DealtParts(first_ids[is_filled], sizes[is_filled], None)
    sequence = Seekable.shard_sequence(spec)
    parts = split_at_nodes(first_ids[sequence], sizes[sequence], spec)
    nodes = np.repeat(np.arange(spec.num_canonical_nodes), np.diff(parts.edges))
    return _DealtParts(parts.begin, parts.size, nodes)


# ------------------------------------------------------------------------------- cells


class Cells(NamedTuple):
    """Cells of canonical nodes: they tell from which place in the line an output place is filled.

    Place p of a node's output is slot ``s = p % 2**bits`` of cell ``c = p // 2**bits``. Its sample
    comes from this place in the node's line::

        lane   = permute(s) by slot_key and c                 a number below 2**bits
        source = c - (lane * window / 2**bits - window / 2)   a cell of the line, near c
        sample = permute(lane) by cell_key and source         a sample of that cell
        place  = source * 2**bits + sample

    So a lane decides how far away the source is. With cells of 4 samples and a window of 4, lanes 0
    to 3 take from the cells c + 2, c + 1, c and c - 1; numbers of cells wrap around at the node's
    ends. The steps can be undone: a place in the line gives its lane, and the lane gives c.

    Attributes:
        bits: Binary logarithm of the samples of a cell.
        samples: Samples of the node.
        count: Cells of the node.
        window: Number of line cells from which an output cell takes its samples.
        first_counter: Counter of the node's first cell, by which cells are hashed.
        slot_key, cell_key: Keys of the two permutations.
        rounds: Feistel rounds of the permutations.

    Each attribute but ``rounds`` is one number, or an array: with an entry for each canonical node,
    or after `of` with an entry for each place that is computed, the one of its node.
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
        """Return cells whose arrays have the entries at these indexes; single numbers stay.

        For places in the canonical nodes 0, 0 and 2, ``cells.of([0, 0, 2])`` has the numbers of the
        node of each place.
        """
        fields: tuple[Any, ...] = self
        return Cells._make(each if np.ndim(each) == 0 else each[indexes] for each in fields)

    def line_places(self, output_places: Ids) -> Ids:
        """Return the places in the line from which places of the output take their samples."""
        return self._repeat_until_inside(output_places, Cells._to_line)

    def output_places(self, line_places: Ids) -> Ids:
        """Return the places in the output that take from places in the line.

        This is the inverse of `line_places`.
        """
        return self._repeat_until_inside(line_places, Cells._to_output)

    def _repeat_until_inside(self, places: Ids, step: Callable[[Cells, Ids], Ids]) -> Ids:
        """Return the places to which ``step`` moves ``places``.

        The step is repeated for places that it moves beyond the node's end: a node of 10 samples
        has 3 cells of 4, so a step permutes 12 places, of which 10 and 11 have no sample. Repeating
        a permutation of 12 until a place is below 10 gives a permutation of 10 (cycle walking).
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
        source = self._wrap(cell - self._cells_ahead(lane))
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
        cell = self._wrap(source + self._cells_ahead(lane))
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

    def _cells_ahead(self, lane: NDArray[np.uint32]) -> Ids:
        """Return how many cells the output cell of a lane is ahead of the line cell it takes from.

        The formula is lane * window / 2**bits - window / 2, from half a window back (negative) to
        half a window ahead: with 2**bits = 4 and a window of 4, lanes 0 to 3 give -2, -1, 0 and 1.
        """
        ahead: Ids = np.multiply(lane, self.window, dtype=np.int64)
        ahead >>= self.bits
        ahead -= self.window >> 1
        return ahead

    def _wrap(self, cell: Ids) -> Ids:
        """Wrap numbers of cells around the ends of the node, in place, and return them.

        With 5 cells, -1 becomes 4 and 6 becomes 1. No number is further outside than ``count``.
        """
        cell += (cell < 0) * self.count
        cell -= (cell >= self.count) * self.count
        return cell


# ------------------------------------------------------------------------------- line of shards


class Line:
    """Parts of shards laid end to end, in the order of an epoch; finds the id at a place and back.

    With the first ids (20, 0) and the sizes (3, 5), the places 0 to 7 have the ids 20, 21, 22, 0,
    1, 2, 3, 4. A lookup is a binary search in the ends of the parts, here (3, 8).

    Args:
        first_ids, sizes: First id and number of samples of each part.
        max_unshuffled: Samples up to which a part keeps its order. Longer parts are shuffled within
            themselves.
        key: Key of the shuffles within parts.
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
        return offset  # which is the id now

    def places(self, ids: Ids) -> Ids:
        """Return the place of each id in the line: the inverse of `ids`."""
        # Find the part of each id: the last one that begins at the id or before it.
        order, sorted_first_ids = self._parts_by_id
        part = order[np.searchsorted(sorted_first_ids, ids, side="right") - 1]
        size = self.sizes[part]
        offset = ids - self.first_ids[part]
        if self.has_long:
            _shuffle_long_parts(offset, size, part, self.max_unshuffled, self.key, inverse=True)
        offset += self.ends[part] - size
        return offset  # which is the place in the line now

    @cached_property
    def _parts_by_id(self) -> tuple[NDArray[np.intp], Ids]:
        """Indexes of the parts sorted by their first ids, and the sorted first ids."""
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
    """Shuffle the offsets of samples within their parts, in place; those in short parts stay.

    All arrays have an entry for each sample.

    Args:
        offsets: Offset of each sample in its part, which is replaced by the shuffled one.
        sizes: Size of the part of each sample.
        parts: Number of the part of each sample in the line; each part has a key of its own.
        max_unshuffled, key: Arguments of `Line`: one number for all samples, or one for each.
        inverse: Whether to undo the shuffle.
    """
    is_long = np.flatnonzero(sizes > max_unshuffled)
    if len(is_long):
        keys = hash_counters(key if np.ndim(key) == 0 else key[is_long], parts[is_long])
        offsets[is_long] = permute_below(offsets[is_long], sizes[is_long], keys, inverse=inverse)


# ------------------------------------------------------------------------------- groups


class _OrderEpoch(NamedTuple):
    """Keys and line of one order of a group in one epoch.

    Attributes:
        keys: Keys of slots, cells and shards, as `Seekable.partial_keys` lists them.
        first_ids, sizes: First id and size of each part, in the order of the epoch.
        ends: End of each part, where the lines of all orders of the group are laid end to end.
    """

    keys: tuple[np.uint64, ...]
    first_ids: Ids
    sizes: Ids
    ends: Ids


class SeekableGroup(ShuffleGroup):
    """Several seekable orders, whose ids are computed together.

    The fields of all orders are joined to flat arrays. Some have an entry for each order, some for
    each canonical node of each order, and some for each part of each order::

        orders    |          order 0         |     order 1     |
        nodes     |   node 0    |   node 1   |     node 0      |     _first_node: 0, 2
        parts     | part 0 | part 1 | part 2 | part 0 | part 1 |     _first_part: 0, 3

    An order has a *number*, its key in ``shuffles``, and an *index*, its place in these arrays.
    `_order_epochs` computes what depends on the epoch.

    Args:
        shuffles: Orders (`Seekable`) by numbers that the caller chooses, such as those of streams.
    """

    def __init__(self, shuffles: Mapping[int, Any]) -> None:
        super().__init__(shuffles)
        self.shuffles: dict[int, Any]
        orders = list(shuffles.values())
        # From numbers to indexes; entries of numbers without an order are not used.
        self._index_of_number = np.zeros(max(shuffles) + 1, np.int64)
        self._index_of_number[list(shuffles)] = np.arange(len(orders))
        # Arrays with an entry for each order: sizes, keys, and first entries in the other arrays.
        self._samples = np.array([each.spec.samples for each in orders])
        self._nodes = np.array([each.spec.num_canonical_nodes for each in orders])
        parts = [each.parts for each in orders]
        self._keyed_orders = KeyedOrders([(len(each.first_ids), each.nodes) for each in parts])
        # Keys that lack only the epoch: a row each for those of lines, slots, cells and shards.
        self._partial_keys = np.array([each.partial_keys() for each in orders], np.uint64).T
        self._samples_before, self._first_node = _starts(self._samples), _starts(self._nodes)
        self._first_part = self._keyed_orders.starts[:-1]
        self._rounds = np.array([each.cells.rounds for each in orders])
        self._distinct_rounds = np.unique(self._rounds).tolist()
        # Arrays made with np.empty here and below depend on epochs: `_set_epochs` fills them.
        self._shard_keys = np.empty(len(orders), np.uint64)
        self._max_unshuffled = np.array([each.line.max_unshuffled for each in orders])
        self._has_long = any(each.line.has_long for each in orders)
        # Arrays with an entry for each canonical node of each order.
        self._node_starts = np.concatenate([each.starts[:-1] for each in orders])
        # The same where all orders are laid end to end.
        self._joined_starts = self._node_starts + np.repeat(self._samples_before, self._nodes)
        distinct_bits = {each.cells.bits for each in orders}
        bits = np.repeat([each.cells.bits for each in orders], self._nodes)
        samples, count, window, first_counter = (
            np.concatenate([getattr(each.cells, name) for each in orders])
            for name in ("samples", "count", "window", "first_counter")
        )
        slot_key, cell_key = (np.empty(len(bits), np.uint64) for _ in range(2))
        self._cells = Cells(
            # One number if all orders have the same: shifts by a number are quicker.
            bits if len(distinct_bits) > 1 else distinct_bits.pop(),
            *(samples, count, window, first_counter, slot_key, cell_key),
            rounds=0,  # `_line_places` sets the number of each order
        )
        # Arrays with an entry for each part of each order. First in the sequence in which parts
        # were dealt to nodes, the same in all epochs; then in the order of the epoch.
        self._dealt_first_ids = np.concatenate([each.first_ids for each in parts])
        self._dealt_sizes = np.concatenate([each.sizes for each in parts])
        self._first_ids, self._sizes, self._ends = (
            np.empty_like(self._dealt_first_ids) for _ in range(3)
        )
        # Epochs that were computed before, by (index of the order, epoch).
        self._epochs: dict[tuple[int, int], _OrderEpoch] = {}
        self._set_epochs(np.arange(len(orders)), np.array([each.spec.epoch for each in orders]))

    def at_epochs(self, numbers: Ids, epochs: Ids) -> SeekableGroup:
        """Return a group in which order ``numbers[i]`` is of epoch ``epochs[i]``.

        Other orders keep their epochs, and this group is not changed.
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
        """Set the keys and the line of each order to those of its epoch, in the joined arrays.

        ``orders`` are indexes of orders in the group; ``epochs`` has the epoch of each. Epochs that
        were computed before are kept in ``_epochs`` and used again.
        """
        pairs, cached_epochs = (
            list(zip(orders.tolist(), epochs.tolist(), strict=True)),
            self._epochs,
        )
        is_new = np.array([pair not in cached_epochs for pair in pairs])
        if is_new.any():
            if sum(len(each.sizes) for each in cached_epochs.values()) > _MAX_KEPT_PARTS:
                # Bound the memory: drop all epochs but those that are asked for now.
                cached_epochs = {
                    pair: cached_epochs[pair] for pair in pairs if pair in cached_epochs
                }
            # A new dict each time, since other threads may be reading the former one.
            self._epochs = cached_epochs = {
                **cached_epochs,
                **self._order_epochs(orders[is_new], epochs[is_new]),
            }
        for order, epoch in pairs:
            self._copy_epoch(order, cached_epochs[order, epoch])

    def _order_epochs(self, orders: Ids, epochs: Ids) -> dict[tuple[int, int], _OrderEpoch]:
        """Return keys and line of orders in some epochs, by (index of the order, epoch).

        ``orders`` are indexes of orders in the group; ``epochs`` has the epoch of each. All are
        computed together, with as many numpy calls as a single one takes.
        """
        # Four arrays with a key for each order; those of slots, cells and shards stay together.
        line_keys, *keys = (finish_keys(partial[orders], epochs) for partial in self._partial_keys)
        keyed_orders = self._keyed_orders.subset(orders)
        lengths = np.diff(keyed_orders.starts)  # parts of each order
        # The order of each order's parts in its epoch, as indexes in the joined arrays.
        parts = keyed_orders.orders(np.repeat(line_keys, lengths))
        parts += np.repeat(self._first_part[orders], lengths)
        first_ids, sizes = self._dealt_first_ids[parts], self._dealt_sizes[parts]
        # Ends of parts in the lines of all orders, not only of those that are computed here. If a
        # group has orders of 10, 20 and 30 samples, and the last two are computed, then 10 samples
        # of the first one are before each.
        samples_between = self._samples_before[orders] - _starts(self._samples[orders])
        ends = sizes.cumsum() + np.repeat(samples_between, lengths)
        # Split the arrays by order. Copies, as a view would keep the whole array in memory.
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

        ``order`` is the index of the order in the group, whose entries are replaced.
        """
        node, part = int(self._first_node[order]), int(self._first_part[order])
        nodes = slice(node, node + int(self._nodes[order]))  # all nodes have the same keys
        slot_key, cell_key, self._shard_keys[order] = epoch.keys
        self._cells.slot_key[nodes], self._cells.cell_key[nodes] = slot_key, cell_key
        parts = slice(part, part + len(epoch.sizes))
        self._first_ids[parts], self._sizes[parts] = epoch.first_ids, epoch.sizes
        self._ends[parts] = epoch.ends

    def ids_at(self, numbers: Ids, positions: Ids) -> Ids:
        """Return the id at position ``positions[i]`` of order ``numbers[i]``, int64 of shape (n,).

        The steps are those of `Seekable.ids_at` and `Line.ids`, on the joined arrays.
        """
        order = self._index_of_number[numbers]
        # The last node that begins at the position or before it, in the joined arrays.
        joined_positions = positions + self._samples_before[order]
        node = self._joined_starts.searchsorted(joined_positions, side="right") - 1
        start = self._node_starts[node]
        line_places = self._line_places(order, node, positions - start)
        # From the line of a node to that of its order, and to those of all orders end to end.
        line_places += start
        line_places += self._samples_before[order]
        part = self._ends.searchsorted(line_places, side="right")
        size = self._sizes[part]
        line_places -= self._ends[part] - size
        offset = line_places  # the same array, which has the offset in the part now
        if self._has_long:
            part_of_order = part - self._first_part[order]
            max_unshuffled, keys = self._max_unshuffled[order], self._shard_keys[order]
            _shuffle_long_parts(offset, size, part_of_order, max_unshuffled, keys)
        offset += self._first_ids[part]
        return offset  # which is the id now

    def _line_places(self, order: Ids, node: Ids, places: Ids) -> Ids:
        """Return for each place in a node's output the place in the same node's line.

        ``order`` and ``node`` have, for each place, the entry of its order and of its node in the
        joined arrays. A call of `Cells` has one number of rounds, so places of orders with another
        number are computed by a call of their own.
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
    """Return the start of each of these lengths, laid end to end: (3, 5, 2) give (0, 3, 8)."""
    return np.cumsum(lengths) - lengths
