"""CSV and TSV with the quoting of RFC 4180: a header, then records that may span lines.

Every cell is text; a column is numeric if every probed cell of it is a number. A record ends at a
newline outside of quotes, which `_records.py` finds. Windows of a file that are probed begin at an
unknown place, inside of quotes or not: the one that gives more records of the right length counts.
"""

from __future__ import annotations

import csv
import dataclasses
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mds._words import plural
from mds.errors import ConfigError, FormatError
from mds.formats._columns import NULLS, Column, as_optional, infer_columns
from mds.formats._facts import DataFile, Problem, ShardPlace
from mds.formats._lines import Lines, Parse, TextFacts
from mds.formats._newlines import MOST_PROBED, LineRange, Offsets, Piece, Probe
from mds.formats._records import cut_records, pieces_of_records, record_bounds
from mds.formats._unpack import content_start, packed_endings
from mds.formats._utf8 import UTF16, is_utf16

if TYPE_CHECKING:
    from mds.formats._source import Files

# The default limit of a cell, 128 KB, is smaller than many documents.
csv.field_size_limit(min(sys.maxsize, (1 << 31) - 1))
#: Bytes in which the header of a file must end.
_LONGEST_HEADER = 1 << 20
#: Bytes in which separators are counted.
_LONGEST_LOOK = 1 << 16
#: A quoted cell, and the separator or the newline before it.
_QUOTED = re.compile(rb'(^|[,;\t|\n])"[^"]*(?:""[^"]*)*"')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Csv(Lines):
    """Tables in text files; the first record names the columns.

    The separator of ``.tsv`` files is a tab. Of others it is the most frequent one of comma,
    semicolon, tab and bar in the first line.

    - ``no_header`` (bool, default False): The first record is a sample; the columns are then called
      ``column_0``, ``column_1``, ...
    - ``null`` (Sequence[str], default ()): Texts of cells that count as missing values, which are
      None.
    - ``encoding`` (str, default "utf-8"): Encoding of the text, such as "cp1252".
    - ``shard_size`` (int | str, default "64mb", bytes): A shard ends with the first record that
      ends at least this far after its beginning. Another size changes the order of an epoch.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode.
    - ``missing`` (str | None, default None): A column that a file does not have is None there;
      ``"error"`` makes it an error, and ``"null"`` leaves out the warning.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column, which replace
      those that follow from the cells.

    >>> StreamingDataset(remote="s3://bucket/tables/*.csv.gz", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "csv"
    title: ClassVar[str] = "CSV"
    endings: ClassVar[tuple[str, ...]] = packed_endings(".csv", ".tsv")
    revision: ClassVar[int] = 1
    omits_underscored: ClassVar[bool] = True
    has_partitions: ClassVar[bool] = True
    skips_blank: ClassVar[bool] = True

    no_header: bool = False
    null: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        # Texts come from a command line. The dataclass is frozen.
        flags = {"true": True, "false": False, True: True, False: False}
        if self.no_header not in flags:
            raise ConfigError(f"no_header= must be True or False, got {self.no_header!r}.")
        object.__setattr__(self, "no_header", flags[self.no_header])
        nulls = (self.null,) if isinstance(self.null, str) else self.null
        object.__setattr__(self, "null", tuple(nulls))

    @property
    def _is_text(self) -> bool:
        return True

    @property
    def _nulls(self) -> frozenset[str]:
        return frozenset(self.null)

    # ------------------------------------------------------------------ lines

    def facts_of(self, file: DataFile, files: Files) -> TextFacts:
        """Return separator and columns of a file. Raises FormatError for a broken header."""
        is_compressed, start = content_start(file, files, _LONGEST_HEADER)
        start = start.removeprefix(BOM_UTF8)
        separator = _separator(file.key, start)
        begins, ends = record_bounds(start, separator)
        if not len(ends):
            return TextFacts(is_compressed)
        location = f"{files.url(file)}, line 1"
        first = start[begins[0] : ends[0]]
        try:
            names = _cells(str(first, self.encoding), separator)
        except UnicodeDecodeError as error:
            raise FormatError(f"{location}: {_undecodable(error)}.") from error
        except ValueError as error:
            raise FormatError(f"{location}: this is not the header of a table: {error}.") from error
        if separator not in (",", "\t"):
            files.remarks["separator"] = f"the separator is {separator!r}"
        if self.no_header:
            names = [""] * len(names)
            files.remarks["header"] = (
                "the first line is a record: the columns are called column_0, column_1, ..."
            )
        elif "" in names:
            files.remarks["header"] = "columns without a name are called column_0, column_1, ..."
        # pandas writes the index of a data frame without a name.
        names = [name or f"column_{position}" for position, name in enumerate(names)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise FormatError(f"{location}: two columns have the name {twice[0]!r}.")
        return TextFacts(is_compressed, names=tuple(names), separator=separator)

    def parser(self, facts: TextFacts) -> Parse:
        """Return the function that parses a record of a file to its cells by column."""
        names, separator, encoding = facts.names, facts.separator, self.encoding

        def parse(line: bytes | memoryview, offset: int) -> dict[str, Any]:
            """Return the cells of a record. Raises ValueError for another number of cells."""
            text = str(line if offset else bytes(line).removeprefix(BOM_UTF8), encoding)
            cells = _cells(text, separator)
            if len(cells) != len(names):
                raise ValueError(
                    f"{plural(len(cells), 'value')} for {plural(len(names), 'column')}"
                )
            return dict(zip(names, cells, strict=True))

        return parse

    def probed_lines(self, probe: Probe, facts: TextFacts) -> list[tuple[int, bytes]]:
        """Return the first records of each window, without the header."""
        lines: list[tuple[int, bytes]] = []
        for offset, data in probe.windows() if facts.names else ():
            records = self._records(data, offset, facts)
            if offset:  # the window may begin inside of quotes
                inside = self._records(b'"' + data, offset - 1, facts)[1:]
                parse = self.parser(facts)
                records = [line for line in records if _is_good(parse, line)]
                inside = [line for line in inside if _is_good(parse, line)]
                records = inside if len(inside) > len(records) else records
            lines += records
        return lines

    def _records(self, data: bytes, offset: int, facts: TextFacts) -> list[tuple[int, bytes]]:
        """Return the first records of a part of a file that begins at ``offset``."""
        begins, ends = self.bounds(memoryview(data), offset, facts)
        pairs = zip(begins[:MOST_PROBED].tolist(), ends[:MOST_PROBED].tolist(), strict=True)
        return [(offset + begin, data[begin:end]) for begin, end in pairs]

    def pieces(self, chunks: Iterable[bytes], offset: int, facts: TextFacts) -> Iterator[Piece]:
        """Yield the records of some chunks, without the header."""
        is_first = not offset and not self.no_header
        for start, data, begins, ends in pieces_of_records(chunks, offset, facts.separator or ","):
            skipped = 1 if is_first and len(ends) else 0
            is_first = is_first and not skipped
            yield start, data, begins[skipped:], ends[skipped:]

    def bounds(self, data: memoryview, offset: int, facts: TextFacts) -> tuple[Offsets, Offsets]:
        """Return begin and end of each record, without the header."""
        begins, ends = record_bounds(data, facts.separator or ",", offset)
        skipped = 0 if offset or self.no_header else 1
        return begins[skipped:], ends[skipped:]

    def count(
        self, chunks: Iterable[bytes], size: int | None, facts: TextFacts, location: str
    ) -> list[LineRange]:
        """Cut the records of a file into ranges, without the header."""
        del location
        return list(cut_records(self.pieces(chunks, 0, facts), size))

    def cut(self, shard: ShardPlace, files: Files, size: int) -> Iterator[ShardPlace]:
        """Yield ranges of records of about ``size`` bytes; finding them reads a local file.

        A compressed or remote file is one piece.
        """
        facts, (start, end) = TextFacts.of_shard(shard), shard.span
        if facts.is_compressed or files.is_far:
            yield shard
            return
        chunks = files.stream(shard.file, start, end)
        records = pieces_of_records(chunks, start, facts.separator or ",")
        for each in cut_records(records, size, start):
            yield dataclasses.replace(shard, span=(each.start, each.end), samples=-1)

    def _first_line(self, shard: ShardPlace, files: Files) -> int:
        """Return the first byte of a range, which begins with a record."""
        del files
        return shard.span[0]

    # ------------------------------------------------------------------ columns

    def columns_of(self, records: Sequence[Mapping[str, Any]]) -> Sequence[Column]:
        """Return the columns; one without values says nothing about its type."""
        columns = infer_columns(records, is_text=True, nulls=self.null)
        return [
            dataclasses.replace(column, encoding=NULLS)
            if all(record[column.name] in self.null for record in records)
            else column
            for column in columns
        ]

    _unknown: ClassVar[str] = "optional[str]"

    @staticmethod
    def _join(first: str, second: str) -> str:
        """Return the encoding of a column whose cells are of two kinds in two files."""
        if first == second:
            return first
        if NULLS in (first, second):
            return as_optional(second if first == NULLS else first)
        plain = {each.removeprefix("optional[").removesuffix("]") for each in (first, second)}
        kind = (
            plain.pop() if len(plain) == 1 else "float64" if plain == {"int", "float64"} else "str"
        )
        return kind if "optional[" not in first + second else as_optional(kind)

    # ------------------------------------------------------------------ errors

    def _problem(self, error: Exception, line: bytes, location: str) -> Problem:
        """Return what is wrong with the record at ``location``."""
        if isinstance(error, UnicodeDecodeError):
            return Problem(location, _undecodable(error), "In place, write Csv(encoding='cp1252').")
        return super()._problem(error, line, location)


def _cells(record: str, separator: str) -> list[str]:
    """Return the cells of a record. Raises ValueError for wrong quotes."""
    try:
        return next(csv.reader((record,), delimiter=separator, strict=True))
    except csv.Error as error:
        raise ValueError(f"quotes or line ends are wrong: {error}") from error


def _is_good(parse: Parse, line: tuple[int, bytes]) -> bool:
    """Return True if a record has as many cells as the header."""
    try:
        parse(line[1], line[0])
    except ValueError:
        return False
    return True


def _separator(key: str, start: bytes) -> str:
    """Return the most frequent separator in the first record of a file; else a comma."""
    if ".tsv" in key.lower()[-9:]:
        return "\t"
    unquoted = _QUOTED.sub(rb"\1", start[:_LONGEST_LOOK])
    header = unquoted.partition(b"\n")[0].decode("utf-8", "replace")
    counts = {each: header.count(each) for each in ",;\t|"}
    return max(counts, key=lambda each: counts[each]) if any(counts.values()) else ","


def _undecodable(error: UnicodeDecodeError) -> str:
    """Describe bytes that are no text in the encoding, with a remedy."""
    if is_utf16(error.object):
        return UTF16
    byte = error.object[error.start]
    return f"byte 0x{byte:02x} is not {error.encoding.upper()}: give --encoding, such as cp1252"
