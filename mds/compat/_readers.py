"""Shards as arrays of samples: `streaming.base.array`, `.spanner` and `.format`.

A Reader knows the files of one shard in a local folder and decodes its samples. It describes
itself with the entry that ``index.json`` has for the shard; samples are decoded by a reader of mds,
which is opened when a sample is first asked for.

In this package, 0.13 is mosaicml-streaming 0.13, "native" is the class of mds of the same name, and
"code" is code of the user that was written for 0.13.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from mds._dataset.indexing import normalize, resolve
from mds._index.table import Index
from mds._iteration.shard_map import ShardMap
from mds._readers import make_decoder, open_reader
from mds._units import parse_bytes
from mds.compat._overrides import Sealed, SealedDict, find_remedy, refuse
from mds.errors import ConfigError, IndexFileError, UnsafeTypeError
from mds.storage._relative_name import RelativeName, unlink_beneath

if TYPE_CHECKING:
    from typing_extensions import Self

    from mds._cache.shard_cache import ShardCache
    from mds._index.shard_object import ShardInfo
    from mds._readers.base import Reader as NativeReader

#: Shard files that stay open.
_MAX_OPEN = 16
#: Keys of an index entry that describe a file.
_FILE_KEYS = ("raw_data", "raw_meta", "zip_data", "zip_meta")

# ---------------------------------------------------------------------- arrays and spans


class Array(metaclass=Sealed):
    """Base of classes with ``size`` items, which ``get_item`` returns one by one."""

    @property
    def size(self) -> int:
        """Number of items."""
        raise NotImplementedError

    def get_item(self, idx: int) -> Any:
        """Return an item by its number, from 0."""
        raise NotImplementedError

    def _each_slice_index(self, at: slice) -> Iterator[int]:
        return iter(range(*at.indices(self.size)))

    def __getitem__(self, at: Any) -> Any:
        """Return an item, or a list of items for a slice, a list or an array of numbers."""
        return resolve(at, self.size, self.get_item)


class SpanError(ConfigError, IndexError):
    """Sample number that no shard has."""


class Spanner(metaclass=Sealed):
    """Map from the number of a sample to its shard: ``spanner[17]`` is (shard, row).

    ``shard_sizes``: samples of each shard. ``span_size`` has no effect; 0.13 takes it.
    """

    def __init__(self, shard_sizes: npt.ArrayLike, span_size: int = 1 << 10) -> None:
        self.shard_sizes = np.asarray(shard_sizes, np.int64)
        self.span_size = span_size
        self.shard_bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.shard_sizes)])
        self.num_samples = int(self.shard_bounds[-1])

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return the shard of a sample, and its row in the shard. Raises SpanError."""
        if not 0 <= index < self.num_samples:
            raise SpanError(f"there is no sample {index} among {self.num_samples}.")
        shard = int(np.searchsorted(self.shard_bounds, index, "right")) - 1
        return shard, int(index - self.shard_bounds[shard])


# ---------------------------------------------------------------------- bases of readers


@dataclass
class FileInfo:
    """File of a shard: its name, its bytes, and its digests by the name of the hash."""

    basename: str
    bytes: int
    hashes: dict[str, str]


class Reader(Array, ABC):
    """Shard in a local folder as an array of samples.

    - ``dirname`` (str), ``split`` (str | None): folder of the files, and its sub-folder.
    - ``compression`` (str | None): name of the compression of its files.
    - ``hashes`` (list[str]): names of the hashes in the index.
    - ``samples`` (int): number of samples.
    - ``size_limit`` (int | str | None, bytes): limit that its writer had.

    A shard has a *raw* file with samples (text formats have a second one with their offsets), and
    with compression a compressed ("zip") file of each. Raw files must be in the folder when a
    sample is read.
    """

    #: Name of the format in the index.
    format = ""

    def __init__(
        self,
        dirname: str,
        split: str | None,
        compression: str | None,
        hashes: list[str],
        samples: int,
        size_limit: int | str | None,
    ) -> None:
        self.dirname, self.split = dirname, split or ""
        self.compression, self.hashes, self.samples = compression, hashes, samples
        self.size_limit = parse_bytes(size_limit) if size_limit is not None else None
        #: Raw file and compressed file (None without compression), for each file of the shard.
        self.file_pairs: list[tuple[FileInfo, FileInfo | None]] = []
        #: Function that fetches the shard if necessary and returns a sample; set by datasets.
        self.sample: Callable[[int], dict[str, Any]] | None = None

    def validate(self, allow_unsafe_types: bool) -> None:
        """Raise UnsafeTypeError (a ValueError) for pickles that are not allowed."""
        del allow_unsafe_types

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(self.samples))

    # ------------------------------------------------------------------ files

    @property
    def folder(self) -> str:
        """Folder of the files, with the split."""
        return os.path.join(self.dirname, self.split)

    def _path(self, file: FileInfo) -> str:
        return _relative_name(file).under(self.folder)

    def _evict(self, files: Sequence[FileInfo | None]) -> int:
        """Delete those of the files that exist; return their bytes. None is no file."""
        _open_readers.pop(id(self), None)  # releases the file if it is open
        deleted_bytes = 0
        for file in files:
            if file is not None and os.path.lexists(self._path(file)):
                unlink_beneath(self.folder, _relative_name(file))
                deleted_bytes += file.bytes
        return deleted_bytes

    def _evict_raw(self) -> int:
        return self._evict([raw for raw, _ in self.file_pairs])

    def _evict_zip(self) -> int:
        return self._evict([compressed for _, compressed in self.file_pairs])

    def evict(self) -> int:
        """Delete the files of the shard; return their bytes."""
        return self._evict_raw() + self._evict_zip()

    def set_up_local(self, listing: set[str], safe_keep_zip: bool) -> int:
        """Delete incomplete and unneeded files; return the bytes of the files that stay.

        - ``listing`` (set[str]): paths of the files that exist.
        - ``safe_keep_zip`` (bool): whether compressed files are kept. If so, raw files without
          their compressed ones are incomplete; if not, compressed files beside raw ones are
          unneeded.
        """
        raw_files = [raw for raw, _ in self.file_pairs]
        zip_files = [file for _, file in self.file_pairs if file is not None]
        has_raw = all(self._path(file) in listing for file in raw_files)
        has_zip = bool(zip_files) and all(self._path(file) in listing for file in zip_files)
        if not has_raw:  # one of two files may exist
            self._evict_raw()
        if zip_files and not has_zip:
            self._evict_zip()
        if has_raw and zip_files and safe_keep_zip and not has_zip:
            self._evict_raw()
            has_raw = False
        if has_raw and has_zip and not safe_keep_zip:
            self._evict_zip()
            has_zip = False
        raw_size, zip_size = self.get_raw_size(), self.get_zip_size() or 0
        return (raw_size if has_raw else 0) + (zip_size if has_zip else 0)

    def get_raw_size(self) -> int:
        """Return the bytes of the raw files."""
        return sum(raw.bytes for raw, _ in self.file_pairs)

    def get_zip_size(self) -> int | None:
        """Return the bytes of the compressed files, or None if there are none."""
        sizes = [compressed.bytes for _, compressed in self.file_pairs if compressed is not None]
        return sum(sizes) if sizes else None

    def get_max_size(self) -> int:
        """Return the bytes of raw and compressed files together."""
        return self.get_raw_size() + (self.get_zip_size() or 0)

    def get_persistent_size(self, keep_zip: bool) -> int:
        """Return the bytes of the files that stay after the shard was decompressed.

        They are the raw files, and with ``keep_zip`` the compressed files, too.

        ``keep_zip``: whether compressed files are kept.
        """
        if self.compression and not keep_zip:
            return self.get_raw_size()
        return self.get_max_size()

    # ------------------------------------------------------------------ samples

    @abstractmethod
    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """Return the sample of its stored bytes."""

    @abstractmethod
    def get_sample_data(self, idx: int) -> bytes:
        """Return the stored bytes of a sample."""

    def get_item(self, idx: int) -> dict[str, Any]:
        """Return a sample by its number in the shard."""
        return self.decode_sample(self.get_sample_data(idx))


class KnownFormatReader(Reader):
    """Reader of a format that mds reads; the arguments are those of `Reader`.

    The attributes of the object describe the shard as 0.13 does. From them `info` makes the
    description that readers of mds need.
    """

    def _own_fields(self) -> dict[str, Any]:
        """Return the fields of the index entry that the format adds to those of every shard."""
        raise NotImplementedError

    @property
    def info(self) -> ShardInfo:
        """Description of the shard by mds, made of the attributes when it is first read.

        Raises IndexFileError if the attributes contradict each other.
        """
        info = vars(self).get("_info")
        if info is None:
            entry = {
                "version": 2,
                "format": self.format,
                "compression": self.compression,
                "hashes": self.hashes,
                "samples": self.samples,
                "size_limit": self.size_limit,
                **self._own_fields(),
            }
            index_path = os.path.join(self.folder, "index.json")
            info = self._info = Index.build([entry], index_path).shard(0)
        return info

    #: Whether `validate` has allowed pickles.
    _allows_pickles = False

    def validate(self, allow_unsafe_types: bool) -> None:
        """Raise UnsafeTypeError (a ValueError) for pickles that are not allowed.

        Samples with pickles are only decoded after a call of it that allows them.
        """
        from mds._index.shard_object import refuse_unsafe

        data_file, _ = self.file_pairs[-1]
        refuse_unsafe([self.info.schema], allow_unsafe_types, self._path(data_file))
        self._allows_pickles = allow_unsafe_types

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """Return the sample of its stored bytes. Raises UnsafeTypeError as `validate` does."""
        decode = vars(self).get("_decode")
        if decode is None:
            if self.info.schema.has_unsafe_types and not self._allows_pickles:
                raise UnsafeTypeError(
                    f"{self!r} has pickles, and loading a pickle can run any code of its author. "
                    "Call validate(True) of this reader first if you trust them."
                )
            decode = self._decode = make_decoder(self.info.schema, allow_unsafe_types=True)
        return decode(memoryview(data))

    def get_sample_data(self, idx: int) -> bytes:
        """Return the stored bytes of a sample."""
        return bytes(_open(self).sample_bytes(idx))

    def get_item(self, idx: int) -> dict[str, Any]:
        """Return a sample by its number in the shard."""
        return super().get_item(idx) if self.sample is None else self.sample(idx)

    def __getstate__(self) -> dict[str, Any]:
        # The decoder is made of functions that cannot be pickled.
        return {name: value for name, value in vars(self).items() if name != "_decode"}

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: dict[str, Any]) -> Self:
        """Return the reader of a shard.

        - ``dirname`` (str), ``split`` (str | None): folder of the files, and its sub-folder.
        - ``obj`` (dict): entry of the list ``shards`` in ``index.json``.

        Raises FormatNameError (a KeyError) and VersionError (an AssertionError).
        """
        for key in ("version", "format"):
            if key not in obj:
                raise FormatNameError(f"the shard has no {key!r}.")
        if obj["version"] != 2:
            raise VersionError(
                f"the shard has version {obj['version']!r}; only version 2 is known."
            )
        if obj["format"] != cls.format:
            raise VersionError(f"the shard is {obj['format']!r}, not {cls.format!r}.")
        arguments = {key: value for key, value in obj.items() if key not in ("version", "format")}
        for key in _FILE_KEYS:  # "raw_data", "zip_data", ...: descriptions of files
            if arguments.get(key) is not None:
                arguments[key] = FileInfo(**arguments[key])
        kind: Any = cls  # the keys of an entry are the arguments of its format's class
        reader: Self = kind(dirname=dirname, split=split, **arguments)
        return reader


class JointReader(KnownFormatReader):
    """Shard in one file. For the other arguments, see `Reader`.

    - ``raw_data`` (FileInfo): the file.
    - ``zip_data`` (FileInfo | None): the compressed file; None without compression.
    """

    def __init__(
        self,
        dirname: str,
        split: str | None,
        compression: str | None,
        hashes: list[str],
        raw_data: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
    ) -> None:
        super().__init__(dirname, split, compression, hashes, samples, size_limit)
        self.raw_data, self.zip_data = raw_data, zip_data
        self.file_pairs.append((raw_data, zip_data))


class SplitReader(KnownFormatReader):
    """Shard in two files: text lines, and their offsets. For the other arguments, see `Reader`.

    - ``raw_data``, ``raw_meta`` (FileInfo): files of the lines and of the offsets.
    - ``zip_data``, ``zip_meta`` (FileInfo | None): the compressed files; None without compression.
    """

    #: End of a line.
    newline = "\n"

    def __init__(
        self,
        dirname: str,
        split: str | None,
        compression: str | None,
        hashes: list[str],
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
    ) -> None:
        super().__init__(dirname, split, compression, hashes, samples, size_limit)
        self.raw_data, self.zip_data = raw_data, zip_data
        self.raw_meta, self.zip_meta = raw_meta, zip_meta
        self.file_pairs += [(raw_meta, zip_meta), (raw_data, zip_data)]

    def _own_fields(self) -> dict[str, Any]:
        """Return the fields of the index entry that formats with two files have."""
        files = {key: _file_entry(getattr(self, key)) for key in _FILE_KEYS}
        return {**files, "newline": self.newline}


# Native readers of the shards that were read last, by id() of their Reader; the last one is at the
# end. The Reader is stored too, so that its id is not used again.
_open_readers: collections.OrderedDict[int, tuple[Reader, NativeReader]] = collections.OrderedDict()


def _open(reader: KnownFormatReader) -> NativeReader:
    """Return the native reader of a shard, which stays open until `_MAX_OPEN` others are used."""
    # Taken out and put back at the end, so that the first entry is the one used longest ago.
    entry = _open_readers.pop(id(reader), None)
    if entry is None:
        entry = reader, open_reader(reader.folder, reader.info, allow_unsafe_types=True)
    _open_readers[id(reader)] = entry
    while len(_open_readers) > _MAX_OPEN:
        with contextlib.suppress(KeyError):  # another thread has removed the last one
            _open_readers.popitem(last=False)
    return entry[1]


def _relative_name(file: FileInfo) -> RelativeName:
    return RelativeName(file.basename, "the shard", IndexFileError)


def _file_entry(file: FileInfo | None) -> dict[str, Any] | None:
    return None if file is None else vars(file)


# ---------------------------------------------------------------------- readers of formats


class MDSReader(JointReader):
    """Shard in the binary format MDS.

    ``column_names``, ``column_encodings`` and ``column_sizes`` (bytes of a value; None if values
    differ in size) describe the columns. For the other arguments, see `JointReader`.
    """

    format = "mds"

    def __init__(
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        column_sizes: list[int | None],
        compression: str | None,
        hashes: list[str],
        raw_data: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
    ) -> None:
        super().__init__(
            dirname, split, compression, hashes, raw_data, samples, size_limit, zip_data
        )
        self.column_encodings, self.column_names = column_encodings, column_names
        self.column_sizes = column_sizes

    def _own_fields(self) -> dict[str, Any]:
        """Return the fields of the index entry that only MDS has."""
        return {
            "column_encodings": self.column_encodings,
            "column_names": self.column_names,
            "column_sizes": self.column_sizes,
            "raw_data": _file_entry(self.raw_data),
            "zip_data": _file_entry(self.zip_data),
        }


class JSONReader(SplitReader):
    """Shard of JSON lines. For the other arguments, see `SplitReader`.

    - ``columns`` (dict[str, str]): encodings of the columns by name.
    - ``newline`` (str): end of a line.
    """

    format = "json"

    def __init__(
        self,
        dirname: str,
        split: str | None,
        columns: dict[str, str],
        compression: str | None,
        hashes: list[str],
        newline: str,
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
    ) -> None:
        super().__init__(
            dirname,
            split,
            compression,
            hashes,
            raw_data,
            raw_meta,
            samples,
            size_limit,
            zip_data,
            zip_meta,
        )
        self.columns, self.newline = columns, newline

    def _own_fields(self) -> dict[str, Any]:
        return {**super()._own_fields(), "columns": self.columns}


class XSVReader(SplitReader):
    """Shard of lines whose values have ``separator`` between them.

    - ``column_names``, ``column_encodings`` (list[str]): columns, in the order of the values.
    - ``newline`` (str): end of a line.

    For the other arguments, see `SplitReader`.
    """

    format = "xsv"

    def __init__(
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        compression: str | None,
        hashes: list[str],
        newline: str,
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        separator: str,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
    ) -> None:
        super().__init__(
            dirname,
            split,
            compression,
            hashes,
            raw_data,
            raw_meta,
            samples,
            size_limit,
            zip_data,
            zip_meta,
        )
        self.column_encodings, self.column_names = column_encodings, column_names
        self.newline, self.separator = newline, separator

    def _own_fields(self) -> dict[str, Any]:
        """Return the fields of the index entry that only text with separators has."""
        fields = {
            **super()._own_fields(),
            "column_encodings": self.column_encodings,
            "column_names": self.column_names,
        }
        # An index entry of csv or tsv has no separator: the format implies it.
        return {**fields, "separator": self.separator} if self.format == "xsv" else fields


class _FixedSeparatorReader(XSVReader):
    """Base of csv and tsv, whose separator is a class attribute and no argument.

    The other arguments are those of `XSVReader`.
    """

    separator: str

    def __init__(
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        compression: str | None,
        hashes: list[str],
        newline: str,
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        size_limit: int | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
    ) -> None:
        super().__init__(
            dirname,
            split,
            column_encodings,
            column_names,
            compression,
            hashes,
            newline,
            raw_data,
            raw_meta,
            samples,
            type(self).separator,
            size_limit,
            zip_data,
            zip_meta,
        )


class CSVReader(_FixedSeparatorReader):
    """Shard of lines with commas between values. The arguments are those of `XSVReader`."""

    format = "csv"
    separator = ","


class TSVReader(_FixedSeparatorReader):
    """Shard of lines with tabs between values. The arguments are those of `XSVReader`."""

    format = "tsv"
    separator = "\t"


# ---------------------------------------------------------------------- readers of index entries


class VersionError(IndexFileError, AssertionError):
    """Entry of an index with an unknown version, or of another format than the reader's."""


class FormatNameError(IndexFileError, KeyError):
    """Entry of an index without a format or a version, or with an unknown format."""


_readers: dict[str, type[Any]] = SealedDict(
    "streaming.base.format._readers",
    {kind.format: kind for kind in (CSVReader, JSONReader, MDSReader, TSVReader, XSVReader)},
    find_remedy("_readers"),
)


def reader_from_json(dirname: str, split: str | None, obj: dict[str, Any]) -> Reader:
    """Return the reader of a shard in the format that its index entry names.

    - ``dirname`` (str), ``split`` (str | None): folder of the files, and its sub-folder.
    - ``obj`` (dict): entry of the list ``shards`` in ``index.json``.

    Raises IndexFileError (a ValueError) for an entry that describes no shard.
    """
    if obj.get("format") not in _readers:
        raise FormatNameError(
            f"{obj.get('format')!r} is not a shard format. There are {', '.join(_readers)}."
        )
    reader: Reader = _readers[obj["format"]].from_json(dirname, split, obj)
    if isinstance(reader, KnownFormatReader):
        reader.info  # noqa: B018 - raises for an entry that contradicts itself
    return reader


def get_index_basename() -> str:
    """Return the name of index files."""
    return "index.json"


class ShardReaders(Sequence[Any]):
    """Readers of all shards of a dataset; each is made when it is first asked for.

    - ``shards`` (ShardMap): shards of all streams.
    - ``cache`` (ShardCache | None, default None): where samples come from, fetched if necessary;
      None reads them from ``folder``.
    - ``folder`` (str, default ""): folder of the files of a dataset without a cache.
    """

    def __init__(self, shards: ShardMap, cache: ShardCache | None = None, folder: str = "") -> None:
        self._shards, self._cache, self._folder = shards, cache, folder
        self._readers: dict[int, Reader] = {}

    def __len__(self) -> int:
        return self._shards.num_shards

    def __getitem__(self, index: Any) -> Any:
        """Return the reader of a shard by its number (-1 is the last), or a list for a slice."""
        if isinstance(index, slice):
            return [self[shard] for shard in range(*index.indices(len(self)))]
        shard = normalize(int(index), len(self))
        if shard not in self._readers:
            self._readers[shard] = self._make_reader(shard)
        return self._readers[shard]

    def __setitem__(self, index: Any, reader: Any) -> NoReturn:
        refuse(f"dataset.shards[{index!r}]", find_remedy("Reader"))

    def __iter__(self) -> Iterator[Any]:
        return (self[shard] for shard in range(len(self)))

    def _make_reader(self, shard: int) -> Reader:
        """Return a new reader of a shard, from the entry in the index of its stream."""
        stream = int(self._shards.stream_per_shard[shard])
        first_shard = int(self._shards.shard_offset_per_stream[stream])
        # The index numbers the shards of each stream from 0.
        entry = json.loads(self._shards.indexes[stream].shard_json(shard - first_shard))
        cache = self._cache
        folder = self._folder if cache is None else cache.sources[stream].folder
        reader = reader_from_json(folder, "", entry)
        # The dataset has refused pickles already, unless they are allowed.
        reader.validate(True)
        if cache is not None:
            reader.sample = functools.partial(cache.sample, shard)
        return reader
