"""LocalDataset: a folder of shards as a map-style dataset, without downloads or an order."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from torch.utils.data import Dataset

from mds._arguments import check_arguments, no_attribute, takes_names
from mds._cache.index_copy import no_index_error
from mds._dataset.columns import HasColumns, ShardList, Spanner
from mds._dataset.indexing import resolve
from mds._index.table import Index, column_encodings, read_index
from mds._iteration.shard_map import ShardMap
from mds._process.mmaps import make_room
from mds._readers import open_reader
from mds._readers.base import Reader, Rows
from mds._readers.fields import ColumnSelection, check_columns, check_images
from mds._units import format_bytes, parse_count
from mds._words import plural
from mds.errors import ConfigError, NotFoundError
from mds.storage import Store, open_store
from mds.storage._relative_name import split_folder
from mds.storage._url import absolute_path, path_on_disk

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._words import ImageForm
    from mds.transforms._chain import FunctionChain

_MAX_LIST_SHARDS = 1 << 16
_SEED = 9176  # of the random numbers of functions, as in a StreamingDataset by default


class OpenReaders(dict[int, Reader]):
    """Open readers by shard, at most ``max_open``; the oldest one is dropped first."""

    def __init__(self, max_open: int = 4096) -> None:
        super().__init__()
        self.max_open = max_open

    def keep(self, shard: int, reader: Reader) -> None:
        """Keep a reader open, and close the oldest ones if there are too many."""
        self[shard] = reader
        while len(self) > self.max_open:
            self.drop_idle()
        make_room(self)  # drops idle readers while the process maps too many files

    def drop_idle(self) -> bool:
        """Release the reader that was opened first; return False when none is open."""
        # Not closed: another thread may be reading from it. Its last reference unmaps the file.
        with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # a thread was quicker
            del self[next(iter(self))]
        return bool(self)


class LocalDataset(HasColumns, Dataset[Any]):
    """Samples of the uncompressed shards in a folder, by number.

    ``dataset[i]`` is a sample; slices, lists and arrays give lists of samples. The number of
    samples is ``num_samples``, or ``size`` as in mosaicml-streaming.

    - ``local`` (str | os.PathLike[str]): Folder of the shards and their ``index.json``.
    - ``split`` (str | os.PathLike[str] | None, default None): Sub-folder, such as ``"train"``.
    - ``allow_unsafe_types`` (bool, default False): Whether pickled columns are opened.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode.
    - ``images`` ("pil" or "array", or a mapping to them, default 'pil'): Form of images: ``"pil"``,
      or ``"array"`` for decoded, upright pixels. ``{"image": "array"}`` sets it for some columns.
    - ``copy`` (bool, default True): Whether arrays are copies. False gives read-only views of the
      files; writing into one through torch ends the process.

    Raises NotFoundError (a FileNotFoundError) without an index, IndexFileError and UnsafeTypeError
    (ValueErrors) for one that is broken or has pickles that are not allowed.

    >>> dataset = LocalDataset("data/train")
    >>> len(dataset), dataset[0]
    (8, {'id': 0, 'text': 'sample 0'})
    >>> [sample["id"] for sample in dataset[:3]]
    [0, 1, 2]
    """

    @takes_names
    def __init__(
        self,
        local: str | os.PathLike[str],
        split: str | os.PathLike[str] | None = None,
        allow_unsafe_types: bool = False,
        columns: Sequence[str] | None = None,
        images: ImageForm | Mapping[str, ImageForm] = "pil",
        copy: bool = True,
    ) -> None:
        self.local = path_on_disk(local, "local", "Use StreamingDataset(remote=...).")
        self.split = split_folder(split)
        self.allow_unsafe_types = allow_unsafe_types
        self._columns = ColumnSelection(None if columns is None else tuple(columns), images, copy)
        self._folder = os.path.join(absolute_path(self.local), self.split)
        path = os.path.join(self._folder, "index.json")
        if not os.path.exists(path):
            raise no_index_error(self._folder.rstrip(os.sep), "local", self.split)
        self._index = read_index(path)
        self._index.check_safe(allow_unsafe_types, path)
        for schema in self._index.schemas:
            check_columns(schema.columns.names, self._columns.names, self._folder.rstrip(os.sep))
            check_columns(schema.columns.names, self._columns.image_columns, "images=")
        if images != "pil":
            encodings = column_encodings([self._index])
            check_images(type(self).__name__, encodings, self._columns)
        self.num_samples = self.size = self._index.total_samples
        self._set_up_readers()

    def _set_up_readers(self) -> None:
        """Begin without open shards, in the constructor and after unpickling."""
        self._open = OpenReaders()
        offsets = self._index.offsets
        # ``_offsets`` has the first sample of each shard, and the number of all samples. Bisecting
        # a list is fastest, but a long list takes nine times the memory of an array.
        is_long = len(offsets) > _MAX_LIST_SHARDS
        self._offsets: Sequence[int] = offsets.data if is_long else offsets.tolist()

    def _indexes(self) -> list[Index]:
        return [self._index]

    def _sidecar_stores(self) -> list[Store]:
        return [open_store(self._folder)]

    @property
    def shards(self) -> ShardList:
        """Sequence of facts about the shards (`ShardInfo`), each made when it is read."""
        return ShardList(self._shard_map())

    @property
    def spanner(self) -> Spanner:
        """Map from samples to shards: ``spanner[sample]`` is (shard, row)."""
        return Spanner(self._shard_map())

    def _shard_map(self) -> ShardMap:
        """Return the shards, and which of them has each sample."""
        return ShardMap([self._index])

    def __getattr__(self, name: str) -> Any:
        raise no_attribute(self, name, "LocalDataset")

    def __len__(self) -> int:
        return self.num_samples

    @overload
    def __getitem__(self, index: int, /) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[dict[str, Any]]: ...
    @overload
    def __getitem__(self, index: str, /) -> list[Any]: ...
    @overload
    def __getitem__(self, index: Any, /) -> Any: ...
    def __getitem__(self, index: Any, /) -> Any:
        """Return the sample of a number, or lists of samples for slices, lists and arrays.

        The name of a column gives the list of its values, and reads no other column.

        Raises IndexError out of range and ValueError for another kind of index.
        """
        if type(index) is int and 0 <= index < self.num_samples:
            return self.get_item(index)
        if isinstance(index, str):
            return self._column(index)
        return resolve(index, self.num_samples, self.get_item)

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Return the samples of a batch; torch's loader calls this."""
        if type(self).__getitem__ is not LocalDataset.__getitem__:  # the user's class overrides it
            return [self[number] for number in numbers]
        samples: list[Any] = resolve(numbers, self.num_samples, self.get_item)
        return samples

    def _column(self, name: str) -> list[Any]:
        """Return the values of a column. Raises ConfigError if there is no such column."""
        from mds._dataset.settings import find_column

        find_column(f"dataset[{name!r}]", name, self.columns)
        dataset = self
        if type(self).get_item is LocalDataset.get_item:  # samples are as stored
            dataset = copy.copy(self)
            dataset._columns = dataclasses.replace(self._columns, names=(name,))  # noqa: SLF001 - of this class
            dataset._set_up_readers()  # noqa: SLF001
        return [dataset.get_item(number)[name] for number in range(self.num_samples)]

    # ------------------------------------------------------------------ subsets and functions

    @takes_names
    def select(
        self, choice: Any = None, *, where: Callable[[Any], Any] | None = None
    ) -> LocalDataset:
        """Return a dataset of the chosen samples, which are numbered from 0.

        - ``choice`` (Any, default None): As in `StreamingDataset.select`.
        - ``where`` (Callable | None, default None): Function to use instead of ``choice``, which is
          called with every sample at once.

        >>> [sample["id"] for sample in LocalDataset("data/train").select(range(2, 5))]
        [2, 3, 4]
        """
        from mds._dataset.subsets import check_choice, parse_selection

        if callable(choice) and where is None:
            choice, where = None, choice
        check_choice(type(self).__name__, choice, where)
        if where is None:
            return _LocalPart(self, parse_selection(choice, len(self)))
        # By number, as the class of a user may iterate in another way.
        is_chosen = [bool(where(self[number])) for number in range(len(self))]
        return _LocalPart(self, np.flatnonzero(is_chosen))

    @takes_names
    def filter(self, keep: Callable[[Any], bool]) -> LocalDataset:
        """Return a dataset of the samples for which ``keep`` is true; it is called at once.

        - ``keep`` (Callable): Function of a sample.

        >>> len(LocalDataset("data/train").filter(lambda sample: sample["id"] > 5))
        2
        """
        return self.select(where=keep)

    @takes_names
    def limit(self, samples: int | str) -> LocalDataset:
        """Return a dataset of the first samples.

        - ``samples`` (int | str): Number of samples, also as a text such as ``"10k"``.

        >>> len(LocalDataset("data/train").limit(3))
        3
        """
        from mds._dataset.settings import LIMIT_RULES

        check_arguments(f"{type(self).__name__}.limit", {"samples": samples}, LIMIT_RULES)
        return _LocalPart(self, np.arange(min(parse_count(samples), len(self))))

    @takes_names
    def map(self, function: Callable[..., Any]) -> LocalDataset:
        """Return a dataset whose samples are what ``function`` returns for the samples of this one.

        - ``function`` (Callable): Function of a sample, as in `StreamingDataset.map`. With an
          argument ``rng`` it draws the same numbers for a sample every time.

        >>> LocalDataset("data/train").map(lambda sample: sample["id"] + 1)[0]
        1
        """
        from mds.transforms._chain import FunctionChain, Link

        return _LocalPart(self, chain=FunctionChain((Link.parse("map", function, is_ours=False),)))

    def get_item(self, sample_id: int) -> Any:
        """Return one sample by its number; subclasses override this to change what a sample is."""
        offsets = self._offsets
        shard = bisect_right(offsets, sample_id) - 1  # the last one that begins at or before it
        reader = self._open.get(shard)
        if reader is None:
            reader = self._reader(shard)
        return reader.get(sample_id - offsets[shard])

    def _reader(self, shard: int) -> Reader:
        """Open a shard, and keep its reader for later samples; see `_open_reader`."""
        reader = self._open_reader(shard, self._columns)
        self._open.keep(shard, reader)
        return reader

    def _open_reader(self, shard: int, columns: ColumnSelection) -> Reader:
        """Open a shard.

        Raises NotFoundError if the file is missing, with advice if only its compressed form exists.
        """
        info = self._index.shard(shard)
        try:
            return open_reader(
                self._folder, info, allow_unsafe_types=self.allow_unsafe_types, columns=columns
            )
        except NotFoundError as error:
            if info.zip is None or not os.path.exists(info.zip.basename.under(self._folder)):
                raise
            raise NotFoundError(
                f"{error} Only the compressed file {info.zip.basename} exists; "
                "StreamingDataset(local=...) reads it.",
                url=error.url,
                verb=error.verb,
            ) from error

    def _read_rows(self, columns: ColumnSelection) -> Iterator[tuple[Reader, Rows]]:
        """Yield a reader of each shard and its rows; see `ArrowRows`."""
        for shard in range(len(self._index)):
            with self._open_reader(shard, columns) as reader:
                yield reader, np.arange(len(reader))

    def __getstate__(self) -> dict[str, Any]:
        # Mapped files cannot be pickled. Each worker process opens the shards that it reads.
        return {k: v for k, v in self.__dict__.items() if k not in {"_open", "_offsets"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up_readers()

    def __repr__(self) -> str:
        size, shards = format_bytes(int(self._index.raw_size.sum())), len(self._index)
        folder = os.path.join(self.local, self.split).rstrip(os.sep)
        return (
            f"<{type(self).__name__} of {folder}: {plural(self.num_samples, 'sample')} in "
            f"{shards:,} shard{'s' * (shards != 1)}, {size}>"
        )


class _LocalPart(LocalDataset):
    """Chosen samples of a LocalDataset, or what a function returns for its samples.

    Args:
        source: The dataset, which may be of a user's class or a part itself.
        numbers: Sample numbers in ``source``, int64, ascending; None for all.
        chain: Functions of samples; None for none.
    """

    def __init__(
        self,
        source: LocalDataset,
        numbers: npt.NDArray[np.int64] | None = None,
        chain: FunctionChain | None = None,
    ) -> None:
        self.__dict__.update(source.__getstate__())
        self._source, self._numbers, self._chain = source, numbers, chain
        self.num_samples = self.size = len(source) if numbers is None else len(numbers)
        self._set_up_readers()

    def _shard_map(self) -> ShardMap:
        shards = self._source._shard_map()  # noqa: SLF001
        return shards if self._numbers is None else shards.part(self._numbers)

    def _read_rows(self, columns: ColumnSelection) -> Iterator[tuple[Reader, Rows]]:
        del columns
        raise ConfigError(
            "LocalDataset.to_arrow_reader() gives all rows as they are stored: call it before "
            "select(), filter(), limit() and map(), or use StreamingDataset(folder).select(...)."
        )

    def _column(self, name: str) -> list[Any]:
        if self._numbers is not None and self._chain is None:
            values = self._source[name]
            return [values[number] for number in self._numbers.tolist()]
        return [self.get_item(number)[name] for number in range(self.num_samples)]

    def get_item(self, sample_id: int) -> Any:
        """Return one sample of the source, after the functions."""
        source = sample_id if self._numbers is None else int(self._numbers[sample_id])
        sample = self._source[source]
        if self._chain is None:
            return sample
        from mds.transforms._randomness import key_of_number
        from mds.transforms._runner import SampleRunner

        runner = SampleRunner(self._chain, lambda: f"sample {sample_id}")
        return runner.run(sample, key_of_number(_SEED, sample_id))

    def __repr__(self) -> str:
        content = plural(self.num_samples, "sample") if self._chain is None else f"{self._chain}"
        return f"<LocalDataset: {content} of {self._source!r}>"
