"""PackFilling: packs of documents at the places of an epoch.

Windows of the order of the documents are packed (`pack_windows`), and the packs are dealt to ranks
as samples are. Every process computes the packs that it needs, in about 0.8 us for a document, so
processes exchange nothing.

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
window, and finds the pack of any place. Once these numbers are known, a reading packs only the
windows whose packs are asked for: those of the rows of a machine. Until then it packs all.

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
from mds.plan._audit import StepContents
from mds.plan._pack_windows import (
    DocumentWindows,
    Packs,
    PackWindow,
    Pieces,
    TakenPacks,
    balance,
    pack_window,
)
from mds.plan._packers import find_packer
from mds.plan._packing import column_of
from mds.plan._partition import Gaps
from mds.plan._state import Cursor, Position
from mds.shuffle._permutation import derive_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds.plan._edits import PackDrops
    from mds.plan._filling import Filling
    from mds.plan._pack_schedule import Documents
    from mds.plan._packers import Packer
    from mds.plan._packing import Packing
    from mds.plan._schedule import ScheduledRun
    from mds.plan._spec import EpochInputs

    Ids = NDArray[np.int64]
    Load = Callable[[int, int], Packs]  # from a canonical node and a window to its packs

_PIECE_BITS = 20  # bits for the place of a piece in its pack
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

    def pack_counts(self, filling: PackFilling) -> list[Ids]:
        """Return `PackFilling.count`, or what it returned before for equal packs.

        A class that remembers it need not pack a whole epoch again.
        """
        return filling.count()

    def known_pack_counts(self, filling: PackFilling) -> list[Ids] | None:
        """Return what `pack_counts` would, if no window has to be packed for it, else None."""
        del filling
        return None


class RankPacks(NamedTuple):
    """Packs of one rank in one step, or in a micro-batch of it: the pieces of all end to end.

    Attributes:
        ids, starts, sizes: Sample id of the document, first token and number of tokens of each
            piece, int64 of shape (pieces,).
        places: Number of each piece's document among all documents of the epoch, as
            `PackFilling.load` counts them; int64 of shape (pieces,).
        counts: Number of pieces in each pack of the batch, int64 of shape (batch size,); 0 for an
            empty place of the batch.
        order: What these packs add to the order hash: a sum modulo 2**64, and a number of packs.
        end: Position of the run after this step.
        packs_of_step: Packs that all ranks together have in the whole step.
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
    packs_of_step: int
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
        self._packing, self._lengths, self._data = packing, lengths, data

    @cached_property
    def key(self) -> str:
        """Digest of all costs."""
        lengths, facts = self._lengths, repr(self._packing.facts())
        return digest(self._data, lengths.digest, lengths.total, lengths.count, facts)

    def take(self, ids: Ids) -> Ids:
        """Return the tokens of each of the documents ``ids``, int64."""
        return self._packing.tokens(self._lengths.take(ids))


class _StepPacks(NamedTuple):
    """Packs of a global batch of all ranks.

    Attributes:
        packs: The packs, in their order.
        places: Place in the epoch of each of ``packs``, int64, ascending.
        reading: Reading of the epoch, which moves on with each step.
        last_cursor: Cursor after the last of these places, if the reading has passed it.
    """

    packs: TakenPacks
    places: Ids
    reading: PackReading
    last_cursor: Cursor | None

    @property
    def cursor(self) -> Cursor:
        """Cursor after the last of these places, until the reading moves on."""
        return self.last_cursor or self.reading.cursor

    def places_of(self, pieces: Pieces, numbers: Ids) -> Ids:
        """Return for each piece the place of its pack in the epoch.

        ``numbers`` are those of the packs that have the ``pieces``. Some may have no pack.
        """
        has_pieces = pieces.counts > 0
        return np.repeat(self.places[numbers[has_pieces]], pieces.counts[has_pieces])


class PackFilling:
    """Steps of an epoch of packs of documents; a `Filling`.

    Args:
        inputs: Data and settings of the epoch, whose schedule counts samples.
        packing: Settings of the packs.
        lengths: Lengths of the samples.

    Attributes:
        inputs: The same with nodes that are cut by tokens, and a schedule that counts windows.
        begin: Position at which the packs begin.
        window: Number of documents that are packed together.
        has_equal_epochs: False: the number of packs differs from epoch to epoch.

    Raises StateError for a state that counts samples.
    """

    has_equal_epochs = False

    @property
    def user_packer(self) -> Packer | None:
        """Packer of the packs, unless this library has it."""
        packer = find_packer(self.packing.packer)
        return None if packer.is_built_in else packer

    def __init__(self, inputs: EpochInputs, packing: Packing, lengths: DocumentLengths) -> None:
        self.packing, self.lengths = packing, lengths
        self.window = self._window(inputs)
        self.inputs = inputs.packed(
            PackCosts(packing, lengths, repr(inputs.dataset_facts())),
            functools.partial(self._count_windows, inputs),
        )
        self.begin = self._checked(inputs.point.position)
        self._drops = self._dropped_documents()
        self._gaps = Gaps(inputs.skips)
        # Places of the epoch before the beginning, without skipped ones.
        self._places_before = self._gaps.number(self.begin.place)
        self._table: PackTable | None = None

    def _window(self, inputs: EpochInputs) -> int:
        """Return the number of documents of a window, which is at most a shuffle block.

        A resumed run keeps the window of its state, unless ``Packing.window`` is given.
        """
        # The state was not compared with this run yet: it may lack this fact or have nonsense.
        recorded, window = (inputs.point.order or {}).get("packing_window"), self.packing.window
        if window is None and type(recorded) is int and recorded > 0:
            return recorded
        count = self.packing.window_documents(self.lengths.total, max(self.lengths.count, 1))
        return max(min(count, inputs.params.block), 1) if inputs.spec.shuffle else count

    def _count_windows(self, inputs: EpochInputs, run: ScheduledRun) -> ScheduledRun:
        """Return the schedule of the run counted in windows.

        A schedule of samples has shares for global batches; packs need shares for windows, each of
        which is one step of a `PackedRun`.
        """
        from mds.plan._pack_schedule import PackedRun

        return PackedRun.of(
            run,
            self.lengths.packed(inputs.stream_samples, self.packing),
            inputs.choose,
            inputs.weights.epoch_size,
            self.window,
            inputs.shape.global_batch * self.packing.room,  # tokens of a full global batch
            inputs.params.nodes,
        )

    @staticmethod
    def _checked(begin: Position) -> Position:
        """Return a position of packs at which an order can begin; raises StateError for others."""
        # At place 0 both units are alike, so a state from the beginning of an epoch always fits.
        if begin.place and (begin.unit != "packs" or begin.cursor is None):
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
        return begin if begin.place else Position(begin.epoch, 0, "packs")

    def _dropped_documents(self) -> PackDrops | None:
        """Return the documents that were dropped during the run, None without any edits."""
        if not self.inputs.edits:
            return None
        from mds.plan._edits import PackDrops

        return PackDrops(self.inputs.edits, self.inputs.epoch)

    def _is_dropped(self, ids: Ids, places: Ids) -> NDArray[np.bool_]:
        """Return a mask of the pieces whose document is dropped, so that they become padding.

        Args:
            ids: Document of each piece.
            places: For each piece, the place of its pack in the epoch.
        """
        if self._drops is None:
            return np.zeros(len(ids), bool)
        return self._drops.mask(ids, places)

    @cached_property
    def _documents(self) -> DocumentWindows:
        """Windows of documents of the epoch."""
        return self.inputs.windows(self.window)

    @property
    def windows(self) -> Ids:
        """Number of windows of each canonical node, int64."""
        return self._documents.counts

    def load(self, node: int, window: int) -> Packs:
        """Return the packs of a window of a canonical node, without dropped documents.

        ``window`` counts the windows of the node in this epoch.
        """
        ids, params = self._documents.ids(node, window), self.inputs.params
        if self._drops is not None:
            ids = self._drops.remaining(ids, node, window)
        key = None
        if self.inputs.spec.shuffle:
            key = derive_key(params.seed, params.epoch, node, window)
        # A number for each document of the epoch: that of its window among the windows of all
        # nodes, which come in turns, in the high bits, and its index in the window in the low bits.
        place = (window * len(self.windows) + node) << _DOCUMENT_BITS
        return pack_window(ids, self.lengths.take(ids), self.packing, key, place)

    def position_after(self, begin: Position, count: int) -> Position:
        """Return the position after ``count`` places of the steps that follow ``begin``.

        Places that are skipped, and steps without packs, are not counted. ``begin`` is a position
        of this epoch.
        """
        if not count:
            return begin
        size, position = self.inputs.shape.global_batch, begin
        # The second reading begins with windows of the first one, so these are kept.
        load = functools.lru_cache(2 * len(self.windows) + 1)(self.load)
        for step in self._steps(begin, load):
            if count <= size:
                place = int(step.places[:count][-1]) + 1
                reading = PackReading(load, self.windows, position.cursor)
                reading.skip(place - position.place)
                return Position(self.inputs.epoch, place, "packs", reading.cursor)
            count -= size
            position = Position(self.inputs.epoch, int(step.places[-1]) + 1, "packs", step.cursor)
        raise PlanError(f"the epoch ends {plural(count, 'pack')} before this position.")

    def rank_packs(self, node: int, rank: int, worker: int) -> Iterator[RankPacks]:
        """Yield the packs of each batch of a worker.

        ``rank`` counts within the node and ``worker`` within the rank, after replication. A step
        has `OrderSpec.microbatches` batches of a rank, also if the last of them have no packs.
        """
        workers, parts = self.inputs.shape.workers, self.inputs.spec.microbatches
        for step, packs in enumerate(self._steps(self.begin)):
            # Batch n of the rank is batch n // workers of worker n % workers.
            mine = [part for part in range(parts) if (step * parts + part) % workers == worker]
            if mine:
                numbers = self._numbers_of_ranks(packs, node)[rank].reshape(parts, -1)
                for part in mine:
                    yield self._rank_packs(packs, numbers[part])

    def blocks(
        self, node: int, rank: int, worker: int, start: int = 0, *, is_padded: bool = True
    ) -> Iterator[Ids]:
        """Yield the documents of each batch of a worker, int64 of shape (n,).

        There is no padding, so ``is_padded`` changes nothing. ``start`` must be 0 here.
        """
        del is_padded
        assert not start, "packs begin at steps"
        return (packs.ids for packs in self.rank_packs(node, rank, worker))

    def nodes_read(self, node: int) -> Ids:
        """Return the canonical nodes whose packs a node gets, sorted: rows of the grid.

        A pack at place p is of row ``p % rows``, and for node ``p % nodes``.
        """
        rows, nodes = len(self.windows), self.inputs.shape.nodes
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
        shape = self.inputs.shape
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
        for step in self._steps(self.begin):
            numbers_of_ranks = self._numbers_of_ranks(step, node)[::every]
            # From (rank, place in the step) to (batch of the step, rank, place in the batch).
            parts = numbers_of_ranks.reshape(
                len(numbers_of_ranks), self.inputs.spec.microbatches, -1
            )
            for numbers_of_batch in parts.swapaxes(0, 1):
                documents = []
                for numbers in numbers_of_batch:
                    pieces = step.packs.pieces(numbers)
                    is_dropped = self._is_dropped(pieces.ids, step.places_of(pieces, numbers))
                    documents.append(pieces.ids[~is_dropped])
                yield documents

    def _steps(self, begin: Position, load: Load | None = None) -> Iterator[_StepPacks]:
        """Yield the packs of all ranks, step by step, without skipped and without empty steps.

        ``begin`` is a position of this epoch, ``load`` the function that packs a window.

        Raises PlanError if the epoch has no pack.
        """
        counts = self.lengths.known_pack_counts(self) if self._table is None else self._table.counts
        reading = PackReading(load or self.load, self.windows, begin.cursor, counts)
        size, next_place = self.inputs.shape.global_batch, begin.place
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
            if step_packs.count:
                yield _StepPacks(step_packs, places[: len(step_packs)], reading, cursor)
            elif reading.is_finished:
                # Windows with documents, but not even the first step of the epoch has a pack.
                if next_place == size and self.windows.any():
                    raise PlanError(
                        f"epoch {self.inputs.epoch} has no pack: every document is empty, dropped, "
                        f"or longer than {plural(self.packing.room, 'token')} with "
                        "overflow='drop'. Check the column of tokens and the arguments of Packing."
                    )
                return

    def _rank_packs(self, step: _StepPacks, numbers: Ids) -> RankPacks:
        """Return the packs of a rank in a step.

        ``numbers`` are those of the packs that the rank gets, by place of its batch.
        """
        pieces, is_dropped, marks = self._pieces(step, numbers)
        contents = StepContents(pieces.counts, pieces.counts, pieces.ids, marks, pieces.starts)
        added = contents.summands()[~is_dropped].sum(dtype=np.uint64)
        rank_packs = RankPacks(
            *pieces,
            order=(int(added), int(step.packs.has_pack(numbers).sum())),
            end=Position(self.inputs.epoch, int(step.places[-1]) + 1, "packs", step.cursor),
            packs_of_step=step.packs.count,
            filled=step.packs.filled,
            dropped=0,
        )
        return rank_packs.without(is_dropped) if is_dropped.any() else rank_packs

    def _pieces(self, step: _StepPacks, numbers: Ids) -> tuple[Pieces, NDArray[np.bool_], Ids]:
        """Return the pieces of packs of a step, which of them are dropped, and their marks.

        The mark of a piece is the place of its pack in the epoch and its number in the pack.
        ``numbers`` are those of the packs.
        """
        pieces = step.packs.pieces(numbers)
        ends = np.cumsum(pieces.counts)
        piece_of_pack = np.arange(len(pieces.ids)) - np.repeat(ends - pieces.counts, pieces.counts)
        places = step.places_of(pieces, numbers)
        marks = (places << _PIECE_BITS) + piece_of_pack
        return pieces, self._is_dropped(pieces.ids, places), marks

    def _numbers_of_ranks(self, step: _StepPacks, node: int) -> Ids:
        """Return the numbers of the packs of a step that each rank of a node gets.

        They are int64 of shape (ranks, batch size). For some numbers there may be no packs.
        """
        shape = self.inputs.shape
        first = node * shape.ranks
        numbers_of_ranks = shape.deal(shape.slots(first, first + shape.ranks))
        # `Shape.deal` gives node k the numbers k, k + nodes, ... of the step. It is to get the
        # places k, k + nodes, ... of the epoch, wherever the step begins.
        numbers_of_ranks += (node - int(step.places[0])) % shape.nodes - node
        numbers_of_ranks = numbers_of_ranks.reshape(shape.ranks, shape.batch)
        kind = self.packing.balance
        if kind is None or shape.ranks == 1:
            return numbers_of_ranks
        # The node keeps its packs, and its ranks exchange them for balance.
        numbers = np.sort(numbers_of_ranks.reshape(-1))
        rank_of = balance(step.packs.weights(numbers, kind), shape.ranks)
        return np.stack([numbers[rank_of == rank] for rank in range(shape.ranks)])

    # ------------------------------------------------------------------ the whole epoch

    def count(self) -> list[Ids]:
        """Return the number of packs of each window of each canonical node.

        This packs the whole epoch, in about a second for a million documents.
        """
        return [
            np.array([len(self.load(node, w)) for w in range(windows)], np.int64)
            for node, windows in enumerate(self.windows.tolist())
        ]

    @property
    def table(self) -> PackTable:
        """Table of all packs of the epoch, which are counted at the first use."""
        if self._table is None:
            self._table = PackTable(self.lengths.pack_counts(self))
        return self._table

    @cached_property
    def batches(self) -> FilledBatches:
        """Global batches that remain; the last ones may have empty places."""
        return self._batches(self._gaps, self._places_before)

    @cached_property
    def epoch_batches(self) -> FilledBatches:
        """Global batches of the whole epoch, seen and skipped ones included."""
        return self._batches(Gaps(), 0)

    def _batches(self, gaps: Gaps, first: int) -> FilledBatches:
        """Return the global batches from a place on, which has the number ``first``."""
        size, rows = self.inputs.shape.global_batch, self.inputs.params.nodes
        return FilledBatches(lambda: self.table, gaps, first, size, rows)

    def contents(self, first: int = 0, last: int | None = None) -> Iterator[StepContents]:
        """Yield the pieces of documents of the steps ``first`` to ``last`` - 1, step by step."""
        count = None if last is None else last - first
        for step in itertools.islice(self._steps(self._position_of(first)), count):
            yield self._contents(step, np.arange(len(step.packs)))[0]

    def dealt(self, step: int) -> tuple[StepContents, Ids]:
        """Return the pieces of a step, and the slot of the pack of each, int64."""
        packs, shape = next(self._steps(self._position_of(step))), self.inputs.shape
        # Number of the pack at each slot.
        numbers = np.concatenate(
            [self._numbers_of_ranks(packs, node).reshape(-1) for node in range(shape.nodes)]
        )
        return self._contents(packs, numbers)

    def _contents(self, step: _StepPacks, numbers: Ids) -> tuple[StepContents, Ids]:
        """Return the pieces of packs of a step without dropped ones, and the pack of each.

        ``numbers`` are those of the packs; for each piece the index in ``numbers`` is returned.
        """
        pieces, is_dropped, marks = self._pieces(step, numbers)
        packs = np.repeat(np.arange(len(numbers)), pieces.counts)
        is_kept = ~is_dropped
        contents = StepContents(
            np.array([int(is_kept.sum())]),
            np.array([step.packs.count]),
            pieces.ids[is_kept],
            marks[is_kept],
            pieces.starts[is_kept],
            pieces.sizes[is_kept],
        )
        return contents, packs[is_kept]

    def _position_of(self, step: int) -> Position:
        """Return the position at which a step begins; those before it need not be read."""
        if not step:
            return self.begin
        number = self._places_before + self.batches.batch_of(step) * self.inputs.shape.global_batch
        place = self._gaps.place(number)
        return Position(self.inputs.epoch, place, "packs", self.table.cursor(place))

    def steps_with(self, sample: int) -> set[int]:
        """Return the steps that may have pieces of a document."""
        places = [
            self.table.find(node, window, pack)
            for node, window in self._documents.find(sample)
            for pack in self.load(node, window).packs_with(sample)
        ]
        remaining = np.array(places, np.int64)
        remaining = remaining[(remaining >= self.begin.place) & self._gaps.is_in_no_gap(remaining)]
        batches = (self._gaps.numbers(remaining) - self._places_before) // (
            self.inputs.shape.global_batch
        )
        return {self.batches.step_at(batch) for batch in batches.tolist()}

    # ------------------------------------------------------------------ states

    def order_facts(self) -> dict[str, Any]:
        """Return the settings that a state records and compares, as plain JSON."""
        return {
            **self.inputs.order_facts(),
            "packing_window": self.window,
            "packing_lengths": self.lengths.digest,
        }

    def data_facts(self) -> dict[str, Any]:
        """Return settings of the packing that do not change the order, to make the packs again."""
        return {"packing": {"lengths": column_of(self.packing), "balance": self.packing.balance}}

    def key(self) -> str:
        """Return a digest of all that the packs of the epoch depend on."""
        # Skipped steps leave out packs and change none.
        edits = [edit for edit in self.inputs.edits if "skip" not in edit]
        facts = sorted(self.order_facts().items(), key=str)
        return digest(self._documents.key(), repr(facts), repr(edits))


def packs_of(filling: Filling) -> PackFilling:
    """Return the filling of an order of packs."""
    assert isinstance(filling, PackFilling)
    return filling


def _sorted_by_time(times: list[Ids], ids: list[Ids]) -> tuple[Ids, Ids]:
    """Return arrays of times and of ids joined to one each, sorted by time (a stable sort)."""
    joined_times, joined_ids = np.concatenate(times), np.concatenate(ids)
    order = np.argsort(joined_times, kind="stable")
    return joined_times[order], joined_ids[order]


_SKIP_CHUNK = 1 << 14  # packs that are skipped at once
_PLACES_AT_ONCE = 1 << 18  # that are looked up


class PackReading:
    """Reading of the packs of an epoch from a cursor on, of all canonical nodes in turns.

    Only the current window of each canonical node is kept.

    Example of a cursor for two nodes: ``Cursor(((3, 7), (3, 6)), node=1)``. Node 0 continues with
    pack 7 of its window 3, node 1 with pack 6 of its window 3, and node 1 gives the next pack.

    Args:
        load: Function from a canonical node and a window to its packs.
        windows: Number of windows of each canonical node.
        cursor: Next pack of every canonical node; None for the beginning of the epoch.
        counts: Number of packs of each window, an array for each canonical node, if they are known.
            Then a window is packed only when one of its packs is asked for.

    Raises StateError for a cursor that is not of this epoch.
    """

    def __init__(
        self,
        load: Load,
        windows: Ids,
        cursor: Cursor | None = None,
        counts: Sequence[Ids] | None = None,
    ) -> None:
        nodes = len(windows)
        self._load, self._windows, self._counts = load, windows, counts
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
        # The cursor's window of each node that has not ended, and the number of its packs. They are
        # set at the first call of `take`.
        self._open: dict[int, PackWindow] = {}
        self._count = np.zeros(nodes, np.int64)
        self._has_begun = False

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
        if not self._has_begun:
            self._open_windows()
        rows = len(self._windows)
        window_of, numbers = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        windows: list[PackWindow] = []
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
                index_of[node] = len(windows)
                windows.append(self._open[node])
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
            # Open the next windows of nodes whose window is used up.
            for node in alive[self._pack[alive] == self._count[alive]].tolist():
                self._window[node] += 1
                self._pack[node] = 0
                self._open_next_window(node)
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

    def _open_windows(self) -> None:
        """Open the window of every canonical node at the cursor.

        Raises StateError for a cursor at a pack that its window does not have.
        """
        for node in range(len(self._windows)):
            before = int(self._window[node])
            self._open_next_window(node)
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
        self._has_begun = True

    def _open_next_window(self, node: int) -> None:
        """Open the window of a canonical node's cursor, or the next window that has packs.

        The cursor moves to that window. After the last window the node has no packs.
        """
        while (number := int(self._window[node])) < self._windows[node]:
            count = None if self._counts is None else int(self._counts[node][number])
            window = PackWindow(functools.partial(self._load, node, number), count)
            if window.count:
                self._open[node], self._count[node] = window, window.count
                return
            self._window[node] += 1
        self._open.pop(node, None)
        self._count[node] = 0


class PackTable:
    """Table of the packs of an epoch, which finds their places and cursors.

    Place p is in column ``p // rows`` of row ``p % rows`` of the grid of the module. A row has the
    packs of a canonical node, all its windows one after the other.

    Args:
        counts: Number of packs of each window, an int64 array for each canonical node.

    Attributes:
        counts: The same.
        total: Number of places of the epoch, up to the last pack.
        regular: Number of places before the first empty one.
    """

    def __init__(self, counts: Sequence[Ids]) -> None:
        self.counts = counts
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
    """Global batches that have packs; a `StepBatches`. Those that have none are left out.

    Batch k has the places with the numbers ``first + k * size`` to ``first + (k + 1) * size`` - 1.

    Args:
        table: Returns the table of the packs of the epoch, which may take long.
        gaps: Places that are left out.
        first: Number of the first place.
        size: Places of a batch.
        rows: Number of canonical nodes.
    """

    def __init__(
        self, table: Callable[[], PackTable], gaps: Gaps, first: int, size: int, rows: int
    ) -> None:
        self._table, self._gaps, self._first, self._size = table, gaps, first, size
        # A batch with a place of each row has packs, until all rows have ended.
        self._may_be_empty = size < rows

    @cached_property
    def _found(self) -> tuple[int, Ids, int, int]:
        """Batches before the first empty place, later ones with packs, the end, and full ones."""
        table, gaps, first, size = self._table(), self._gaps, self._first, self._size
        regular = max(gaps.number(table.regular) - first, 0) // size
        batches = -(-max(gaps.number(table.total) - first, 0) // size)
        full, later = regular, [np.zeros(0, np.int64)]
        # Of the batches after the regular ones, look at all places.
        step = max(_PLACES_AT_ONCE // size, 1)
        for begin in range(regular, batches, step):
            end = min(begin + step, batches)
            places = gaps.places(np.arange(begin * size, end * size) + first)
            has_pack = table.has_pack(places).reshape(-1, size)
            later.append(begin + np.flatnonzero(has_pack.any(axis=1)))
            full += int(has_pack.all(axis=1).sum())
        return regular, np.concatenate(later), batches, full

    @property
    def count(self) -> int:
        """Number of steps."""
        regular, later, _, _ = self._found
        return regular + len(later)

    @property
    def full(self) -> int:
        """Number of steps without an empty place."""
        return self._found[3]

    def batch_of(self, step: int) -> int:
        """Return the batch of a step. After the last step, batches count on."""
        if not self._may_be_empty:
            return step
        regular, later, batches, _ = self._found
        if step < regular:
            return step
        return int(later[step - regular]) if step < self.count else batches + step - self.count

    def step_at(self, batch: int) -> int:
        """Return the step of a batch, or of the next one that is not left out."""
        if not self._may_be_empty:
            return batch
        regular, later, batches, _ = self._found
        if batch < regular:
            return batch
        if batch >= batches:
            return self.count + batch - batches
        return regular + int(np.searchsorted(later, batch))
