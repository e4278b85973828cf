"""Samples of streams by number and in order: the order, the cache and the readers joined.

Making one reads the indexes and nothing else: no process group, no accelerator, no thread, no
barrier. Every iteration asks the plan for this worker's sample ids and the prefetcher for the
shards behind them; a sample then costs one lookup and one decode. Copies in worker processes agree
on the epoch through an EpochBook and need nothing else of each other. Torch is not needed here.
"""

from __future__ import annotations

import copy
import math
import operator
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from mds.cache import ShardCache
from mds.cache.orders import shared_plan
from mds.contents import Contents, Counted
from mds.epochs import EpochBook, Turn
from mds.errors import ConfigError
from mds.explain import explain
from mds.indexing import resolve
from mds.ordered import Ordered
from mds.part import Masked, Part, Resumable
from mds.parts import Parts
from mds.prefetch import Prefetcher, Window
from mds.readers import Choice, in_order
from mds.sieve import LeftOut, Sieve
from mds.stream import Stream, cache_root, fill_streams, read_indexes
from mds.topology import Ranks, find_ranks, worker_group, worker_place
from mds.units import parse_bytes, parse_count

if TYPE_CHECKING:
    from mds.world import World


class Samples(Counted, Parts, Ordered):
    """Samples of one or several streams, in an order that is a function of its arguments alone.

    One of ``streams`` and ``remote`` / ``local`` is needed; see Stream for what they mean.

    What is read: ``epoch_size`` (samples, or a text such as "100k"), ``sampling_method``
    ("balanced": another subset each epoch, or "fixed"), ``sampling_granularity`` (samples taken
    side by side), ``columns`` (decode only these), ``images`` ("pil", or "array" for decoded uint8
    pixels), ``allow_unsafe_types`` (open pickled columns).

    In which order: ``shuffle``, ``shuffle_algo`` ("py1e", "py1br", "py1b", "py1s", "py2s", "naive",
    "seekable"), ``shuffle_seed``, ``shuffle_block_size`` (samples), ``num_canonical_nodes``,
    ``partition_algo``, ``batching_method`` ("random", "stratified", "per_stream",
    "device_per_stream"), ``batch_size`` (samples of one rank's batch), ``replication`` (so many
    consecutive ranks see the same samples), ``exact`` (every sample once over all ranks, none
    repeated to even them out; "mask": and as many full batches on every rank, with a ``mask`` that
    tells padding), ``topology`` (who the ranks are; see docs/distributed.md).

    ``on_error``: "raise", or "skip" to leave out samples that do not decode; see ``left_out``.

    How it gets here: ``predownload`` (samples ahead of each worker), ``cache_limit`` (bytes, or a
    text such as "50gb"), ``download_retry``, ``download_timeout`` (seconds), ``validate_hash``,
    ``keep_zip``, ``storage_options``.

    Raises ConfigError (a ValueError) for arguments that make no sense, IndexFileError (a
    ValueError) for a broken index, NotFoundError (a FileNotFoundError) for a missing one.
    """

    # For __getitem__ of a subclass: shards of the window that is iterated, and their readers.
    _near: AbstractSet[int]
    _issued: int
    _left: Iterator[Any]
    current: Part | None  # what this copy goes through now
    _at_hand: Mapping[int, Any]

    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        exact: bool | str = False,
        topology: Any = None,
        images: str = "pil",
        on_error: str = "raise",
    ) -> None:
        _check(sampling_method, sampling_granularity, shuffle_seed, predownload, on_error, exact)
        self.sampling_method, self.sampling_granularity = sampling_method, sampling_granularity
        self.partition_algo, self.num_canonical_nodes = partition_algo, num_canonical_nodes
        self.batch_size, self.batching_method = batch_size, batching_method
        self.shuffle, self.shuffle_algo, self.shuffle_seed = shuffle, shuffle_algo, shuffle_seed
        self.shuffle_block_size = shuffle_block_size
        self.replication, self.exact, self.topology = replication, exact, topology
        self.sieve = Sieve(skip_broken=on_error == "skip")
        self.allow_unsafe_types = allow_unsafe_types
        self.initial_physical_nodes: int | None = None
        self.predownload = (
            predownload if predownload is not None else 8 * batch_size if batch_size else 64
        )
        self.cache_limit = parse_bytes(cache_limit) if cache_limit is not None else None
        self.streams = fill_streams(
            streams,
            {"remote": remote, "local": local, "split": split, **(stream_config or {})},
            stream_name,
            {
                "split": split,
                "download_retry": download_retry,
                "download_timeout": download_timeout,
                "validate_hash": validate_hash,
                "keep_zip": keep_zip,
                "storage_options": storage_options,
            },
        )
        self._shares = [stream.share for stream in self.streams]
        self._epoch_size_wanted = parse_count(epoch_size) if epoch_size else None
        Stream.validate_weights(self.streams)
        indexes = read_indexes(self.streams)
        self.choice = Choice(tuple(columns) if columns is not None else None, images)
        self._cache = ShardCache(
            [s.source(index) for s, index in zip(self.streams, indexes, strict=True)],
            limit=self.cache_limit,
            allow_unsafe_types=allow_unsafe_types,
            columns=self.choice,
        )
        self._ranks: Ranks | None = None
        self._become(Contents(indexes))

    # ------------------------------------------------------------------ what there is

    @property
    def length(self) -> int:
        """Samples of an epoch that this rank sees, rounded up."""
        return math.ceil(self.epoch_size / self._world().num_ranks)

    def __len__(self) -> int:
        return self.length

    @property
    def num_streams(self) -> int:
        """How many streams are mixed."""
        return len(self.streams)

    def __repr__(self) -> str:
        shuffled = f"{self.shuffle_algo} shuffled" if self.shuffle else "in order"
        return (
            f"<{type(self).__name__}: {self.num_samples} samples in {self.num_shards} shards of "
            f"{self.num_streams} stream{'s' * (self.num_streams != 1)}, {shuffled}, "
            f"epoch {self.next_epoch} next>"
        )

    @property
    def epoch_seed_change(self) -> bool:
        """Whether every epoch takes other samples, where it does not take all."""
        return self.sampling_method == "balanced"

    def explain(self) -> str:
        """What every setting became and why, and what it will cost; a text to print."""
        world = self._world()
        last = self._book.last or Turn(max(self.next_epoch, 0), self._book.pending)
        plan = self.plan(last, world)
        assert self._ranks is not None
        return explain(
            type(self).__name__,
            self._contents,
            plan,
            self._ranks,
            self.predownload,
            self.cache_limit,
        )

    # ------------------------------------------------------------------ samples by number

    def __getitem__(self, at: Any) -> Any:
        """The sample of that number, or lists of samples for slices, lists and arrays.

        Raises IndexError out of range and ValueError for another kind of index.
        """
        if type(at) is int and 0 <= at < self._contents.num_samples:
            return self.get_item(at)
        return resolve(at, self._contents.num_samples, self.get_item)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """One sample by its number; what a subclass overrides to change what a sample is.

        ``retry`` is taken for the sake of old callers: a sample comes or the error does.
        """
        del retry
        shard, row = self._contents.locate(sample_id)
        if shard in self._near:
            reader = self._at_hand[shard]
            if row in reader:
                return reader.get(row)
        return self._cache.sample(shard, row)

    # ------------------------------------------------------------------ an epoch

    def __iter__(self) -> Iterator[Any]:
        part = self.begin(*worker_place(), worker_group())
        self.issued = 0
        # Its loader asks the iterator of each worker for a state, and brings it back there.
        return Resumable(self, part) if "torchdata" in sys.modules else self.samples(part)

    def begin(self, worker: int, workers: int, group: int) -> Part:
        """Take the next epoch, or the one of a loaded state, and make its plan.

        Done when an iteration starts and not at its first sample: all workers of a loader, which
        share a ``group``, must agree, and the last of them may be asked much later than the first.
        """
        world = self._world(workers, worker)
        return self.part(self._book.claim(group, worker), world)

    def part(self, turn: Turn, world: World, start: int = 0) -> Part:
        """The ids of one worker in one turn, from its ``start``-th on."""
        plan = shared_plan(self.plan(turn, world), os.path.join(cache_root(), "orders"))
        kind = Masked if self.exact == "mask" else Part
        self.current = kind(plan, world, start)
        return self.current

    def go_to(self, turn: Turn, start: int) -> Part:
        """This worker's part of a turn that a loader brings back; the next epoch comes after it."""
        self._book.next_epoch = turn.epoch + 1
        worker, workers = worker_place()
        return self.part(turn, self._world(workers, worker), start)

    def samples(self, part: Part) -> Iterator[Any]:
        """This worker's samples, through the caller's own ``__getitem__`` where there is one."""
        if not self.sieve.is_open:
            yield from self._sieved(part)
        elif not self._has_own_items:
            for window in self.windows(part):
                samples, left = in_order(window.readers, window.shards, window.rows)
                self._issued, self._left = self._issued + len(window.ids), left
                yield from samples
        else:
            for sample in self._numbers(part):
                self._issued += 1
                yield self[sample]

    @property
    def issued(self) -> int:
        """Places of the order filled in this iteration: for the tag of a batch."""
        # A counter in the loop would cost a fifth of a small sample; the iterator knows.
        return self._issued - int(operator.length_hint(self._left))

    @issued.setter
    def issued(self, count: int) -> None:
        self._issued, self._left = count, iter(())

    def _numbers(self, part: Part) -> Iterator[int]:
        """This worker's sample numbers; the shards behind them are at hand."""
        for window in self.windows(part):
            self._near, self._at_hand = {*window.shards.tolist()}, window.readers
            yield from self._contents.selected(window.ids).tolist()
        self._near = frozenset()

    def _sieved(self, part: Part) -> Iterator[Any]:
        for sample in self.sieve.sift(self._numbers(part), self.__getitem__, self.left_out.append):
            self._issued += 1
            yield sample

    @property
    def is_plain(self) -> bool:
        """Whether samples are what the readers give: no subclass changes them on the way."""
        return (
            self.sieve.is_open
            and not self._has_own_items
            and type(self).__iter__ is Samples.__iter__
        )

    @property
    def _has_own_items(self) -> bool:
        own = type(self)
        return own.__getitem__ is not Samples.__getitem__ or own.get_item is not Samples.get_item

    def windows(self, part: Part) -> Iterator[Window]:
        """Stretches of a worker's ids with the shards behind them."""
        ids = map(self._contents.stored, part.blocks())
        with Prefetcher(
            self._cache, ids, self._contents.stored_ends, predownload=self.predownload
        ) as prefetcher:
            yield from prefetcher.windows()

    # ------------------------------------------------------------------ the cache

    def _become(self, contents: Contents) -> None:
        """Be a dataset of these contents that has not begun yet."""
        self._contents = contents
        self._book = EpochBook()
        self._near = frozenset()
        self.current = None
        self.left_out: list[LeftOut] = []
        self.issued = 0  # places of the order filled in this iteration: for the tag of a batch
        self.streams = [copy.copy(stream) for stream in self.streams]
        self._weigh()

    @property
    def cache_usage(self) -> int:
        """Bytes that this dataset's shards take in the cache folders of this node."""
        return self._cache.usage

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Have a shard fetched; without ``blocking`` it is there when it is there."""
        if blocking:
            self._cache.hold(shard_id)
            self._cache.release(shard_id)
        else:
            threading.Thread(target=self.prepare_shard, args=(shard_id,), daemon=True).start()

    def evict_shard(self, shard_id: int) -> None:
        """Take a shard out of the cache folder; what the library did not fetch stays."""
        self._cache.evict(shard_id)

    def evict_coldest_shard(self) -> None:
        """Take the shard that is needed last out of the cache folder, if one can go."""
        self._cache.evict_coldest()

    def stats(self) -> dict[str, float]:
        """Counts of this process: bytes, hits, waits, retries, evictions, seconds waited."""
        return self._cache.stats()

    # ------------------------------------------------------------------ inside

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker has no process group to ask, so it is told who it belongs to.
        if self._ranks is None:
            self._ranks = find_ranks(self.topology)
        return {
            **self.__dict__,
            "topology": None,
            "_near": frozenset(),
            "_at_hand": {},
            "current": None,
            "_left": iter(()),
        }


def _check(
    method: str,
    granularity: int,
    seed: int,
    predownload: int | None,
    on_error: str,
    exact: bool | str,
) -> None:
    """Refuse settings that no dataset can have."""
    if seed < 0:
        raise ConfigError(f"shuffle_seed must not be negative, got {seed}.")
    if granularity <= 0:
        raise ConfigError(f"sampling_granularity is 1 or more, got {granularity}.")
    if method not in {"balanced", "fixed"}:
        raise ConfigError(f"sampling_method is 'balanced' or 'fixed', got {method!r}.")
    if predownload is not None and predownload < 0:
        raise ConfigError(f"predownload must not be negative, got {predownload}.")
    if on_error not in {"raise", "skip"}:
        raise ConfigError(f"on_error is 'raise' or 'skip', got {on_error!r}.")
    if exact not in {True, False, "mask"}:
        raise ConfigError(f"exact is True, False or 'mask', got {exact!r}.")
