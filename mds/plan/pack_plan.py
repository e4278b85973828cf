"""PackPlan: lazy plan of the packs of one epoch, on top of the order of its samples.

The order of the samples is that of an EpochPlan; packs are made of windows of it and dealt to ranks
as samples are. Whatever a process needs of the packs it computes for itself, some 0.8 us a document
of all ranks, so nothing has to be said between processes. A place that is left without a pack at
the end of the epoch stays empty: nothing is repeated, and the ranks stay in step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from mds.errors import PlanError, StateError
from mds.plan.audit import OrderHash, Place, summands
from mds.plan.edits import skips_of
from mds.plan.gaps import Gaps
from mds.plan.order import StepSample
from mds.plan.pack_reading import PackReading, PackTable, Pieces, TakenPacks
from mds.plan.pack_schedule import Documents, PackedRun
from mds.plan.pack_windows import DocumentWindows, OrderWindows, PackDrops, ScheduledWindows
from mds.plan.packing import Packing, Packs, balance, pack_window
from mds.plan.position import Cursor, Position
from mds.plan.state import ResumePoint, parse_state
from mds.plan.stream_orders import StreamOrder
from mds.plan.stream_passes import StreamPasses
from mds.process.fork_safe import cached_property
from mds.shardfile.hashing import digest
from mds.shuffle.permutation import derive_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from mds.plan.epoch import EpochPlan
    from mds.plan.scheduled_batches import ScheduledEpoch

    Ids = NDArray[np.int64]

_PLACES = 20  # bits for the place of a piece in its pack
_START = 40  # bits for a sample id; its piece begins above
_WINDOW = 32  # bits for the place of a document in its window


class DocumentLengths(Protocol):
    """Lengths of samples, by number."""

    digest: str
    #: Tokens and documents of all that is stored.
    total: int
    count: int

    def take(self, ids: Ids) -> Ids:
        """Return the lengths of samples, int64."""

    def packed(self, counts: Sequence[int], packing: Packing) -> Sequence[Documents]:
        """Return the documents of streams of so many samples, with their tokens as packed."""


class RankPacks(NamedTuple):
    """Packs of one rank in one step.

    ``ids``, ``starts`` and ``sizes`` are the pieces of all its packs end to end, ``places`` those
    of their documents in the order, ``counts`` how many pieces each place of the batch has: 0 for a
    place without a pack. ``order``: what they add to the order hash. ``end``: the position after
    this step, of which all ranks together have ``packs``. ``dropped``: pieces whose place is
    padding.
    """

    ids: Ids
    starts: Ids
    sizes: Ids
    places: Ids
    counts: Ids
    order: tuple[int, int]
    end: Position
    packs: int
    dropped: int

    def without(self, is_padding: NDArray[np.bool_]) -> RankPacks:
        """Return the packs with some pieces turned into padding."""
        rows = np.repeat(np.arange(len(self.counts)), self.counts)[~is_padding]
        return self._replace(
            ids=self.ids[~is_padding],
            starts=self.starts[~is_padding],
            sizes=self.sizes[~is_padding],
            places=self.places[~is_padding],
            counts=np.bincount(rows, minlength=len(self.counts)),
            dropped=self.dropped + int(is_padding.sum()),
        )


class _StepPacks(NamedTuple):
    """Packs of a global batch, and the place of each in the epoch."""

    packs: TakenPacks
    places: Ids


class PackPlan:
    """Lazy plan of the packs of one epoch.

    ``plan``: the order of its samples, from whose resume point it goes on. ``lengths``: those of
    the samples. Raises PlanError for an order that packs cannot have, and StateError for a state
    that counts something else.
    """

    unit = "packs"

    def __init__(self, plan: EpochPlan, lengths: DocumentLengths) -> None:
        packing = plan.spec.packing
        assert packing is not None
        self.packing, self.lengths = packing, lengths
        self.window = self._window(plan)
        self.plan = plan = self._by_tokens(plan)
        self.spec, self.world, self.shape = plan.spec, plan.world, plan.shape
        self.epoch = plan.epoch
        self.shuffle_seed, self.num_canonical_nodes = plan.shuffle_seed, plan.num_canonical_nodes
        self.epoch_size, self.choose, self.schedule = plan.epoch_size, plan.choose, plan.schedule
        begin = plan.begin
        if begin.place and (begin.unit != self.unit or begin.cursor is None):
            raise StateError(
                f"the state counts {begin.unit} and has no cursors, and this run counts packs: "
                "begin anew, without the state."
            )
        self.begin = begin if begin.place else Position(plan.epoch, 0, self.unit)
        self._drops = PackDrops(plan.edits, plan.epoch)
        self._gaps = Gaps(skips_of(plan.edits, plan.epoch))
        self._packs_before = self._gaps.number(self.begin.place)  # without skipped ones
        #: What `count` gives, where that is kept.
        self.counts: list[Ids] | None = None

    def _window(self, plan: EpochPlan) -> int:
        """Return the documents of a window, which are never more than a shuffle block.

        A resumed run keeps the window of its state, unless the packing sets another one.
        """
        recorded = (plan.resume_point.order or {}).get("packing_window")
        if self.packing.window is None and type(recorded) is int and recorded > 0:
            return recorded
        count = self.packing.window_documents(self.lengths.total, max(self.lengths.count, 1))
        return max(min(count, plan.shuffle_block_size), 1) if plan.spec.shuffle else count

    def _by_tokens(self, plan: EpochPlan) -> EpochPlan:
        """Return the plan with its schedule, if there is one, counted in windows."""
        if plan.schedule is None or isinstance(plan.schedule, PackedRun):
            return plan
        documents = self.lengths.packed(plan.stream_samples, self.packing)
        step_tokens = plan.shape.global_batch * self.packing.room
        return plan.with_run(
            PackedRun.of(
                plan.schedule, documents, plan.choose, plan.epoch_size, self.window, step_tokens
            )
        )

    def following(self) -> PackPlan:
        """Return the plan of the next epoch."""
        return PackPlan(self.plan.following(), self.lengths)

    @property
    def long_orders(self) -> list[StreamOrder]:
        """Orders of streams that take long to compute."""
        return self.plan.long_orders

    @property
    def scheduled(self) -> ScheduledEpoch | None:
        """Windows of the schedule that the epoch has."""
        return self.plan.scheduled

    @cached_property
    def _documents(self) -> DocumentWindows:
        """Windows of the epoch."""
        plan = self.plan
        order = plan.orders[0] if plan.orders else None
        if plan.scheduled is None:
            assert order is None or isinstance(order, StreamOrder)
            return OrderWindows(order, self.window)
        assert order is None or isinstance(order, StreamPasses)
        name = digest(repr(plan.dataset_facts()), *plan.inputs.params)
        return ScheduledWindows(plan.scheduled, order, name)

    @property
    def windows(self) -> Ids:
        """Number of windows of each canonical node; with a schedule a single number."""
        return self._documents.counts

    def load(self, node: int, window: int) -> Packs:
        """Pack one window of a canonical node."""
        ids = self._drops.remaining(self._documents.ids(node, window), node, window)
        plan = self.plan
        key = None
        if plan.spec.shuffle:
            key = derive_key(plan.shuffle_seed, plan.epoch, node, window)
        place = (window * len(self.windows) + node) << _WINDOW
        return pack_window(ids, self.lengths.take(ids), self.packing, key, place)

    def reading(self) -> PackReading:
        """Return a reading of all packs from the beginning of this plan on."""
        return PackReading(self.load, self.windows, self.begin.cursor)

    def rank_packs(self, node: int, rank: int, worker: int, start: int = 0) -> Iterator[RankPacks]:
        """Yield the packs of a worker, step by step, from its ``start``-th batch on.

        ``rank`` counts within the node, ``worker`` within the rank, both after replication.
        """
        shape, reading = self.shape, self.reading()
        for step, packs in enumerate(self._steps(reading)):
            if step % shape.workers == worker and step // shape.workers >= start:
                numbers = self._numbers(packs.packs, node)[rank]
                yield self._rank_packs(packs, numbers, reading.cursor)

    def nodes_read(self, node: int) -> Ids:
        """Return all canonical nodes: packs of each of them are dealt to every node."""
        del node
        return np.arange(self.num_canonical_nodes)

    def node_reads(self, node: int, start: int = 0, every: int = 1) -> Iterator[tuple[Ids, Ids]]:
        """Yield what the workers of a node read, from the beginning of this plan on.

        Each item is (times, ids), both int64 of shape (n,): ascending places in the order of a
        worker, and the documents that are read then. Only each ``every``-th rank takes part.
        """
        assert not start, "packs begin at steps"
        shape = self.shape
        # Places that each worker has read so far; those before the least of them are complete.
        counts = np.zeros((len(range(0, shape.ranks, every)), shape.workers), np.int64)
        times, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for step, documents_of_ranks in enumerate(self._node_documents(node, every)):
            worker = step % shape.workers
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
        """Yield for each global batch the documents of each ``every``-th rank of a node."""
        for step_packs, places in self._steps(self.reading()):
            documents = []
            for numbers in self._numbers(step_packs, node)[::every]:
                pieces = step_packs.pieces(numbers)
                piece_places = self._of_pieces(places, numbers, pieces.counts)
                documents.append(pieces.ids[~self._drops.mask(pieces.ids, piece_places)])
            yield documents

    def _steps(self, reading: PackReading) -> Iterator[_StepPacks]:
        """Yield the packs of all ranks, step by step, without those that were skipped."""
        size, next_place = self.shape.global_batch, self.begin.place
        for first_number in itertools.count(self._packs_before, size):
            places = self._gaps.places(np.arange(first_number, first_number + size))
            parts = []
            for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
                reading.skip(int(run[0]) - next_place)
                parts.append(reading.take(len(run)))
                next_place = int(run[-1]) + 1
            step_packs = TakenPacks.joined(parts)
            if not len(step_packs):
                if next_place == size and self.windows.any():
                    raise PlanError(
                        f"epoch {self.epoch} has no pack: every document is empty, or dropped, "
                        f"also for being longer than {self.packing.room} tokens under "
                        "overflow='drop'."
                    )
                return
            yield _StepPacks(step_packs, places[: len(step_packs)])

    def _rank_packs(self, packs: _StepPacks, numbers: Ids, cursor: Cursor) -> RankPacks:
        step_packs, places = packs
        pieces = step_packs.pieces(numbers)
        is_dropped = self._drops.mask(pieces.ids, self._of_pieces(places, numbers, pieces.counts))
        order = self._summed(packs, numbers, pieces)
        end = Position(self.epoch, int(places[-1]) + 1, self.unit, cursor)
        rank_packs = RankPacks(*pieces, order, end, len(step_packs), 0)
        return rank_packs.without(is_dropped) if is_dropped.any() else rank_packs

    @staticmethod
    def _of_pieces(places: Ids, numbers: Ids, counts: Ids) -> Ids:
        """Return the place in the epoch of the pack of each piece."""
        real = numbers < len(places)
        return np.repeat(places[numbers[real]], counts[real])

    def _numbers(self, step_packs: TakenPacks, node: int) -> Ids:
        """Return which packs of a step each rank of a node has, int64 (ranks, batch)."""
        shape = self.shape
        first = node * shape.ranks
        of_node = shape.deal(shape.slots(first, first + shape.ranks))
        of_node = of_node.reshape(shape.ranks, shape.batch)
        if self.packing.balance is None or shape.ranks == 1:
            return of_node
        numbers = np.sort(of_node.reshape(-1))
        group = balance(step_packs.weights(numbers, self.packing.balance), shape.ranks)
        return np.stack([numbers[group == rank] for rank in range(shape.ranks)])

    def _summed(self, packs: _StepPacks, numbers: Ids, pieces: Pieces) -> tuple[int, int]:
        """Return what packs add to the order hash: of each piece place, sample and start."""
        ids, starts, _, _, counts = pieces
        ends = np.cumsum(counts)
        within = np.arange(len(ids)) - np.repeat(ends - counts, counts)
        of_pieces = self._of_pieces(packs.places, numbers, counts)
        sums = summands((of_pieces << _PLACES) + within, ids + (starts << _START))
        sums[self._drops.mask(ids, of_pieces)] = 0
        return int(sums.sum(dtype=np.uint64)), int((numbers < len(packs.packs)).sum())

    # ------------------------------------------------------------------ the whole epoch

    def count(self) -> list[Ids]:
        """Return the number of packs of each window, by packing the whole epoch once."""
        return [
            np.array([len(self.load(node, w)) for w in range(windows)], np.int64)
            for node, windows in enumerate(self.windows.tolist())
        ]

    @cached_property
    def table(self) -> PackTable:
        """Table of all packs of the epoch, made of known counts or else of `count`."""
        return PackTable(self.counts if self.counts is not None else self.count())

    @property
    def steps(self) -> int:
        """Global batches that remain, the last of which may have places without a pack."""
        remaining = self._gaps.number(self.table.total) - self._packs_before
        return -(-max(remaining, 0) // self.shape.global_batch)

    def batch(self, step: int) -> list[RankPacks]:
        """Return the packs of every rank in a global batch, counted from where this plan begins.

        Raises IndexError beyond the last.
        """
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of an epoch of {self.steps} steps.")
        shape, packs = self.shape, self._step_packs(step)
        cursor = self.table.cursor(int(packs.places[-1]) + 1)
        return [
            self._rank_packs(packs, numbers, cursor)
            for node in range(shape.nodes)
            for numbers in self._numbers(packs.packs, node)
        ]

    def _step_packs(self, step: int) -> _StepPacks:
        """Return the packs of a step, found by the table."""
        size = self.shape.global_batch
        places = self._gaps.places(np.arange(size) + self._packs_before + step * size)
        places = places[places < self.table.total]
        node, window, pack = self.table.at(places)
        windows: list[Packs] = []
        window_of = np.empty(len(node), np.int64)
        for row, number in sorted({*zip(node.tolist(), window.tolist(), strict=True)}):
            window_of[(node == row) & (window == number)] = len(windows)
            windows.append(self.load(row, number))
        return _StepPacks(TakenPacks(windows, window_of, pack), places)

    def locate(self, sample: int) -> list[Place]:
        """Return every place where a piece of a sample is in the rest of the epoch, by step.

        ``place`` is that of its pack in the batch of the rank.
        """
        shape, places = self.shape, set()
        for node, window in self._documents.find(sample):
            packs = self.load(node, window)
            positions = np.flatnonzero(packs.ids == sample)
            for pack in (np.searchsorted(packs.bounds, positions, side="right") - 1).tolist():
                places.add(self.table.find(node, window, pack))
        located = set()
        remaining = np.array(sorted(places), np.int64)
        remaining = remaining[(remaining >= self.begin.place) & self._gaps.is_in_no_gap(remaining)]
        remaining = remaining[~self._drops.mask(np.full(len(remaining), sample), remaining)]
        for number_of_pack in (self._gaps.numbers(remaining) - self._packs_before).tolist():
            step, number = divmod(number_of_pack, shape.global_batch)
            step_packs = self._step_packs(step).packs
            for node in range(shape.nodes):
                for rank, numbers in enumerate(self._numbers(step_packs, node)):
                    mine = np.flatnonzero(numbers == number)
                    global_rank = node * shape.ranks + rank
                    located |= {
                        Place(step, global_rank, step % shape.workers, place)
                        for place in mine.tolist()
                    }
        return sorted(located)

    def step_rows(self, step: int) -> list[StepSample]:
        """Return the pieces of a global batch, rank by rank.

        Steps count from where this plan begins. Raises IndexError after the last one.
        """
        return [
            StepSample(rank, sample, (start, start + size))
            for rank, packs in enumerate(self.batch(step))
            for sample, start, size in zip(
                packs.ids.tolist(), packs.starts.tolist(), packs.sizes.tolist(), strict=True
            )
        ]

    def step_reads(self) -> Iterator[Ids]:
        """Yield for each remaining global batch a number of every piece, ascending."""
        for step_packs, places in self._steps(self.reading()):
            ids, starts, _, _, counts = step_packs.pieces(np.arange(len(step_packs)))
            is_dropped = self._drops.mask(ids, np.repeat(places, counts))
            yield np.sort((ids + (starts << _START))[~is_dropped])

    def order_hash(self, steps: int) -> OrderHash:
        """Return the hash of the next ``steps`` global batches, without reading any data."""
        order_hash = OrderHash()
        for packs in itertools.islice(self._steps(self.reading()), steps):
            numbers = np.arange(len(packs.packs))
            order_hash.take(*self._summed(packs, numbers, packs.packs.pieces(numbers)))
        return order_hash

    # ------------------------------------------------------------------ states

    def order_facts(self) -> dict[str, Any]:
        """Return what a state records of the settings, as plain JSON."""
        mine = {"packing_window": self.window, "packing_lengths": self.lengths.digest}
        return {**self.plan.order_facts(), **mine}

    def dataset_facts(self) -> dict[str, Any]:
        """Return what a state records of the data, as plain JSON."""
        return self.plan.dataset_facts()

    def data_facts(self) -> dict[str, Any]:
        """Return the packing of a state, to make its packs again."""
        return {"packing": {"lengths": self.packing.lengths, "balance": self.packing.balance}}

    def fingerprint(self) -> str:
        """Return a name for the data and the settings."""
        return f"{self.plan.fingerprint()} {self.order_facts()}"

    def key(self) -> str:
        """Return a name for all that the packs of the epoch depend on."""
        edits = [edit for edit in self.plan.edits if "skip" not in edit]
        facts = sorted(self.order_facts().items(), key=str)
        return digest(self._documents.key(), repr(facts), repr(edits))

    def check(self, state: Mapping[str, Any] | ResumePoint) -> None:
        """Refuse a state of other data or another order, listing the differences (StateError)."""
        point = parse_state(state)
        point.check_unit(self.unit)
        point.check(self.plan.dataset_facts(), self.order_facts())

    def __repr__(self) -> str:
        return f"<PackPlan of epoch {self.epoch} from pack {self.begin.place}: {self.packing!r}>"


def _sorted_by_time(times: list[Ids], ids: list[Ids]) -> tuple[Ids, Ids]:
    joined_times, joined_ids = np.concatenate(times), np.concatenate(ids)
    order = np.argsort(joined_times, kind="stable")
    return joined_times[order], joined_ids[order]
