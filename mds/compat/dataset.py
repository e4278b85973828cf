"""The incumbent's ``base.dataset``: our StreamingDataset, as code written for 0.13 expects it.

Two datasets of one process on one local folder are an error there, and programs have come to rely
on hearing it. Ours keeps the second one apart in the folder; through the door it is refused as it
was, unless both read the same remote, as when a trainer makes its dataset again.
"""

from __future__ import annotations

import dataclasses
import gc
import inspect
import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mds.arguments import find_faults
from mds.cache.origin import source_of
from mds.compat.dataset_parts import (
    GivenWork,
    NumberedShards,
    resolve_numbers,
)
from mds.compat.orders import (
    batching_methods,
    has_replaced_order,
    ids_of_worker,
    partition_algos,
    resample,
    shuffle_algos,
)
from mds.compat.overrides import (
    LiveRegistry,
    Overridable,
    load_replacements,
    overrides,
    refuse,
    refuse_missing,
    save_replacements,
)
from mds.compat.ranks import ranks_of
from mds.compat.readers import Array, ShardReaders, Spanner
from mds.compat.stream import Stream
from mds.dataset.indexing import normal
from mds.dataset.order_state import OrderSetting
from mds.dataset.samples import Samples
from mds.dataset.settings import DATASET_RULES, raise_fixed
from mds.dataset.shard_map import ShardMap
from mds.dataset.stream import Stream as NativeStream
from mds.dataset.stream import streams_registry
from mds.dataset.streaming import StreamingDataset as Dataset
from mds.dataset.worker_epoch import PaddedWorkerEpoch, WorkerEpoch
from mds.errors import ConfigError, NotFoundError, StateError
from mds.plan.state import KEYS, VERSION, Position, ResumePoint, parse_state
from mds.shuffle import algos
from mds.world import World, worker_group, worker_place

if TYPE_CHECKING:
    from mds.plan import EpochPlan

#: Methods whose overrides would change which samples come, and what to use instead.
_REFUSED = {
    **dict.fromkeys(
        ("_each_sample_id", "_share_work", "_attach_work"),
        "an override of _get_work, which each worker calls",
    ),
    **dict.fromkeys(
        ("_resume", "_resume_incr_epoch"), "state_dict() and load_state_dict(), which are called"
    ),
    "_set_shuffle_block_size": "shuffle_block_size=",
}
#: Methods whose overrides change nothing.
_IGNORED = {
    **dict.fromkeys(
        ("_prepare_thread", "_ready_thread", "on_exception"),
        "predownload=, and errors that are raised where the next sample is asked for",
    ),
    **dict.fromkeys(
        ("evict_shard", "evict_coldest_shard", "_evict_shard", "_evict_coldest_shard"),
        "the event mds.events.Evicted",
    ),
}
_LIVE = ("__getitem__", "_get_work", "get_item", "prepare_shard", "resample_streams")
#: Methods that are looked up on the class, so that one set on an object would not be called.
_OF_CLASS = {*_LIVE, *_REFUSED}
#: What a state remembers of the size of global batches.
_OF_BATCHES = ("global_batch_size", "batch_size", "ranks_per_node", "batches_of_streams")
#: What is settled when a dataset is made.
_SETTLED = ("allow_unsafe_types", "cache_limit", "epoch_size", "initial_physical_nodes", "topology")


#: What 0.13 takes as it comes, whatever it is.
_TAKEN = ("keep_zip", "allow_unsafe_types", "num_canonical_nodes", "shuffle_block_size")


class NoSamplesError(ConfigError, RuntimeError):
    """A dataset whose index names no samples."""


class MissingShardError(NotFoundError, ValueError):
    """A shard that is neither in the folder nor anywhere else."""


class _OwnName(OrderSetting[str]):
    """Order setting that may name a function that code has put into a live registry.

    Plans then have ``native`` instead, and the function makes the order.
    """

    def __init__(self, registry: LiveRegistry[str, Any], native: str) -> None:
        self._registry, self._native = registry, native

    def names_own(self, name: object) -> bool:
        """Whether a name is that of a function which code has put into the registry."""
        return name in self._registry and not self._registry.is_original(str(name))

    def __get__(self, dataset: Any, owner: type | None = None) -> Any:
        own = {} if dataset is None else vars(dataset).get("_own_names", {})
        return own[self._name] if self._name in own else super().__get__(dataset, owner)

    def __set__(self, dataset: Any, value: str) -> None:
        own = {k: v for k, v in vars(dataset).get("_own_names", {}).items() if k != self._name}
        if self.names_own(value):
            own[self._name], value = value, self._native
        vars(dataset)["_own_names"] = own
        super().__set__(dataset, value)


class StreamingDataset(Overridable, Dataset, Array):
    """As `mds.StreamingDataset`; a local directory has one remote in a process.

    Raises ConfigError (a ValueError) when another living dataset reads another remote through it.
    """

    _is_strict = False
    _live, _refused, _ignored = _LIVE, _REFUSED, _IGNORED

    batching_method = _OwnName(batching_methods, "random")
    partition_algo = _OwnName(partition_algos, "relaxed")

    def __init__(self, **kwargs: Any) -> None:
        arguments = _accepted(kwargs)
        own_names = {
            name: arguments.pop(name)
            for name in ("batching_method", "partition_algo")
            if vars(StreamingDataset)[name].names_own(arguments.get(name))
        }
        super().__init__(**arguments)
        for name, value in own_names.items():
            setattr(self, name, value)
        if self.batch_size is not None and self.predownload < self.batch_size:
            warnings.warn(
                f"predownload < batch_size ({self.predownload} < {self.batch_size}). This may "
                "result in slower batch time. Set predownload to at least batch_size.",
                stacklevel=2,
            )
        self._world()  # 0.13 keeps the world in which a dataset is made
        _living[self] = os.getpid()

    def _check_streams(self) -> None:
        """Refuse a local directory that another remote has."""
        mine = _sources(self.streams)
        for folder, source in mine:
            if any(there == folder and other != source for there, other in mine):
                raise _reused([folder], [folder])
        if _conflict(mine):
            gc.collect()  # a dataset in a reference cycle outlives its last user
        theirs = _conflict(mine)
        if theirs:
            raise _reused([folder for folder, _ in mine], [folder for folder, _ in theirs])

    def _reset(self, shards: ShardMap) -> None:
        if self._has_own_items:
            shards = NumberedShards.of(shards)
        if not shards.num_samples and shards.selection is None:
            raise NoSamplesError(f"there are no samples in {', '.join(map(repr, self.streams))}.")
        super()._reset(shards)
        self.__dict__.pop("_shard_readers", None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OF_CLASS:
            instead = _REFUSED.get(name, f"a subclass that overrides {name}, which is called")
            refuse(f"{name} of one dataset", f"Use {instead}")
        if name in _SETTLED and "_shards" in vars(self) and value != vars(self).get(name):
            raise_fixed(self, name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        refuse_missing(self, name)
        if name == "epoch_seed_change" and "_shards" in self.__dict__:
            return False
        return super().__getattr__(name)

    # ------------------------------------------------------------------ what there is

    @property
    def shards(self) -> Sequence[Any]:  # type: ignore[override]
        """A reader of each shard, made when it is first asked for."""
        found: ShardReaders | None = self.__dict__.get("_shard_readers")
        if found is None:
            found = self._shard_readers = ShardReaders(self._shards, self._cache)
        return found

    @property
    def spanner(self) -> Spanner:  # type: ignore[override]
        """``spanner[sample]`` is (shard, row)."""
        return Spanner(self._shards.samples_per_shard)

    def _world(self, workers: int = 1, worker: int = 0) -> World:
        if self._ranks is None:
            self._ranks = ranks_of(self.topology)
        return super()._world(workers, worker)

    @property
    def _unique_rank_world(self) -> World:
        return self._world()

    @property
    def _parallel_rank_world(self) -> World:
        self._world()
        assert self._ranks is not None
        return self._ranks.world(1, 0)

    # ------------------------------------------------------------------ samples by number

    def __getitem__(self, at: Any) -> Any:
        """The sample of that number, or lists of samples for slices, lists and arrays."""
        if isinstance(at, bool):
            at = int(at)  # 0.13 takes True for sample 1
        if type(at) is int and 0 <= at < self._shards.num_samples:
            return self.get_item(at)
        return resolve_numbers(at, self._shards.num_samples, self.get_item)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return one sample by its number; subclasses override this to change what a sample is."""
        try:
            if type(self).prepare_shard is not _PREPARE_SHARD:
                self._prepare_shard_of(int(sample_id))
            return super().get_item(int(sample_id), retry)
        except NotFoundError as error:
            if isinstance(error, ValueError):
                raise
            raise MissingShardError(str(error), url=error.url, verb=error.verb) from error

    def _prepare_shard_of(self, sample_id: int) -> None:
        """Call the override of `prepare_shard` before samples of another shard are read."""
        shard, _ = self._shards.locate(sample_id)
        if shard != vars(self).get("_prepared_shard"):
            self.prepare_shard(shard)
            self._prepared_shard = shard

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Fetch a shard; see `mds.StreamingDataset`. An override is called before its samples."""
        super().prepare_shard(shard_id, blocking)

    def evict_shard(self, shard_id: int) -> None:
        """Take a shard out of the cache folder; what the library did not fetch stays."""
        super().evict_shard(normal(shard_id, self.num_shards))

    @property
    def _has_own_items(self) -> bool:
        names = ("__getitem__", "get_item", "prepare_shard")
        return any(overrides(type(self), StreamingDataset, name) for name in names)

    @property
    def _is_plain(self) -> bool:
        return super()._is_plain and not self._has_own_work

    # ------------------------------------------------------------------ an epoch

    @property
    def _has_own_work(self) -> bool:
        return overrides(type(self), StreamingDataset, "_get_work") or has_replaced_order(self)

    @property
    def _has_own_resampling(self) -> bool:
        return overrides(type(self), StreamingDataset, "resample_streams")

    def resample_streams(
        self, epoch: int, stream_id: int | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the samples of each shard to shuffle, and the sample id of each place before it.

        Both int64: (shards,) and (samples,), of one stream or of all.
        """
        return resample(self, epoch, stream_id)

    def _resume_incr_epoch(self) -> tuple[int, int]:
        """Begin the next epoch; return it, and how many samples of it all ranks have seen."""
        worker, _ = worker_place()
        position = self._order.epochs.begin_epoch(worker_group(), worker).position
        return max(position.epoch, 0), position.place

    def _get_work(self, epoch: int, sample_in_epoch: int) -> npt.NDArray[np.int64]:
        """Return the ids of this worker in an epoch from a sample on, -1 for padding."""
        worker, workers = worker_place()
        world = self._world(workers, worker)
        plan: Any = vars(self).get("_starting_plan")
        is_other = plan is None or plan.begin[:2] != (epoch, sample_in_epoch)
        if is_other or has_replaced_order(self):
            self._settle(self._order.plan(ResumePoint(Position(epoch)), world))
            return ids_of_worker(self, world, epoch, sample_in_epoch)
        place = (world.node, world.rank_of_node, world.worker_of_rank)
        return np.concatenate([np.zeros(0, np.int64), *plan.blocks(*place)])

    def _settle(self, plan: EpochPlan) -> None:
        """Set the defaults that 0.13 sets when an epoch begins, for functions that read them."""
        if self.num_canonical_nodes is None:
            self.num_canonical_nodes = plan.num_canonical_nodes
        if self.shuffle_block_size is None:
            self.shuffle_block_size = plan.shuffle_block_size

    def _worker_epoch(
        self, start: ResumePoint, world: World, position: int = 0, *, for_loader: bool = False
    ) -> WorkerEpoch:
        if self._has_own_work:
            return self._own_worker_epoch(start, world, position, for_loader)
        if self.shuffle and not shuffle_algos.is_original(self.shuffle_algo):
            # An order file, shared by name, would outlive the function that made it.
            kind = PaddedWorkerEpoch if for_loader and self.exact == "mask" else WorkerEpoch
            order = self._order.order(start, world)
            return kind(order, world, position, is_counted=for_loader)
        return super()._worker_epoch(start, world, position, for_loader=for_loader)

    def _own_worker_epoch(
        self, start: ResumePoint, world: World, position: int, for_loader: bool
    ) -> WorkerEpoch:
        """Return this worker's part of an epoch by `_get_work`."""
        plan = self._order.plan(start, world)
        self._starting_plan = plan
        try:
            ids = self._get_work(plan.epoch, plan.begin.place)
        finally:
            del self._starting_plan
        ids = np.asarray(ids, np.int64).reshape(-1)
        return GivenWork(plan, world, ids, position, is_counted=for_loader)

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Go on from a state, as 0.13 does also where global batches have another size.

        Where batches are made by stream, a state of another number of ranks then repeats and misses
        samples, and a warning says how many. Raises StateError for a state that does not fit.
        """
        try:
            super().load_state_dict(obj)
        except StateError:
            if not self._take_other_batches(obj):
                raise

    def _take_other_batches(self, obj: Any) -> bool:
        """Load a state whose global batches alone differ; return whether it is one."""
        if not isinstance(obj, Mapping) or obj.get("version") != VERSION:
            return False
        order, data = obj.get("order"), obj.get("data")
        if not isinstance(order, Mapping) or not isinstance(data, Mapping):
            return False
        sizes = [data.get(name) for name in ("ranks", "nodes", "batch_size")]
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            return False
        same = {name: value for name, value in order.items() if name not in _OF_BATCHES}
        try:
            super().load_state_dict({**obj, "order": same})
        except StateError:
            return False
        super().load_state_dict({name: obj[name] for name in KEYS if name in obj})
        if self._world().is_leader:
            repeated, missed = self._count_lost(parse_state(obj), data)
            warnings.warn(
                f"the state is of {data['ranks']} ranks with batch_size={data['batch_size']}, and "
                f"this run has {self.num_ranks} ranks with batch_size={self.batch_size}. "
                f"batching_method={self.batching_method!r} now cuts other batches, so this epoch "
                f"repeats {repeated} samples and misses {missed}, as in mosaicml-streaming. Keep "
                "the ranks and batch_size to see each sample once.",
                stacklevel=4,
            )
        return True

    def _count_lost(self, point: ResumePoint, data: Mapping[str, Any]) -> tuple[int, int]:
        """Return how many samples come twice and never, after a state of another world."""
        nodes, ranks = int(data["nodes"]), int(data["ranks"])
        spec = dataclasses.replace(self._order.spec, batch_size=int(data["batch_size"]))
        then = World(nodes, ranks // nodes, 1, 0)
        epoch, order = max(point.position.epoch, 0), self._order
        whole = order.plan(point.at(Position(epoch)), then, spec)
        rest = order.plan(order.epochs.pending or ResumePoint(Position(epoch)), self._world())
        count = self.num_samples
        counts = [
            _count_samples(plan, world, stop, count)
            for plan, world, stop in (
                (whole, then, point.position.place // ranks),
                (rest, self._world(), None),
                (whole, then, None),
            )
        ]
        excess = counts[0] + counts[1] - counts[2]
        return int(excess[excess > 0].sum()), int(-excess[excess < 0].sum())

    def __getstate__(self) -> dict[str, Any]:
        state = {name: v for name, v in super().__getstate__().items() if name != "_shard_readers"}
        if saved := save_replacements():  # a spawned process has not made them
            state["_replacements"] = saved
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        load_replacements(state.pop("_replacements", {}))
        vars(self).update(state)


_PREPARE_SHARD = StreamingDataset.prepare_shard


# Programs cut their configurations down to the parameters that they see.
StreamingDataset.__init__.__signature__ = inspect.signature(Samples.__init__)  # type: ignore[attr-defined]


def _accepted(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with a warning for what 0.13 takes and the library refuses."""
    made = dict(given)
    if "streams" in given and given["streams"] is not None:
        _take_streams(made, given["streams"])
    if given.get("remote") == "" and given.get("local"):
        made["remote"] = None  # no remote in 0.13, as code writes it in configurations
    for name in ("epoch_size", "cache_limit"):
        if not given.get(name):  # 0 and '' are "not given" in 0.13
            made.pop(name, None)
    shuffle = given.get("shuffle", False)
    if not isinstance(shuffle, (bool, np.bool_)):
        warnings.warn(f"shuffle={shuffle!r} is taken for {bool(shuffle)}.", stacklevel=3)
        made["shuffle"] = bool(shuffle)
    algo = given.get("shuffle_algo")
    if not made.get("shuffle") and algo is not None and algo not in algos:
        warnings.warn(
            f"there is no shuffle_algo {algo!r}, and nothing is shuffled: it is left out.",
            stacklevel=3,
        )
        del made["shuffle_algo"]
    taken = {name: DATASET_RULES[name] for name in _TAKEN}
    for fault in find_faults("StreamingDataset", given, taken):
        warnings.warn(f"{fault} It is taken as 0.13 takes it.", stacklevel=3)
    is_usual = given.get("stream_name", "stream") == "stream"
    if is_usual and made.get("streams") is None and streams_registry.get("stream") is NativeStream:
        place = {name: made.pop(name, None) for name in ("remote", "local", "split")}
        if place["remote"] is None and place["local"] is None:
            raise ConfigError("give streams=, remote= or local=: there is nothing to read.")
        made["streams"] = [Stream(**{**place, **(made.pop("stream_config", None) or {})})]
    return made


def _take_streams(made: dict[str, Any], streams: Any) -> None:
    """Leave out an empty list, which is no list in 0.13, and refuse what is not a Stream."""
    if hasattr(streams, "__len__") and not len(streams):
        del made["streams"]
        return
    for at, stream in enumerate(streams):
        if not isinstance(stream, NativeStream):
            raise ConfigError(
                f"streams[{at}] is a {type(stream).__name__}; derive its class from "
                "streaming.Stream, whose methods mds calls."
            )


def _count_samples(
    plan: EpochPlan, world: World, stop: int | None, num_samples: int
) -> npt.NDArray[np.int64]:
    """Return how often each sample comes in the first ``stop`` samples of every rank."""
    counts = np.zeros(num_samples, np.int64)
    for node in range(world.num_nodes):
        for rank in range(world.ranks_per_node):
            blocks = [plan.blocks(node, rank, w) for w in range(world.workers_per_rank)]
            for ids in blocks:
                mine = np.concatenate([np.zeros(0, np.int64), *ids])[:stop]
                counts += np.bincount(mine[mine >= 0], minlength=num_samples)
    return counts


Sources = list[tuple[str, str | None]]


def _sources(streams: Sequence[NativeStream]) -> Sources:
    """The folder of each stream, and what is read through it; None where it is read in place."""
    found: Sources = []
    for stream in streams:
        remote = stream.remote_folder
        source = source_of(remote, stream.storage_options) if remote is not None else None
        found.append((os.path.abspath(stream.folder), source))
    return found


def _conflict(mine: Sources) -> Sources:
    """The sources of a living dataset of which one is in the way; none when none is."""
    for dataset, process in list(_living.items()):
        if process != os.getpid():
            continue  # the parent's, in a forked child
        theirs = _sources(dataset.streams)
        # What is read in place is in no one's way there either.
        if any(
            folder == there and source is not None and source != other
            for folder, source in mine
            for there, other in theirs
        ):
            return theirs
    return []


def _reused(mine: list[str], theirs: list[str]) -> ConfigError:
    return ConfigError(
        f"Reused local directory: {sorted(mine)} vs {sorted(theirs)}. Provide a different one."
    )


_living: weakref.WeakKeyDictionary[StreamingDataset, int] = weakref.WeakKeyDictionary()
