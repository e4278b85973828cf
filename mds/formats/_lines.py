r"""Files of lines, JSON Lines and text: each line is a sample, about 64 MB of lines a shard.

    byte 0                     64 MB            128 MB
    {"a": 1}\n{"a": 2}\n ... {"a|": 812345}\n ... |
    |-------- shard 0 ----------------------|---- shard 1 ...

A shard ends with the first line that ends 64 MB or more after its beginning. A compressed file is
one shard, because decompression cannot start in the middle. Columns are inferred from lines at the
start of a file and further on, as `mds-convert` does. A later line that does not fit is an error
that names its byte.

The format finds a shard (`ShardPlace`) again by two values of its plan: ``span`` has its first byte
in the file and the byte after it, and ``note`` lists the columns of the file (`note_of`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mds._process.mmaps import map_descriptor
from mds._readers.codegen import load_json
from mds._units import parse_bytes
from mds.errors import ConfigError, FormatError
from mds.formats._base import Format
from mds.formats._columns import KnownColumns, infer_columns, merge_encodings, note_of, show_value
from mds.formats._encode import encode_records, sample_encoder
from mds.formats._facts import Block, DataFile, FilePlan, ShardPlace
from mds.formats._made_reader import MadeReader
from mds.formats._newlines import Probe, bounded, cut_lines, line_bounds, numbered_lines
from mds.formats._unpack import compression_of, content, packed_endings
from mds.storage._files import open_regular

if TYPE_CHECKING:
    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds._shardfile.layout import Columns
    from mds.formats._source import Files

_BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines(Format):
    """Base class of formats whose samples are lines.

    - ``shard_size`` (int | str, default "64mb", bytes): A shard ends with the first line that ends
      at least this far after its beginning. Another size changes the order of an epoch.
    """

    #: Whether lines of white space are no samples.
    skips_blank: ClassVar[bool]
    revision: ClassVar[int] = 2

    shard_size: int | str = "64mb"

    def __post_init__(self) -> None:
        super().__post_init__()
        size = parse_bytes(self.shard_size)
        if size < 1:
            raise ConfigError(
                f"shard_size= must be a positive number of bytes, got {self.shard_size!r}."
            )
        object.__setattr__(self, "shard_size", size)  # in bytes; the dataclass is frozen

    # ------------------------------------------------------------------ methods to write

    @abstractmethod
    def columns_of(
        self, lines: Sequence[tuple[int, bytes]], location: str, *, drops_broken: bool
    ) -> Mapping[str, str]:
        """Infer the encoding of each column from some lines of a file.

        ``lines`` are pairs: the byte at which a line begins, and the line.
        """

    @abstractmethod
    def record(self, line: bytes | memoryview) -> dict[str, Any]:
        """Parse a line as a sample. Raises ValueError, with the reason, for a wrong line."""

    # ------------------------------------------------------------------ the format

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Read the whole file, and cut its lines into shards.

        The chunks are decompressed bytes, so the span of the only shard of a compressed file counts
        these.
        """
        location, ending, probe = files.url(file), compression_of(file.key), Probe()
        chunks = probe.watch(_chunks(file, files))
        size = None if ending else int(self.shard_size)
        stretches = cut_lines(chunks, size, skips_blank=self.skips_blank, location=location)
        # All chunks have passed the probe now.
        columns = self.columns_of(
            probe.lines(skips_blank=self.skips_blank),
            location,
            # Lines of other files are encoded by shards, so one that is broken breaks its shard.
            drops_broken=not ending and not files.is_far,
        )
        return FilePlan(
            columns,
            samples=[each.lines for each in stretches],
            # Estimates: a decoded sample has about as many bytes as its line, and an offset.
            sizes=[each.end - each.start + 4 * each.lines for each in stretches],
            spans=[(each.start, each.end) for each in stretches],
            note=note_of(columns),
        )

    def plan_bytes(self, file: DataFile, files: Files) -> int:
        """Return the size of the file: line ends can only be found by reading all of it."""
        del files
        return file.size

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block]:
        """Yield the lines of a shard as MDS samples."""
        location = files.url(shard.file)
        chunks: Iterable[bytes]
        if compression_of(shard.file.key):
            chunks = _chunks(shard.file, files)
        else:
            (data,) = files.ranges(shard.file, [shard.span])
            chunks = [bytes(data)]
        lines = numbered_lines(chunks, shard.span[0], skips_blank=self.skips_blank)
        records = self._records(lines, shard, location)
        yield from encode_records(shard.columns, records, f"{location}, {self.shard_of(shard)}")

    def shard_of(self, shard: ShardPlace) -> str:
        """Describe a shard by its bytes in the file."""
        return f"bytes {shard.span[0]:,} to {shard.span[1]:,}"

    def is_read_in_place(self, files: Sequence[DataFile]) -> bool:
        """Whether no file is compressed."""
        return not any(compression_of(file.key) for file in files)

    def reader(self, shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader:
        """Return a reader of a shard in a plain file, which parses a line when it is read.

        Raises FormatError for a file whose lines are not the planned ones.
        """
        start, end = shard.span
        page = start - start % os.sysconf("SC_PAGE_SIZE")  # a map must begin with a page
        with open_regular(path) as file:
            if not start < end <= os.fstat(file.fileno()).st_size:
                raise FormatError(
                    f"{path}: the file ends before the expected {self.shard_of(shard)}."
                )
            data = map_descriptor(file.fileno(), end - page, start=page)
        view = memoryview(data)[start - page :]
        begins, ends = line_bounds(view, skips_blank=self.skips_blank)
        if len(ends) != shard.samples:
            raise FormatError(
                f"{path}, {self.shard_of(shard)}: there are {len(ends):,} lines, but "
                f"{shard.samples:,} were expected."
            )
        encode = sample_encoder(shard.columns)
        line_begins, line_ends = begins.data, ends.data  # counted from the byte `start` of the file
        known_columns, numbers = KnownColumns(shard), _number_columns(shard.columns)

        def mds_bytes(row: int) -> bytes:
            """Return the bytes of a line's sample as in an MDS shard.

            Raises FormatError, which names the byte, for a line that does not fit the columns.
            """
            line_start = line_begins[row]
            record = self._record(
                bytes(view[line_start : line_ends[row]]), start + line_start, known_columns, path
            )
            _check_numbers(record, numbers, path, start + line_start)
            return encode(
                {**known_columns.gaps, **record},
                lambda: f"{path}, line at byte {start + line_start:,}",
            )

        converters = _converters(shard.columns, columns)
        if converters is None:
            return MadeReader(shard.columns, shard.samples, path, mds_bytes, columns)

        def sample(row: int) -> dict[str, Any]:
            """Return the sample of a line without MDS bytes: faster, for common types only.

            If it raises an error, `mds_bytes` is called, whose error has a message.
            """
            line = view[line_begins[row] : line_ends[row]]
            is_first_of_file = not row and not start
            record = self.record(bytes(line).removeprefix(_BOM) if is_first_of_file else line)
            values = {**known_columns.gaps, **record}
            if known_columns.is_late(values):
                raise ValueError("the record has an unexpected key")
            return {name: convert(values[name]) for name, convert in converters}

        return MadeReader(shard.columns, shard.samples, path, mds_bytes, columns, sample)

    # ------------------------------------------------------------------ inside

    def _records(
        self, lines: Iterable[tuple[int, bytes]], shard: ShardPlace, location: str
    ) -> Iterator[Mapping[str, Any]]:
        """Parse lines, given as (byte in the file, line), check them, and yield their records.

        A record is a dict from column to value. `KnownColumns.gaps` fills the columns that a line
        lacks with None if the format allows that.
        """
        known_columns, numbers = KnownColumns(shard), _number_columns(shard.columns)
        for offset, line in lines:
            record = self._record(line, offset, known_columns, location)
            _check_numbers(record, numbers, location, offset)
            yield {**known_columns.gaps, **record}

    def _record(
        self, line: bytes, offset: int, known_columns: KnownColumns | None, location: str
    ) -> dict[str, Any]:
        """Parse the line that begins at the byte ``offset`` of a file to a record.

        All of its keys must be known columns; None for ``known_columns`` allows any. ``location``
        names the file. Raises FormatError for a wrong line.
        """
        try:
            record = self.record(line if offset else line.removeprefix(_BOM))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{location}, line at byte {offset:,}: {_reason(error)}") from error
        if known_columns is not None:
            known_columns.check(record.keys(), location, f"the line at byte {offset:,} has a key")
        return record


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines(Lines):
    """One JSON object a line, plain or compressed; its keys are columns.

    - ``shard_size`` (int | str, default "64mb", bytes): A shard ends with the first line that ends
      at least this far after its beginning. Another size changes the order of an epoch.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode; without it, a
      key that none of the lines had from which columns were inferred is an error.
    - ``missing`` (str | None, default None): With ``"null"`` a column that a file does not have is
      None there; else it is an error.

    >>> StreamingDataset(remote="s3://bucket/text/*.jsonl.zst", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "jsonl"
    endings: ClassVar[tuple[str, ...]] = packed_endings(".jsonl", ".ndjson")
    skips_blank: ClassVar[bool] = True

    def columns_of(
        self, lines: Sequence[tuple[int, bytes]], location: str, *, drops_broken: bool
    ) -> Mapping[str, str]:
        """Return the encodings that hold the values of all these lines, by column.

        With ``drops_broken``, broken lines are left out here: each is an error when it is read.
        Raises FormatError for a broken line, or if all are broken.
        """
        records: list[dict[str, Any]] = []
        first_error: FormatError | None = None
        for offset, line in lines:
            try:
                records.append(self._record(line, offset, None, location))
            except FormatError as error:  # noqa: PERF203 - one line hides no other
                if not drops_broken:
                    raise
                first_error = first_error or error
        if first_error is not None and not records:
            raise first_error
        return {column.name: column.encoding for column in infer_columns(records)}

    def record(self, line: bytes | memoryview) -> dict[str, Any]:
        """Parse the JSON object in a line. Raises ValueError for any other line."""
        return json_object(line)

    def merge(self, file_columns: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
        """Merge the encodings of files; a column whose kinds differ becomes JSON, as in one file.

        See `Format.merge` for the argument.
        """
        kinds: dict[str, str] = {}
        for _, columns in file_columns:
            for name, encoding in columns.items():
                kinds[name] = _join(kinds.get(name, encoding), encoding)
        return super().merge(
            [(key, {name: kinds[name] for name in columns}) for key, columns in file_columns]
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextLines(Lines):
    """Every line of a text in UTF-8 is a sample with the column ``text``; empty ones too.

    - ``shard_size`` (int | str, default "64mb", bytes): A shard ends with the first line that ends
      at least this far after its beginning. Another size changes the order of an epoch.

    >>> StreamingDataset(remote="s3://bucket/text/*.txt", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "lines"
    endings: ClassVar[tuple[str, ...]] = packed_endings(".txt")
    skips_blank: ClassVar[bool] = False

    @classmethod
    def recorded_name(cls) -> str:
        """Return "text", the name before ``text`` meant whole files everywhere."""
        return "text"

    def columns_of(
        self, lines: Sequence[tuple[int, bytes]], location: str, *, drops_broken: bool
    ) -> Mapping[str, str]:
        """Return the only column."""
        del lines, location, drops_broken
        return {"text": "str"}

    def record(self, line: bytes | memoryview) -> dict[str, Any]:
        """Return the line without its end."""
        return {"text": str(line, "utf-8").removesuffix("\n").removesuffix("\r")}


def read_lines(file: DataFile, start: int, end: int, files: Files) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) for each line of a file that begins in the bytes [start, end).

    A line includes its newline, without a byte order mark. Of a compressed file all lines are
    yielded, and offsets count its decompressed bytes. Raises FormatError for a line above 1 GB and
    for damaged compressed data.
    """
    is_packed = compression_of(file.key) is not None
    first = 0 if is_packed else _first_line(file, start, end, files)
    if first >= end and not is_packed:
        return
    with contextlib.closing(
        content(file, files) if is_packed else files.stream(file, first)
    ) as chunks:
        lines = numbered_lines(bounded(chunks, files.url(file), first), first, skips_blank=False)
        for offset, line in lines:
            if offset >= end and not is_packed:
                return
            yield offset, line if offset else line.removeprefix(_BOM)


def _first_line(file: DataFile, start: int, end: int, files: Files) -> int:
    """Return the first byte in [start, end) at which a line begins, or ``end`` if none does.

    Nothing after ``end`` is read, so that the parts of a file do not all read the same long line.
    """
    if not start:
        return 0
    offset = start - 1  # a newline there means that a line begins at `start` itself
    with contextlib.closing(files.stream(file, offset, end)) as chunks:
        for chunk in chunks:
            newline = chunk.find(b"\n")
            if newline >= 0:
                return offset + newline + 1
            offset += len(chunk)
    return end


def json_object(line: bytes | memoryview) -> dict[str, Any]:
    """Parse the object of a line. Raises ValueError, also for errors of the parser."""
    value = load_json(str(line, "utf-8").rstrip())
    if not isinstance(value, dict):
        raise ValueError(  # noqa: TRY004 - a line is wrong by value
            f"expected an object with the columns as keys, got {show_value(value)}"
        )
    return value


def _chunks(file: DataFile, files: Files) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file. Raises FormatError for a line above 1 GB."""
    return bounded(content(file, files), files.url(file))


def _converters(
    columns: Columns, selection: ColumnSelection
) -> list[tuple[str, Callable[[Any], Any]]] | None:
    """Return (column, converter) for each selected column, or None if a column has no converter.

    A converter takes a parsed JSON value and returns the sample's value. It raises TypeError for a
    value that the column does not take.
    """
    pairs = zip(columns.names, columns.encodings, strict=True)
    converters = [(name, _CONVERTERS.get(kind)) for name, kind in pairs if name in selection]
    pairs_with_converter = [(name, convert) for name, convert in converters if convert is not None]
    return pairs_with_converter if len(pairs_with_converter) == len(converters) else None


def _number_columns(columns: Columns) -> list[tuple[str, Callable[[Any], Any]]]:
    """Return (column, check) for the columns of numbers; a check raises TypeError.

    Checks are needed because the encodings would store True as 1 and round large integers.
    """
    pairs = zip(columns.names, columns.encodings, strict=True)
    return [(name, _CONVERTERS[kind]) for name, kind in pairs if kind in {"int", "float64"}]


def _check_numbers(
    record: Mapping[str, Any],
    numbers: Sequence[tuple[str, Callable[[Any], Any]]],
    location: str,
    offset: int,
) -> None:
    """Raise FormatError if an integer in a record does not fit its column.

    - ``record`` (Mapping[str, Any]): The record of the line at the byte ``offset``.
    - ``numbers``: Pairs of column and check, from `_number_columns`.
    - ``location`` (str): Name of the file.
    """
    for name, check in numbers:
        value = record.get(name)
        if isinstance(value, int):  # other values are refused by the encoding
            try:
                check(value)
            except TypeError:
                raise FormatError(
                    f"{location}, line at byte {offset:,}, column {name!r}: {show_value(value)} "
                    "has another type than the other values. Write all with the same type, or "
                    "leave the column out with columns=."
                ) from None


def _int(value: Any) -> int:
    if type(value) is int and -_INT_END <= value < _INT_END:
        return value
    raise TypeError


def _float(value: Any) -> Any:
    if type(value) is float or (type(value) is int and abs(value) <= _FLOAT_END):
        return np.float64(value)
    raise TypeError


def _text(value: Any) -> str:
    if type(value) is str and (value.isascii() or value.encode()):
        return value  # and UTF-8 can hold it
    raise TypeError


_INT_END = 1 << 63
_FLOAT_END = 1 << 53  # integers beyond it are not all floats
#: Converters of JSON values by encoding; each raises TypeError for a value that does not fit.
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int": _int,
    "float64": _float,
    "str": _text,
    "json": lambda value: value,
}


def _join(first: str, second: str) -> str:
    """Return the encoding of a column whose values are of two kinds in two files."""
    if {first, second} == {"int", "float64"}:
        return "float64"
    return merge_encodings(first, second) or "json"


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply."
    return f"{str(error).rstrip('.')}."
