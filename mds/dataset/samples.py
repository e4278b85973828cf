"""Samples of streams by number and in order: the order, the cache and the readers joined.

Making one reads the indexes and nothing else: no process group, no accelerator, no thread, no
barrier. Every iteration asks the plan for this worker's sample ids and the prefetcher for the
shards behind them; a sample then costs one lookup and one decode. Copies in worker processes agree
on the epoch through a SharedEpochCounter and need nothing else of each other.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mds.arguments import plain_scalar, takes_names
from mds.cache import ShardCache
from mds.cache.order_files import share_order
from mds.cache.source import cache_root
from mds.dataset import cached_shards, editing, mapping, subsets
from mds.dataset.editing import RunningLoop, no_loop
from mds.dataset.epoch_iterator import EpochIterator
from mds.dataset.explain import explain
from mds.dataset.facts import DatasetFacts
from mds.dataset.filtering import DropCount, SampleFilter
from mds.dataset.indexing import resolve
from mds.dataset.order_state import SETTING_NAMES, OrderSetting, OrderState
from mds.dataset.pack_counts import count_packs
from mds.dataset.settings import (
    FixedSetting,
    check_schedule,
    check_settings,
    resolve_predownload,
)
from mds.dataset.shard_map import ShardMap
from mds.dataset.stream import PLACE, STREAM_SETTINGS, Stream, fill_streams, find_sources
from mds.dataset.worker_epoch import PaddedWorkerEpoch, WorkerEpoch, collected_epochs, lent
from mds.errors import ConfigError
from mds.plan import EpochPlan, OrderSpec, Packing, PackPlan, Schedule
from mds.plan.position import Position
from mds.plan.state import ResumePoint
from mds.readers import ColumnSelection
from mds.units import parse_bytes, parse_count
from mds.world import (
    Ranks,
    World,
    find_ranks,
    in_worker,
    refuse_second_sharding,
    worker_group,
    worker_place,
)


class Samples(DatasetFacts):
    """Samples of one or several streams, in an order that is a function of its arguments alone.

    `StreamingDataset` is this and a torch IterableDataset; its help lists the arguments. Torch is
    not needed here.

    Raises ConfigError (a ValueError) for arguments that make no sense, IndexFileError (a
    ValueError) for a broken index, NotFoundError (a FileNotFoundError) for a missing one.
    """

    batch_size = OrderSetting[int | None]()
    batching_method = OrderSetting[str]()
    exact = OrderSetting[bool | str]()
    num_canonical_nodes = OrderSetting[int | None]()
    packing = OrderSetting[Packing | None]()
    partition_algo = OrderSetting[str]()
    sampling_granularity = OrderSetting[int]()
    sampling_method = OrderSetting[str]()
    shuffle = OrderSetting[bool]()
    shuffle_algo = OrderSetting[str]()
    shuffle_block_size = OrderSetting[int | None]()
    shuffle_seed = OrderSetting[int]()

    allow_unsafe_types = FixedSetting[bool]()
    cache_limit = FixedSetting[int | None]()
    epoch_size = FixedSetting[int](" or dataset.limit(samples)")
    initial_physical_nodes = FixedSetting[int | None]()
    streams = FixedSetting[list[Stream]]()
    topology = FixedSetting[Any]()

    #: What is said where an argument breaks a rule: nothing is taken for what it is not.
    _is_strict = True

    @takes_names
    def __init__(
        self,
        *,
        streams: Sequence[Stream] | Mapping[str, Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | os.PathLike[str] | None = None,
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
        schedule: Schedule | None = None,
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        exact: bool | str = False,
        topology: Any = None,
        images: str | Mapping[str, str] = "pil",
        on_error: str = "raise",
        copy: bool = True,
        format: Any = None,  # noqa: A002 - what it is
        packing: Packing | None = None,
    ) -> None:
        given = locals()  # they go on by name, so that none is taken for another
        if self._is_strict:
            check_settings(type(self).__name__, given)
        spec = OrderSpec(**{name: given[name] for name in SETTING_NAMES}, skip_empty_streams=True)
        replication = plain_scalar(replication)
        if isinstance(topology, tuple):
            topology = tuple(map(plain_scalar, topology))
        self.replication, self.topology = replication, topology
        self.allow_unsafe_types = allow_unsafe_types
        self.initial_physical_nodes = None
        self.predownload = resolve_predownload(
            predownload, batch_size, is_packed=packing is not None
        )
        self.cache_limit = parse_bytes(cache_limit) if cache_limit is not None else None
        place = {name: given[name] for name in PLACE} | dict(stream_config or {})
        defaults = {name: given[name] for name in STREAM_SETTINGS}
        self.streams = fill_streams(streams, place, stream_name, defaults)
        self._check_streams()
        size = None if epoch_size is None else parse_count(epoch_size)
        shares = [stream._share for stream in self.streams]
        run = check_schedule(schedule, streams, batching_method, packing)
        self._order = OrderState(spec, shares, size, run, may_lack_batches=self._is_strict)
        Stream.validate_weights(self.streams)
        sources = find_sources(self.streams)
        self._filter = SampleFilter(skip_broken=on_error == "skip")
        names = tuple(columns) if columns is not None else None
        self._columns = chosen = ColumnSelection(names, images, copy)
        self._cache = ShardCache(
            sources, limit=self.cache_limit, allow_unsafe_types=allow_unsafe_types, columns=chosen
        )
        self._ranks: Ranks | None = None
        self._loop: Callable[[], RunningLoop | None] = no_loop
        self._reset(ShardMap([source.index for source in sources]))

    def _check_streams(self) -> None:
        """Refuse streams that this kind of dataset cannot have; before any of them is opened."""

    def _reset(self, shards: ShardMap) -> None:
        """Be a dataset of these shards that has not begun yet."""
        self._shards = shards
        vars(self)["streams"] = [copy.copy(stream) for stream in self.streams]
        self._order = self._order.reset(shards, self.streams, self._cache.sources)
        vars(self)["epoch_size"] = self._order.weights.epoch_size
        self._dropped = DropCount()
        self._running: WorkerEpoch | None = None  # the iteration that state_dict() speaks of
        self._loop = no_loop  # the loader whose batches are being trained on

    # ------------------------------------------------------------------ what it became

    def explain(self) -> str:
        """What every setting became and why, and what it will cost; a text to print.

        A notebook shows it as a table.
        """
        epochs, world = self._order.epochs, self._world()
        start = epochs.last or epochs.pending or ResumePoint(Position(epochs.next_epoch))
        order = self._order.order(start, world)
        plan = order.plan if isinstance(order, PackPlan) else order
        packs = count_packs(order) if isinstance(order, PackPlan) else None
        assert isinstance(plan, EpochPlan)
        assert self._ranks is not None
        sources = self._cache.sources
        return explain(
            type(self).__name__,
            self._shards,
            plan,
            self._ranks,
            self.predownload,
            self.cache_limit,
            self._filter.chain,
            fetched=[each.index for each in sources if not each.is_near],
            unpacked=[
                each.index
                for each in sources
                if each.is_near and (each.remote is not None or each.index.zip_size.any())
            ],
            has_batches=self.batch_size is not None,
            packs=packs,
            costs=[stream._file_costs for stream in self.streams if stream._file_costs is not None],
        )

    # ------------------------------------------------------------------ samples by number

    select = subsets.select
    limit = subsets.limit
    filter = subsets.filter
    map = mapping.map
    map_batches = mapping.map_batches
    split = subsets.split

    def __getitem__(self, at: Any) -> Any:
        """The sample of that number, or lists of samples for slices, lists and arrays.

        Raises IndexError out of range and ValueError for another kind of index.
        """
        if type(at) is int and 0 <= at < self._shards.num_samples:
            return self.get_item(at)
        return resolve(at, self._shards.num_samples, self.get_item)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """One sample by its number; what a subclass overrides to change what a sample is.

        ``retry`` is taken for the sake of old callers: a sample comes or the error does.
        """
        del retry
        shard, row = self._shards.locate(sample_id)
        at_hand = lent.readers  # of the iteration that makes this call
        if at_hand is not None and shard in at_hand.shards and at_hand.cache is self._cache:
            reader = at_hand.readers[shard]
            if row in reader:
                return reader.get(row)
        return self._cache.sample(shard, row)

    def _stored_item(self, number: int) -> Any:
        """A sample before the functions of map; as a subclass makes it."""
        return self[number]

    # ------------------------------------------------------------------ an epoch

    def __iter__(self) -> Iterator[Any]:
        self._filter.chain.refuse_samples()
        if self.packing is not None:
            raise ConfigError(
                "packing= makes batches of packs, and iterating a dataset gives samples: iterate "
                "StreamingDataLoader(dataset, pack_as='varlen')."
            )
        refuse_second_sharding(self.num_ranks)
        epochs = collected_epochs(self)
        epoch = self._begin_epoch(*worker_place(), worker_group(), for_loader=epochs is not None)
        if epochs is not None:
            epochs.append(epoch)
        return EpochIterator.over(self, epoch)

    def _begin_epoch(
        self, worker: int, workers: int, group: int, *, for_loader: bool = False
    ) -> WorkerEpoch:
        """Take the next epoch, or the one of a loaded state, and make its plan.

        Done when an iteration starts and not at its first sample: all workers of a loader, which
        share a ``group``, must agree, and the last of them may be asked much later than the first.
        ``for_loader``: a loader counts it, and marks the padding of exact="mask", which is left out
        otherwise.
        """
        start = self._order.epochs.begin_epoch(group, worker)
        world = self._world(workers, worker)
        epoch = self._worker_epoch(start, world, for_loader=for_loader)
        if world.is_leader and not start.position.epoch:
            self._order.warn_of_late_milestones(epoch.order)
        # Another that is under way is spoken of until this one gives a sample.
        if self._running is None or not self._running.is_under_way:
            self._running = epoch
        return epoch

    def _worker_epoch(
        self, start: ResumePoint, world: World, position: int = 0, *, for_loader: bool = False
    ) -> WorkerEpoch:
        """Return the part of a worker in an epoch, from the ``position``-th place of it on."""
        order = self._order.order(start, world)
        if order.long_orders:
            order = share_order(order, os.path.join(cache_root(), "orders"))
        kind = PaddedWorkerEpoch if for_loader and self.exact == "mask" else WorkerEpoch
        return kind(order, world, position, is_counted=for_loader)

    def _seek(self, start: ResumePoint, position: int) -> WorkerEpoch:
        """Return this worker's part of an epoch that a loader brings back; the next comes after."""
        self._order.epochs.next_epoch = start.position.epoch + 1
        worker, workers = worker_place()
        return self._worker_epoch(start, self._world(workers, worker), position)

    @property
    def _is_plain(self) -> bool:
        """Whether samples are what the readers give: neither subclass nor function changes them."""
        return (
            self._filter.keeps_everything
            and not self._filter.chain.maps
            and not self._has_own_items
            and type(self).__iter__ is Samples.__iter__
        )

    @property
    def _has_own_items(self) -> bool:
        own = getattr(type(self), "_stored_kind", type(self))
        return own.__getitem__ is not Samples.__getitem__ or own.get_item is not Samples.get_item

    # ------------------------------------------------------------------ state

    @property
    def num_ranks(self) -> int:
        """Ranks that see different samples."""
        return self._world().num_ranks

    def _world(self, workers: int = 1, worker: int = 0) -> World:
        """The world after replication; the ranks are looked up once, when first needed."""
        if self._ranks is None:
            self._ranks = find_ranks(self.topology)
        world = self._ranks.world(workers, worker)
        return world.replicate(self.replication) if self.replication is not None else world

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration begins, unless a state is loaded."""
        return self._order.epochs.next_epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._order.epochs.next_epoch = epoch

    def state_dict(
        self, num_samples: int | None = None, from_beginning: bool = False
    ) -> dict[str, Any]:
        """Everything that the order depends on, after ``num_samples`` samples of all ranks.

        They count from the beginning of the epoch, or else from where this epoch was resumed.
        Without a number it is what this object itself yielded, times the ranks, for loops without
        a loader: of the iteration that began to give samples last. Before the first epoch the
        epoch is -1. Plain numbers and texts: fit for JSON. Asking changes nothing.
        """
        if self.packing is not None and num_samples:
            raise ConfigError(
                f"state_dict(num_samples={num_samples}): with packing= a position counts "
                "packs, which the loader knows. Use state_dict() of the StreamingDataLoader."
            )
        world = self._world()
        position = self._order.position(world, num_samples, from_beginning, self._running)
        return self._order.state(world, position)

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Let the next iteration go on from a state, of this library or of the incumbent.

        To be called on every rank. A state that was saved after an epoch had ended lets the next
        epoch begin; the incumbent's gives an empty one first, as there. Raises StateError (a
        ValueError), listing the differences, when the state is of another dataset or another order.
        """
        if in_worker():
            # Only torchdata's loader does this, and it brings the position to the iterator too.
            return
        point = self._order.load(obj, self._world(), follows_finished=self._is_strict)
        vars(self)["initial_physical_nodes"] = point.initial_physical_nodes

    set_weights = editing.set_weights
    drop = editing.drop

    # ------------------------------------------------------------------ the cache

    @property
    def cache_usage(self) -> int:
        """Bytes that this dataset's shards take in the cache folders of this node."""
        return self._cache.usage

    prepare_shard = cached_shards.prepare_shard
    evict_shard = cached_shards.evict_shard
    evict_coldest_shard = cached_shards.evict_coldest_shard

    def stats(self, *, node: bool = False) -> dict[str, float]:
        """Counts of this rank: bytes, hits, waits, retries, evictions, seconds waited.

        - ``node`` (bool, default False): Count all ranks of this machine instead that use one of
          the cache folders now, of whatever job.

        Those of worker processes are among them, also of workers that have ended. docs/cache.md
        has the names.
        """
        counts = self._dropped
        dropped = {} if self._filter.keeps_everything and not counts.count else counts.as_dict()
        return {**self._cache.stats(node=node), **dropped}

    # ------------------------------------------------------------------ inside

    def __getstate__(self) -> dict[str, Any]:
        if self._ranks is None:
            self._ranks = find_ranks(self.topology)
        refuse_second_sharding(self.num_ranks)  # worker processes that are spawned get a copy
        return {
            **self.__dict__,
            "topology": None,
            "_order": copy.copy(self._order),
            "_running": None,
            "_loop": no_loop,
        }
