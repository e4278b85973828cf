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
            count, _ = _list_header(reader.data, reader.offset)
            if count not in (0, max_levels[number] + 1):
                raise ValueError(
                    f"a histogram has {count} levels, the column {max_levels[number] + 1}"
                )


class _Reader:
    """A place in a footer, which moves on as fields are read or skipped."""

    def __init__(self, data: bytes) -> None:
        self.data, self.offset = data, 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field here; what the caller does not read is skipped."""
        data, number = self.data, 0
        while head := data[self.offset]:
            self.offset += 1
            if head >> 4:
                number += head >> 4
            else:
                zigzag, self.offset = _varint(data, self.offset)
                number = (zigzag >> 1) ^ -(zigzag & 1)
            kind, start = head & 15, self.offset
            yield number, kind
            if self.offset == start and kind > _BOOLEAN:
                self.offset = _skip(data, start, kind)
        self.offset += 1

    def structures(self) -> Iterator[int]:
        """Yield the number of each structure of the list here, which the caller reads."""
        start = self.offset
        count, kind = _list_header(self.data, start)
        if kind != _STRUCT:
            self.offset = _skip(self.data, start, _LIST)
            return
        self.offset = _after_list_header(self.data, start)
        yield from range(count)


def _list_header(data: bytes, offset: int) -> tuple[int, int]:
    """Return the number of elements of a list, and their type."""
    head = data[offset]
    return (_varint(data, offset + 1)[0] if head >> 4 == 15 else head >> 4), head & 15


def _after_list_header(data: bytes, offset: int) -> int:
    return _varint(data, offset + 1)[1] if data[offset] >> 4 == 15 else offset + 1


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return an unsigned number and the place behind it."""
    number = shift = 0
    while shift < 70:
        byte = data[offset]
        offset += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, offset
        shift += 7
    raise ValueError("a number has more than ten bytes")


def _skip(data: bytes, offset: int, kind: int, depth: int = 0) -> int:
    """Return the place behind a value of a type."""
    if _I16 <= kind <= _I64:
        while data[offset] > 127:
            offset += 1
        return offset + 1
    if kind == _BINARY:
        size, offset = _varint(data, offset)
        return offset + size
    if kind == _STRUCT and depth < _MAX_DEPTH:
        while head := data[offset]:
            offset += 1
            if head < 16:
                _, offset = _varint(data, offset)
            if head & 15 > _BOOLEAN:
                offset = _skip(data, offset, head & 15, depth + 1)
        return offset + 1
    if kind in (_LIST, _SET) and depth < _MAX_DEPTH:
        (count, element), offset = _list_header(data, offset), _after_list_header(data, offset)
        if element <= _BYTE:
            return offset + count
        for _ in range(count):
            offset = _skip(data, offset, element, depth + 1)
        return offset
    if kind == _MAP and depth < _MAX_DEPTH:
        count, offset = _varint(data, offset)
        kinds = data[offset] if count else 0
        offset += bool(count)
        for _ in range(count):
            for each in (kinds >> 4, kinds & 15):
                offset = _skip(data, offset, each, depth + 1) if each > _BOOLEAN else offset + 1
        return offset
    if kind in (_BYTE, _DOUBLE, _UUID):
        return offset + {_BYTE: 1, _DOUBLE: 8, _UUID: 16}[kind]
    raise ValueError(f"it has a value of the type {kind}, {depth} structures deep")
