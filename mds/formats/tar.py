"""Tars of samples as they lie (WebDataset): a tar is a shard, an ending is a column.

To plan, the number of samples is needed alone: from a note beside the tar (`tar_counts.py`), or
from its headers. Columns are told from its first samples; a number is what its text says, an image
the bytes that are there, so nothing is decoded that is not asked for.
"""

from __future__ import annotations

import array
import dataclasses
import functools
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mds.errors import FormatError
from mds.formats.base import Format
from mds.formats.encode import encode_records, sample_encoder
from mds.formats.facts import Block, DataFile, FilePlan, ShardPlace
from mds.formats.known_columns import KnownColumns, more_of, note_of
from mds.formats.made_reader import MadeReader
from mds.formats.tar_bytes import Arriving, Windows, mapped
from mds.formats.tar_columns import TarColumns
from mds.formats.tar_counts import noted_samples
from mds.formats.tar_members import BLOCK, ReadAt, members
from mds.formats.tar_samples import KEY, TarSample, group, value_of

if TYPE_CHECKING:
    from mds.formats.source import Files
    from mds.readers import ColumnSelection, Reader

#: What is fetched at once of a tar whose samples were counted, to tell its columns.
_LOOK = 64 << 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tar(Format):
    """Tars whose files of one name, before the first dot, are a sample.

    - ``columns`` (Sequence[str] | None, default None): The endings to read, and ``"__key__"``.
    - ``missing`` (str | None, default None): With ``"null"`` a file that a sample does not have is
      None there; else it is an error.

    >>> StreamingDataset(remote="s3://bucket/{00000..01023}.tar", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "tar"
    endings: ClassVar[tuple[str, ...]] = (".tar",)

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """The samples of a tar, counted by its headers unless they are noted beside it."""
        where, noted = files.url(file), noted_samples(file, files)
        places = noted if isinstance(noted, list) else []
        count = len(noted) - 1 if isinstance(noted, list) else noted
        columns, size, samples, end = TarColumns(), 0, 0, 0
        for sample, read in self._samples(file, files, is_counted=count is not None):
            _check(sample, where)
            columns.add(sample, read, where)
            size += sum(each.size for each in sample.files.values())
            samples, end = samples + 1, sample.end
            if count is None:
                places.append(sample.start)
            if count is not None and (columns.is_probed or sample.end > _LOOK):
                size = file.size
                break
        found = columns.encodings(where)
        total = samples if count is None else count
        if count is None and samples:
            places.append(end)
        blocks = np.array(places, np.int64) // BLOCK
        note = note_of(found, blocks.astype("<u4").tobytes())
        return FilePlan(found, [total], [size + 16 * total], note=note)

    def plan_bytes(self, file: DataFile, files: Files) -> int:
        """All of it, unless its samples are noted beside it."""
        return file.size if noted_samples(file, files) is None else 0

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block]:
        """The samples of a tar, a few in memory at a time."""
        where, known = files.url(shard.file), KnownColumns(shard)

        def records() -> Iterator[Mapping[str, Any]]:
            for sample, read in self._samples(shard.file, files):
                _check(sample, where)
                yield _record(sample, read, shard, known, where)

        yield from encode_records(shard.columns, records(), where)

    def shard_of(self, shard: ShardPlace) -> str:
        """A tar is one shard."""
        return f"{shard.samples:,} samples"

    def can_range(self, shard: ShardPlace) -> bool:
        """Whether it is known where samples begin."""
        return len(more_of(shard.note)) == 4 * (shard.samples + 1)

    def rows(self, shard: ShardPlace, rows: Sequence[int], files: Files) -> Mapping[int, bytes]:
        """Samples by ranges, those of neighbours in one."""
        where, known = files.url(shard.file), KnownColumns(shard)
        encode = sample_encoder(shard.columns)
        places = np.frombuffer(more_of(shard.note), "<u4").astype(np.int64) * BLOCK
        spans = [(int(places[row]), int(places[row + 1])) for row in rows]
        out = {}
        for row, data in zip(rows, files.ranges(shard.file, spans), strict=True):
            read = _reads(bytes(data))
            found = list(group(members(read, where)))
            if len(found) != 1:
                raise FormatError(
                    f"{where}, sample {row:,}: there are {len(found)} samples where one was "
                    f"planned; what says where they begin does not fit the tar."
                )
            _check(found[0], where)
            record = _record(found[0], read, shard, known, where)
            out[row] = encode(record, functools.partial("{}, sample {}".format, where, row))
        return out

    def is_read_in_place(self, files: Sequence[DataFile]) -> bool:
        """Always: what ends with ``.tar`` is not compressed."""
        del files
        return True

    def reader(self, shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader:
        """A reader that knows where the files of each sample are, in the mapped tar."""
        data = mapped(path)
        known, encode = KnownColumns(shard), sample_encoder(shard.columns)
        places = _Places(shard.columns.names)
        for sample in group(members(_reads(data), path, len(data))):
            _check(sample, path)
            known.check((KEY, *sample.files), path, f"sample {sample.key!r} has a file")
            places.add(sample)
        if len(places) != shard.samples:
            raise FormatError(
                f"{path}: there are {len(places):,} samples, {shard.samples:,} were planned."
            )

        def make(row: int) -> bytes:
            key, found = places.files(row)
            record = _values(key, found, lambda place: data[place[0] : place[1]], known, path)
            return encode(record, lambda: f"{path}, sample {key!r}")

        return MadeReader(shard.columns, shard.samples, path, make, columns)

    def merge(self, found: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
        """The columns of all tars; one that some samples of a tar have not is to be allowed."""
        for key, columns in found:
            for name, encoding in columns.items():
                if encoding.startswith("optional[") and self.missing != "null":
                    raise FormatError(
                        f"{key}: some of its samples have a file .{name} and others have none. "
                        f"Leave it out with columns=, or have it None there with missing='null'."
                    )
        plain = [
            (key, {name: each.replace("optional[json]", "json") for name, each in columns.items()})
            for key, columns in found
        ]
        return super().merge(plain)

    # ------------------------------------------------------------------ inside

    @staticmethod
    def _samples(
        file: DataFile, files: Files, *, is_counted: bool = False
    ) -> Iterator[tuple[TarSample, ReadAt]]:
        """Samples of a tar, with what reads their bytes until the next one is asked for."""
        where, path = files.url(file), files.path(file)
        if path is not None:
            read = _reads(mapped(path))
            for sample in group(members(read, where, file.size)):
                yield sample, read
        elif is_counted:
            read = Windows(files, file, _LOOK).read
            for sample in group(members(read, where, file.size)):
                yield sample, read
        else:
            source = Arriving(files.stream(file))
            for sample in group(members(source.read, where, file.size)):
                yield sample, source.read
                source.forget(sample.end)


class _Places:
    """Where the wanted files of each sample are, in numbers."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = [name for name in names if name != KEY]
        self._keys: list[str] = []
        self._bounds = array.array("q")
        self._table: Any = None

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, sample: TarSample) -> None:
        """The next sample."""
        self._keys.append(sample.key)
        for name in self._names:
            file = sample.files.get(name)
            bounds = (-1, -1) if file is None else (file.start, file.start + file.size)
            self._bounds.extend(bounds)

    def files(self, row: int) -> tuple[str, dict[str, tuple[int, int]]]:
        """The key of a sample, and begin and end of its files."""
        if self._table is None:
            count, width = len(self), len(self._names)
            self._table = np.frombuffer(self._bounds, np.int64).reshape(count, width, 2)
        places = zip(self._names, self._table[row].tolist(), strict=True)
        return self._keys[row], {name: tuple(place) for name, place in places if place[0] >= 0}


def _record(
    sample: TarSample, read: ReadAt, shard: ShardPlace, known: KnownColumns, where: str
) -> Mapping[str, Any]:
    """The wanted values of a sample."""
    known.check((KEY, *sample.files), where, f"sample {sample.key!r} has a file")
    wanted = [name for name in shard.columns.names if name in sample.files]
    files = {name: sample.files[name] for name in wanted}
    places = {name: (each.start, each.start + each.size) for name, each in files.items()}
    return _values(sample.key, places, lambda place: read(*place), known, where)


def _values(
    key: str,
    places: Mapping[str, tuple[int, int]],
    read: Callable[[tuple[int, int]], bytes],
    known: KnownColumns,
    where: str,
) -> Mapping[str, Any]:
    record: dict[str, Any] = {**known.gaps, KEY: key}
    name = ""
    try:
        for name, place in places.items():
            record[name] = value_of(name, read(place))
    except ValueError as error:
        raise FormatError(f"{where}, sample {key!r}, file .{name}: {error}") from error
    if gone := known.wanted - record.keys():
        raise FormatError(
            f"{where}, sample {key!r}: there is no file .{min(gone)}. Leave it out with columns=, "
            f"or have it None there with missing='null'."
        )
    return record


def _check(sample: TarSample, where: str) -> None:
    if sample.problem:
        raise FormatError(f"{where}: {sample.problem}.")


def _reads(data: mmap.mmap | bytes) -> ReadAt:
    return lambda start, end: data[start:end]
