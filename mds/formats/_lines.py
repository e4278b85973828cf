r"""Files of lines, JSON Lines and text: each line is a sample, about 64 MB of lines a shard.

    byte 0                     64 MB            128 MB
    {"a": 1}\n{"a": 2}\n ... {"a|": 812345}\n ... |
    |-------- shard 0 ----------------------|---- shard 1 ...

A shard ends with the first line that ends 64 MB or more after its beginning. A compressed file is
one shard, because decompression cannot start in the middle. Columns are inferred from lines at the
start of a file and further on (`Probe`). A later line that does not fit is a problem that names its
line.

A conversion does not count lines: a plain file is one range of bytes, which is cut anywhere, and a
piece has the lines that begin in it.

The format finds a shard (`ShardPlace`) again by two values of its plan: ``span`` has its first byte
in the file and the byte after it, and ``note`` lists the columns of the file (`note_of`), followed
by what else is known of its text (`TextFacts`).
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import itertools
import json
import os
from abc import abstractmethod
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from mds._process.mmaps import map_descriptor
from mds._readers.codegen import load_json
from mds._units import parse_bytes
from mds._words import plural
from mds.errors import ConfigError, FormatError
from mds.formats._base import Format
from mds.formats._columns import (
    NULLS,
    Column,
    KnownColumns,
    as_columns,
    infer_columns,
    merge_encodings,
    more_of,
    note_of,
    show_value,
)
from mds.formats._encode import Fitting, encode_records, sample_encoder
from mds.formats._facts import Block, DataFile, FilePlan, Problem, ShardPlace
from mds.formats._fit import fill_missing, find_coercer
from mds.formats._json_list import is_document, item_location, read_items
from mds.formats._made_reader import MadeReader
from mds.formats._names import OTHER_KINDS
from mds.formats._newlines import (
    LineRange,
    NumberedLines,
    Offsets,
    Piece,
    Probe,
    bounded,
    count_newlines,
    cut_lines,
    line_bounds,
    pieces_of_lines,
)
from mds.formats._partitions import partition_encodings
from mds.formats._suggestions import as_options, suggest_remedy
from mds.formats._unpack import compression_of, content, content_start, packed_endings
from mds.formats._utf8 import column_of, why_not_utf8
from mds.storage._files import open_regular

if TYPE_CHECKING:
    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds._shardfile.layout import Columns
    from mds.formats._source import Files

_LINES_ENDINGS = packed_endings(".jsonl", ".ndjson")
#: Lines of a compressed file are probed up to this byte of its content.
_PROBED_COMPRESSED = 64 << 20


class TextFacts(NamedTuple):
    """What is known of the text of a file before its lines are read.

    - ``is_compressed``: the content is compressed, whatever the name of the file.
    - ``is_document``: the content is one JSON document.
    - ``names``, ``separator``: columns of a table of cells, and what is between cells.
    """

    is_compressed: bool = False
    is_document: bool = False
    names: tuple[str, ...] = ()
    separator: str = ""

    def note(self, columns: Iterable[str], key: str) -> bytes:
        """Return the note of a file with these columns, whose key is ``key``."""
        is_usual = self == TextFacts(compression_of(key) is not None)
        return note_of(columns, b"" if is_usual else json.dumps(self).encode())

    @classmethod
    def of_shard(cls, shard: ShardPlace) -> TextFacts:
        """Return the facts of the file of a shard."""
        return cls.of(shard.note, shard.file.key)

    @classmethod
    def of(cls, note: bytes, key: str = "") -> TextFacts:
        """Return the facts in the note of a file; without any, they follow from its key.

        Raises FormatError for damage.
        """
        extra = more_of(note)
        if not extra:
            return cls(compression_of(key) is not None)
        try:
            is_compressed, is_document, names, separator = json.loads(extra)
            return cls(bool(is_compressed), bool(is_document), (*map(str, names),), str(separator))
        except (ValueError, TypeError, RecursionError) as error:
            raise FormatError(
                f"the table of files is damaged: {error}. Delete the table, or run mds index again."
            ) from error


#: Function from a line, and the byte at which it begins, to its record; raises ValueError.
Parse = Callable[[bytes | memoryview, int], dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines(Format):
    """Base class of formats whose samples are lines.

    - ``shard_size`` (int | str, default "64mb", bytes): A shard ends with the first line that ends
      at least this far after its beginning. Another size changes the order of an epoch.
    - ``encoding`` (str, default "utf-8"): Encoding of the text, such as "cp1252".
    """

    #: Whether lines of white space are no samples.
    skips_blank: ClassVar[bool]
    takes_other_endings: ClassVar[bool] = True
    revision: ClassVar[int] = 2

    shard_size: int | str = "64mb"
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        super().__post_init__()
        size = parse_bytes(self.shard_size)
        if size < 1:
            raise ConfigError(
                f"shard_size= must be a positive number of bytes, got {self.shard_size!r}."
            )
        # The dataclass is frozen.
        object.__setattr__(self, "shard_size", size)  # in bytes
        object.__setattr__(self, "encoding", text_encoding(self.encoding))

    # ------------------------------------------------------------------ methods to write

    @abstractmethod
    def columns_of(self, records: Sequence[Mapping[str, Any]]) -> Sequence[Column]:
        """Infer the columns from some records of a file."""

    @abstractmethod
    def parser(self, facts: TextFacts) -> Parse:
        """Return the function that parses a line of a file."""

    # ------------------------------------------------------------------ methods to override

    def facts_of(self, file: DataFile, files: Files) -> TextFacts:
        """Return what is known of the text of a file. Raises FormatError for a broken file."""
        is_compressed, _ = content_start(file, files)
        return TextFacts(is_compressed)

    def probed_lines(self, probe: Probe, facts: TextFacts) -> list[tuple[int, bytes]]:
        """Return (byte in the file, line) for the lines from which columns are inferred."""
        del facts
        return probe.lines(skips_blank=self.skips_blank)

    def pieces(self, chunks: Iterable[bytes], offset: int, facts: TextFacts) -> Iterator[Piece]:
        """Yield the lines of some chunks, the first of which begins at ``offset``; see `Piece`."""
        del facts
        return pieces_of_lines(chunks, offset, skips_blank=self.skips_blank)

    def bounds(self, data: memoryview, offset: int, facts: TextFacts) -> tuple[Offsets, Offsets]:
        """Return begin and end of each line in a part of a file that begins at ``offset``."""
        del facts
        return line_bounds(data, offset, skips_blank=self.skips_blank)

    def count(
        self, chunks: Iterable[bytes], size: int | None, facts: TextFacts, location: str
    ) -> list[LineRange]:
        """Cut the lines of a file into ranges; see `cut_lines`."""
        del facts
        return cut_lines(chunks, size, skips_blank=self.skips_blank, location=location)

    # ------------------------------------------------------------------ the format

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Read the whole file, and cut its lines into shards.

        The chunks are decompressed bytes, so the span of the only shard of a compressed file counts
        these.
        """
        facts = self.facts_of(file, files)
        probe = Probe(_PROBED_COMPRESSED if facts.is_compressed else None)
        chunks = probe.watch(chunks_of(file, files))
        size = None if facts.is_compressed else int(self.shard_size)
        ranges = self.count(chunks, size, facts, files.url(file))
        columns = self._probed_columns(probe, facts, files)  # all chunks have passed the probe now
        return FilePlan(
            columns,
            samples=[each.lines for each in ranges],
            # Estimates: a decoded sample has about as many bytes as its line, and an offset.
            sizes=[each.end - each.start + 4 * each.lines for each in ranges],
            spans=[(each.start, each.end) for each in ranges],
            note=facts.note(columns, file.key),
        )

    def plan_uncounted(self, file: DataFile, files: Files) -> FilePlan:
        """Return a file as one range of bytes; only the lines for its columns are read."""
        facts = self.facts_of(file, files)
        columns = self._probed_columns(_probe(file, files, facts), facts, files)
        is_empty = not file.size
        return FilePlan(
            columns,
            samples=[] if is_empty else [-1],
            sizes=[] if is_empty else [file.size],
            spans=[] if is_empty else [(0, file.size)],
            note=facts.note(columns, file.key),
        )

    def cut(self, shard: ShardPlace, files: Files, size: int) -> Iterator[ShardPlace]:
        """Yield ranges of ``size`` bytes, whatever lines are there; a compressed file is one."""
        del files
        start, end = shard.span
        step = end - start if TextFacts.of_shard(shard).is_compressed else max(size, 1)
        for offset in range(start, end, step):
            span = (offset, min(offset + step, end))
            yield dataclasses.replace(shard, span=span, samples=-1)

    def raw_records(self, file: DataFile, files: Files) -> list[dict[str, Any]]:
        """Return the records of a small file as they are parsed; cells of a table are texts.

        Raises FormatError for a line that is no record.
        """
        facts, location = self.facts_of(file, files), files.url(file)
        parse, records = self.parser(facts), []
        lines = NumberedLines(self.pieces(chunks_of(file, files), 0, facts))
        for offset, line in lines:
            try:
                records.append(parse(line, offset))
            except (ValueError, RecursionError) as error:  # noqa: PERF203 - it ends the loop
                place = f"{location}, line {lines.count_before(offset) + 1}"
                raise FormatError(self._problem(error, line, place)) from error
        return records

    def all_records(
        self, file: DataFile, files: Files
    ) -> tuple[Mapping[str, str], list[dict[str, Any]]]:
        """Return the columns and the records of a small file, with values of their types.

        A key that some records lack is None there. Raises FormatError for a line that is no record.
        """
        records = self.raw_records(file, files)
        encodings = self._encodings(self.columns_of(records), files)
        coercers = self._fitting(as_columns(encodings)).coercers
        for record in records:
            for name in encodings:
                fit, value = coercers.get(name), record.get(name)
                record[name] = value if fit is None else fit(value)
        return encodings, records

    def plan_bytes(self, file: DataFile, files: Files) -> int:
        """Return the size of the file: line ends can only be found by reading all of it."""
        del files
        return file.size

    def check_empty(self, file: DataFile, files: Files) -> None:
        """Raise FormatError for the first line that is no record, if no probed line is one."""
        facts = self.facts_of(file, files)
        parse, needs_keys = self.parser(facts), self._needs_keys(file)
        first_problem: Problem | None = None
        for offset, line in self.probed_lines(_probe(file, files, facts), facts):
            error = _error_of(parse, line, offset, needs_keys=needs_keys)
            if error is None:
                return
            if first_problem is None:
                location = f"{files.url(file)}, line {_line_number(file, offset, files)}"
                first_problem = self._problem(error, line, location)
        if first_problem is not None:
            raise FormatError(first_problem)

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block | Problem]:
        """Yield the lines of a shard as MDS samples."""
        lines = self._lines(shard, files)
        offset = 0  # of the present line

        def locate(row: int = 0) -> str:
            """Return the location of the present line; it is counted for an error only."""
            del row
            number = self._first_number(shard, files) + lines.count_before(offset)
            return f"{files.url(shard.file)}, line {number}"

        def records() -> Iterator[Mapping[str, Any] | Problem]:
            """Yield the record of each line, or what is wrong with it."""
            nonlocal offset
            read = self._record_reader(shard)
            for offset, line in lines:
                try:
                    yield read(line, offset)
                except (ValueError, RecursionError) as error:  # noqa: PERF203 - of one line
                    yield self._problem(error, line, locate())

        yield from encode_records(shard.columns, records(), locate, self._fitting(shard.columns))

    def location_of(self, shard: ShardPlace, row: int, files: Files) -> str:
        """Return the file and the number of the line, from 1."""
        lines = self._lines(shard, files)
        for offset, _ in itertools.islice(lines, row, row + 1):
            number = self._first_number(shard, files) + lines.count_before(offset)
            return f"{files.url(shard.file)}, line {number}"
        return f"{files.url(shard.file)}, {self.shard_of(shard)}, sample {row}"

    def shard_of(self, shard: ShardPlace) -> str:
        """Describe a shard by its bytes in the file."""
        return f"bytes {shard.span[0]:,} to {shard.span[1]:,}"

    def is_read_in_place(self, files: Sequence[DataFile]) -> bool:
        """Return True if no file is compressed by its name."""
        return not any(compression_of(file.key) for file in files)

    def maps(self, note: bytes) -> bool:
        """Return True if a file is neither compressed nor one JSON document."""
        facts = TextFacts.of(note)
        return not facts.is_compressed and not facts.is_document

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
        begins, ends = self.bounds(view, start, TextFacts.of_shard(shard))
        if len(ends) != shard.samples:
            raise FormatError(
                f"{path}, {self.shard_of(shard)}: there are {plural(len(ends), 'line')}, but "
                f"{shard.samples:,} were expected."
            )
        encode = sample_encoder(shard.columns, self._fitting(shard.columns))
        read = self._record_reader(shard)
        line_begins, line_ends = begins.data, ends.data  # counted from the byte `start` of the file

        def locate(row: int) -> str:
            """Return the file and the number of a line."""
            with open_regular(path) as file:
                chunks = iter(lambda: file.read(1 << 20), b"")
                return f"{path}, line {count_newlines(chunks, start + line_begins[row]) + 1}"

        def mds_bytes(row: int) -> bytes:
            """Return the bytes of a line's sample as in an MDS shard.

            Raises FormatError, which names the line, for one that does not fit the columns.
            """
            line = bytes(view[line_begins[row] : line_ends[row]])
            try:
                record = read(line, start + line_begins[row])
            except (ValueError, RecursionError) as error:
                raise FormatError(self._problem(error, line, locate(row))) from error
            return encode(record, lambda: locate(row))

        known_columns, parse = (
            KnownColumns(shard),
            self.parser(TextFacts.of_shard(shard)),
        )
        converters = None if self._is_text else _converters(shard.columns, columns)
        if converters is None:
            return MadeReader(shard.columns, shard.samples, path, mds_bytes, columns)

        def sample(row: int) -> dict[str, Any]:
            """Return the sample of a line without MDS bytes: faster, for common types only.

            If it raises an error, `mds_bytes` is called, whose error has a message.
            """
            line = view[line_begins[row] : line_ends[row]]
            record = parse(line, start + line_begins[row])
            values = {**known_columns.gaps, **record}
            if known_columns.is_late(values):
                raise ValueError("the record has an unexpected key")
            return {name: convert(values[name]) for name, convert in converters}

        return MadeReader(shard.columns, shard.samples, path, mds_bytes, columns, sample)

    def merge(self, file_columns: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
        """Merge the encodings of files; a column of two kinds has the encoding as in one file.

        A file without records says nothing. See `Format.merge` for the argument.
        """
        file_columns = [(key, columns) for key, columns in file_columns if columns]
        kinds: dict[str, str] = {}
        for _, columns in file_columns:
            for name, encoding in columns.items():
                kinds[name] = self._join(kinds.get(name, encoding), encoding)
        kinds = {name: self._unknown if kind == NULLS else kind for name, kind in kinds.items()}
        return super().merge(
            [(key, {name: kinds[name] for name in columns}) for key, columns in file_columns]
        )

    #: Encoding of a column without values.
    _unknown: ClassVar[str] = NULLS

    @staticmethod
    def _join(first: str, second: str) -> str:
        """Return the encoding of a column that has two encodings in two files."""
        if {first, second} == {"int", "float64"}:
            return "float64"
        return merge_encodings(first, second) or "json"

    # ------------------------------------------------------------------ inside

    def _probed_columns(self, probe: Probe, facts: TextFacts, files: Files) -> Mapping[str, str]:
        """Infer the columns from the probed lines; one that is no record is a problem later."""
        parse, records = self.parser(facts), []
        for offset, line in self.probed_lines(probe, facts):
            with contextlib.suppress(ValueError, RecursionError):
                records.append(parse(line, offset))
        return self._encodings(self.columns_of(records), files)

    @staticmethod
    def _encodings(columns: Sequence[Column], files: Files) -> dict[str, str]:
        """Return the encodings of columns; the reasons for them are kept for a conversion."""
        for column in columns:
            if column.note:
                files.column_notes.setdefault(column.name, column.note)
        return {column.name: column.encoding for column in columns}

    def _lines(self, shard: ShardPlace, files: Files) -> NumberedLines:
        """Return the lines of a shard, or those that begin in a range of bytes without a number."""
        facts, file, (start, end) = TextFacts.of_shard(shard), shard.file, shard.span
        if facts.is_compressed:
            return NumberedLines(self.pieces(chunks_of(file, files), 0, facts))
        if shard.samples < 0:
            start = self._first_line(shard, files)
            chunks = files.stream(file, start) if start < end else iter(())
            chunks = bounded(chunks, files.url(file), start)
            return NumberedLines(self.pieces(chunks, start, facts), end)
        if files.is_far:  # ranges are fetched side by side
            (data,) = files.ranges(file, [shard.span])
            return NumberedLines(self.pieces([bytes(data)], start, facts))
        return NumberedLines(self.pieces(files.stream(file, start, end), start, facts))

    def _first_line(self, shard: ShardPlace, files: Files) -> int:
        """Return the byte at which the first line of a range without a number begins."""
        return _first_line(shard.file, *shard.span, files)

    def _first_number(self, shard: ShardPlace, files: Files) -> int:
        """Return the number, from 1, of the first line of a shard; the lines before are counted."""
        if TextFacts.of_shard(shard).is_compressed:
            return 1
        start = shard.span[0] if shard.samples >= 0 else self._first_line(shard, files)
        return _line_number(shard.file, start, files)

    def _record_reader(self, shard: ShardPlace) -> Callable[[bytes, int], Mapping[str, Any]]:
        """Return a function from a line, and the byte at which it begins, to its record.

        Columns that the line lacks are None if the format allows that. It raises ValueError for a
        line that does not fit the columns of the shard.
        """
        known_columns, parse = (
            KnownColumns(shard),
            self.parser(TextFacts.of_shard(shard)),
        )
        gaps, needs_keys = known_columns.gaps, _has_no_columns(shard)

        def read(line: bytes, offset: int) -> Mapping[str, Any]:
            """Parse a line, and compare its keys with the columns."""
            record = parse(line, offset)
            if needs_keys and not record:
                raise _NoKeysError
            if known_columns.is_late(record):
                raise _LateKeyError(known_columns.first_late(record))
            return {**gaps, **record} if gaps else record

        return read

    def _needs_keys(self, file: DataFile) -> bool:
        """Return True if only the keys of records give the samples of a file columns.

        Others come from the folders of the file, as in ``lang=en/``, and from ``encodings``.
        """
        return not self.encodings and not partition_encodings([file.key])

    @property
    def _is_text(self) -> bool:
        """Whether all values are texts, as in the cells of a table."""
        return False

    @property
    def _nulls(self) -> frozenset[str]:
        """Texts that count as missing values."""
        return frozenset()

    def _fitting(self, columns: Columns) -> Fitting:
        """Return the functions that fit the values of a record to their columns, without loss.

        Text is parsed as the type of a column if all values are texts, or if the user chose the
        encoding of the column.
        """
        chosen, nulls = self.encodings or {}, self._nulls
        parses = {name: self._is_text or name in chosen for name in columns.names}
        coercers = {}
        for name, encoding in zip(columns.names, columns.encodings, strict=True):
            fit = find_coercer(
                encoding,
                from_text=parses[name],
                plain=not self._is_text,
                is_exact=name not in chosen,
            )
            if nulls or encoding.startswith("optional["):
                missing = nulls or frozenset([""] if parses[name] else [])
                fit = fill_missing(fit, encoding, missing, None)
            coercers[name] = fit

        def suggest(name: str, encoding: str, value: Any) -> str:
            """Return the remedy for a value that does not fit, of a conversion and in place."""
            return suggest_remedy(
                type(self).__name__,
                name,
                encoding,
                value,
                nulls,
                parses=parses[name],
                is_cell=self._is_text,
            )

        return Fitting(coercers, suggest)

    def _problem(self, error: Exception, line: bytes, location: str) -> Problem:
        """Return what is wrong with the line at ``location``, for which an error was raised."""
        if isinstance(error, UnicodeDecodeError):
            place = f"{location}, column {column_of(line, error)}"
            return Problem(
                place,
                why_not_utf8(line, error),
                "To read the text in place, write for example "
                f"format={type(self).__name__}(encoding='cp1252').",
            )
        if isinstance(error, RecursionError):
            return Problem(location, "it is nested too deeply")
        if isinstance(error, json.JSONDecodeError):
            text = show_value(line.rstrip().decode(self.encoding, "replace"))
            return Problem(f"{location}, column {error.colno}", f"{error.msg} in {text}")
        if isinstance(error, _LateKeyError):
            return Problem(
                location,
                f"it has the key {error}, which the records at the beginning do not have",
                _late_remedy(error.name),
            )
        if isinstance(error, _NoKeysError):
            return Problem(location, *error.args)
        return Problem(location, str(error))


class _NoKeysError(ValueError):
    """A record has no keys, and there are no other columns; has the reason and the remedy."""

    def __init__(self) -> None:
        super().__init__(
            "the record has no keys, so it has no columns",
            "Write its keys, or leave the file out.",
        )


class _LateKeyError(ValueError):
    """A record has a key, ``name``, that no probed record had."""

    def __init__(self, name: str) -> None:
        super().__init__(repr(name))
        self.name = name


def _late_remedy(name: str) -> str:
    """Return how a key that no probed record had is read, or left out."""
    drop = "" if "," in name else f", or {as_options(drop=[name])} to leave it out"
    return (
        f"Add {as_options(encodings={name: 'json'})} to write it{drop}. In place, name the columns "
        "that you want with columns=."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines(Lines):
    """JSON objects, whose keys are columns: one a line, or in one document a file.

    A document is a list of objects, or one object over several lines.

    - ``shard_size`` (int | str, default "64mb", bytes): A shard ends with the first line that ends
      at least this far after its beginning. Another size changes the order of an epoch.
    - ``encoding`` (str, default "utf-8"): Encoding of the text, such as "cp1252".
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode; without it, a
      key that none of the lines had from which columns were inferred is an error.
    - ``missing`` (str | None, default None): A column that a file does not have is None there;
      ``"error"`` makes it an error, and ``"null"`` leaves out the warning.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column, which replace
      those that follow from the lines.

    >>> StreamingDataset(remote="s3://bucket/text/*.jsonl.zst", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "jsonl"
    title: ClassVar[str] = "JSON lines"
    endings: ClassVar[tuple[str, ...]] = (*_LINES_ENDINGS, *packed_endings(".json"))
    omits_underscored: ClassVar[bool] = True
    has_partitions: ClassVar[bool] = True
    has_late_keys: ClassVar[bool] = True
    skips_blank: ClassVar[bool] = True
    revision: ClassVar[int] = 3

    def choose(self, files: Iterable[DataFile], source: Files) -> list[DataFile]:
        """Return the files of this format; ``.json`` files beside others of it describe these."""
        listed = list(files)
        lines = [file for file in listed if file.key.lower().endswith(_LINES_ENDINGS)]
        for file in listed if lines else ():
            if file not in lines:
                source.leave_out(file.key, OTHER_KINDS)
        return super().choose(lines or listed, source)

    def facts_of(self, file: DataFile, files: Files) -> TextFacts:
        """Return whether a file is compressed, and whether it is one JSON document."""
        is_compressed, start = content_start(file, files)
        return TextFacts(is_compressed, is_document(start))

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Cut the lines of a file into shards; a JSON document is one shard."""
        facts = self.facts_of(file, files)
        if not facts.is_document:
            return super().plan_file(file, files)
        items = self._items(file, files)
        records = [item for item in items if not isinstance(item, Problem)]
        columns = self._encodings(self.columns_of(records), files)
        is_empty = not items
        return FilePlan(
            columns,
            samples=[] if is_empty else [len(items)],
            sizes=[] if is_empty else [file.size + 4 * len(items)],
            spans=[] if is_empty else [(0, file.size)],
            note=facts.note(columns, file.key),
        )

    def plan_uncounted(self, file: DataFile, files: Files) -> FilePlan:
        """Return a file as one range of bytes; a JSON document is counted."""
        if self.facts_of(file, files).is_document:
            return self.plan_file(file, files)
        return super().plan_uncounted(file, files)

    def cut(self, shard: ShardPlace, files: Files, size: int) -> Iterator[ShardPlace]:
        """Yield ranges of ``size`` bytes; a compressed file and a JSON document are one."""
        if TextFacts.of_shard(shard).is_document:
            yield shard
        else:
            yield from super().cut(shard, files, size)

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block | Problem]:
        """Yield the lines of a shard, or the objects of a document, as MDS samples."""
        if not TextFacts.of_shard(shard).is_document:
            yield from super().blocks(shard, files)
            return
        gaps = KnownColumns(shard).gaps
        items = self._items(shard.file, files, needs_keys=_has_no_columns(shard))
        records = [item if isinstance(item, Problem) else {**gaps, **item} for item in items]
        yield from encode_records(
            shard.columns,
            records,
            lambda row: item_location(shard.file, row, files),
            self._fitting(shard.columns),
        )

    def location_of(self, shard: ShardPlace, row: int, files: Files) -> str:
        """Return the file, and the number of the line or of the object, from 1."""
        if TextFacts.of_shard(shard).is_document:
            return item_location(shard.file, row, files)
        return super().location_of(shard, row, files)

    def check_empty(self, file: DataFile, files: Files) -> None:
        """Raise FormatError for the first problem of a file without records."""
        if not self.facts_of(file, files).is_document:
            super().check_empty(file, files)
            return
        items = self._items(file, files, needs_keys=self._needs_keys(file))
        if items and isinstance(items[0], Problem):
            raise FormatError(items[0])

    def _items(
        self, file: DataFile, files: Files, *, needs_keys: bool = False
    ) -> list[dict[str, Any] | Problem]:
        """Return the objects of a file that is one JSON document.

        With ``needs_keys``, one without keys is a problem.
        """
        items = read_items(b"".join(chunks_of(file, files)), self.encoding, file, files)
        if needs_keys:
            for row, item in enumerate(items):
                if not item:
                    location = item_location(file, row, files)
                    items[row] = self._problem(_NoKeysError(), b"", location)
        return items

    def columns_of(self, records: Sequence[Mapping[str, Any]]) -> Sequence[Column]:
        """Return the columns that hold the values of all these records."""
        return infer_columns(records)

    def parser(self, facts: TextFacts) -> Parse:
        """Return the function that parses the JSON object in a line."""
        del facts
        encoding = self.encoding

        def parse(line: bytes | memoryview, offset: int) -> dict[str, Any]:
            """Return the object of a line. Raises ValueError for any other value."""
            text = str(line if offset else bytes(line).removeprefix(BOM_UTF8), encoding)
            value = load_json(text.rstrip())
            if not isinstance(value, dict):
                raise ValueError(  # noqa: TRY004 - a line is wrong by value
                    f"expected an object with the columns as keys, got {show_value(value)}"
                )
            return value

        return parse


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextLines(Lines):
    """Every line of a text is a sample with the column ``text``; empty ones too.

    - ``shard_size`` (int | str, default "64mb", bytes): A shard ends with the first line that ends
      at least this far after its beginning. Another size changes the order of an epoch.
    - ``encoding`` (str, default "utf-8"): Encoding of the text, such as "cp1252".

    >>> StreamingDataset(remote="s3://bucket/text/*.txt", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "lines"
    title: ClassVar[str] = "lines of text"
    endings: ClassVar[tuple[str, ...]] = packed_endings(".txt")
    skips_blank: ClassVar[bool] = False

    @classmethod
    def recorded_name(cls) -> str:
        """Return "text", the name before ``text`` meant whole files everywhere."""
        return "text"

    def columns_of(self, records: Sequence[Mapping[str, Any]]) -> Sequence[Column]:
        """Return the only column."""
        del records
        return [Column("text", "str")]

    def parser(self, facts: TextFacts) -> Parse:
        """Return the function that returns a line without its end."""
        del facts
        encoding = self.encoding

        def parse(line: bytes | memoryview, offset: int) -> dict[str, Any]:
            """Return the text of a line. Raises ValueError for other bytes than text."""
            text = str(line if offset else bytes(line).removeprefix(BOM_UTF8), encoding)
            return {"text": text.removesuffix("\n").removesuffix("\r")}

        return parse


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


def text_encoding(name: Any) -> str:
    """Return Python's name of a text encoding. Raises ConfigError if lines end with other bytes."""
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError, TypeError):
        raise ConfigError(
            f"encoding={name!r}: Python has no such text encoding. Common ones are utf-8, cp1252, "
            "latin-1, shift_jis and gb18030."
        ) from None
    try:
        # Files are cut into lines and cells by these bytes.
        is_ascii = "a\n,".encode(codec.name) == b"a\n,"
    except (LookupError, TypeError):  # a codec that is no text encoding, such as hex
        is_ascii = False
    if not is_ascii:
        raise ConfigError(
            f"encoding={name!r}: its lines do not end with the byte 0x0a. Convert the files to "
            f"UTF-8 first: iconv -f {name} -t UTF-8 FILE."
        )
    return codec.name


def _probe(file: DataFile, files: Files, facts: TextFacts) -> Probe:
    """Return the probe of a file, of which no more is read than its windows need."""
    if not facts.is_compressed:
        return Probe.of_file(lambda start, end: files.range(file, start, end), file.size)
    probe = Probe(_PROBED_COMPRESSED)
    with contextlib.closing(content(file, files)) as chunks:
        probe.fill(bounded(chunks, files.url(file)))
    return probe


def _error_of(parse: Parse, line: bytes, offset: int, *, needs_keys: bool) -> Exception | None:
    """Return the error of parsing a line that begins at the byte ``offset``, or None.

    With ``needs_keys``, a record without keys is an error.
    """
    try:
        record = parse(line, offset)
    except (ValueError, RecursionError) as error:
        return error
    return _NoKeysError() if needs_keys and not record else None


def _has_no_columns(shard: ShardPlace) -> bool:
    """Return True if no record of a dataset gives it a column, nor does anything else."""
    return not shard.columns.names and not shard.has_chosen


def _line_number(file: DataFile, offset: int, files: Files) -> int:
    """Return the number, from 1, of the line that begins at a byte of a file's content."""
    with contextlib.closing(content(file, files)) as chunks:
        return count_newlines(chunks, offset) + 1


def chunks_of(file: DataFile, files: Files) -> Iterator[bytes]:
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
