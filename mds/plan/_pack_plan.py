"""PackPlan: the order of the packs of one epoch, on top of the order of its samples.

The samples have the order of an `EpochPlan`. Windows of that order are packed (`pack_windows`), and
the packs are dealt to ranks as samples are. Every process computes the packs that it needs, in
about 0.8 us for a document of all ranks, so processes exchange nothing.

The packs are thought of as a grid with a row for each canonical node, read column by column, as
samples are. A row that has ended leaves empty places, so place p is always column ``p // rows`` of
row ``p % rows``, and it is for machine ``p % machines``::

    canonical node 0 | 0 2 4 6 8 |     numbers are places of packs in the epoch
    canonical node 1 | 1 3 5     |     place 7 is empty

So a machine reads the documents of its own canonical nodes. Canonical nodes are cut by the tokens
of their documents, not by their number (`PackCosts`), so that rows are about equally long. At an
empty place a batch has padding: nothing is repeated, and all ranks have equally many steps. A step
in which all places are empty is left out.

The length of a row is known only when its windows are packed. So there are two ways through the
grid. `PackReading` continues from a cursor, the next pack of every canonical node, a window at a
time, and does not need the packs before. `PackTable` is made of the number of packs of every
window, and finds the pack of any place.

A document longer than a pack may be cut into *pieces*; any other document is one piece. The packs
of a step have *numbers* from 0 on, in the order of their places in the epoch. `Shape.deal` says
which numbers each rank gets.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from mds._process.fork_safe import cached_property
from mds._shardfile.hashing import digest
from mds._words import plural
from mds.errors import PlanError, StateError
from mds.plan._audit import OrderHash, Place, StepSample, summands
from mds.plan._pack_windows import (
    DocumentWindows,
    OrderWindows,
    Packs,
    Pieces,
    ScheduledWindows,
    TakenPacks,
    balance,
    pack_window,
)
from mds.plan._packing import column_of
from mds.plan._partition import Gaps
from mds.plan._state import Cursor, Position, ResumePoint, parse_state
from mds.plan._stream_orders import StreamOrder
from mds.shuffle._permutation import derive_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from mds.plan._edits import PackDrops
    from mds.plan._epoch import EpochPlan
    from mds.plan._pack_schedule import Documents
    from mds.plan._packing import Packing
    from mds.plan._schedule import ScheduledEpoch

    Ids = NDArray[np.int64]
    Load = Callable[[int, int], Packs]  # from a canonical node and a window to its packs

_PIECE_BITS = 20  # bits for the place of a piece in its pack
_ID_BITS = 40  # bits for a sample id; the first token of its piece is above them
_DOCUMENT_BITS = 32  # bits for the place of a document in its window


class DocumentLengths(Protocol):
    """Lengths of the documents of a dataset, by sample id."""

    #: Digest of all lengths.
    digest: str
    #: Tokens of all documents.
    total: int
    #: Number of documents.
    count: int

    def take(self, ids: Ids) -> Ids:
        """Return the length of each of the documents ``ids`` in tokens, int64."""

    def packed(self, counts: Sequence[int], packing: Packing) -> Sequence[Documents]:
        """Return for each stream how many documents it has, and how many tokens are left of them.

        ``counts`` is the number of documents of each stream; sample ids count through the streams.
        ``packing`` decides which tokens are cut or left out.
        """


class RankPacks(NamedTuple):
    """Packs of one rank in one step, or in a micro-batch of it: the pieces of all end to end.

    Attributes:
        ids, starts, sizes: Sample id of the document, first token and number of tokens of each
            piece, int64 of shape (pieces,).
        places: Number of each piece's document among all documents of the epoch, as `PackPlan.load`
            counts them; int64 of shape (pieces,).
        counts: Number of pieces in each pack of the batch, int64 of shape (batch size,); 0 for an
            empty place of the batch.
        order: What these packs add to the order hash: a sum modulo 2**64, and a number of packs.
        end: Position of the run after this step.
        packs: Packs that all ranks together have in the whole step.
        filled: Places of the whole step, of all ranks, up to the last pack.
        dropped: Number of pieces that were dropped, so that their tokens are padding.
    """

    ids: Ids
    starts: Ids
    sizes: Ids
    places: Ids
    counts: Ids
    order: tuple[int, int]
    end: Position
    packs: int
    filled: int
    dropped: int

    def without(self, is_padding: NDArray[np.bool_]) -> RankPacks:
        """Return the packs without some pieces, whose tokens become padding.

        ``is_padding`` is a mask of the pieces, bool of shape (pieces,).
        """
        # For each remaining piece, the index in the batch of its pack.
        rows = np.repeat(np.arange(len(self.counts)), self.counts)[~is_padding]
        return self._replace(
            ids=self.ids[~is_padding],
            starts=self.starts[~is_padding],
            sizes=self.sizes[~is_padding],
            places=self.places[~is_padding],
            counts=np.bincount(rows, minlength=len(self.counts)),
            dropped=self.dropped + int(is_padding.sum()),
        )


class PackCosts:
    """Tokens of the documents as packed, by which canonical nodes are cut; `SampleCosts`.

    Args:
        packing: Settings of the packing, which may cut or leave out long documents.
        lengths: Lengths of the documents.
        data: Text that identifies the documents.
    """

    def __init__(self, packing: Packing, lengths: DocumentLengths, data: str) -> None:
        self._packing, self._lengths = packing, lengths
        self.key = digest(data, lengths.digest, lengths.total, lengths.count, repr(packing.facts()))

    def take(self, ids: Ids) -> Ids:
        """Return the tokens of each of the documents ``ids``, int64."""
        return self._packing.tokens(self._lengths.take(ids))


class _StepPacks(NamedTuple):
    """Packs of a global batch of all ranks.

    Attributes:
        packs: The packs, in their order.
        places: Place in the epoch of each of ``packs``, int64, ascending.
        cursor: Cursor after the last of these places; None if it is that of the reading.
    """

    packs: TakenPacks
    places: Ids
    cursor: Cursor | None = None


class PackPlan:
    """Order of the packs of one epoch; an `Order`.

    - ``plan`` (EpochPlan): Order of the samples, at whose position the packs begin.
    - ``lengths`` (DocumentLengths): Lengths of the samples.

    Raises PlanError for an order that packs cannot have, and StateError for a state that counts
    samples.

    >>> from mds.plan import EpochPlan
    >>> class Lengths:
    ...     digest, total, count = "", 36, 8
    ...
    ...     def take(self, ids):  # document 0 has one token, document 1 two, ...
    ...         return ids + 1
    >>> world = mds.World(num_nodes=1, ranks_per_node=1, workers_per_rank=1, worker=0)
    >>> plan = EpochPlan([{"shards": [8]}], world, batch_size=1, packing=mds.Packing(8))
    >>> PackPlan(plan, Lengths()).steps  # 36 tokens in packs of 8
    5
    """

    unit = "packs"

    def __init__(self, plan: EpochPlan, lengths: DocumentLengths) -> None:
        packing = plan.spec.packing
        assert packing is not None
        self.packing, self.lengths = packing, lengths
        #: Number of documents that are packed together.
        self.window = self._window(plan)
        costs = PackCosts(packing, lengths, repr(plan.dataset_facts()))
        self.plan = plan = self._with_windows(plan).with_costs(costs)
        self.spec, self.world, self.shape = plan.spec, plan.world, plan.shape
        self.epoch = plan.epoch
        self.shuffle_seed, self.num_canonical_nodes = plan.shuffle_seed, plan.num_canonical_nodes
        self.epoch_size, self.choose, self.schedule = plan.epoch_size, plan.choose, plan.schedule
        begin = plan.begin
        # At place 0 both units are alike, so a state from the beginning of an epoch always fits.
        if begin.place and (begin.unit != self.unit or begin.cursor is None):
            raise StateError(
                f"the state counts {begin.unit} and has no cursors, but this run counts packs. "
                "Start a new run, without the state."
            )
        if (
            begin.cursor is not None
            and begin.place % len(begin.cursor.windows) != begin.cursor.node
        ):
            raise StateError(
                f"the state has the next pack at place {begin.place}, which is not of canonical "
                f"node {begin.cursor.node}. Use a state as state_dict() returned it."
            )
        self.begin = begin if begin.place else Position(plan.epoch, 0, self.unit)
        self._drops = self._dropped_documents()
        self._gaps = Gaps(plan.skips)
        # Places of the epoch before the beginning of this plan, without skipped ones.
        self._places_before = self._gaps.number(self.begin.place)
        #: Packs of each window, as `count` returns them; None if they are unknown. A caller that
        #: knows them sets this, so that `table` need not pack the whole epoch.
        self.counts: list[Ids] | None = None

    def _window(self, plan: EpochPlan) -> int:
        """Return the number of documents of a window, which is at most a shuffle block.

        A resumed run keeps the window of its state, unless ``Packing.window`` is given.
        """
        # The state was not compared with this run yet: it may lack this fact or have nonsense.
        recorded = (plan.resume_point.order or {}).get("packing_window")
        if self.packing.window is None and type(recorded) is int and recorded > 0:
            return recorded
        count = self.packing.window_documents(self.lengths.total, max(self.lengths.count, 1))
        return max(min(count, plan.shuffle_block_size), 1) if plan.spec.shuffle else count

    def _with_windows(self, plan: EpochPlan) -> EpochPlan:
        """Return the plan with its schedule counted in windows, or itself without a schedule.

        A schedule of samples has shares for global batches; packs need shares for windows, each of
        which is one step of a `PackedRun`.
        """
        if plan.schedule is None:
            return plan
        from mds.plan._pack_schedule import PackedRun

        if isinstance(plan.schedule, PackedRun):
            return plan
        documents = self.lengths.packed(plan.stream_samples, self.packing)
        step_tokens = plan.shape.global_batch * self.packing.room  # of a full global batch
        return plan.with_run(
            PackedRun.of(
                plan.schedule,
                documents,
                plan.choose,
                plan.epoch_size,
                self.window,
                step_tokens,
                plan.num_canonical_nodes,
            )
        )

    def _dropped_documents(self) -> PackDrops | None:
        """Return the documents that were dropped during the run, None without any edits."""
        if not self.plan.edits:
            return None
        from mds.plan._edits import PackDrops

        return PackDrops(self.plan.edits, self.epoch)

    def _is_dropped(self, ids: Ids, places: Ids) -> NDArray[np.bool_]:
        """Return a mask of the pieces whose document is dropped, so that they become padding.

        Args:
            ids: Document of each piece.
            places: For each piece, the place of its pack in the epoch.
        """
        if self._drops is None:
            return np.zeros(len(ids), bool)
        return self._drops.mask(ids, places)

    @property
    def samples(self) -> EpochPlan:
        """Order of the documents."""
        return self.plan

    @property
    def packs(self) -> PackPlan:
        """This order."""
        return self

    def following(self) -> PackPlan:
        """Return the plan of the next epoch."""
        return PackPlan(self.plan.following(), self.lengths)

    @property
    def long_orders(self) -> list[StreamOrder]:
        """Orders of streams that take long to compute."""
        return self.plan.long_orders

    @property
    def scheduled(self) -> ScheduledEpoch | None:
        """Part of the schedule that the epoch has, in windows; None without a schedule."""
        return self.plan.scheduled

    @cached_property
    def _documents(self) -> DocumentWindows:
        """Windows of documents of the epoch."""
        plan = self.plan
        order = plan.orders[0] if plan.orders else None
        if plan.scheduled is None:
            assert order is None or isinstance(order, StreamOrder)
            return OrderWindows(order, self.window)
        from mds.plan._passes import StreamPasses

        assert order is None or isinstance(order, StreamPasses)
        name = digest(repr(plan.dataset_facts()), repr(plan.inputs.params))
        return ScheduledWindows(plan.scheduled, order, self.num_canonical_nodes, name)

    @property
    def windows(self) -> Ids:
        """Number of windows of each canonical node, int64."""
        return self._documents.counts

    def load(self, node: int, window: int) -> Packs:
        """Return the packs of a window of a canonical node, without dropped documents.

        ``window`` counts the windows of the node in this epoch.
        """
        plan, ids = self.plan, self._documents.ids(node, window)
        if self._drops is not None:
            ids = self._drops.remaining(ids, node, window)
        key = None
        if plan.spec.shuffle:
            key = derive_key(plan.shuffle_seed, plan.epoch, node, window)
        # A number for each document of the epoch: that of its window among the windows of all
        # nodes, which come in turns, in the high bits, and its index in the window in the low bits.
        place = (window * len(self.windows) + node) << _DOCUMENT_BITS
        return pack_window(ids, self.lengths.take(ids), self.packing, key, place)

    def reading(self) -> PackReading:
        """Return a reading of all packs from the beginning of this plan on."""
        return PackReading(self.load, self.windows, self.begin.cursor)

    def position_after(self, begin: Position, count: int) -> Position:
        """Return the position in the step after ``begin``, after ``count`` of its places.

        Steps before it that are skipped or empty are passed. ``begin`` is a position of this plan.
        """
        load = functools.cache(self.load)  # both readings begin with the same windows
        step = next(self._steps(PackReading(load, self.windows, begin.cursor), begin))
        place = int(step.places[count - 1]) + 1
        reading = PackReading(load, self.windows, begin.cursor)
        reading.skip(place - begin.place)
        return Position(self.epoch, place, self.unit, reading.cursor)

    def rank_packs(self, node: int, rank: int, worker: int, start: int = 0) -> Iterator[RankPacks]:
        """Yield the packs of each batch of a worker, from its ``start``-th batch on.

        ``rank`` counts within the node and ``worker`` within the rank, after replication. A step
        has `OrderSpec.microbatches` batches of a rank, also if the last of them have no packs.
        """
        workers, parts = self.shape.workers, self.spec.microbatches
        reading = self.reading()
        for step, packs in enumerate(self._steps(reading, self.begin)):
            # Batch n of the rank is batch n // workers of worker n % workers.
            mine = [
                part
                for part in range(parts)
                if (step * parts + part) % workers == worker
                and (step * parts + part) // workers >= start
            ]
            if mine:
                numbers = self._numbers_of_ranks(packs, node)[rank].reshape(parts, -1)
                for part in mine:
                    yield self._rank_packs(packs, numbers[part], packs.cursor or reading.cursor)

    def nodes_read(self, node: int) -> Ids:
        """Return the canonical nodes whose packs a node gets, sorted: rows of the grid.

        A pack at place p is of row ``p % rows``, and for node ``p % nodes``.
        """
        rows, nodes = len(self.windows), self.shape.nodes
        # A step is dealt by its first place. If places are left out inside of it, and their number
        # is no multiple of the nodes, then the later places go to other nodes.
        lengths = self._gaps.ends - self._gaps.firsts
        is_aligned = not (lengths[self._gaps.ends > self.begin.place] % nodes).any()
        if is_aligned and self._documents.are_apart:
            if rows % nodes == 0:
                return np.arange(node, rows, nodes)
            if nodes % rows == 0:
                return np.array([node % rows])
        return np.arange(rows)

    def node_reads(self, node: int, start: int = 0, every: int = 1) -> Iterator[tuple[Ids, Ids]]:
        """Yield the documents that the workers of a node read, from the beginning of this plan on.

        Each item is (times, ids), both int64 of shape (n,). A time is the number of documents that
        the same worker reads before; times ascend. Several workers read at the same time. With
        ``every`` = r only ranks 0, r, 2r, ... of the node take part, to save time. ``start`` must
        be 0 here.
        """
        assert not start, "packs begin at steps"
        shape = self.shape
        # Documents that each worker has read so far: the time of its next read. No worker can read
        # any more before the least of these times, so all reads before it are yielded.
        counts = np.zeros((len(range(0, shape.ranks, every)), shape.workers), np.int64)
        times, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for number, documents_of_ranks in enumerate(self._node_documents(node, every)):
            worker = number % shape.workers
            for rank, documents in enumerate(documents_of_ranks):
                times.append(counts[rank, worker] + np.arange(len(documents)))
                ids.append(documents)
                counts[rank, worker] += len(documents)
            if worker == shape.workers - 1:
                sorted_times, sorted_ids = _sorted_by_time(times, ids)
                complete = int(np.searchsorted(sorted_times, counts.min()))
                if complete:
                    yield sorted_times[:complete], sorted_ids[:complete]
                times, ids = [sorted_times[complete:]], [sorted_ids[complete:]]
        sorted_times, sorted_ids = _sorted_by_time(times, ids)
        if len(sorted_times):
            yield sorted_times, sorted_ids

    def _node_documents(self, node: int, every: int) -> Iterator[list[Ids]]:
        """Yield for each batch of the ranks of a node the documents of each ``every``-th rank.

        An item is a list of int64 arrays, one for each of these ranks, without dropped documents.
        """
        for step in self._steps(self.reading(), self.begin):
            step_packs, places = step.packs, step.places
            numbers_of_ranks = self._numbers_of_ranks(step, node)[::every]
            # From (rank, place in the step) to (batch of the step, rank, place in the batch).
            parts = numbers_of_ranks.reshape(len(numbers_of_ranks), self.spec.microbatches, -1)
            for numbers_of_batch in parts.swapaxes(0, 1):
                documents = []
                for numbers in numbers_of_batch:
                    pieces = step_packs.pieces(numbers)
                    piece_places = self._places_of_pieces(places, numbers, pieces.counts)
                    documents.append(pieces.ids[~self._is_dropped(pieces.ids, piece_places)])
                yield documents

    def _steps(self, reading: PackReading, begin: Position) -> Iterator[_StepPacks]:
        """Yield the packs of all ranks, step by step, without skipped and without empty steps.

        ``reading`` must be at ``begin``, a position of this plan. It moves on with each step, so
        its cursor is then the one after the yielded step, unless that has one of its own.

        Raises PlanError if the epoch has no pack.
        """
        size, next_place = self.shape.global_batch, begin.place
        for first_number in itertools.count(self._gaps.number(begin.place), size):
            places = self._gaps.places(np.arange(first_number, first_number + size))
            # Skipped places split a step into runs of consecutive places.
            parts: list[TakenPacks] = []
            cursor = None
            for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
                before = reading.cursor if parts else None
                reading.skip(int(run[0]) - next_place)
                parts.append(reading.take(len(run)))
                next_place = int(run[-1]) + 1
                if not len(parts[-1]) and cursor is None:  # the epoch ended in skipped places
                    cursor = before
            step_packs = TakenPacks.joined(parts)
            if step_packs.packs:
                yield _StepPacks(step_packs, places[: len(step_packs)], cursor)
            elif reading.is_finished:
                # Windows with documents, but not even the first step of the epoch has a pack.
                if next_place == size and self.windows.any():
                    raise PlanError(
                        f"epoch {self.epoch} has no pack: every document is empty, dropped, or "
                        f"longer than {plural(self.packing.room, 'token')} with overflow='drop'. "
                        "Check the "
                        "column of tokens and the arguments of Packing."
                    )
                return

    def _rank_packs(self, packs: _StepPacks, numbers: Ids, cursor: Cursor) -> RankPacks:
        """Return the packs of a rank in a step.

        Args:
            packs: Packs of all ranks in the step.
            numbers: Numbers of those that the rank gets, by place of its batch.
            cursor: Cursor after the step.
        """
        step_packs, places = packs.packs, packs.places
        pieces = step_packs.pieces(numbers)
        is_dropped = self._is_dropped(
            pieces.ids, self._places_of_pieces(places, numbers, pieces.counts)
        )
        order = self._hash_summands(packs, numbers, pieces)
        end = Position(self.epoch, int(places[-1]) + 1, self.unit, cursor)
        rank_packs = RankPacks(*pieces, order, end, step_packs.packs, step_packs.filled, 0)
        return rank_packs.without(is_dropped) if is_dropped.any() else rank_packs

    @staticmethod
    def _places_of_pieces(places: Ids, numbers: Ids, counts: Ids) -> Ids:
        """Return for each piece the place of its pack in the epoch.

        Args:
            places: Place of each pack of a step.
            numbers: Numbers of the packs of the step that have the pieces. Some may have no pack.
            counts: Number of pieces of each of these.
        """
        real = counts > 0
        return np.repeat(places[numbers[real]], counts[real])

    def _numbers_of_ranks(self, step: _StepPacks, node: int) -> Ids:
        """Return the numbers of the packs of a step that each rank of a node gets.

        They are int64 of shape (ranks, batch size). For some numbers there may be no packs.
        """
        shape = self.shape
        first = node * shape.ranks
        numbers_of_ranks = shape.deal(shape.slots(first, first + shape.ranks))
        # `Shape.deal` gives node k the numbers k, k + nodes, ... of the step. It is to get the
        # places k, k + nodes, ... of the epoch, wherever the step begins.
        numbers_of_ranks += (node - int(step.places[0])) % shape.nodes - node
        numbers_of_ranks = numbers_of_ranks.reshape(shape.ranks, shape.batch)
        if self.packing.balance is None or shape.ranks == 1:
            return numbers_of_ranks
        # The node keeps its packs, and its ranks exchange them for balance.
        numbers = np.sort(numbers_of_ranks.reshape(-1))
        rank_of = balance(step.packs.weights(numbers, self.packing.balance), shape.ranks)
        return np.stack([numbers[rank_of == rank] for rank in range(shape.ranks)])

    def _hash_summands(self, packs: _StepPacks, numbers: Ids, pieces: Pieces) -> tuple[int, int]:
        """Return the sum and the number of packs that packs of a step add to the order hash.

        A summand mixes the place of a piece, its document and its first token. Dropped pieces add
        nothing.

        Args:
            packs: Packs of all ranks in the step.
            numbers: Numbers of the packs that are added.
            pieces: Pieces of these packs.
        """
        ids, starts, _, _, counts = pieces
        ends = np.cumsum(counts)
        # Number of each piece in its pack.
        piece_of_pack = np.arange(len(ids)) - np.repeat(ends - counts, counts)
        places = self._places_of_pieces(packs.places, numbers, counts)
        sums = summands((places << _PIECE_BITS) + piece_of_pack, ids + (starts << _ID_BITS))
        sums[self._is_dropped(ids, places)] = 0
        return int(sums.sum(dtype=np.uint64)), int(packs.packs.has_pack(numbers).sum())

    # ------------------------------------------------------------------ the whole epoch

    def count(self) -> list[Ids]:
        """Return the number of packs of each window of each canonical node.

        This packs the whole epoch, in about a second for a million documents.
        """
        return [
            np.array([len(self.load(node, w)) for w in range(windows)], np.int64)
            for node, windows in enumerate(self.windows.tolist())
        ]

    @cached_property
    def table(self) -> PackTable:
        """Table of all packs of the epoch, made of known `counts` or else by `count`."""
        return PackTable(self.counts if self.counts is not None else self.count())

    @cached_property
    def batches(self) -> FilledBatches:
        """Global batches from the beginning of this plan on."""
        size = self.shape.global_batch
        return FilledBatches(self.table, self._gaps, self._places_before, size)

    @cached_property
    def epoch_batches(self) -> FilledBatches:
        """Global batches of the whole epoch, seen and skipped ones included."""
        return FilledBatches(self.table, Gaps(), 0, self.shape.global_batch)

    @property
    def epoch_steps(self) -> int:
        """Number of global batches of the whole epoch, seen and skipped ones included."""
        return self.epoch_batches.count

    @property
    def full_steps(self) -> int:
        """Number of global batches of the whole epoch that have no empty place."""
        return self.epoch_batches.full

    @property
    def steps(self) -> int:
        """Global batches that remain, of which the last ones may have empty places."""
        return self.batches.count

    def batch(self, step: int) -> list[RankPacks]:
        """Return the packs of every rank in a global batch.

        Steps count from the beginning of this plan. Raises IndexError after the last one.
        """
        if not 0 <= step < self.steps:
            raise IndexError(
                f"there is no step {step}: the epoch has {plural(self.steps, 'step')}."
            )
        shape, packs = self.shape, self._step_packs(self.batches.batch_of(step))
        cursor = self.table.cursor(int(packs.places[-1]) + 1)
        return [
            self._rank_packs(packs, numbers, cursor)
            for node in range(shape.nodes)
            for numbers in self._numbers_of_ranks(packs, node)
        ]

    def _step_packs(self, batch: int) -> _StepPacks:
        """Return the packs of a global batch, found by `table` and not by reading all before it.

        Batches count from the beginning of this plan, with those that are left out as empty.
        """
        size = self.shape.global_batch
        places = self._gaps.places(np.arange(size) + self._places_before + batch * size)
        places = places[places < self.table.total]
        node, window, pack = self.table.at(places)
        # Pack each window that the step has packs of, once.
        windows: list[Packs] = []
        window_of = np.full(len(node), -1, np.int64)
        for row, number in sorted({*zip(node.tolist(), window.tolist(), strict=True)}):
            if number >= 0:
                window_of[(node == row) & (window == number)] = len(windows)
                windows.append(self.load(row, number))
        return _StepPacks(TakenPacks(windows, window_of, pack), places)

    def locate(self, sample: int) -> list[Place]:
        """Return every place of a pack with a piece of a sample in the rest of the epoch, by step.

        ``place`` of a `Place` is the place of the pack in the batch of its rank.
        """
        # First find the places in the epoch of the packs with the sample, window by window.
        shape, places = self.shape, set()
        for node, window in self._documents.find(sample):
            packs = self.load(node, window)
            pieces = np.flatnonzero(packs.ids == sample)
            for pack in (np.searchsorted(packs.bounds, pieces, side="right") - 1).tolist():
                places.add(self.table.find(node, window, pack))
        # Then leave out packs that were seen or skipped, or from which the sample is dropped.
        located = set()
        remaining = np.array(sorted(places), np.int64)
        remaining = remaining[(remaining >= self.begin.place) & self._gaps.is_in_no_gap(remaining)]
        remaining = remaining[~self._is_dropped(np.full(len(remaining), sample), remaining)]
        # At last find the rank that gets each pack, and the place of the pack in its batch.
        for number_of_pack in (self._gaps.numbers(remaining) - self._places_before).tolist():
            batch, number = divmod(number_of_pack, shape.global_batch)
            step, step_packs = self.batches.step_at(batch), self._step_packs(batch)
            for node in range(shape.nodes):
                for rank, numbers in enumerate(self._numbers_of_ranks(step_packs, node)):
                    global_rank = node * shape.ranks + rank
                    for place in np.flatnonzero(numbers == number).tolist():
                        part = step * self.spec.microbatches + place // self.plan.microbatch
                        located.add(Place(step, global_rank, part % shape.workers, place))
        return sorted(located)

    def step_rows(self, step: int) -> list[StepSample]:
        """Return the pieces of a global batch, rank by rank.

        Steps count from the beginning of this plan. Raises IndexError after the last one.
        """
        return [
            StepSample(rank, sample, (start, start + size))
            for rank, packs in enumerate(self.batch(step))
            for sample, start, size in zip(
                packs.ids.tolist(), packs.starts.tolist(), packs.sizes.tolist(), strict=True
            )
        ]

    def step_reads(self) -> Iterator[Ids]:
        """Yield for each remaining global batch a sorted int64 array with a number for each piece.

        Two orders have the same global batches if these arrays are equal.
        """
        for step in self._steps(self.reading(), self.begin):
            ids, starts, _, _, counts = step.packs.pieces(np.arange(len(step.packs)))
            is_dropped = self._is_dropped(ids, np.repeat(step.places, counts))
            # A piece is identified by its document and its first token.
            yield np.sort((ids + (starts << _ID_BITS))[~is_dropped])

    def order_hash(self, steps: int) -> OrderHash:
        """Return the hash of the next ``steps`` global batches, without reading any data."""
        order_hash = OrderHash()
        for packs in itertools.islice(self._steps(self.reading(), self.begin), steps):
            numbers = np.arange(len(packs.packs))
            order_hash.take(*self._hash_summands(packs, numbers, packs.packs.pieces(numbers)))
        return order_hash

    # ------------------------------------------------------------------ states

    def order_facts(self) -> dict[str, Any]:
        """Return the settings that a state records and compares, as plain JSON."""
        return {
            **self.plan.order_facts(),
            "packing_window": self.window,
            "packing_lengths": self.lengths.digest,
        }

    def dataset_facts(self) -> dict[str, Any]:
        """Return facts about the data, which a state records and compares, as plain JSON."""
        return self.plan.dataset_facts()

    def data_facts(self) -> dict[str, Any]:
        """Return settings of the packing that do not change the order, to make the packs again."""
        return {"packing": {"lengths": column_of(self.packing), "balance": self.packing.balance}}

    def fingerprint(self) -> str:
        """Return a text that is equal for equal data and settings."""
        return f"{self.plan.fingerprint()} {self.order_facts()}"

    def key(self) -> str:
        """Return a digest of all that the packs of the epoch depend on."""
        # Skipped steps leave out packs and change none.
        edits = [edit for edit in self.plan.edits if "skip" not in edit]
        facts = sorted(self.order_facts().items(), key=str)
        return digest(self._documents.key(), repr(facts), repr(edits))

    def check(self, state: Mapping[str, Any] | ResumePoint) -> None:
        """Raise StateError for a state of other data or another order, naming the differences."""
        point = parse_state(state)
        point.check_unit(self.unit)
        point.check(self.plan.dataset_facts(), self.order_facts())

    def __repr__(self) -> str:
        return f"<PackPlan of epoch {self.epoch} from pack {self.begin.place}: {self.packing!r}>"


def _sorted_by_time(times: list[Ids], ids: list[Ids]) -> tuple[Ids, Ids]:
    """Return arrays of times and of ids joined to one each, sorted by time (a stable sort)."""
    joined_times, joined_ids = np.concatenate(times), np.concatenate(ids)
    order = np.argsort(joined_times, kind="stable")
    return joined_times[order], joined_ids[order]


_SKIP_CHUNK = 1 << 14  # packs that are skipped at once
_PLACES_AT_ONCE = 1 << 18  # that are looked up


class PackReading:
    """Reading of the packs of an epoch from a cursor on, of all canonical nodes in turns.

    Only the current window of each canonical node is packed and kept.

    Example of a cursor for two nodes: ``Cursor(((3, 7), (3, 6)), node=1)``. Node 0 continues with
    pack 7 of its window 3, node 1 with pack 6 of its window 3, and node 1 gives the next pack.

    Args:
        load: Function from a canonical node and a window to its packs.
        windows: Number of windows of each canonical node.
        cursor: Next pack of every canonical node; None for the beginning of the epoch.

    Raises StateError for a cursor that is not of this epoch.
    """

    def __init__(self, load: Load, windows: Ids, cursor: Cursor | None = None) -> None:
        nodes = len(windows)
        self._load, self._windows = load, windows
        # Pairs of a window and a pack in it, for each canonical node.
        pairs, next_node = cursor if cursor is not None else (((0, 0),) * nodes, 0)
        cursor_pairs = np.array(pairs, np.int64).reshape(-1, 2)
        if (
            len(cursor_pairs) != nodes
            or (cursor_pairs[:, 0] > windows).any()
            or not 0 <= next_node < max(nodes, 1)
        ):
            raise StateError(
                "the cursors of the state do not fit this order, which has another number of "
                "canonical nodes or shorter windows. Use the dataset and settings with which the "
                "state was saved."
            )
        # The cursor: window and pack of each canonical node, and the node of the next pack.
        self._window, self._pack = cursor_pairs[:, 0].copy(), cursor_pairs[:, 1].copy()
        self._next_node = next_node
        # Packs of the cursor's window of each node, and their number: None and 0 after the last
        # window. The windows are packed at the first call of `take`.
        self._packs: list[Packs | None] = [None] * nodes
        self._count = np.zeros(nodes, np.int64)
        self._has_loaded = False

    @property
    def cursor(self) -> Cursor:
        """Next pack of every canonical node."""
        windows = zip(self._window.tolist(), self._pack.tolist(), strict=True)
        return Cursor(tuple(windows), self._next_node)

    @property
    def is_finished(self) -> bool:
        """Whether no canonical node has another pack; known after the first `take`."""
        return not self._count.any()

    def take(self, count: int) -> TakenPacks:
        """Return the next ``count`` places, or as many as there are, and move the cursor.

        A canonical node that has ended leaves its places empty. After the last pack of the epoch
        there are no places. Each round of the loop takes either as many whole columns of the grid
        as all windows have, or a part of one column.
        """
        if not self._has_loaded:
            self._load_windows()
        rows = len(self._windows)
        window_of, numbers = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        windows: list[Packs] = []
        # Index in `windows` of the current window of each node, -1 if it is not listed there.
        index_of = np.full(rows, -1, np.int64)
        filled = 0
        while filled < count and not self.is_finished:
            nodes = np.arange(self._next_node, min(rows, self._next_node + count - filled))
            columns = 1
            if len(nodes) == rows:  # whole columns, until a window of some node ends
                columns_left = (self._count - self._pack)[self._count > 0].min()
                columns = min(int(columns_left), (count - filled) // rows)
            has_packs = self._count[nodes] > 0
            alive = nodes if has_packs.all() else nodes[has_packs]
            # List the windows of these nodes that are not listed yet.
            for node in alive[index_of[alive] < 0].tolist():
                packs = self._packs[node]
                assert packs is not None
                index_of[node] = len(windows)
                windows.append(packs)
            # Column after column, and in a column node after node.
            end = filled + columns * len(nodes)
            window_of[filled:end] = np.tile(index_of[nodes], columns)
            packs_of_columns = self._pack[nodes] + np.arange(columns)[:, None]
            if len(alive) < len(nodes):
                packs_of_columns[:, ~has_packs] = -1
            numbers[filled:end] = packs_of_columns.reshape(-1)
            self._pack[alive] += columns
            self._next_node = (int(nodes[-1]) + 1) % rows
            filled = end
            # Load the next windows of nodes whose window is used up.
            for node in alive[self._pack[alive] == self._count[alive]].tolist():
                self._window[node] += 1
                self._pack[node] = 0
                self._load_next_window(node)
                index_of[node] = -1
        step_packs = TakenPacks(windows, window_of[:filled], numbers[:filled])
        if self.is_finished and step_packs.filled < filled:
            self._next_node = (self._next_node - (filled - step_packs.filled)) % rows
            filled = step_packs.filled
            step_packs = TakenPacks(windows, window_of[:filled], numbers[:filled])
        return step_packs

    def skip(self, count: int) -> None:
        """Skip the next ``count`` places, or as many as there are."""
        while count and len(self.take(step := min(count, _SKIP_CHUNK))):
            count -= step

    def _load_windows(self) -> None:
        """Pack the window of every canonical node at the cursor.

        Raises StateError for a cursor at a pack that its window does not have.
        """
        for node in range(len(self._windows)):
            before = int(self._window[node])
            self._load_next_window(node)
            # A window without packs was passed over: then the cursor cannot have been inside it.
            is_same = int(self._window[node]) == before
            if self._pack[node] and not (is_same and self._pack[node] < self._count[node]):
                raise StateError(
                    f"the state has a cursor at pack {int(self._pack[node])} of window {before} "
                    f"of canonical node {node}, but that window has "
                    f"{plural(int(self._count[node]) if is_same else 0, 'pack')}: the state "
                    "belongs to "
                    "another order."
                )
        self._has_loaded = True

    def _load_next_window(self, node: int) -> None:
        """Pack the window of a canonical node's cursor, or the next window that has packs.

        The cursor moves to that window. After the last window the node has no packs.
        """
        while self._window[node] < self._windows[node]:
            packs = self._load(node, int(self._window[node]))
            if len(packs):
                self._packs[node], self._count[node] = packs, len(packs)
                return
            self._window[node] += 1
        self._packs[node], self._count[node] = None, 0


class PackTable:
    """Table that finds packs of an epoch by their places, and places by packs.

    Place p is in column ``p // rows`` of row ``p % rows`` of the grid of the module. A row has the
    packs of a canonical node, all its windows one after the other.

    Args:
        counts: Number of packs of each window, an int64 array for each canonical node.

    Attributes:
        total: Number of places of the epoch, up to the last pack.
        regular: Number of places before the first empty one.
    """

    def __init__(self, counts: Sequence[Ids]) -> None:
        # Column after the last pack of each window, for each row; then the length of each row.
        self._ends = [np.cumsum(of_node) for of_node in counts]
        self._lengths = np.array([int(e[-1]) if len(e) else 0 for e in self._ends], np.int64)
        rows = np.arange(len(counts))
        # Place of the last pack of each row, and of its first empty place.
        last_places = ((self._lengths - 1) * len(counts) + rows)[self._lengths > 0]
        self.total = int(last_places.max(initial=-1)) + 1
        empty_places = self._lengths * len(counts) + rows
        self.regular = min(int(empty_places.min(initial=self.total)), self.total)

    def has_pack(self, places: Ids) -> NDArray[np.bool_]:
        """Return a mask of the places that have a pack."""
        column, node = np.divmod(places, max(len(self._ends), 1))
        mask: NDArray[np.bool_] = column < self._lengths[node]
        return mask

    def find(self, node: int, window: int, pack: int) -> int:
        """Return the place in the epoch of a pack of a window of a canonical node."""
        before = int(self._ends[node][window - 1]) if window else 0
        return (before + pack) * len(self._ends) + node

    def at(self, places: Ids) -> tuple[Ids, Ids, Ids]:
        """Return canonical node, window and pack of places, each int64 of shape (n,).

        Window and pack are -1 for empty places.
        """
        column, node = np.divmod(places, max(len(self._ends), 1))
        window, pack = np.full(len(node), -1, np.int64), np.full(len(node), -1, np.int64)
        for row in np.unique(node).tolist():
            ends = self._ends[row]
            mine = np.flatnonzero((node == row) & (column < self._lengths[row]))
            window[mine] = np.searchsorted(ends, column[mine], side="right")
            pack[mine] = column[mine] - np.concatenate([[0], ends])[window[mine]]
        return node, window, pack

    def cursor(self, place: int) -> Cursor:
        """Return the cursor at a place of the epoch: the next pack of every canonical node."""
        rows, next_packs = max(len(self._ends), 1), []
        for node, ends in enumerate(self._ends):
            column = -(-(place - node) // rows)  # of the first place of the node from there on
            window = int(np.searchsorted(ends, column, side="right"))
            before = int(ends[window - 1]) if window else 0
            # After the last pack, the node is in the window after its last one.
            next_packs.append((window, column - before if window < len(ends) else 0))
        return Cursor(tuple(next_packs), place % rows)


class FilledBatches:
    """Global batches that have packs. Those that have none are left out.

    Batch k has the places with the numbers ``first + k * size`` to ``first + (k + 1) * size`` - 1.
    *Steps* count the batches that are not left out.

    Args:
        table: Table of the packs of the epoch.
        gaps: Places that are left out.
        first: Number of the first place.
        size: Places of a batch.

    Attributes:
        count: Number of steps.
        full: Number of steps without an empty place.
    """

    def __init__(self, table: PackTable, gaps: Gaps, first: int, size: int) -> None:
        # The first batches are full. Of the later ones, look at all places.
        self._regular = max(gaps.number(table.regular) - first, 0) // size
        self._end = -(-max(gaps.number(table.total) - first, 0) // size)
        self.full = self._regular
        later = [np.zeros(0, np.int64)]  # batches that have packs
        step = max(_PLACES_AT_ONCE // size, 1)
        for begin in range(self._regular, self._end, step):
            end = min(begin + step, self._end)
            places = gaps.places(np.arange(begin * size, end * size) + first)
            has_pack = table.has_pack(places).reshape(-1, size)
            later.append(begin + np.flatnonzero(has_pack.any(axis=1)))
            self.full += int(has_pack.all(axis=1).sum())
        self._later = np.concatenate(later)
        self.count = self._regular + len(self._later)

    def batch_of(self, step: int) -> int:
        """Return the batch of a step. After the last step, batches count on."""
        later = step - self._regular
        if later < 0:
            return step
        return int(self._later[later]) if step < self.count else self._end + step - self.count

    def step_at(self, batch: int) -> int:
        """Return the step of a batch, or of the next one that is not left out."""
        if batch < self._regular:
            return batch
        if batch >= self._end:
            return self.count + batch - self._end
        return self._regular + int(np.searchsorted(self._later, batch))
