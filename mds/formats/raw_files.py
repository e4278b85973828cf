"""Files that are a sample each, named by a manifest: neighbours of it make a shard.

They are fetched side by side and kept as one MDS file, so a second epoch is as fast as one of MDS,
and the cache has a file for each 256 of them. On a local disk they are read where they lie.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mds.errors import ConfigError, FormatError, NotFoundError, StoreError
from mds.formats.base import Format
from mds.formats.encode import encode_records, sample_encoder
from mds.formats.facts import Block, DataFile, FilePlan, ShardPlace
from mds.formats.made_reader import MadeReader
from mds.formats.manifest import check_paths, check_sizes, pack_rows, read_manifest, unpack_rows
from mds.formats.place import FilePlace
from mds.formats.tar_samples import encoding_by_ending, split_name
from mds.storage.files import open_regular

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.formats.manifest import Rows
    from mds.formats.source import Files
    from mds.readers import ColumnSelection, Reader

#: Files that are looked at to tell how large all are, and the bytes where none tells.
_LOOKED_AT, _SUPPOSED = 16, 64 << 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawFiles(Format):
    """Files below a folder, a sample each, in the order of a manifest.

    - ``manifest`` (str): The table of them below the folder: ``.parquet``, ``.csv``, ``.tsv`` or
      ``.jsonl``, with a column of paths and any columns beside it.
    - ``path`` (str, default "path"): The column of paths, which are relative to the folder.
    - ``content`` (str, default "content"): The column that the bytes of a file become: an image or
      a text where all paths end so, else bytes.
    - ``size`` (str | None, default None): The column with the bytes of each file. Without it
      sixteen files are looked at, to tell about how large shards are; on Amazon's S3 a file of a
      known size takes a quarter of the processor time.
    - ``samples_per_shard`` (int, default 256): How many neighbours are fetched and kept together.
      Another number is another order.
    - ``columns`` (Sequence[str] | None, default None): The only columns to have; without
      ``content`` no file is read.

    Raises ConfigError for a number of samples below one.

    >>> StreamingDataset(
    ...     remote="s3://bucket/photos", format=RawFiles(manifest="labels.parquet"), batch_size=32
    ... )  # doctest: +SKIP
    """

    name: ClassVar[str] = "files"
    endings: ClassVar[tuple[str, ...]] = ()

    manifest: str
    path: str = "path"
    content: str = "content"
    size: str | None = None
    samples_per_shard: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples_per_shard < 1:
            raise ConfigError(f"samples_per_shard= is 1 or more, got {self.samples_per_shard}.")

    def narrow(self, place: FilePlace) -> FilePlace:
        """Narrow the place to the manifest, so that no folder of millions of files is listed."""
        return FilePlace(place.root, literal=self.manifest)

    def settings(self) -> Mapping[str, Any]:
        """All but the column of sizes, which changes no sample."""
        return {name: value for name, value in super().settings().items() if name != "size"}

    def takes(self, key: str) -> bool:
        """Whether it is the manifest."""
        return key == self.manifest

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Neighbours of the manifest; it is read whole, no file of it is touched."""
        location = files.url(file)
        columns, rows = read_manifest(files.get(file), file.key, location)
        if self.content in columns:
            raise FormatError(
                f"{location}: it has a column {self.content!r} itself; say with content= what the "
                f"bytes of the files are to be called."
            )
        check_paths(rows, self.path, location)
        step = self.samples_per_shard
        pieces = [pack_rows(rows[row : row + step], location) for row in range(0, len(rows), step)]
        counts = [min(step, len(rows) - row) for row in range(0, len(rows), step)]
        cuts = range(step, len(rows), step)
        ends = [*itertools.accumulate(map(len, pieces))]
        return FilePlan(
            {**columns, self.content: _content_of(rows, self.path)},
            counts,
            [int(each.sum()) for each in np.split(self._sizes(rows, location, files), cuts)],
            [(end - len(piece), end) for end, piece in zip(ends, pieces, strict=True)],
            b"".join(pieces),
        )

    def share(self, shard: ShardPlace) -> float:
        """Nearly nothing without the files themselves."""
        return 1.0 if self.content in shard.columns.names else 0.0

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block]:
        """Yield the files of a shard, fetched side by side."""
        records = self._fetched(self._rows(shard), shard, files)
        location = f"{files.url(shard.file)}, {self.shard_of(shard)}"
        yield from encode_records(shard.columns, records, location)

    def can_range(self, shard: ShardPlace) -> bool:
        """Return True: a sample is a file."""
        del shard
        return True

    def rows(self, shard: ShardPlace, rows: Sequence[int], files: Files) -> Mapping[int, bytes]:
        """Return the samples of some rows, fetching their files alone."""
        location, manifest_rows, encode = (
            files.url(shard.file),
            self._rows(shard),
            sample_encoder(shard.columns),
        )
        records = self._fetched([manifest_rows[row] for row in rows], shard, files)
        return {
            row: encode(record, functools.partial("{}, sample {}".format, location, row))
            for row, record in zip(rows, records, strict=True)
        }

    def shard_of(self, shard: ShardPlace) -> str:
        """Return the first file of a shard, and the number of files."""
        return f"{shard.samples:,} files from {self._rows(shard)[0].get(self.path)!r}"

    def is_read_in_place(self, files: Sequence[DataFile]) -> bool:
        """Return True: a file on a local disk is read when its sample is asked for."""
        del files
        return True

    def reader(self, shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader:
        """Return a reader that opens a file for each sample."""
        root = path[: -len(shard.file.key)]
        rows, encode = self._rows(shard), sample_encoder(shard.columns)
        reads = self.content in shard.columns.names

        def make(row: int) -> bytes:
            record = rows[row]
            if reads:
                place = os.path.join(root, record[self.path])
                try:
                    with open_regular(place) as file:
                        record = {**record, self.content: file.read()}
                except (FileNotFoundError, NotADirectoryError) as error:
                    raise self._missing(path, record[self.path], place) from error
                except OSError as error:
                    raise FormatError(
                        f"{path}: {record[self.path]!r} of a row cannot be read as a file: "
                        f"{error.strerror}. Take the row out, or put the file there."
                    ) from error
            return encode(record, lambda: f"{path}, row of {rows[row][self.path]!r}")

        return MadeReader(shard.columns, shard.samples, path, make, columns)

    def _fetched(self, rows: Rows, shard: ShardPlace, files: Files) -> Iterator[Mapping[str, Any]]:
        """Rows with the bytes of their files, which are fetched side by side."""
        if self.content not in shard.columns.names:
            yield from rows
            return
        location = files.url(shard.file)

        def fetch(row: Mapping[str, Any]) -> Mapping[str, Any]:
            path = row[self.path]
            size = row[self.size] if self.size else -1
            try:
                # A range goes around what the SDK of a store takes for a whole object.
                file = DataFile(path, size)
                data = files.range(file, 0, size) if size > 0 else files.get(file)
            except NotFoundError as error:
                raise self._missing(location, path, files.url(path)) from error
            return {**row, self.content: data}

        yield from files.map(fetch, rows)

    def _sizes(self, rows: Rows, location: str, files: Files) -> npt.NDArray[np.int64]:
        """Return the size of each file: of the manifest, or the mean of some files."""
        if self.size is not None:
            return np.array(check_sizes(rows, self.size, location), np.int64)
        step = -(-len(rows) // _LOOKED_AT)

        def look(row: Mapping[str, Any]) -> int:
            with contextlib.suppress(StoreError):  # reading the file reports the error
                return files.store.head(row[self.path]).size
            return -1

        sizes = [size for size in files.map(look, rows[::step]) if size >= 0]
        return np.full(len(rows), sum(sizes) // len(sizes) if sizes else _SUPPOSED)

    def _rows(self, shard: ShardPlace) -> Rows:
        """Return the rows of a shard, checked: a table may come from anywhere."""
        location = shard.file.key
        rows = unpack_rows(shard.note[shard.span[0] : shard.span[1]], location)
        if len(rows) != shard.samples:
            raise FormatError(
                f"a table of {location} has {len(rows):,} rows of a shard of {shard.samples:,}. "
                f"Make it anew."
            )
        check_paths(rows, self.path, location)
        if self.size is not None:
            check_sizes(rows, self.size, location)
        return rows

    @staticmethod
    def _missing(location: str, path: str, url: str) -> NotFoundError:
        return NotFoundError(
            f"get {url}: there is no such file, but {location} has a row of {path!r}. Take the row "
            f"out, or put the file there.",
            url=url,
            verb="get",
        )


def _content_of(rows: Rows, path: str) -> str:
    """Return the encoding of the files' content by their endings."""
    kinds = {encoding_by_ending(split_name(row[path])[1]) or "bytes" for row in rows}
    return kinds.pop() if len(kinds) == 1 else "bytes"
