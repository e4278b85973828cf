"""Arrow IPC files and streams, such as `datasets` saves to disk: a record batch is a shard.

    stream   schema | batch | batch | ... | end
    file     ARROW1 | stream | footer | ARROW1

Both are read as streams. One pass over the heads of the messages finds the bytes of each batch. To
decode a batch, its bytes are read behind those of the schema, as a stream of one batch. On a local
disk the pass touches the heads alone; over a network it reads the whole file. A file with
dictionary columns is one shard, because a dictionary comes once for all batches.

A batch on a local disk that is neither compressed nor a dictionary is mapped, not decoded: see
`ArrowReader`.

The format finds a shard (`ShardPlace`) again by two values of its plan: ``span`` has the first byte
of the batch and the byte after it, and ``note`` is a mark and the bytes of the schema. The mark is
one byte: whether the batches of the file can be mapped, must be decoded, or are found by the
footer.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mds._process.mmaps import map_descriptor
from mds._readers.base import Batch, Rows
from mds._readers.fields import ColumnSelection, Field, fields_of
from mds._readers.joint import joint_reader
from mds._words import plural
from mds.encodings import parse_encoding
from mds.encodings._base import DecodeKind
from mds.errors import FormatError, MdsError, StoreError
from mds.formats._arrow_values import (
    check_batch,
    check_column,
    encoding_of,
    encoding_of_file,
    features_of,
    is_bytes,
    is_file,
    is_list,
    list_dtype,
    number_name,
    numbers_of,
    offsets_of,
    pyarrow,
)
from mds.formats._columnar import BatchEncoder, Columnar, unreadable
from mds.formats._columns import NULL_ELEMENTS, merge_encodings, settled
from mds.formats._encode import raise_problems
from mds.formats._facts import DataFile, FilePlan, ShardPlace
from mds.formats._made_reader import MadeReader
from mds.storage._files import open_regular

if TYPE_CHECKING:
    import pyarrow as pa

    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds.formats._facts import ShardPlace
    from mds.formats._source import Files

_MAGIC = b"ARROW1"
_ROWS = 8192
#: First byte of a file's note: whether its batches can be mapped, or must be decoded.
_MAPPED, _DECODED = b"\1", b"\0"
#: Note of a file that is no stream (its schema is only in the footer), and is one shard.
_BY_FOOTER = b"\2"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrow(Columnar):
    """Arrow IPC files and streams, read in place; every record batch is a shard.

    - ``columns`` (Sequence[str] | None, default None): The only columns to decode.
    - ``missing`` (str | None, default None): A column that a file does not have is None there;
      ``"error"`` makes it an error, and ``"null"`` leaves out the warning.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column, which replace
      those that follow from the types.

    Raises ConfigError (a ValueError) for settings that make no sense.

    >>> StreamingDataset(remote="saved/", format=Arrow(), batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "arrow"
    title: ClassVar[str] = "Arrow files"
    endings: ClassVar[tuple[str, ...]] = (".arrow", ".feather", ".ipc")
    revision: ClassVar[int] = 4

    def choose(self, files: Iterable[DataFile], source: Files) -> list[DataFile]:
        """Return all files except the caches of `datasets` (``cache-...arrow``)."""
        chosen_files = []
        for file in super().choose(files, source):
            if file.key.rpartition("/")[2].startswith("cache-"):
                source.leave_out(file.key, "caches of datasets")
            else:
                chosen_files.append(file)
        return chosen_files

    def plan_bytes(self, file: DataFile, files: Files) -> int:
        """Return the size of a file behind a network, which is read whole; 0 on a local disk."""
        return file.size if files.path(file) is None else 0

    def shard_of(self, shard: ShardPlace) -> str:
        """Return the byte where the record batch begins."""
        return f"the record batch at byte {shard.span[0]}"

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Find the record batches of a file by the heads of its messages."""
        url, pa = files.url(file), pyarrow()
        path = files.path(file)
        if path is not None:
            open_regular(path).close()  # raises an error with a remedy if it cannot be read
        try:
            with (
                pa.memory_map(path) if path is not None else pa.BufferReader(files.get(file))
            ) as body:
                return _plan(body, file.size) or _plan_by_footer(body, file.size)
        except StoreError:
            raise
        except Exception as error:
            raise unreadable(url, "this is not an Arrow file", error) from error

    def is_read_in_place(self, files: Sequence[DataFile]) -> bool:
        """Return True; `maps` decides for each file."""
        del files
        return True

    def maps(self, note: bytes) -> bool:
        """Whether no batch of a file is compressed, and no column a dictionary."""
        return note[:1] == _MAPPED

    def reader(self, shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader:
        """Return a reader of a mapped record batch, which makes values when rows are read."""
        location = f"{path}, {self.shard_of(shard)}"
        names = shard.columns.names
        batch = map_batch(path, shard.span, shard.note[1:], names, location)
        if batch.num_rows != shard.samples:
            raise FormatError(
                f"{location}: it has {plural(batch.num_rows, 'row')}, but {shard.samples:,} were "
                "expected."
            )
        return ArrowReader(shard, batch, location, columns, self.encodings or ())

    def first_row(self, shard: ShardPlace, files: Files) -> int:
        """Return the number of the first row of a record batch in its file, which is planned again.

        Nothing else tells the rows of the batches before it.
        """
        plan = self.plan_file(shard.file, files)
        spans = plan.spans or ()
        return sum(n for n, span in zip(plan.samples, spans, strict=True) if span < shard.span)

    def batches(
        self, shard: ShardPlace, names: Sequence[str], files: Files, location: str
    ) -> Iterator[Any]:
        """Yield the rows of a shard as record batches, some thousands at a time.

        Raises FormatError, with ``location``, for a shard that cannot be decoded.
        """
        del names  # a batch is decoded whole
        body = files.range(shard.file, *shard.span)
        try:
            is_file = shard.note == _BY_FOOTER
            for batch in _of_file(body) if is_file else _of_stream(shard, body):
                check_batch(batch)
                for start in range(0, batch.num_rows, _ROWS):
                    yield batch.slice(start, _ROWS)
        except (MdsError, MemoryError):
            raise
        except Exception as error:
            raise unreadable(location, "it cannot be decoded", error) from error


def _plan_by_footer(body: Any, size: int) -> FilePlan:
    """Plan a file whose schema is in its footer alone, as Polars writes it: one shard.

    ``body`` is the open file, ``size`` its bytes. Raises FormatError for a file without batches.
    """
    pa = pyarrow()
    columns: dict[str, str] = {}
    rows = decoded = 0
    body.seek(0)
    with pa.ipc.open_file(body) as reader:
        features = features_of(reader.schema)
        if not reader.num_record_batches:
            raise FormatError("it has no record batch, and no schema that gives its columns")
        for batch in map(reader.get_batch, range(reader.num_record_batches)):
            _add_batch(columns, _columns_of(batch, features))
            rows += batch.num_rows
            decoded += _decoded_size(batch)
    return FilePlan(columns, [rows], [decoded], [(0, size)], _BY_FOOTER)


def _of_file(body: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a whole file, which are found by its footer."""
    with pyarrow().ipc.open_file(body) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _of_stream(shard: ShardPlace, body: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a shard, given their bytes.

    The note of the shard holds the bytes of the schema. Both together are a stream that pyarrow
    reads, though without the mark at its end; so reading stops after the planned samples.
    """
    pa = pyarrow()
    with pa.ipc.open_stream(pa.BufferReader(shard.note[1:] + body)) as reader:
        remaining_rows = shard.samples
        for batch in reader:
            yield batch
            remaining_rows -= batch.num_rows
            if remaining_rows <= 0:
                break


def _plan(body: Any, size: int) -> FilePlan | None:
    """Plan the batches of a stream, or return None for a file that holds no stream.

    ``body`` is the open file of ``size`` bytes. Each batch is a shard, except in a file with
    dictionary columns, which is one shard. The span of a shard are the first and last byte of its
    batch. The note is a mark (whether batches can be read from a mapped file, without decoding) and
    the bytes of the schema. Raises FormatError for a file that is cut short.
    """
    pa = pyarrow()
    # In a file the stream begins after the magic, which is padded to eight bytes.
    start = 8 if bytes(body.read(len(_MAGIC))) == _MAGIC else 0
    if start:
        body.seek(max(0, size - len(_MAGIC)))
        if bytes(body.read()) != _MAGIC:
            raise FormatError("it does not end like an Arrow file: it is cut short")
    body.seek(start)
    columns: dict[str, str] = {}
    samples, sizes, spans = [], [], []
    body.seek(0)
    # Address in memory of the file, if it is mapped. A batch whose buffers are all inside of the
    # file was not decompressed or copied.
    begin = body.read_buffer(1).address if size else 0
    body.seek(start)
    is_mapped = True
    try:
        opened = pa.ipc.open_stream(body)
    except (pa.ArrowInvalid, OSError):
        if not start:
            raise
        return None  # a file may have its schema in the footer alone: see `_plan_by_footer`
    with opened as reader:
        schema_end = body.tell()  # the first byte after the schema
        features = features_of(reader.schema)
        is_one_shard = any(pa.types.is_dictionary(field.type) for field in reader.schema)
        first = schema_end
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                break
            _add_batch(columns, _columns_of(batch, features))
            end = body.tell()
            is_mapped &= _is_within(batch, begin, begin + size)
            samples.append(batch.num_rows)
            sizes.append(_decoded_size(batch))
            spans.append((first, end))
            first = end
        if not columns:  # no batch: the encodings follow from the schema alone
            empty = pa.RecordBatch.from_pylist([], schema=reader.schema)
            columns = _columns_of(empty, features)
        if len(set(reader.schema.names)) != len(reader.schema.names):
            raise FormatError("two columns have the same name")
    body.seek(start)
    is_mapped &= all(_can_take(field.type) for field in reader.schema)
    mark = _MAPPED if is_mapped and not is_one_shard else _DECODED
    note = mark + bytes(body.read(schema_end - start))
    if is_one_shard and spans:
        samples, sizes, spans = [sum(samples)], [sum(sizes)], [(schema_end, spans[-1][1])]
    assert not spans or spans[-1][1] <= size, "a batch ends in its file"
    return FilePlan(columns, samples, sizes, spans, note)


def _add_batch(columns: dict[str, str], batch_columns: dict[str, str]) -> None:
    """Widen the encodings of a file, by column, so that they hold the values of another batch.

    Of a column with images of several kinds the last kind counts: ``optional[jpeg]`` and ``png``
    become ``optional[png]``, since readers decode both by their first bytes.
    """
    for name, encoding in batch_columns.items():
        earlier = columns.get(name, encoding)
        merged = merge_encodings(earlier, encoding)
        if merged is None:
            is_optional = earlier.startswith("optional[") and not encoding.startswith("optional[")
            merged = f"optional[{encoding}]" if is_optional else encoding
        columns[name] = merged


def encodings_of_table(table: Any) -> dict[str, str]:
    """Return the encodings that hold all values of an Arrow table in memory, by column."""
    columns: dict[str, str] = {}
    features = features_of(table.schema)
    empty = pyarrow().RecordBatch.from_pylist([], schema=table.schema)
    for batch in table.to_batches() or [empty]:
        _add_batch(columns, _columns_of(batch, features))
    return {name: settled(encoding) for name, encoding in columns.items()}


def _decoded_size(batch: pa.RecordBatch) -> int:
    """Return an upper bound of the bytes of a record batch once it is decoded to MDS.

    16 bytes per row are added for the offset of a sample and its sizes of variable values.
    """
    try:
        size = batch.nbytes
    except pyarrow().lib.ArrowTypeError:  # pyarrow before 24 cannot size views of text
        size = batch.get_total_buffer_size()
    return int(size) + 16 * int(batch.num_rows)


def _can_take(kind: pa.DataType) -> bool:
    """Whether `RecordBatch.take` works for a type: not for views and run-end encoding."""
    inside = [kind.field(position).type for position in range(kind.num_fields)]
    if isinstance(kind, pyarrow().BaseExtensionType):
        inside = [kind.storage_type]
    no_views = not str(kind).endswith("_view") and not str(kind).startswith("run_end_encoded")
    return no_views and all(map(_can_take, inside))


def _is_within(batch: pa.RecordBatch, begin: int, end: int) -> bool:
    """Whether all buffers of a batch are in the mapped file (addresses [begin, end)).

    Buffers elsewhere were decompressed, so the batch cannot be mapped.
    """
    return all(
        not buffer or not buffer.size or begin <= buffer.address < end
        for column in batch.columns
        for buffer in column.buffers()
    )


def _columns_of(batch: pa.RecordBatch, features: dict[str, str]) -> dict[str, str]:
    """Return the encodings that the columns of a batch need, by name.

    ``features`` has the columns that `datasets` declared as "Image" or "Audio" (`features_of`).
    Whether a column of images is of JPEG or PNG follows from the first bytes of its first image.
    """
    batch.validate()  # lengths alone: values are not read here
    out = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = column.type
        feature = ""
        if features.get(name) == "Audio":
            feature = "audio"
        elif name in features and column.null_count < len(column):
            files = column.flatten() if is_list(kind) else column
            if is_file(files.type):
                check_column(column)
                present = files.drop_null().field("bytes").drop_null()
                feature = encoding_of_file(present[0].as_py()[:16]) if len(present) else ""
        has_lengths = list_dtype(kind) is not None and not pyarrow().types.is_fixed_size_list(kind)
        lengths = column.value_lengths().drop_null() if has_lengths else None
        if list_dtype(kind) is not None and column.flatten().null_count:
            out[name] = NULL_ELEMENTS  # an array of numbers has no null
            continue
        null_count = column.null_count
        if is_file(kind):  # a struct may have neither bytes nor a path
            fields = [numbers_of(each.is_valid()) for each in column.flatten()]
            null_count = int((~(fields[0] | fields[1])).sum())
        out[name] = encoding_of(
            kind,
            may_be_none=bool(null_count),
            may_be_empty=lengths is not None and bool((numbers_of(lengths) == 0).any()),
            feature=feature,
        )
    return out


# --------------------------------------------------------------------- reading in place


Get = Callable[[int], Any]


def map_batch(
    path: str, span: tuple[int, int], schema: bytes, names: Sequence[str], location: str
) -> pa.RecordBatch:
    """Map a record batch of a local file, and return it with the columns ``names``.

    - ``span`` (tuple[int, int]): First byte of the batch's message, and the byte after it.
    - ``schema`` (bytes): The message with the schema of the file.
    - ``location`` (str): Name of the shard, for errors.

    Other columns are neither checked nor read. Raises FormatError for a damaged batch.
    """
    pa = pyarrow()
    start, end = span
    page = start - start % os.sysconf("SC_PAGE_SIZE")  # a map must begin with a page
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        mapped = map_descriptor(descriptor, end - page, start=page)
    except ValueError as error:
        raise unreadable(location, "the file is shorter than it was", error) from error
    finally:
        os.close(descriptor)
    try:
        body = pa.BufferReader(pa.py_buffer(memoryview(mapped)[start - page :]))
        file_schema = pa.ipc.read_schema(pa.py_buffer(schema))
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(body), file_schema)
        batch = batch.select([name for name in file_schema.names if name in names])
        check_batch(batch)
    except Exception as error:
        raise unreadable(location, "it cannot be decoded", error) from error
    return batch


class ArrowReader(MadeReader):
    """Reader of the rows of a mapped record batch.

    Numbers, text, bytes and lists of numbers are slices of the batch's buffers. Other values are
    encoded as in an MDS sample and decoded, row by row. Columns of many rows are taken at once.

    - ``shard`` (ShardPlace): The shard. ``batch`` (pyarrow.RecordBatch): Its mapped batch.
    - ``location`` (str): Name of the shard, for errors.
    - ``selection`` (ColumnSelection): The columns to decode.
    - ``chosen`` (Collection[str]): Columns whose encoding the user chose.
    """

    def __init__(
        self,
        shard: ShardPlace,
        batch: pa.RecordBatch,
        location: str,
        selection: ColumnSelection,
        chosen: Collection[str],
    ) -> None:
        self._batch: pa.RecordBatch | None = batch
        self._encoder = encoder = BatchEncoder(shard, chosen)

        def mds_bytes(row: int) -> bytes:
            blocks = encoder.blocks(batch.slice(row, 1), lambda _: self.where(row))
            return next(raise_problems(blocks)).data

        getters = [
            (field.name, _getter(field, batch, encoder)) for field in fields_of(
                shard.columns, selection
            ).selected
        ]  # fmt: skip

        def sample(row: int) -> dict[str, Any]:
            return {name: get(row) for name, get in getters}

        super().__init__(shard.columns, shard.samples, location, mds_bytes, selection, sample)

    def rows(self, rows: Rows, *, copy: bool = True) -> Batch:
        """Return many samples as columns; see Reader.rows."""
        self._check_open()
        assert self._batch is not None
        numbers = self._numbers(rows)
        pa, indices = pyarrow(), np.ascontiguousarray(numbers, np.int64)
        row_numbers = pa.Array.from_buffers(pa.int64(), len(indices), [None, pa.py_buffer(indices)])
        # The rows become MDS samples in memory, which a reader of MDS decodes to columns.
        blocks = self._encoder.blocks(
            self._batch.take(row_numbers), lambda position: self.where(int(indices[position]))
        )
        (sizes, data), *_ = raise_problems(blocks)  # a single one, or a problem is raised
        offsets = np.zeros(len(numbers) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        reader = joint_reader(
            self.schema,
            len(numbers),
            data,
            self.source,
            columns=self._selection,
            offsets=offsets,  # type: ignore[arg-type]  # wider ones hold more
        )
        return reader.rows(range(len(numbers)), copy=copy)

    def close(self) -> None:
        """Release the file. Values that were returned own their memory and stay valid."""
        super().close()
        self._batch = None


def _getter(field: Field, batch: pa.RecordBatch, encoder: BatchEncoder) -> Get:
    """Return a function from a row to a column's value, equal to what an MDS reader returns.

    - ``field`` (Field): The column, with its encoding and decoder.
    - ``batch`` (pyarrow.RecordBatch): The rows.
    - ``encoder`` (BatchEncoder): Encoder of the rows, which knows the columns that ``batch`` lacks.
    """
    position = batch.schema.get_field_index(field.name)
    if position < 0:
        absent = encoder.absent[field.name]
        return lambda _: field.decode(memoryview(absent))
    column, encoding = batch.column(position), field.encoding.name
    inner = field  # the column of the values that are not None
    if encoding.startswith("optional["):
        kind = parse_encoding(encoding[len("optional[") : -1])
        inner = field._replace(encoding=kind, kind=kind.decode_kind)
    # Values of an encoding that the user chose, and nulls that are not planned, are checked.
    is_chosen = field.name in encoder.chosen
    is_checked = is_chosen or (inner is field and column.null_count)
    get = None if is_checked else _from_buffers(inner, column)
    if get is None:
        return lambda row: field.decode(memoryview(_stored(encoder, field, column, row)))
    if not column.null_count:
        return get
    get_valid, is_valid = get, numbers_of(column.is_valid()).data
    return lambda row: get_valid(row) if is_valid[row] else None


def _stored(encoder: BatchEncoder, field: Field, column: pa.Array, row: int) -> bytes:
    (value,) = encoder.bytes_of(field.name, column.slice(row, 1), field.encoding.name)
    return bytes(value)


def _from_buffers(field: Field, column: pa.Array) -> Get | None:
    """Return a function from a row to a column's value that slices Arrow's buffers.

    It is for rows without nulls. Returns None for a type whose values are no slices. Arrow stores
    numbers in ``column.buffers()[1]``, and the bytes of texts in ``column.buffers()[2]``, where the
    text of row i lies between the offsets i and i + 1. ``buffers()[0]`` tells which rows are null.
    """
    types, kind = pyarrow().types, column.type
    if field.kind in (DecodeKind.INT, DecodeKind.SCALAR) and not field.encoding.shape:
        dtype = field.encoding.dtype
        if dtype is None or number_name(kind) != dtype.name:
            return None
        values = np.frombuffer(column.buffers()[1], dtype)[column.offset :][: len(column)]
        if field.kind is DecodeKind.INT:
            return values.data.__getitem__
        return values.__getitem__
    offsets = offsets_of(column)
    if offsets is None:
        return None
    starts = offsets.data
    if field.kind is DecodeKind.VECTOR:
        dtype = field.encoding.element_dtype
        if dtype is None or list_dtype(kind) != dtype.name:
            return None
        inner = column.values
        if inner.null_count:
            return None
        flat = np.frombuffer(inner.buffers()[1] or b"", dtype)[inner.offset :][: len(inner)]
        if field.is_copied:
            return lambda row: flat[starts[row] : starts[row + 1]].copy()
        return lambda row: flat[starts[row] : starts[row + 1]]
    body = memoryview(column.buffers()[2] or b"") if not types.is_list(kind) else None
    if body is None or types.is_large_list(kind):
        return None
    if field.kind is DecodeKind.TEXT and not is_bytes(kind):
        return lambda row: str(body[starts[row] : starts[row + 1]], "utf-8")
    if field.kind is DecodeKind.BYTES:
        return lambda row: bytes(body[starts[row] : starts[row + 1]])
    return None
