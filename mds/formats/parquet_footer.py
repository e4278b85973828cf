"""The footer of a Parquet file, checked before pyarrow looks at its columns.

pyarrow ends the process where the metadata of a column contradict the schema, so those are compared
here first. A footer is a Thrift structure in the compact protocol: every field begins with a byte
that holds its type and the distance of its number from that of the field before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# Types of the compact protocol. The values 1 and 2 are booleans, which have no bytes in a field.
_BOOLEAN, _BYTE, _I16, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = (
    *(2, 3, 4, 6, 7, 8),
    *(9, 10, 11, 12, 13),
)
# Numbers of fields: of FileMetaData, RowGroup, ColumnChunk (two), ColumnMetaData, SizeStatistics.
_ROW_GROUPS, _COLUMNS, _METADATA, _ENCRYPTION, _SIZES = 4, 1, 3, 8, 16
_TEXT_BYTES, _REPETITIONS, _DEFINITIONS = 1, 2, 3
_MAX_DEPTH = 64  # structures inside structures


def check_footer(footer: bytes, parsed: pq.FileMetaData) -> None:
    """Raise ValueError for metadata of a column at which pyarrow would end the process.

    ``parsed`` is what pyarrow made of the footer.
    """
    schema = parsed.schema
    columns = [schema.column(number) for number in range(parsed.num_columns)]
    facts = [
        (c.max_repetition_level, c.max_definition_level, c.physical_type == "BYTE_ARRAY")
        for c in columns
    ]
    reader = _Reader(footer)
    try:
        for number, kind in reader.fields():
            if (number, kind) == (_ROW_GROUPS, _LIST):
                for _ in reader.structures():
                    _check_row_group(reader, facts)
    except IndexError:
        raise ValueError("it ends too early") from None


def _check_row_group(reader: _Reader, facts: list[tuple[int, int, bool]]) -> None:
    for number, kind in reader.fields():
        if (number, kind) == (_COLUMNS, _LIST):
            for column in reader.structures():
                if column >= len(facts):
                    raise ValueError(f"a row group has more than {len(facts)} columns")
                _check_column(reader, *facts[column])


def _check_column(reader: _Reader, repetitions: int, definitions: int, is_text: bool) -> None:
    has_metadata = False
    for number, kind in reader.fields():
        if (number, kind) == (_ENCRYPTION, _STRUCT):
            raise ValueError("a column is encrypted")
        if (number, kind) != (_METADATA, _STRUCT):
            continue
        has_metadata = True
        for inner, inner_kind in reader.fields():
            if (inner, inner_kind) == (_SIZES, _STRUCT):
                _check_sizes(
                    reader, {_REPETITIONS: repetitions, _DEFINITIONS: definitions}, is_text
                )
    if not has_metadata:
        raise ValueError("a column has no metadata")


def _check_sizes(reader: _Reader, max_levels: dict[int, int], is_text: bool) -> None:
    for number, kind in reader.fields():
        if (number, kind) == (_TEXT_BYTES, _I64) and not is_text:
            raise ValueError("a column of numbers has a number of bytes of text")
        if number in max_levels and kind == _LIST:
            count, _ = _list_header(reader.data, reader.at)
            if count not in (0, max_levels[number] + 1):
                raise ValueError(
                    f"a histogram has {count} levels, the column {max_levels[number] + 1}"
                )


class _Reader:
    """A place in a footer, which moves on as fields are read or skipped."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field here; what the caller does not read is skipped."""
        data, number = self.data, 0
        while head := data[self.at]:
            self.at += 1
            if head >> 4:
                number += head >> 4
            else:
                zigzag, self.at = _varint(data, self.at)
                number = (zigzag >> 1) ^ -(zigzag & 1)
            kind, start = head & 15, self.at
            yield number, kind
            if self.at == start and kind > _BOOLEAN:
                self.at = _skip(data, start, kind)
        self.at += 1

    def structures(self) -> Iterator[int]:
        """Yield the number of each structure of the list here, which the caller reads."""
        start = self.at
        count, kind = _list_header(self.data, start)
        if kind != _STRUCT:
            self.at = _skip(self.data, start, _LIST)
            return
        self.at = _after_list_header(self.data, start)
        yield from range(count)


def _list_header(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of elements of a list, and their type."""
    head = data[at]
    return (_varint(data, at + 1)[0] if head >> 4 == 15 else head >> 4), head & 15


def _after_list_header(data: bytes, at: int) -> int:
    return _varint(data, at + 1)[1] if data[at] >> 4 == 15 else at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number and the place behind it."""
    number = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise ValueError("a number has more than ten bytes")


def _skip(data: bytes, at: int, kind: int, depth: int = 0) -> int:
    """Return the place behind a value of a type."""
    if _I16 <= kind <= _I64:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == _BINARY:
        size, at = _varint(data, at)
        return at + size
    if kind == _STRUCT and depth < _MAX_DEPTH:
        while head := data[at]:
            at += 1
            if head < 16:
                _, at = _varint(data, at)
            if head & 15 > _BOOLEAN:
                at = _skip(data, at, head & 15, depth + 1)
        return at + 1
    if kind in (_LIST, _SET) and depth < _MAX_DEPTH:
        (count, element), at = _list_header(data, at), _after_list_header(data, at)
        if element <= _BYTE:
            return at + count
        for _ in range(count):
            at = _skip(data, at, element, depth + 1)
        return at
    if kind == _MAP and depth < _MAX_DEPTH:
        count, at = _varint(data, at)
        kinds = data[at] if count else 0
        at += bool(count)
        for _ in range(count):
            for each in (kinds >> 4, kinds & 15):
                at = _skip(data, at, each, depth + 1) if each > _BOOLEAN else at + 1
        return at
    if kind in (_BYTE, _DOUBLE, _UUID):
        return at + {_BYTE: 1, _DOUBLE: 8, _UUID: 16}[kind]
    raise ValueError(f"it has a value of the type {kind}, {depth} structures deep")
