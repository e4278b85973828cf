"""Samples of streams, by number and in order.

A dataset consists of objects that do not know it: the position of the training (`Run`) in the order
of its epochs (`OrderState`), changes of that order (`OrderEdits`), the shards of all streams
(`ShardMap`), their cache (`ShardCache`), and the caller's functions (`SampleFilter`). Its
constructor reads the indexes and nothing else: no process group, no accelerator, no thread, no
barrier. Copies in worker processes agree on the epoch through a `SharedEpochCounter`, and exchange
nothing else.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from mds._arguments import check_arguments, no_attribute, plain_scalar, takes_names
from mds._cache.shard_cache import ShardCache
from mds._dataset.columns import HasColumns, ShardList, Spanner
from mds._dataset.order_state import SETTING_NAMES, OrderState
from mds._dataset.run import HasRun, OrderSetting, Run, begin_epoch, own_run, seek
from mds._dataset.settings import (
    DATASET_RULES,
    LIMIT_RULES,
    FixedSetting,
    check_assignment,
    check_schedule,
    check_settings,
    raise_fixed,
    resolve_predownload,
)
from mds._dataset.stream import (
    PLACE,
    STREAM_SETTINGS,
    Stream,
    Streams,
    fill_streams,
    find_sources,
    name_place,
    refuse_store_settings,
    streams_of_places,
)
from mds._index.table import column_encodings, describe_dtypes
from mds._iteration.filtering import SampleFilter, SkippedSample
from mds._iteration.reading import SampleSource, all_rows
from mds._iteration.shard_map import SIZES, ShardMap
from mds._iteration.worker_epoch import collected_epochs, lent
from mds._readers.fields import ColumnSelection, check_images
from mds._units import parse_bytes, parse_count
from mds.errors import ConfigError
from mds.plan._spec import OrderSpec
from mds.plan._state import Position, ResumePoint
from mds.world import (
    refuse_second_sharding,
    worker_group,
    worker_place,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self

    from mds._cache.source import Source
    from mds._dataset.order_edits import OrderEdits
    from mds._index.table import Index
    from mds._readers.base import Reader, Rows
    from mds._words import (
        BatchingMethod,
        Digest,
        ImageForm,
        OnError,
        PartitionAlgo,
        Remainder,
        SamplingMethod,
        ShuffleAlgo,
    )
    from mds.formats._base import Format
    from mds.formats._dataset import FormatData
    from mds.plan._packing import Packing
    from mds.plan._schedule import Schedule
    from mds.storage import Store


class Samples(HasRun, HasColumns):
    """Samples of one or several streams, in an order that depends only on the arguments.

    `StreamingDataset` inherits from this class and from torch's IterableDataset; its docstring
    describes the arguments of both classes. This class does not need torch.

    Raises ConfigError (a ValueError) for invalid arguments, IndexFileError (a
    ValueError) for a broken index, NotFoundError (a FileNotFoundError) for a missing one.

    >>> [sample["id"] for sample in Samples("data/train", shuffle=True, shuffle_seed=1)]
    [7, 0, 1, 4, 6, 5, 3, 2]
    """

    batch_size: OrderSetting[int | None] = OrderSetting()
    #: The one of a trainer. The next trainer may have another one, also of a `select`.
    _trainers_batch_size: int | None = None
    batching_method: OrderSetting[BatchingMethod] = OrderSetting()
    num_canonical_nodes: OrderSetting[int | None] = OrderSetting()
    packing: OrderSetting[Packing | None] = OrderSetting()
    partition_algo: OrderSetting[PartitionAlgo] = OrderSetting()
    remainder: OrderSetting[Remainder] = OrderSetting()
    sampling_granularity: OrderSetting[int] = OrderSetting()
    sampling_method: OrderSetting[SamplingMethod] = OrderSetting()
    shuffle: OrderSetting[bool] = OrderSetting()
    shuffle_algo: OrderSetting[ShuffleAlgo | str] = OrderSetting()
    shuffle_block_size: OrderSetting[int | None] = OrderSetting()
    shuffle_seed: OrderSetting[int] = OrderSetting()

    allow_unsafe_types: FixedSetting[bool] = FixedSetting()
    cache_limit: FixedSetting[int | None] = FixedSetting()
    epoch_size: FixedSetting[int] = FixedSetting(" or dataset.limit(samples)")
    initial_physical_nodes: FixedSetting[int | None] = FixedSetting()
    streams: FixedSetting[list[Stream]] = FixedSetting()
    topology: FixedSetting[Any] = FixedSetting()

    _kind_of_run = Run

    @takes_names
    def __init__(
        self,
        place: str | os.PathLike[str] | Sequence[Stream] | Mapping[str, Stream] | None = None,
        /,
        *,
        streams: Streams | None = None,
        remote: str | os.PathLike[str] | None = None,
        local: str | os.PathLike[str] | None = None,
        split: str | os.PathLike[str] | None = None,
        download_retry: int = 2,
        download_timeout: float = 60,
        validate_hash: Digest | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: SamplingMethod = "balanced",
        sampling_granularity: int = 1,
        partition_algo: PartitionAlgo = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: ShuffleAlgo | str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: BatchingMethod = "random",
        schedule: Schedule | Mapping[int, Mapping[str, float] | Sequence[float]] | None = None,
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        remainder: Remainder = "repeat",
        topology: Any = None,
        images: ImageForm | Mapping[str, ImageForm] = "pil",
        on_error: OnError = "raise",
        copy: bool = True,
        format: str | Format | None = None,  # noqa: A002 - what it is
        packing: Packing | int | None = None,
    ) -> None:
        arguments = locals()  # passed on by name, so that none is mistaken for another
        places = {name: arguments[name] for name in ("streams", "remote", "local")}
        arguments |= name_place(type(self).__name__, place, places)
        if self._is_strict:
            arguments["streams"] = streams_of_places(arguments["streams"])
            check_settings(type(self).__name__, arguments)
        # Arguments that determine the order are kept in its spec alone; OrderSetting reads them.
        order_settings = {name: arguments[name] for name in SETTING_NAMES}
        spec = OrderSpec(**order_settings, skip_empty_streams=True)
        if isinstance(topology, tuple):
            topology = tuple(map(plain_scalar, topology))
        self.topology = topology
        self.allow_unsafe_types = allow_unsafe_types
        self.initial_physical_nodes = None
        self.predownload = resolve_predownload(predownload, batch_size, spec.unit)
        self.cache_limit = parse_bytes(cache_limit) if cache_limit is not None else None
        # Copies of the user's streams, or one stream made from remote=, local= and others.
        place = {name: arguments[name] for name in PLACE} | dict(stream_config or {})
        defaults = {name: arguments[name] for name in STREAM_SETTINGS}
        self.streams = fill_streams(arguments["streams"], place, stream_name, defaults)
        self._check_streams()
        # The order needs the numbers of samples, which `_reset` adds once the indexes are read.
        size = None if epoch_size is None else parse_count(epoch_size)
        shares = [stream._share for stream in self.streams]
        scheduled = check_schedule(schedule, arguments["streams"], batching_method, spec.packing)
        self._dataset_run = self._kind_of_run(
            OrderState(spec, shares, size, scheduled, may_lack_batches=self._is_strict),
            owner=type(self).__name__,
            topology=self.topology,
            replication=plain_scalar(replication),
            is_strict=self._is_strict,
        )
        Stream.validate_weights(self.streams)
        sources = find_sources(self.streams)
        skips_broken = on_error == "skip"
        self._filter = SampleFilter(skip_broken=skips_broken)
        names = tuple(columns) if columns is not None else None
        self._columns = ColumnSelection(names, images, copy, loads_images=skips_broken)
        self._cache = ShardCache(
            sources,
            limit=self.cache_limit,
            allow_unsafe_types=allow_unsafe_types,
            columns=self._columns,
        )
        if images != "pil":
            encodings = column_encodings([source.index for source in sources])
            check_images(type(self).__name__, encodings, self._columns)
        if self._is_strict:
            refuse_store_settings(type(self).__name__, storage_options, self.streams, sources)
            if spec.packing is None:  # packs have one dtype
                self._warn_of_dtypes(sources)
        self._reset(ShardMap([source.index for source in sources]))
        order = self._dataset_run.order
        order.spec = order.with_token_column(spec, self._columns)

    def _warn_of_dtypes(self, sources: Sequence[Source]) -> None:
        """Warn of each column that is decoded and has numbers of several dtypes."""
        schemas = (schema for source in sources for schema in source.index.schemas)
        for column, text in describe_dtypes(schemas):
            if column in self._columns:
                warnings.warn(
                    f"{text}, unless map() converts it. Write all shards with one encoding.",
                    stacklevel=3,
                )

    def _check_streams(self) -> None:
        """Refuse streams that this kind of dataset cannot have, before any of them is opened."""

    def _reset(self, shards: ShardMap) -> None:
        """Start over with these shards: no epoch begun, no state loaded, nothing dropped."""
        self._shards = shards
        # Assigned through vars(), because `FixedSetting` refuses an assignment from now on.
        vars(self)["streams"] = [copy.copy(stream) for stream in self.streams]
        order = self._dataset_run.order.reset(shards, self.streams, self._cache.sources)
        self._dataset_run = self._dataset_run.again(
            order, is_filtered=not self._filter.keeps_everything
        )
        vars(self)["epoch_size"] = order.weights.epoch_size

    def _part(self, numbers: npt.NDArray[np.int64]) -> Self:
        """Return a dataset of the samples of these numbers, of which no epoch has begun."""
        return self._again(type(self), self._shards.part(numbers), self._filter)

    def _again(self, kind: type, shards: ShardMap, sample_filter: SampleFilter) -> Self:
        """Return a copy of class ``kind`` that reads other samples; no epoch of it has begun."""
        part = copy.copy(self)
        part.__class__, part._filter = kind, sample_filter
        part._reset(shards)
        return part

    # ------------------------------------------------------------------ sizes

    @property
    def num_samples(self) -> int:
        """Stored samples of all streams; an epoch may leave some out and repeat others."""
        return self._shards.num_samples

    @property
    def size(self) -> int:
        """Same as ``num_samples``, under the name of mosaicml-streaming."""
        return self._shards.num_samples

    @property
    def num_shards(self) -> int:
        """Number of shards of all streams."""
        return self._shards.num_shards

    @property
    def num_streams(self) -> int:
        """Number of streams."""
        return len(self.streams)

    @property
    def shards(self) -> ShardList:
        """Sequence of facts about the shards (`ShardInfo`), each made when it is read."""
        return ShardList(self._shards)

    @property
    def spanner(self) -> Spanner:
        """Map from samples to shards: ``spanner[sample]`` is (shard, row)."""
        return Spanner(self._shards)

    @property
    def length(self) -> int:
        """Samples of an epoch divided by the ranks, rounded up."""
        return math.ceil(self.epoch_size / self._dataset_run.world().num_ranks)

    def __len__(self) -> int:
        return self.length

    def __getattr__(self, name: str) -> Any:
        # Called for names that are no attributes. Some names are attributes of the shard map.
        if name in SIZES and "_shards" in self.__dict__:
            return getattr(self._shards, name)
        if name == "left_out":  # the former name of ``skipped``
            return self.skipped
        if "_shards" not in self.__dict__ and not name.startswith("__"):
            own = type(self).__name__
            raise AttributeError(
                f"{own!r} object has no attribute {name!r} yet: {own}.__init__ has not called "
                "super().__init__(local=..., batch_size=...). Call it first."
            )
        if name == "epoch_seed_change":  # of mosaicml-streaming
            return self.sampling_method == "balanced"
        raise no_attribute(self, name, "Samples")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Raises an error if it looks like a setting and has no effect."""
        # The constructor sets ``_shards`` last, so a dataset that has it is complete.
        if not name.startswith("_") and "_shards" in vars(self) and self._is_strict:
            if name in _WITHOUT_ATTRIBUTE and type(self).__module__.startswith("mds."):
                raise_fixed(self, name, value)
            check_assignment(self, name, value, DATASET_RULES, (*_ARGUMENTS, "next_epoch"))
        super().__setattr__(name, value)

    def _indexes(self) -> list[Index]:
        return [source.index for source in self._cache.sources]

    def _sidecar_stores(self) -> Iterator[Store | FormatData]:
        from mds.storage import open_store
        from mds.storage._base import settings_for

        for source in self._cache.sources:
            if source.data is not None:
                yield source.data  # of files such as Parquet, which have no sidecars
                continue
            place = source.remote or source.folder
            options = settings_for(place, source.options)
            yield source.store or open_store(place, options=options)

    def _read_rows(self, columns: ColumnSelection) -> Iterator[tuple[Reader, Rows]]:
        """Yield the reader of each shard and the rows of this dataset in it; see `ArrowRows`.

        Raises ConfigError if functions or a class of the user change what is stored.
        """
        if not self._is_plain:
            raise ConfigError(
                f"{type(self).__name__}.to_arrow_reader() gives rows as they are stored, but "
                "functions or your class change the samples of this dataset. Call it before "
                "map() and filter(), or choose rows with select(where=function)."
            )
        cache = ShardCache(
            self._cache.sources,
            limit=self.cache_limit,
            allow_unsafe_types=self.allow_unsafe_types,
            columns=columns,
        )
        return all_rows(replace(self._sample_source(), cache=cache))

    def __repr__(self) -> str:
        from mds._dataset.explain import describe

        return describe(self)

    def explain(self) -> str:
        """Return a text to print with the value of every setting, its reason and its cost.

        A notebook shows the text as a table.
        """
        from mds._dataset.explain import explain

        order_state, world = self._dataset_run.order, self._dataset_run.world()
        epochs = order_state.epochs
        # The epoch that began last, else the one that comes next.
        start = epochs.last or epochs.pending or ResumePoint(Position(epochs.next_epoch))
        order = order_state.plan(start, world)
        sources = self._cache.sources
        return explain(
            type(self).__name__,
            self._shards,
            order,
            self._dataset_run.find_ranks(),
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
            costs=[stream._file_costs for stream in self.streams if stream._file_costs is not None],
        )

    # ------------------------------------------------------------------ subsets and functions

    @takes_names
    def select(
        self,
        choice: Any = None,
        *,
        where: Callable[[Any], Any] | None = None,
        key: str | None = None,
    ) -> Self:
        """Return a dataset of the chosen samples, which are numbered from 0 in their order here.

        It shuffles, resumes and is dealt to ranks as a whole dataset is.

        - ``choice`` (Any, default None): Distinct sample numbers in ascending order (a list, range,
          set, generator, array or tensor), a slice, a boolean mask of ``num_samples``, or the path
          of a ``.npy`` file of numbers or a mask. A function is taken as ``where``.
        - ``where`` (Callable | None, default None): Function to use instead of ``choice``: samples
          for which it returns true are chosen. It is called for every sample at once, by one
          process of each node.
        - ``key`` (str | None, default None): Name under which the result of ``where`` is kept in
          the cache folder. Later runs use that result without calling ``where``, so give another
          key when the function changes.

        Raises ConfigError for numbers that no sample has, that are repeated or not ascending, and
        after `filter`, unless ``where`` is given: which samples are kept is not known before.

        >>> dataset = mds.StreamingDataset("data/train", batch_size=2)
        >>> len(dataset.select(range(2, 5)))
        3
        >>> [sample["id"] for sample in dataset.select(where=lambda s: s["id"] > 5, key="late")]
        [6, 7]
        """
        from mds._dataset.subsets import choose_numbers

        if callable(choice) and where is None:
            choice, where = None, choice
        if choice is not None:
            self._filter.refuse_numbers("select(numbers)", ".select(numbers)")
        numbers = choose_numbers(self._sample_source(), choice, where, key)
        chosen = self._filter if where is None else self._filter.as_decided()
        return self._again(type(self), self._shards.part(numbers), chosen)

    @takes_names
    def limit(self, samples: int | str) -> Self:
        """Return a dataset of the first samples.

        - ``samples`` (int | str): Number of samples, also as a text such as ``"10k"``. 0 gives an
          empty dataset.

        Raises ConfigError after `filter`, because which samples are kept is not known before.

        >>> dataset = mds.StreamingDataset("data/train", batch_size=2)
        >>> len(dataset.limit(3))
        3
        """
        check_arguments(f"{type(self).__name__}.limit", {"samples": samples}, LIMIT_RULES)
        self._filter.refuse_numbers(f"limit({samples!r})", f".limit({samples!r})")
        count = min(parse_count(samples), self.num_samples)
        return self._part(np.arange(count))

    @overload
    def split(
        self, shares: Mapping[str, float], *, by: str | None = None, seed: int = 0
    ) -> dict[str, Self]: ...
    @overload
    def split(
        self, shares: Sequence[float], *, by: str | None = None, seed: int = 0
    ) -> list[Self]: ...
    @takes_names
    def split(
        self,
        shares: Mapping[str, float] | Sequence[float],
        *,
        by: str | None = None,
        seed: int = 0,
    ) -> dict[str, Self] | list[Self]:
        """Return disjoint datasets that together have all samples: a dict by name, or a list.

        With shares, the part of a sample depends on its number and ``seed`` alone, so samples that
        are added at the end do not change the part of any other. The sizes of parts are then near
        their shares and not equal to them: [0.8, 0.2] of 120 samples gives 90 and 30. Numbers of
        samples give exact sizes, such as [96, 24]; added samples then change the parts.

        - ``shares`` (Mapping[str, float] | Sequence[float]): Share of each part, by name or in a
          list, with the sum 1; or whole numbers of samples, with the sum `num_samples`. The parts
          come in the same form.
        - ``by`` (str | None, default None): Column whose value replaces the sample's number, so
          that samples of one value (a user, a book) are in the same part. Every sample is read
          once.
        - ``seed`` (int, default 0): Seed of the hash that chooses the parts.

        >>> dataset = mds.StreamingDataset("data/train", batch_size=2)
        >>> train, val = dataset.split([0.75, 0.25])
        >>> len(train) + len(val)
        8
        >>> parts = dataset.split({"train": 0.98, "val": 0.02}, by="text")
        >>> sorted(parts)
        ['train', 'val']
        >>> train, val = dataset.split([dataset.num_samples - 100, 100])  # doctest: +SKIP
        """
        from mds._dataset.subsets import choose_parts

        self._filter.refuse_numbers("split(...)", ".split(...)")
        source, get = self._sample_source(), self.get_item
        if isinstance(shares, (list, tuple)):
            by_number = choose_parts(source, get, dict(enumerate(shares)), by, seed)
            return [self._part(numbers) for numbers in by_number.values()]
        parts = choose_parts(source, get, shares, by, seed)
        return {name: self._part(numbers) for name, numbers in parts.items()}

    @takes_names
    def filter(self, keep: Callable[[Any], bool]) -> Self:
        """Return a dataset that drops the samples for which ``keep`` is false, while iterating.

        - ``keep`` (Callable): Function of a sample. With spawned worker processes, it must be
          possible to pickle it.

        Batches of a loader are smaller by the dropped samples: no other samples take their places.
        So the number of steps is that of the unfiltered dataset, the same on all ranks. Every batch
        gets a ``mask``. A batch of which no sample is kept has one sample, with mask False.
        ``skipped`` and `stats` show what was dropped.

        Which samples are kept is known only once they are read. So ``len()`` counts all, and
        ``dataset[i]``, `limit`, `split` and `select` of numbers raise ConfigError. For these, and
        for full batches, use ``select(where=keep)``, which decides before the first epoch.

        >>> dataset = mds.StreamingDataset("data/train", batch_size=2)
        >>> [sample["id"] for sample in dataset.filter(lambda sample: sample["id"] > 5)]
        [6, 7]
        """
        return self._with_function("filter", keep)

    @takes_names
    def map(self, function: Callable[..., Any]) -> Self:
        """Return a dataset whose samples are what ``function`` returns for the samples of this one.

        What it returns replaces the sample. (In Hugging Face datasets it is merged into the sample;
        write ``{**sample, "new": value}`` for that.)

        - ``function`` (Callable): Function of a sample. With spawned worker processes, it must be
          possible to pickle it.

        A function with an argument ``rng`` gets a NumPy Generator. Its numbers depend only on the
        seed, the epoch and the place in the order, so they are the same on any number of ranks and
        workers, and after a resume. It is valid until the function returns. ``dataset[i]`` draws
        the same numbers every time.

        An exception of the function is raised as FunctionError (a RuntimeError) that names the
        sample.

        >>> def crop(sample, rng):
        ...     start = rng.integers(4)
        ...     return {"text": sample["text"][start : start + 5]}
        >>> dataset = mds.StreamingDataset("data/train", batch_size=2).map(crop)
        >>> len(dataset[0]["text"])
        5
        """
        return self._with_function("map", function)

    @takes_names
    def map_batches(self, function: Callable[..., Any]) -> Self:
        """Return a dataset whose batches, in a loader, are what ``function`` returns for them.

        - ``function`` (Callable): Function of a dict of columns, or one of `mds.transforms`, such
          as ``pad()``.

        A column is an array if all its values have one shape, else a list. The function may change
        the arrays. What it returns is the batch; arrays and lists of numbers in a dict become
        tensors. A function with an argument ``keys`` gets a uint64 for each row, from which
        `mds.transforms.RowGenerator` draws random numbers that do not depend on ranks and workers.

        An exception of the function is raised as FunctionError (a RuntimeError) that names the
        samples.

        >>> def double(columns):
        ...     return {"twice": columns["id"] * 2}
        >>> dataset = mds.StreamingDataset("data/train", batch_size=2).map_batches(double)
        >>> next(iter(mds.StreamingDataLoader(dataset)))["twice"].tolist()
        [0, 2]
        """
        return self._with_function("map_batches", function)

    def _with_function(self, kind: str, function: Callable[..., Any]) -> Self:
        """Return a copy of the dataset with one more function, of which no epoch has begun.

        ``kind`` is the name of the method that adds it: "map", "filter" or "map_batches".
        """
        from mds._dataset.indexing import applying_class

        changed = self._filter.with_function(kind, function)
        return self._again(applying_class(type(self)), self._shards, changed)

    @property
    def skipped(self) -> list[SkippedSample]:
        """Samples that a filter or on_error="skip" dropped; the first 10,000 of them."""
        return self._dataset_run.dropped.listed

    # ------------------------------------------------------------------ samples by number

    @overload
    def __getitem__(self, index: int, /) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[dict[str, Any]]: ...
    @overload
    def __getitem__(self, index: Any, /) -> Any: ...
    def __getitem__(self, index: Any, /) -> Any:
        """Return the sample of a number, or lists of samples for slices, lists and arrays.

        Raises IndexError out of range and ValueError for another kind of index.
        """
        if type(index) is int and 0 <= index < self._shards.num_samples:
            return self.get_item(index)
        from mds._dataset.indexing import resolve

        return resolve(index, self._shards.num_samples, self.get_item)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return one sample by its number. Subclasses override it to change what a sample is.

        ``retry`` has no effect; it is an argument of mosaicml-streaming.
        """
        del retry
        shard, row = self._shards.locate(sample_id)
        # If an iteration of this dataset makes this call, the shard may be open there already.
        at_hand = lent.readers
        if at_hand is not None and shard in at_hand.shards and at_hand.cache is self._cache:
            reader = at_hand.readers[shard]
            if row in reader:
                return reader.get(row)
        return self._cache.sample(shard, row)

    def _stored_item(self, number: int) -> Any:
        """Return a sample before the functions of `map`, as a subclass makes it."""
        return self[number]

    # ------------------------------------------------------------------ an epoch

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch, and return an iterator over this worker's samples, or its packs.

        A StreamingDataLoader does not call it, unless the user's class overrides it. Then the
        loader collects the epochs that begin here, to count their samples (`collect_epochs`).
        """
        self._filter.chain.refuse_samples()
        run = self._dataset_run
        refuse_second_sharding(self.num_ranks, has_loader=run.has_loader)
        if self.packing is not None:
            from mds._dataset.pack_iterator import PackIterator

            return PackIterator(self)
        epochs = collected_epochs(self)
        epoch = begin_epoch(self, *worker_place(), worker_group(), for_loader=epochs is not None)
        point, run.worker_start = run.worker_start, None
        if point is not None:
            epoch = seek(self, point)
        if epochs is not None:
            epochs.append(epoch)
        from mds._dataset.epoch_iterator import EpochIterator

        return EpochIterator.over(self, epoch)

    @property
    def _is_plain(self) -> bool:
        """True if samples are as stored: neither a subclass nor a function changes them."""
        return (
            self._filter.keeps_everything
            and not self._filter.chain.maps
            and not self._has_own_items
            and type(self).__iter__ is Samples.__iter__
        )

    @property
    def _has_own_items(self) -> bool:
        """True if the user's class overrides ``__getitem__`` or ``get_item``."""
        # `map` makes a subclass; the user's class is then its ``_stored_kind``.
        own = getattr(type(self), "_stored_kind", type(self))
        return own.__getitem__ is not Samples.__getitem__ or own.get_item is not Samples.get_item

    def _sample_source(self) -> SampleSource:
        return SampleSource(
            shards=self._shards,
            cache=self._cache,
            columns=self._columns,
            filter=self._filter,
            dropped=self._dataset_run.dropped,
            predownload=self.predownload,
            seed=self.shuffle_seed,
            # With functions of map(), ``__getitem__`` would apply them here already; with functions
            # of filter() and map_batches() it refuses to give samples by number.
            get=self._stored_item if self._filter.chain.links else self.__getitem__,
            has_own_items=self._has_own_items,
            is_plain=self._is_plain,
            kind=type(self),
        )

    # ------------------------------------------------------------------ state

    @property
    def replication(self) -> int | None:
        """Number of neighbouring ranks that get the same samples; None for one."""
        return self._dataset_run.replication

    @replication.setter
    def replication(self, ranks: int | None) -> None:
        if self._is_strict:
            check_arguments(type(self).__name__, {"replication": ranks}, DATASET_RULES)
        own_run(self).replication = ranks

    @property
    def num_ranks(self) -> int:
        """Number of ranks that see different samples: ranks of the world over ``replication``."""
        return self._dataset_run.world().num_ranks

    @property
    def next_epoch(self) -> int:
        """Epoch of the next iteration, unless a state is loaded."""
        return self._dataset_run.order.epochs.next_epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._dataset_run.order.epochs.next_epoch = epoch

    def state_dict(
        self, num_samples: int | None = None, from_beginning: bool = False
    ) -> dict[str, Any]:
        """Return the position of all ranks, as a state that can be saved as JSON.

        - ``num_samples`` (int | None, default None, samples): Samples that all ranks have seen.
          None is what came so far: the batches of the StreamingDataLoader that runs or ran last, or
          the samples or packs of a loop over the dataset itself.
        - ``from_beginning`` (bool, default False): Whether ``num_samples`` is counted from the
          beginning of the epoch, instead of from where this epoch was resumed.

        Keys and their types are always the same: whole numbers, and texts of JSON for all that
        varies in size, such as ``edits``. So `torch.save`, JSON and torch.distributed.checkpoint
        keep all of it. ``sample_in_epoch`` counts packs with ``packing=``; ``num_canonical_nodes``
        is negative in a state that mosaicml-streaming cannot load, with packs, a schedule or edits.

        Before the first epoch, the epoch of the state is -1. Composer counts samples from the
        beginning. When it has ended an epoch, its number is 0, and the state begins the next epoch.
        A higher number of it counts rows of batches. It stands for the position of the loader if
        these rows may not be the samples: with ``packing=``, a filter, ``on_error="skip"``, a
        ``collate_fn`` or ``map_batches``, and if it is more than all batches of the loader have.

        Raises ConfigError for a negative number, and with ``packing=`` for a number that is not
        counted from the beginning. Without a number, it raises ConfigError if worker processes of
        torch's own DataLoader iterate: only they know how far they are. In a loop over packs,
        several ranks have a position only after a whole step, which is ``batch_size`` packs.

        >>> dataset = mds.StreamingDataset("data/train", batch_size=2)
        >>> for batch in mds.StreamingDataLoader(dataset):
        ...     state = dataset.state_dict()
        ...     break
        >>> state["sample_in_epoch"]
        2
        """
        return self._dataset_run.state(num_samples, from_beginning)

    def load_state_dict(self, obj: Mapping[str, Any], *, other_data: bool = False) -> None:
        """Begin the next iteration from a state, of this library or of mosaicml-streaming.

        - ``obj`` (Mapping[str, Any]): A result of `state_dict`.
        - ``other_data`` (bool, default False): Whether the shards may have other contents than when
          the state was saved. The differences are then a warning. The number of samples of each
          shard must be the same in any case.

        Call it on every rank. A state that was saved when an epoch had ended begins the next epoch.
        (If mosaicml-streaming saved it, an empty epoch comes first, as it does there.) The state's
        ``shuffle_seed`` and ``num_canonical_nodes`` replace those of the dataset, with a warning.

        Raises StateError (a ValueError), listing the differences, when the state is of another
        dataset or order. Contents are compared by the digests in the index, if the dataset of the
        state and this one have them.

        >>> dataset = mds.StreamingDataset("data/train", batch_size=2)
        >>> dataset.load_state_dict(dataset.state_dict(num_samples=6))
        >>> [sample["id"] for sample in dataset]
        [6, 7]
        """
        point = self._dataset_run.load(obj, other_data=other_data)
        if point is not None:
            vars(self)["initial_physical_nodes"] = point.initial_physical_nodes

    @property
    def edits(self) -> OrderEdits:
        """Changes of the order that were made while a training runs, and methods to make them.

        ``edits.replace_samples(ids)`` lets other samples come in the place of bad ones,
        ``edits.skip_steps(range(a, b))`` leaves out global batches, and ``edits.set_weights``
        changes the weights of a schedule. See `OrderEdits`.

        >>> dataset.edits.replace_samples([77123], reason="gibberish")  # doctest: +SKIP
        """
        from mds._dataset.order_edits import OrderEdits

        return OrderEdits(self._dataset_run.order, self._dataset_run.world())

    # ------------------------------------------------------------------ the cache

    @property
    def cache_usage(self) -> int:
        """Bytes of this dataset's shards in the cache folders of this node."""
        return self._cache.usage

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Fetch a shard into the cache folder.

        - ``shard_id`` (int): Number of the shard, counted through all streams.
        - ``blocking`` (bool, default True): Whether to wait until it is there. Otherwise a failed
          fetch is repeated when the shard is read, and raises its error there.
        """
        self._cache.prepare(shard_id, blocking=blocking)

    def evict_shard(self, shard_id: int) -> None:
        """Delete a shard from the cache folder, unless the library did not fetch it."""
        self._cache.evict(shard_id)

    def evict_coldest_shard(self) -> None:
        """Delete the shard from the cache folder that is needed last, if any can be deleted."""
        self._cache.evict_coldest()

    def stats(self, *, node: bool = False) -> dict[str, float]:
        """Return counts of this rank: bytes, hits, waits, retries, evictions, seconds waited.

        - ``node`` (bool, default False): Count all ranks of this machine instead that use one of
          the cache folders now, of any job.

        Worker processes are counted too, also those that have ended. docs/cache.md lists the names.
        """
        counts = self._dataset_run.dropped
        dropped = {} if self._filter.keeps_everything and not counts.count else counts.as_dict()
        return {**self._cache.stats(node=node), **dropped}

    # ------------------------------------------------------------------ inside

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes that are spawned get a copy, and so does ``copy.copy``.
        refuse_second_sharding(self.num_ranks, has_loader=self._dataset_run.has_loader)
        return {**self.__dict__, "topology": None, "_dataset_run": copy.copy(self._dataset_run)}


#: Arguments of the constructor, and those that no attribute of the same name is assigned to.
_ARGUMENTS = tuple(
    name
    for name, parameter in inspect.signature(Samples.__init__).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
)
_WITHOUT_ATTRIBUTE = frozenset(_ARGUMENTS).difference(
    ("predownload", "replication"),
    (name for name, value in vars(Samples).items() if hasattr(value, "__set__")),
)
