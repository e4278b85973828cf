"""The footer of a Parquet file: read from the file or from ``_metadata``, and checked.

    PAR1 | row groups | footer | length of the footer, u32 | PAR1

Spark and Dask leave a file ``_metadata`` with the row groups of all files of a folder. One request
for it replaces a request per file. It is a copy that may be stale: the footer of one file is
compared with it, and entries that do not fit the listed sizes are ignored with a warning.

pyarrow ends the process where the metadata of a column contradict the schema, so `check_footer`
compares them first. A footer is a Thrift structure in the compact protocol. Each field begins with
one byte; a structure ends with a zero byte:

    bits 4-7   distance to the number of the field before; 0: the number follows as a varint
    bits 0-3   type
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mds._process.fork_safe import new_lock
from mds._redaction import get_logger
from mds._words import plural
from mds.errors import FormatError, StoreError
from mds.formats._arrow_values import pyarrow

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from mds.formats._facts import DataFile
    from mds.formats._source import Files

log = get_logger("mds.formats")

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
#: Bytes from the end of a file that the first request asks for.
_TAIL = 64 << 10
#: Name of the file with the footers of a folder.
_METADATA_NAME = "_metadata"
#: A larger ``_metadata`` is not read.
_LARGEST = 256 << 20
#: Most bytes between the values of a file and its footer, such as indexes of pages.
_BEHIND = 16 << 20


def read_footer(file: DataFile, files: Files) -> bytes:
    """Return the footer of a file, with the length and the magic after it.

    pyarrow can parse these bytes like a Parquet file. Raises FormatError for a file that is not
    Parquet, or is encrypted.
    """
    url = files.url(file)
    if file.size < 12:
        raise FormatError(f"{url}: this is not a Parquet file: it has {file.size} bytes.")
    start = max(0, file.size - _TAIL)
    tail = files.range(file, start, file.size)
    if tail[-4:] == _ENCRYPTED:
        raise FormatError(f"{url}: the file is encrypted, which mds cannot read; decrypt it first.")
    if tail[-4:] != _MAGIC:
        raise FormatError(f"{url}: this is not a Parquet file: it does not end with {_MAGIC!r}.")
    length = int.from_bytes(tail[-8:-4], "little")
    if length > file.size - 12:
        raise FormatError(
            f"{url}: the footer would have {length} bytes, but the file has {file.size}; it is cut "
            f"short or damaged."
        )
    first = file.size - 8 - length
    if first < start:
        tail = files.range(file, first, start) + tail
    return tail[-8 - length :]


def shared_footer(file: DataFile, files: Files) -> bytes | None:
    """Return a file's footer from a ``_metadata`` in its folder or one above.

    None if there is no such file, or if its entry is stale. It is read once for all files.
    """
    folder = file.key
    while folder:
        folder = folder.rpartition("/")[0]
        metadata_file = files.listed(f"{folder}/{_METADATA_NAME}" if folder else _METADATA_NAME)
        if metadata_file is not None:
            footers: _Footers = files.once(
                metadata_file.key, functools.partial(_load, metadata_file, folder, file, files)
            )
            return footers.get(file)
    return None


def _load(
    metadata_file: DataFile,
    folder: str,
    first: DataFile,
    files: Files,
) -> _Footers:
    """Read a ``_metadata`` file, and compare it with the footer of one file.

    - ``metadata_file`` (DataFile): The ``_metadata`` file. ``folder`` (str): Key of its folder.
    - ``first`` (DataFile): The file whose footer is compared.
    - ``files`` (Files): Reads both.

    If it cannot be used, log a warning and return an object without footers.
    """
    url = files.url(metadata_file)
    why = f"it has {metadata_file.size:,} bytes" if metadata_file.size > _LARGEST else ""
    if not why:
        try:
            footers = _Footers(files.get(metadata_file), folder, url)
            footer = footers.get(first)
            if footer is None or _facts(footer) == _facts(read_footer(first, files)):
                return footers
            why = f"its row groups of {first.key} are not those of the file"
        except (StoreError, FormatError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a file of others may be anything
            why = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")
    log.warning("%s is not used, and every file is read instead: %s.", url, why)
    return _Footers(b"", folder, url)


class _Footers:
    """The footers in a ``_metadata`` file, by the keys of their files. Thread-safe.

    - ``data`` (bytes): Content of ``_metadata``; empty for one that is not used.
    - ``folder`` (str): Key of its folder. ``url`` (str): Its URL, for warnings.
    """

    def __init__(self, data: bytes, folder: str, url: str) -> None:
        self._footers: dict[str, bytes] = {}
        self._url, self._lock = url, new_lock()
        self._has_warned = not data  # `_load` has logged why the file is not used
        if not data:
            return
        pa = pyarrow()
        from pyarrow import dataset, parquet

        # Before pyarrow uses the metadata of a column: see the module's docstring.
        footer = data[-8 - int.from_bytes(data[-8:-4], "little") :]
        check_footer(footer, parquet.read_metadata(pa.BufferReader(data)))

        with tempfile.TemporaryDirectory(prefix="mds-parquet-") as place:
            path = os.path.join(place, _METADATA_NAME)
            with open(path, "wb") as file:
                file.write(data)
            for fragment in dataset.parquet_dataset(path).get_fragments():
                key = os.path.relpath(fragment.path, place).replace(os.sep, "/")
                sink = pa.BufferOutputStream()
                fragment.metadata.write_metadata_file(sink)
                # Without the four bytes of magic at the beginning, like `read_footer`.
                self._footers[f"{folder}/{key}" if folder else key] = bytes(sink.getvalue())[4:]

    def get(self, file: DataFile) -> bytes | None:
        """Return the file's footer from `_metadata`, or None if it is stale."""
        footer = self._footers.get(file.key)
        if footer is not None and _fits(footer, file):
            return footer
        with self._lock:
            has_warned, self._has_warned = self._has_warned, True
        if not has_warned:
            log.warning(
                "%s is out of date for %s, so mds reads such files themselves. Write it again, or "
                "delete it.",
                self._url,
                file.key,
            )
        return None


def _fits(footer: bytes, file: DataFile) -> bool:
    """Whether a footer can belong to a file of this size.

    The file must end with the footer and 12 more bytes (two magics and a length), not far behind
    the last column chunk.
    """
    _, _, spans = _facts(footer)
    end = max((end for group in spans for _, end in group), default=4)
    return 4 <= end <= file.size - 12 <= end + len(footer) + _BEHIND


def _facts(footer: bytes) -> tuple[Any, list[int], list[list[tuple[int, int]]]]:
    """Return the schema, the rows of each row group, and (begin, end) of each group's chunks."""
    from pyarrow import parquet

    metadata = parquet.read_metadata(pyarrow().BufferReader(footer))
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    spans = [
        [chunk_span(group.column(index)) for index in range(group.num_columns)] for group in groups
    ]
    return metadata.schema.to_arrow_schema(), [group.num_rows for group in groups], spans


def chunk_span(column: Any) -> tuple[int, int]:
    """Return the first byte of a column chunk in its file, and the byte after it.

    A dictionary page, if there is one, comes before the pages of data. Some writers give it the
    offset 0 instead of none.
    """
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < (column.dictionary_page_offset or 0) < start:
        start = column.dictionary_page_offset
    return start, start + column.total_compressed_size


# --------------------------------------------------------------------- the Thrift structures


# Types of the compact protocol. The values 1 and 2 are booleans, which have no bytes in a field.
_BOOLEAN, _BYTE, _I16, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = (
    *(2, 3, 4, 6, 7, 8),
    *(9, 10, 11, 12, 13),
)
# Numbers of fields: of FileMetaData, RowGroup, ColumnChunk (two), ColumnMetaData, SizeStatistics.
_ROW_GROUPS, _COLUMNS, _METADATA, _ENCRYPTION, _SIZES = 4, 1, 3, 8, 16
_TEXT_BYTES, _REPETITIONS, _DEFINITIONS = 1, 2, 3
_MAX_DEPTH = 64  # structures inside structures


def check_footer(footer: bytes, parsed: pq.FileMetaData) -> Counter[int]:
    """Raise ValueError for metadata of a column at which pyarrow would end the process.

    ``parsed`` is the footer as pyarrow parsed it. Returns the number of values that are one level
    below the highest definition level, by the number of the column: in a list whose elements may be
    null, these are the null elements. Columns without size statistics, as of old writers, are not
    in it.
    """
    schema = parsed.schema
    columns = [schema.column(number) for number in range(parsed.num_columns)]
    # The arguments of `_check_column` for each column: highest levels, whether it is text.
    facts = [
        (
            column.max_repetition_level,
            column.max_definition_level,
            column.physical_type == "BYTE_ARRAY",
        )
        for column in columns
    ]
    reader, below_highest = _Reader(footer), Counter[int]()
    try:
        for number, kind in reader.fields():
            if (number, kind) == (_ROW_GROUPS, _LIST):
                for _ in reader.structures():
                    _check_row_group(reader, facts, below_highest)
    except IndexError:
        raise ValueError("it ends too early") from None
    return Counter({column: count for column, count in below_highest.items() if count >= 0})


def _check_row_group(
    reader: _Reader, facts: list[tuple[int, int, bool]], below_highest: Counter[int]
) -> None:
    """Check the columns of the row group at the cursor. Raises ValueError.

    ``facts`` has for each column in the schema: highest repetition level, highest definition level,
    whether it holds text or bytes. ``below_highest`` is increased; see `check_footer`.
    """
    for number, kind in reader.fields():
        if (number, kind) == (_COLUMNS, _LIST):
            for column in reader.structures():
                if column >= len(facts):
                    raise ValueError(f"a row group has more than {plural(len(facts), 'column')}")
                count = _check_column(reader, *facts[column])
                is_known = count >= 0 <= below_highest[column]
                below_highest[column] = below_highest[column] + count if is_known else -1


def _check_column(reader: _Reader, repetitions: int, definitions: int, is_text: bool) -> int:
    """Check the metadata of the column chunk at the cursor against the schema.

    ``repetitions`` and ``definitions`` are the highest levels of the column in the schema,
    ``is_text`` says whether it holds text or bytes. Returns the number of values that are one level
    below the highest definition level, -1 if it is not known. Raises ValueError.
    """
    has_metadata, below_highest = False, -1
    for number, kind in reader.fields():
        if (number, kind) == (_ENCRYPTION, _STRUCT):
            raise ValueError("a column is encrypted")
        if (number, kind) != (_METADATA, _STRUCT):
            continue
        has_metadata = True
        for inner, inner_kind in reader.fields():
            if (inner, inner_kind) == (_SIZES, _STRUCT):
                max_levels = {_REPETITIONS: repetitions, _DEFINITIONS: definitions}
                below_highest = _check_sizes(reader, max_levels, is_text)
    if not has_metadata:
        raise ValueError("a column has no metadata")
    return below_highest


def _check_sizes(reader: _Reader, max_levels: dict[int, int], is_text: bool) -> int:
    """Check the size statistics at the cursor. Raises ValueError if they contradict the schema.

    Two fields are histograms: the number of values at each level, 0 to the highest. ``max_levels``
    has the highest level in the schema, by the number of the field. Returns what `_check_column`
    returns.
    """
    below_highest = -1
    for number, kind in reader.fields():
        if (number, kind) == (_TEXT_BYTES, _I64) and not is_text:
            raise ValueError("a column of numbers has a number of bytes of text")
        if number in max_levels and kind == _LIST:
            count, _ = _list_header(reader.data, reader.offset)
            if count not in (0, max_levels[number] + 1):
                raise ValueError(
                    f"a histogram has {count} levels, but the column has {max_levels[number] + 1}"
                )
            if number == _DEFINITIONS and count > 1:
                below_highest = _signed_numbers(reader.data, reader.offset)[-2]
    return below_highest


class _Reader:
    """A cursor in a footer, which advances as fields are read or skipped."""

    def __init__(self, data: bytes) -> None:
        self.data, self.offset = data, 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield (number, type) of each field of the structure at the cursor.

        When a field is yielded, the cursor is at its value. The caller may read the value, which
        moves the cursor behind it; otherwise it is skipped here.
        """
        data, number = self.data, 0
        while head := data[self.offset]:
            self.offset += 1
            if head >> 4:
                number += head >> 4
            else:
                zigzag, self.offset = _varint(data, self.offset)
                number = (zigzag >> 1) ^ -(zigzag & 1)  # 0, 1, 2, 3, ... mean 0, -1, 1, -2, ...
            kind, start = head & 15, self.offset
            yield number, kind
            # A boolean is in its type, and has no bytes that could be skipped.
            if self.offset == start and kind > _BOOLEAN:
                self.offset = _skip(data, start, kind)
        self.offset += 1

    def structures(self) -> Iterator[int]:
        """Yield 0, 1, ... for the structures of the list at the cursor; the caller reads each.

        When a number is yielded, the cursor is at that structure. A list of anything else is
        skipped, and nothing is yielded.
        """
        start = self.offset
        count, kind = _list_header(self.data, start)
        if kind != _STRUCT:
            self.offset = _skip(self.data, start, _LIST)
            return
        self.offset = _after_list_header(self.data, start)
        yield from range(count)


def _list_header(data: bytes, offset: int) -> tuple[int, int]:
    """Return the number of elements of the list at an offset, and their type.

    The upper four bits of the first byte are the number; 15 means that it follows as a varint.
    """
    head = data[offset]
    return (_varint(data, offset + 1)[0] if head >> 4 == 15 else head >> 4), head & 15


def _after_list_header(data: bytes, offset: int) -> int:
    return _varint(data, offset + 1)[1] if data[offset] >> 4 == 15 else offset + 1


def _signed_numbers(data: bytes, offset: int) -> list[int]:
    """Return the numbers of the list of i64 at an offset."""
    numbers, count = [], _list_header(data, offset)[0]
    offset = _after_list_header(data, offset)
    for _ in range(count):
        zigzag, offset = _varint(data, offset)
        numbers.append((zigzag >> 1) ^ -(zigzag & 1))
    return numbers


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return the unsigned number at an offset, and the offset after it.

    Each byte holds seven bits, the lowest first; the highest bit says that another byte follows.
    """
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
    """Return the offset after a value that is not read.

    - ``data`` (bytes), ``offset`` (int): The footer, and the first byte of the value in it.
    - ``kind`` (int): The type of the value in the compact protocol.
    - ``depth`` (int): Number of structures that the value is in.

    Raises ValueError for an unknown type or too many structures inside each other.
    """
    if _I16 <= kind <= _I64:
        while data[offset] > 127:  # integers are varints
            offset += 1
        return offset + 1
    if kind == _BINARY:
        size, offset = _varint(data, offset)
        return offset + size
    if kind == _STRUCT and depth < _MAX_DEPTH:
        while head := data[offset]:
            offset += 1
            if head < 16:  # the number of the field follows
                _, offset = _varint(data, offset)
            if head & 15 > _BOOLEAN:
                offset = _skip(data, offset, head & 15, depth + 1)
        return offset + 1
    if kind in (_LIST, _SET) and depth < _MAX_DEPTH:
        (count, element), offset = _list_header(data, offset), _after_list_header(data, offset)
        if element <= _BYTE:  # a boolean in a list is a byte, too
            return offset + count
        for _ in range(count):
            offset = _skip(data, offset, element, depth + 1)
        return offset
    if kind == _MAP and depth < _MAX_DEPTH:
        count, offset = _varint(data, offset)
        kinds = data[offset] if count else 0  # types of keys and values, four bits each
        offset += bool(count)
        for _ in range(count):
            for each in (kinds >> 4, kinds & 15):
                offset = _skip(data, offset, each, depth + 1) if each > _BOOLEAN else offset + 1
        return offset
    if kind in (_BYTE, _DOUBLE, _UUID):
        return offset + {_BYTE: 1, _DOUBLE: 8, _UUID: 16}[kind]
    raise ValueError(f"it has a value of the type {kind}, {depth} structures deep")
