"""The incumbent's ``format.base.reader``: a shard of a folder as an array of samples.

What decodes is a reader of the library, opened when a sample is first asked for; the last few
that were used stay open. The rest are facts of the index and of the folder.
"""

from __future__ import annotations

import collections
import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mds.compat.shapes import Array
from mds.errors import IndexFileError
from mds.index import Index
from mds.readers import make_decoder, open_reader
from mds.storage.relative_name import RelativeName, unlink_beneath
from mds.units import parse_bytes

if TYPE_CHECKING:
    from mds.index import ShardInfo
    from mds.readers import Reader as ShardReader

_MOST_OPEN = 16


@dataclass
class FileInfo:
    """A file of a shard: its name, its bytes, its digests by hash name."""

    basename: str
    bytes: int
    hashes: dict[str, str]


class Reader(Array, ABC):
    """A shard of a folder as an array of samples; its raw files must be there when one is asked."""

    #: What the index calls the format; formats of a user's own have none that we can open.
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
        self.file_pairs: list[tuple[FileInfo, FileInfo | None]] = []
        #: How a dataset gets a sample of this shard, which may have to be fetched first.
        self.sample: Callable[[int], dict[str, Any]] | None = None

    def validate(self, allow_unsafe_types: bool) -> None:
        """Raise UnsafeTypeError (a ValueError) for columns that are not to be trusted."""
        del allow_unsafe_types

    @property
    def size(self) -> int:
        """The samples of the shard."""
        return self.samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(self.samples))

    # ------------------------------------------------------------------ its files

    @property
    def folder(self) -> str:
        """Where its files are."""
        return os.path.join(self.dirname, self.split)

    def _path(self, file: FileInfo) -> str:
        return _name(file).under(self.folder)

    def _evict(self, files: list[FileInfo | None]) -> int:
        _close(self)
        size = 0
        for file in files:
            if file is not None and os.path.lexists(self._path(file)):
                unlink_beneath(self.folder, _name(file))
                size += file.bytes
        return size

    def _evict_raw(self) -> int:
        return self._evict([raw for raw, _ in self.file_pairs])

    def _evict_zip(self) -> int:
        return self._evict([packed for _, packed in self.file_pairs])

    def evict(self) -> int:
        """Remove the files of the shard; the bytes that they took."""
        return self._evict_raw() + self._evict_zip()

    def set_up_local(self, listing: set[str], safe_keep_zip: bool) -> int:
        """Remove what is half there, of the files in ``listing``; the bytes of what is left.

        With ``safe_keep_zip`` raw files without their compressed ones are half there; without it
        compressed ones beside raw ones are left over, but not counted.
        """
        raws = [raw for raw, _ in self.file_pairs]
        zips = [packed for _, packed in self.file_pairs if packed is not None]
        has_raw = all(self._path(file) in listing for file in raws)
        has_zip = bool(zips) and all(self._path(file) in listing for file in zips)
        if not has_raw:
            self._evict_raw()
        if zips and not has_zip:
            self._evict_zip()
        if has_raw and zips and safe_keep_zip and not has_zip:
            self._evict_raw()
            has_raw = False
        if has_raw and has_zip and not safe_keep_zip:
            self._evict_zip()
            has_zip = False
        raw_size, zip_size = self.get_raw_size(), self.get_zip_size() or 0
        return (raw_size if has_raw else 0) + (zip_size if has_zip else 0)

    def get_raw_size(self) -> int:
        """The bytes of the raw files."""
        return sum(raw.bytes for raw, _ in self.file_pairs)

    def get_zip_size(self) -> int | None:
        """The bytes of the compressed files; None where there are none."""
        sizes = [packed.bytes for _, packed in self.file_pairs if packed is not None]
        return sum(sizes) if sizes else None

    def get_max_size(self) -> int:
        """The most bytes that the shard takes: raw and compressed together."""
        return self.get_raw_size() + (self.get_zip_size() or 0)

    def get_persistent_size(self, keep_zip: bool) -> int:
        """The bytes that the shard takes once it is there."""
        if self.compression and not keep_zip:
            return self.get_raw_size()
        return self.get_max_size()

    # ------------------------------------------------------------------ its samples

    @abstractmethod
    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """The sample of its stored bytes."""

    @abstractmethod
    def get_sample_data(self, idx: int) -> bytes:
        """The stored bytes of a sample."""

    def get_item(self, idx: int) -> dict[str, Any]:
        """One sample of the shard."""
        return self.decode_sample(self.get_sample_data(idx))


class Answered(Reader):
    """A reader of a format that the library knows."""

    def _entry(self) -> dict[str, Any]:
        """What the index says of this shard."""
        raise NotImplementedError

    @property
    def facts(self) -> ShardInfo:
        """The library's facts of this shard. Raises IndexFileError where they make no sense."""
        shard = vars(self).get("_facts")
        if shard is None:
            entry = {
                "version": 2,
                "format": self.format,
                "compression": self.compression,
                "hashes": self.hashes,
                "samples": self.samples,
                "size_limit": self.size_limit,
                **self._entry(),
            }
            where = os.path.join(self.folder, "index.json")
            shard = self._facts = Index.build([entry], where).shard(0)
        return shard

    def validate(self, allow_unsafe_types: bool) -> None:
        """Raise UnsafeTypeError (a ValueError) for pickles, unless they are allowed."""
        from mds.index import refuse_unsafe

        refuse_unsafe([self.facts.schema], allow_unsafe_types, self._path(self.file_pairs[-1][0]))

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """The sample of its stored bytes."""
        decode = vars(self).get("_decode")
        if decode is None:
            decode = self._decode = make_decoder(self.facts.schema, allow_unsafe_types=True)
        return decode(memoryview(data))

    def get_sample_data(self, idx: int) -> bytes:
        """The stored bytes of a sample."""
        return bytes(_opened(self).sample_bytes(idx))

    def get_item(self, idx: int) -> dict[str, Any]:
        """One sample of the shard."""
        return super().get_item(idx) if self.sample is None else self.sample(idx)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_decode"}


class JointReader(Answered):
    """A shard in one file."""

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


class SplitReader(Answered):
    """A shard in a data file and a meta file."""

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


# Readers whose files are open, with the last one that was used at the end.
_open: collections.OrderedDict[int, tuple[Reader, ShardReader]] = collections.OrderedDict()


def _opened(reader: Answered) -> ShardReader:
    """The library's reader of a shard, kept open until others were used."""
    found = _open.pop(id(reader), None)
    if found is None:
        found = reader, open_reader(reader.folder, reader.facts, allow_unsafe_types=True)
    _open[id(reader)] = found
    while len(_open) > _MOST_OPEN:
        with contextlib.suppress(KeyError):  # another thread was here
            _open.popitem(last=False)
    return found[1]


def _close(reader: Reader) -> None:
    _open.pop(id(reader), None)


def _name(file: FileInfo) -> RelativeName:
    return RelativeName(file.basename, "the shard", IndexFileError)
