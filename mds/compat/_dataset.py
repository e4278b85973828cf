"""StreamingDataset and LocalDataset as code for mosaicml-streaming 0.13 expects them.

StreamingDataset adds four things to that of `mds`:

- methods that a subclass may override: ``_get_work``, ``resample_streams``, ``prepare_shard``,
  ``__getitem__`` and ``get_item``;
- an order made by functions that code has replaced (`mds.compat._orders`);
- arguments and states that `mds` refuses and 0.13 accepts, each with a warning;
- an error if another dataset in this process reads another remote through the same local
  directory. `mds` keeps the two apart, but programs rely on the error. A dataset that is made again
  for the same remote is accepted.

In this package, 0.13 is mosaicml-streaming 0.13, "native" is the class of mds of the same name, and
"code" is code of the user that was written for 0.13.
"""

from __future__ import annotations

import dataclasses
import gc
import inspect
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mds._arguments import find_faults, takes_names
from mds._cache.ownership import source_of
from mds._dataset.indexing import normalize, resolve
from mds._dataset.local import LocalDataset as NativeLocalDataset
from mds._dataset.run import OrderSetting, Run
from mds._dataset.settings import DATASET_RULES, raise_fixed
from mds._dataset.stream import Stream as NativeStream
from mds._dataset.stream import streams_registry
from mds._dataset.streaming import StreamingDataset as NativeStreamingDataset
from mds._iteration.shard_map import ShardMap
from mds._iteration.worker_epoch import PaddedWorkerEpoch, WorkerEpoch
from mds._words import plural
from mds.compat._orders import (
    batching_methods,
    has_replaced_order,
    ids_of_worker,
    partition_algos,
    resample,
    shuffle_algos,
)
from mds.compat._overrides import (
    OVERRIDE_IN_CLASS,
    LiveRegistry,
    Overridable,
    load_replacements,
    overrides,
    refuse_missing,
    save_replacements,
)
from mds.compat._ranks import find_current_ranks
from mds.compat._readers import Array, ShardReaders, Spanner
from mds.compat._stream import Stream, refuse_texts, to_whole_number
from mds.errors import ConfigError, NotFoundError, StateError
from mds.plan._state import Position, ResumePoint, emit_state, parse_state
from mds.shuffle._registry import algos
from mds.world import (
    Ranks,
    World,
    has_late_ranks,
    warn_of_late_ranks,
    worker_group,
    worker_place,
)

if TYPE_CHECKING:
    from mds._words import (
        BatchingMethod,
        ImageForm,
        OnError,
        PartitionAlgo,
        Remainder,
        SamplingMethod,
        ShuffleAlgo,
    )
    from mds.plan import EpochPlan
    from mds.plan._packing import Packing
    from mds.plan._schedule import Schedule

SampleIds = npt.NDArray[np.int64]

#: Methods that are called if a subclass overrides them, or if code sets them on the class.
_LIVE = ("__getitem__", "_get_work", "get_item", "prepare_shard", "resample_streams")
#: Fields of the order in a state that depend on the size of global batches.
_BATCH_FIELDS = ("global_batch_size", "batch_size", "ranks_per_node", "batches_of_streams")
#: Settings that 0.13 lets code set on a finished dataset, although it has used them already.
_CONSTRUCTOR_ONLY = (
    "allow_unsafe_types",
    "cache_limit",
    "epoch_size",
    "initial_physical_nodes",
    "topology",
)
#: Arguments whose values 0.13 does not check.
_UNCHECKED = ("keep_zip", "allow_unsafe_types", "num_canonical_nodes", "shuffle_block_size")


class NoSamplesError(ConfigError, RuntimeError):
    """Dataset whose index names no samples."""


class MissingShardError(NotFoundError, ValueError):
    """Shard that is neither in the local folder nor at the remote."""


class SliceError(ConfigError, TypeError):
    """Slice of samples whose bounds are not integers."""


class _NamedSetting(OrderSetting[str]):
    """Setting of a dataset, such as batching_method, that may name a function of the user.

    Code puts such functions into a live registry. The plan of mds then has the setting ``native``
    instead, and the user's function makes the order. The dataset keeps the user's name, by the name
    of the setting, in ``_user_names``. For example, after ``batching_methods["mine"] = function``,
    a dataset with ``batching_method="mine"`` has {"batching_method": "mine"} there, and its plan
    has "random".

    - ``registry`` (LiveRegistry): functions by name, those of mds and of the user.
    - ``native`` (str): value of the setting in the plan if the user's function is used.
    """

    def __init__(self, registry: LiveRegistry[str, Any], native: str) -> None:
        self._registry, self._native = registry, native

    def names_user_function(self, name: object) -> bool:
        """Whether a name is that of a function which code has put into the registry."""
        return name in self._registry and not self._registry.is_original(str(name))

    def __get__(self, dataset: Any, owner: type | None = None) -> Any:
        """Return the name of the user's function, or else the setting of the plan."""
        user_names = {} if dataset is None else vars(dataset).get("_user_names", {})
        if self._name in user_names:
            return user_names[self._name]
        return super().__get__(dataset, owner)

    def __set__(self, dataset: Any, value: str) -> None:
        """Set the setting of the plan, and keep ``value`` if it names a function of the user."""
        user_names = dict(vars(dataset).get("_user_names", {}))
        user_names.pop(self._name, None)
        if self.names_user_function(value):
            user_names[self._name], value = value, self._native
        vars(dataset)["_user_names"] = user_names
        super().__set__(dataset, value)


class _StreamingRun(Run):
    """Run of a dataset that finds its ranks as 0.13 does."""

    @staticmethod
    def _look_up(topology: Any) -> Ranks:
        """Return the ranks by the getters that code has replaced by now."""
        return find_current_ranks(topology)

    def check_ranks(self) -> None:
        """Keep the ranks that were found first, as 0.13 does, and warn once if there are more."""
        if has_late_ranks(self.ranks):
            warn_of_late_ranks(self.owner)


class StreamingDataset(Overridable, NativeStreamingDataset, Array):
    """Dataset of shards in remote or local folders; see `mds.StreamingDataset` for the arguments.

    Raises ConfigError (a ValueError) if another dataset of this process reads another remote
    through the same local directory.
    """

    #: Whether arguments are refused that 0.13 accepts.
    _is_strict = False
    _kind_of_run = _StreamingRun
    #: Methods that code may set on the class, see `mds.compat._overrides.Sealed`.
    _live = _LIVE
    # Methods that mds never calls, and attributes that cannot be set on one object, with what to
    # use instead: see `Overridable`.
    _refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("_each_sample_id", "_share_work", "_attach_work"),
            "an override of _get_work(), which each worker calls",
        ),
        **dict.fromkeys(
            ("_resume", "_resume_incr_epoch"),
            "overrides of state_dict() and load_state_dict()",
        ),
        "_set_shuffle_block_size": "shuffle_block_size=",
    }
    _ignored: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("_prepare_thread", "_ready_thread"), "predownload="),
        "on_exception": "try around your loop, which raises the errors of background threads",
        **dict.fromkeys(
            ("evict_shard", "evict_coldest_shard", "_evict_shard", "_evict_coldest_shard"),
            "the event mds.events.Evicted",
        ),
    }
    _fixed: ClassVar[Mapping[str, str]] = dict.fromkeys(_LIVE, OVERRIDE_IN_CLASS)

    batching_method = _NamedSetting(batching_methods, "random")
    partition_algo = _NamedSetting(partition_algos, "relaxed")

    # The arguments of 0.13, in its order, then those of mds. Programs pass on those of their
    # settings that are parameters in this signature.
    @takes_names
    def __init__(
        self,
        *,
        streams: Sequence[NativeStream] | Mapping[str, NativeStream] | None = None,
        remote: str | os.PathLike[str] | None = None,
        local: str | os.PathLike[str] | None = None,
        split: str | os.PathLike[str] | None = None,
        download_retry: int = 2,
        download_timeout: float = 60,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: SamplingMethod = "balanced",
        sampling_granularity: int = 1,
        partition_algo: PartitionAlgo | str = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: ShuffleAlgo | str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: BatchingMethod | str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
        schedule: Schedule | Mapping[int, Mapping[str, float]] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        remainder: Remainder = "repeat",
        topology: Any = None,
        images: ImageForm | Mapping[str, ImageForm] = "pil",
        on_error: OnError = "raise",
        copy: bool = True,
        format: Any = None,  # noqa: A002 - what it is
        packing: Packing | int | None = None,
    ) -> None:
        given = locals()
        arguments = _to_native_arguments({name: given[name] for name in _ARGUMENTS})
        # mds does not know names of users' functions, so they are set after its constructor.
        user_names = {
            name: arguments.pop(name)
            for name in ("batching_method", "partition_algo")
            if vars(StreamingDataset)[name].names_user_function(arguments.get(name))
        }
        super().__init__(**arguments)
        for name, value in user_names.items():
            setattr(self, name, value)
        if self.batch_size is not None and self.predownload < self.batch_size:
            warnings.warn(
                f"predownload < batch_size ({self.predownload} < {self.batch_size}). This may "
                "result in slower batch time. Set predownload to at least batch_size.",
                stacklevel=3,
            )
        self._dataset_run.world()  # keeps the ranks of this moment, as 0.13 does
        _datasets[self] = os.getpid()  # for the check of local directories (_find_conflict)

    def _check_streams(self) -> None:
        """Raise ConfigError if another remote is read through one of the local directories.

        It may be the remote of another stream of this dataset, or of another dataset.
        """
        sources = _sources_of(self.streams)
        for folder, source in sources:
            if any(other == folder and remote != source for other, remote in sources):
                raise _reused_error([folder], [folder])
        # The other dataset may be deleted, but still exist in a reference cycle.
        if _find_conflict(sources):
            gc.collect()
        conflict = _find_conflict(sources)
        if conflict:
            raise _reused_error(
                [folder for folder, _ in sources], [folder for folder, _ in conflict]
            )

    def _reset(self, shards: ShardMap) -> None:
        """Use other shards, when the dataset is made and when samples are selected.

        Raises NoSamplesError if there are no samples, unless a selection left none.
        """
        if self._has_own_items:
            # The overridden method is given np.int64, as in 0.13.
            shards = _NumPyShardMap.of(shards)
        if not shards.num_samples and shards.selection is None:
            raise NoSamplesError(f"there are no samples in {', '.join(map(repr, self.streams))}.")
        super()._reset(shards)
        self.__dict__.pop("_shard_readers", None)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Raises an error for a setting that has been used already.

        Setting it to its present value is allowed.
        """
        is_made = "_shards" in vars(self)
        if name in _CONSTRUCTOR_ONLY and is_made and value != vars(self).get(name):
            raise_fixed(self, name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        refuse_missing(self, name)
        # Code for mosaicml-streaming may read this; `mds` has another value for it.
        if name == "epoch_seed_change" and "_shards" in self.__dict__:
            return False
        return super().__getattr__(name)

    # ------------------------------------------------------------------ shards and ranks

    @property
    def shards(self) -> Sequence[Any]:  # type: ignore[override]
        """Readers of the shards; each is made when it is first asked for."""
        readers: ShardReaders | None = self.__dict__.get("_shard_readers")
        if readers is None:
            readers = self._shard_readers = ShardReaders(self._shards, self._cache)
        return readers

    @property
    def spanner(self) -> Spanner:  # type: ignore[override]
        """Map from samples to shards: ``spanner[sample]`` is (shard, row)."""
        return Spanner(self._shards.samples_per_shard)

    @property
    def _unique_rank_world(self) -> World:
        """World of ranks that see different samples: after replication."""
        return self._dataset_run.world()

    @property
    def _parallel_rank_world(self) -> World:
        """World of all ranks: before replication."""
        return self._dataset_run.find_ranks().world(1, 0)

    # ------------------------------------------------------------------ samples by number

    def __getitem__(self, at: Any) -> Any:
        """Return the sample of a number, or lists of samples for slices, lists and arrays.

        True and False are samples 1 and 0, as in 0.13.
        """
        if isinstance(at, bool):
            at = int(at)
        if type(at) is int and 0 <= at < self._shards.num_samples:
            return self.get_item(at)
        return _get_many(at, self._shards.num_samples, self.get_item)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return one sample by its number; subclasses override this to change what a sample is.

        Raises MissingShardError, which is a ValueError and a FileNotFoundError, since code catches
        either.
        """
        try:
            if type(self).prepare_shard is not _PREPARE_SHARD:
                self._call_prepare_shard(int(sample_id))
            return super().get_item(int(sample_id), retry)
        except NotFoundError as error:
            if isinstance(error, ValueError):  # it has both types already
                raise
            raise MissingShardError(str(error), url=error.url, verb=error.verb) from error

    def _call_prepare_shard(self, sample_id: int) -> None:
        """Call the override of `prepare_shard` for the shard of a sample.

        The call is left out if the last sample was of the same shard.
        """
        shard, _ = self._shards.locate(sample_id)
        if shard != vars(self).get("_prepared_shard"):
            self.prepare_shard(shard)
            self._prepared_shard = shard

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Fetch a shard; see `mds.StreamingDataset`. An override is called before its samples."""
        super().prepare_shard(shard_id, blocking)

    def evict_shard(self, shard_id: int) -> None:
        """Delete a shard from the cache folder, unless the library did not fetch it."""
        super().evict_shard(normalize(shard_id, self.num_shards))

    @property
    def _has_own_items(self) -> bool:
        """Whether samples come from a method that is overridden or replaced."""
        names = ("__getitem__", "get_item", "prepare_shard")
        return any(overrides(type(self), StreamingDataset, name) for name in names)

    @property
    def _is_plain(self) -> bool:
        return super()._is_plain and not self._has_own_work

    # ------------------------------------------------------------------ order of an epoch

    @property
    def _has_own_work(self) -> bool:
        """Whether ids come from a method or function that is overridden or replaced."""
        return overrides(type(self), StreamingDataset, "_get_work") or has_replaced_order(self)

    @property
    def _has_own_resampling(self) -> bool:
        return overrides(type(self), StreamingDataset, "resample_streams")

    def resample_streams(
        self, epoch: int, stream_id: int | None = None
    ) -> tuple[SampleIds, SampleIds]:
        """Return the samples that an epoch takes, before they are shuffled.

        ``stream_id``: index of one stream; None for all. Returns two int64 arrays: the number of
        samples taken from each shard, and the ids of the samples, in the order of the shards.
        """
        return resample(self, epoch, stream_id)

    def _resume_incr_epoch(self) -> tuple[int, int]:
        """Begin the next epoch; return its number, and how many samples of it were seen already.

        The samples are those that all ranks together have seen.
        """
        worker, _ = worker_place()
        position = self._dataset_run.order.epochs.begin_epoch(worker_group(), worker).position
        return max(position.epoch, 0), position.place

    def _get_work(self, epoch: int, sample_in_epoch: int) -> SampleIds:
        """Return the ids of this worker's samples in an epoch, int64, where -1 is padding.

        ``sample_in_epoch``: samples of the epoch that all ranks have seen already.
        """
        worker, workers = worker_place()
        world = self._dataset_run.world(workers, worker)
        # An override that calls this method while an epoch begins gets the ids of that epoch's
        # plan. Any other call, or a replaced function, makes the whole order.
        plan: Any = vars(self).get("_starting_plan")
        is_other_start = plan is None or plan.begin[:2] != (epoch, sample_in_epoch)
        if is_other_start or has_replaced_order(self):
            self._resolve_settings(
                self._dataset_run.order.plan(ResumePoint(Position(epoch)), world)
            )
            return ids_of_worker(self, world, epoch, sample_in_epoch)
        blocks = plan.blocks(world.node, world.rank_of_node, world.worker_of_rank)
        return np.concatenate([np.zeros(0, np.int64), *blocks])

    def _resolve_settings(self, plan: EpochPlan) -> None:
        """Set the defaults that 0.13 sets when an epoch begins, for functions that read them."""
        if self.num_canonical_nodes is None:
            self.num_canonical_nodes = plan.num_canonical_nodes
        if self.shuffle_block_size is None:
            self.shuffle_block_size = plan.inputs.params.block

    def _worker_epoch(
        self, start: ResumePoint, world: World, position: int = 0, *, for_loader: bool = False
    ) -> WorkerEpoch:
        """Return this worker's part of an epoch, in an order made by code if there is one.

        There are three kinds of orders: the whole order is made by code (``_get_work`` or functions
        that it calls), only the shuffle is, or everything is made by the plan of mds.

        - ``start`` (ResumePoint): where the epoch begins.
        - ``world`` (World): ranks and workers, with the place of this worker.
        - ``position`` (int, default 0, samples): samples of this worker that were read already.
        - ``for_loader`` (bool, default False): whether a loader iterates, which counts batches.
        """
        if self._has_own_work:
            return self._own_worker_epoch(start, world, position, for_loader)
        if self.shuffle and not shuffle_algos.is_original(self.shuffle_algo):
            # All processes of a node share a file with the order of an epoch, whose name is made of
            # the settings. It does not depend on the function of the shuffle, so each process
            # computes the order here.
            kind = PaddedWorkerEpoch if for_loader and self.remainder == "mask" else WorkerEpoch
            order = self._dataset_run.order.plan(start, world)
            return kind(order, world, position, is_counted=for_loader)
        return super()._worker_epoch(start, world, position, for_loader=for_loader)

    def _own_worker_epoch(
        self, start: ResumePoint, world: World, position: int, for_loader: bool
    ) -> WorkerEpoch:
        """Return this worker's part of an epoch with the ids of `_get_work`.

        For the arguments, see `_worker_epoch`.
        """
        plan = self._dataset_run.order.plan(start, world)
        self._starting_plan = plan  # for `_get_work` of this class, which an override may call
        try:
            ids = self._get_work(plan.epoch, plan.begin.place)
        finally:
            del self._starting_plan
        ids = np.asarray(ids, np.int64).reshape(-1)
        return _OwnWorkerEpoch(plan, world, ids, position, is_counted=for_loader)

    # ------------------------------------------------------------------ states

    def load_state_dict(self, obj: Mapping[str, Any], *, other_data: bool = False) -> None:
        """Load a state, also one whose global batches had another size, as 0.13 does.

        If batches are made by stream, such a state makes the epoch repeat and miss samples, and a
        warning gives their numbers. Raises StateError for a state that does not fit.
        """
        try:
            super().load_state_dict(obj, other_data=other_data)
        except StateError:
            if not self._load_other_batches(obj):
                raise

    def _load_other_batches(self, obj: Any) -> bool:
        """Load a state that differs only in the size of global batches.

        Returns False, without loading it, if the state differs otherwise.
        """
        # Return False for anything that is not a whole state of samples.
        try:
            point = parse_state(obj)
        except StateError:
            return False
        order, data = point.order, point.data
        if not point.is_ours or point.is_extended or order is None or data is None:
            return False
        sizes = [data.get(name) for name in ("ranks", "nodes", "batch_size")]
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            return False
        # Check that all other fields fit: a state is not compared in fields that it does not have.
        other_fields = {name: value for name, value in order.items() if name not in _BATCH_FIELDS}
        try:
            super().load_state_dict(emit_state(dataclasses.replace(point, order=other_fields)))
        except StateError:
            return False
        # Load only the keys that states of 0.13 have, which are not compared with the run.
        super().load_state_dict(emit_state(dataclasses.replace(point, version=None)))
        if self._dataset_run.world().is_leader:
            repeated, missed = self._count_repeated_and_missed(point, data)
            warnings.warn(
                f"the state is of {plural(data['ranks'], 'rank')} with "
                f"batch_size={data['batch_size']}, and "
                f"this run has {plural(self.num_ranks, 'rank')} with batch_size={self.batch_size}. "
                f"batching_method={self.batching_method!r} now cuts other batches, so this epoch "
                f"repeats {plural(repeated, 'sample')} and misses {missed}, as in "
                "mosaicml-streaming. Keep "
                "the ranks and batch_size to see each sample once.",
                stacklevel=4,
            )
        return True

    def _count_repeated_and_missed(
        self, point: ResumePoint, data: Mapping[str, Any]
    ) -> tuple[int, int]:
        """Return how many samples an epoch repeats and misses after a state of another world.

        A sample is repeated if it comes more often before the state and after it than in one epoch,
        and missed if it comes less often.

        - ``point`` (ResumePoint): the state.
        - ``data`` (Mapping): field of the state with its nodes, ranks and batch size.

        Returns (samples that the epoch repeats, samples that it misses).
        """
        nodes, ranks = int(data["nodes"]), int(data["ranks"])
        spec = dataclasses.replace(self._dataset_run.order.spec, batch_size=int(data["batch_size"]))
        old_world = World(nodes, ranks // nodes, 1, 0)
        epoch, order = max(point.position.epoch, 0), self._dataset_run.order
        # The whole epoch in the world of the state, and its rest in this world.
        old_plan = order.plan(point.at(Position(epoch)), old_world, spec)
        start = order.epochs.pending or ResumePoint(Position(epoch))
        new_plan = order.plan(start, self._dataset_run.world())
        counts_before, counts_after, counts_of_epoch = [
            _count_samples(plan, world, limit, self.num_samples)
            for plan, world, limit in (
                (old_plan, old_world, point.position.place // ranks),  # samples of each rank
                (new_plan, self._dataset_run.world(), None),
                (old_plan, old_world, None),
            )
        ]
        excess = counts_before + counts_after - counts_of_epoch  # of each sample
        return int(excess[excess > 0].sum()), int(-excess[excess < 0].sum())

    def __getstate__(self) -> dict[str, Any]:
        state = {name: v for name, v in super().__getstate__().items() if name != "_shard_readers"}
        if saved := save_replacements():  # a spawned process has none of its own
            state["_replacements"] = saved
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        load_replacements(state.pop("_replacements", {}))
        vars(self).update(state)


_PREPARE_SHARD = StreamingDataset.prepare_shard

_ARGUMENTS = [*inspect.signature(StreamingDataset).parameters]


class LocalDataset(NativeLocalDataset, Array):
    """Samples of the raw shards in a folder; its help is that of `mds.LocalDataset`."""

    __doc__ = NativeLocalDataset.__doc__
    size = 0  # each object sets its own

    def __getitem__(self, at: Any) -> Any:
        """Return a sample, or lists of samples for slices, lists and arrays; True is sample 1."""
        return super().__getitem__(int(at) if isinstance(at, bool) else at)

    @property
    def shards(self) -> Sequence[Any]:  # type: ignore[override]
        """Readers of the shards; each is made when it is first asked for."""
        readers: ShardReaders | None = self.__dict__.get("_shard_readers")
        if readers is None:
            readers = ShardReaders(ShardMap([self._index]), folder=self._folder)
            self._shard_readers = readers
        return readers

    @property
    def spanner(self) -> Spanner:  # type: ignore[override]
        """Map from samples to shards: ``spanner[sample]`` is (shard, row)."""
        return Spanner(self._index.samples)


# ---------------------------------------------------------------------- arguments


_WHOLE_NUMBERS = (
    "download_retry",
    "predownload",
    "sampling_granularity",
    "num_canonical_nodes",
    "batch_size",
    "shuffle_seed",
    "shuffle_block_size",
    "replication",
)


def _to_native_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for `mds.StreamingDataset`.

    Warns of values that 0.13 accepts and `mds` refuses, and makes the only Stream of a dataset a
    Stream of this package.
    """
    native = dict(arguments)
    if arguments.get("streams") is not None:
        streams = arguments["streams"]
        if hasattr(streams, "__len__") and not len(streams):
            del native["streams"]  # an empty list means "not given" in 0.13
        else:
            _check_stream_types(streams)
    if arguments.get("remote") == "" and arguments.get("local"):
        native["remote"] = None  # configurations write an empty text for no remote
    for name in ("epoch_size", "cache_limit"):
        if not arguments.get(name):  # 0 and "" mean "not given" in 0.13
            native.pop(name, None)
    shuffle = arguments.get("shuffle", False)
    if not isinstance(shuffle, (bool, np.bool_)):
        warnings.warn(f"shuffle={shuffle!r} is taken for {bool(shuffle)}.", stacklevel=4)
        native["shuffle"] = bool(shuffle)
    algo = arguments.get("shuffle_algo")
    if not native.get("shuffle") and algo is not None and algo not in algos:
        warnings.warn(
            f"shuffle_algo {algo!r} is unknown; it is left out, since shuffle is False.",
            stacklevel=4,
        )
        del native["shuffle_algo"]
    for name in _WHOLE_NUMBERS:
        if name in native:
            native[name] = to_whole_number("StreamingDataset", name, native[name], DATASET_RULES)
    refuse_texts("StreamingDataset", {"download_timeout": native.get("download_timeout")})
    rules = {name: DATASET_RULES[name] for name in _UNCHECKED}
    for fault in find_faults("StreamingDataset", {**arguments, **native}, rules):
        warnings.warn(f"{fault} 0.13 accepts the value, so it is used.", stacklevel=4)
    # From remote=, local= and split=, mds would make a native Stream. Make one of this package
    # instead, unless code has chosen or registered another class of streams.
    has_default_class = arguments.get("stream_name", "stream") == "stream"
    is_native_class = streams_registry.get("stream") is NativeStream
    if has_default_class and is_native_class and native.get("streams") is None:
        place = {name: native.pop(name, None) for name in ("remote", "local", "split")}
        if place["remote"] is None and place["local"] is None:
            raise ConfigError("give streams=, remote= or local=: there is nothing to read.")
        native["streams"] = [Stream(**{**place, **(native.pop("stream_config", None) or {})})]
    return native


def _check_stream_types(streams: Any) -> None:
    """Raise ConfigError (a ValueError) for an object that is no Stream."""
    for index, stream in enumerate(streams):
        if not isinstance(stream, NativeStream):
            raise ConfigError(
                f"streams[{index}] is a {type(stream).__name__}; derive its class from "
                "streaming.Stream, whose methods mds calls."
            )


# ---------------------------------------------------------------------- local directories

#: Local folder and source of each stream. The source is a text that is equal for equal URLs and
#: options, or None if data are read in place.
Sources = list[tuple[str, str | None]]


def _sources_of(streams: Sequence[NativeStream]) -> Sources:
    """Return the local folder and the source of each stream.

    A source says which data are read: the URL with the options that decide it. It is None for data
    that are read in place, without a remote.
    """
    sources: Sources = []
    for stream in streams:
        remote = stream.remote_folder
        source = source_of(remote, stream.storage_options) if remote is not None else None
        sources.append((stream.folder, source))
    return sources


def _find_conflict(sources: Sources) -> Sources:
    """Return the sources of a dataset that reads another remote through a folder in ``sources``.

    Returns an empty list if there is no such dataset in this process.
    """
    for dataset, process in list(_datasets.items()):
        if process != os.getpid():
            continue  # a dataset of the parent, in a forked child
        other_sources = _sources_of(dataset.streams)
        if any(
            folder == other_folder and source is not None and source != other_source
            for folder, source in sources
            for other_folder, other_source in other_sources
        ):
            return other_sources
    return []


def _reused_error(folders: list[str], other_folders: list[str]) -> ConfigError:
    """Return the error for two datasets that share a folder, in the words of 0.13.

    ``folders``, ``other_folders``: local folders of both.
    """
    return ConfigError(
        f"Reused local directory: {sorted(folders)} vs {sorted(other_folders)}. Provide a "
        "different one."
    )


#: All datasets, with the process that made each.
_datasets: weakref.WeakKeyDictionary[StreamingDataset, int] = weakref.WeakKeyDictionary()


# ---------------------------------------------------------------------- ids and numbers


def _count_samples(
    plan: EpochPlan, world: World, limit: int | None, num_samples: int
) -> npt.NDArray[np.int64]:
    """Return how often each sample comes in an epoch, int64 of shape (num_samples,).

    - ``plan`` (EpochPlan), ``world`` (World): order of the epoch, and the ranks that share it.
    - ``limit`` (int | None): number of samples of each worker to count, from the first on; None
      counts all.
    - ``num_samples`` (int): samples of the dataset.
    """
    counts = np.zeros(num_samples, np.int64)
    for node in range(world.num_nodes):
        for rank in range(world.ranks_per_node):
            for worker in range(world.workers_per_rank):
                blocks = plan.blocks(node, rank, worker)
                ids = np.concatenate([np.zeros(0, np.int64), *blocks])[:limit]
                counts += np.bincount(ids[ids >= 0], minlength=num_samples)
    return counts


def _get_many(index: Any, count: int, get_item: Callable[[int], Any]) -> Any:
    """Return a sample or lists of samples, as `mds._dataset.indexing.resolve` does.

    Numbers of a NumPy type are passed on to ``get_item`` as np.int64, since subclasses call
    ``.item()`` on them, and True and False are 1 and 0.

    - ``index``: number of a sample, or a slice, a list or an array of numbers.
    - ``count`` (int): samples of the dataset.
    - ``get_item`` (Callable): function that returns the sample of a number.
    """
    if isinstance(index, bool):
        return get_item(normalize(int(index), count))
    if isinstance(index, list) and any(isinstance(number, bool) for number in index):
        return [_get_many(number, count, get_item) for number in index]
    if isinstance(index, np.integer):
        return get_item(np.int64(normalize(int(index), count)))
    if isinstance(index, np.ndarray) and index.dtype.kind in "iu" and index.size:
        return [_get_many(number, count, get_item) for number in index]
    if isinstance(index, slice):
        try:
            index.indices(count)
        except TypeError as error:
            raise SliceError(f"a slice of samples is made of integers, got {index!r}.") from error
    return resolve(index, count, get_item)


class _NumPyIds:
    """Array of ids whose ``tolist`` gives np.int64, since subclasses call ``.item()`` on them."""

    def __init__(self, ids: SampleIds) -> None:
        self._ids = ids

    def tolist(self) -> list[Any]:
        """Return the ids as np.int64."""
        return list(self._ids)


class _NumPyShardMap(ShardMap):
    """ShardMap that numbers samples as np.int64 when a dataset is iterated.

    As in 0.13, a subclass whose ``get_item`` is called for each sample may call ``.item()`` on its
    number. The native ShardMap gives it an int.
    """

    @classmethod
    def of(cls, shards: ShardMap) -> ShardMap:
        """Return a map of this class with the same shards; it shares all attributes."""
        if isinstance(shards, cls):
            return shards
        copied = cls.__new__(cls)
        copied.__dict__.update(shards.__dict__)
        return copied

    def selected(self, stored: SampleIds) -> Any:
        """Return the numbers of samples in the selection, given their ids in the stored order."""
        return _NumPyIds(super().selected(stored))


#: Ids in a block of `_OwnWorkerEpoch`.
_BLOCK_IDS = 1 << 14


class _OwnWorkerEpoch(WorkerEpoch):
    """Part of a worker in an epoch, with the ids that `_get_work` returned; no order hash.

    - ``plan`` (EpochPlan), ``world`` (World): see `WorkerEpoch`.
    - ``ids`` (int64 of shape (ids,)): ids of the worker's samples, where -1 is padding.
    - ``start`` (int, default 0): number of those ids that were read already.
    - ``is_counted`` (bool, default False): see `WorkerEpoch`.
    """

    def __init__(
        self,
        plan: EpochPlan,
        world: World,
        ids: SampleIds,
        start: int = 0,
        *,
        is_counted: bool = False,
    ) -> None:
        super().__init__(plan, world, start, is_counted=is_counted)
        self._ids = ids

    @property
    def most_samples(self) -> int:
        """Number of samples of this worker."""
        return int((self._ids >= 0).sum())

    def blocks(self) -> Iterator[SampleIds]:
        """Yield the ids without padding, in blocks that the cache looks ahead."""
        for position in range(self.start, len(self._ids), _BLOCK_IDS):
            block = self._ids[position : position + _BLOCK_IDS]
            is_sample = block >= 0
            # Keys for random numbers depend on the places of the samples, padding included.
            for stream in self._key_streams:
                stream.add_block(position, is_sample, block[is_sample])
            yield block[is_sample]

    def checksum_until(self, index: int) -> int:
        """Return 0: an order of the subclass has no order hash."""
        del index
        return 0
