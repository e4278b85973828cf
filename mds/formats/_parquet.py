"""Parquet files: each row group is a shard.

    PAR1 | row group: a chunk of bytes for each column | row group | ... | footer | length | PAR1

A file is planned from its footer: one ranged read of its last 64 KB, and a second one if the footer
is longer. The footer is kept in the table of the dataset, so reading a shard fetches the chunks of
the wanted columns and nothing else. pyarrow decodes without its own threads: several shards are
decoded side by side already, and a forked worker would inherit a thread pool in use.

The format finds a shard (`ShardPlace`) again by two values of its plan: ``span[0]`` is the number
of the row group in its file, and ``note`` is the footer of the file, compressed.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mds._words import plural
from mds.errors import FormatError, MdsError
from mds.formats._arrow_values import (
    encoding_of,
    encoding_of_file,
    features_of,
    is_file,
    is_list,
    list_dtype,
    pyarrow,
)
from mds.formats._columnar import Columnar, unreadable, with_wide_times
from mds.formats._columns import NULL_ELEMENTS, as_columns, without_optional
from mds.formats._facts import DataFile, FilePlan, ShardPlace
from mds.formats._parquet_footer import check_footer, chunk_span, read_footer, shared_footer

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from mds.formats._source import Files

_SNIFFED = 64 << 10
#: Most bytes of a footer in the table of a dataset.
_LARGEST_FOOTER = 1 << 30
#: Approximate bytes of samples, and most rows, in a batch.
_BLOCK, _MOST_ROWS = 4 << 20, 8192


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parquet(Columnar):
    """Parquet files, read in place; every row group is a shard.

    - ``columns`` (Sequence[str] | None, default None): The only columns to fetch and decode.
    - ``missing`` (str | None, default None): A column that a file does not have is None there;
      ``"error"`` makes it an error, and ``"null"`` leaves out the warning.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column, which replace
      those that follow from the types.

    Raises ConfigError (a ValueError) for impossible settings.

    >>> Parquet(columns=["text", "token_count"])  # doctest: +ELLIPSIS
    Parquet(columns=('text', 'token_count'), ...)
    """

    name: ClassVar[str] = "parquet"
    title: ClassVar[str] = "Parquet files"
    endings: ClassVar[tuple[str, ...]] = (".parquet", ".parq", ".pq")
    revision: ClassVar[int] = 2

    def settings(self) -> Mapping[str, Any]:
        """Return the settings that affect samples; ``encodings`` too if there are none."""
        # This format had the setting first, so digests and indexes have it even if it is None.
        return {"encodings": None, **super().settings()}

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Return the row groups of a file, by its footer.

        The note of the plan is the footer, compressed. Raises FormatError for a footer that is
        damaged.
        """
        url = files.url(file)
        footer = self.footer(file, files)
        try:
            metadata = _parse(footer)
            below_highest = check_footer(footer, metadata)
            schema = metadata.schema.to_arrow_schema()
        except Exception as error:
            raise unreadable(url, "the footer cannot be read", error) from error
        try:
            null_flags = _nulls(metadata)
            # Columns that may hold nulls: also those of which it is unknown (None).
            nulls = {name for name, has_nulls in null_flags.items() if has_nulls is not False}
            columns = {}
            for field in schema:
                feature = self._feature(field, features_of(schema), metadata, file, files)
                # Statistics count an empty list as a null one.
                columns[field.name] = encoding_of(
                    field.type,
                    may_be_none=field.nullable and field.name in nulls,
                    may_be_empty=field.name in nulls,
                    feature=feature,
                )
            for name in _with_null_elements(metadata, schema, below_highest):
                columns[name] = NULL_ELEMENTS  # an array of numbers has no null
            groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
            samples = [group.num_rows for group in groups]
            # Estimates: values, and for each row its offset and the sizes of variable columns.
            sizes = [group.total_byte_size + 16 * group.num_rows for group in groups]
        except MdsError:
            raise
        except Exception as error:
            raise unreadable(url, "the footer cannot be read", error) from error
        if len(set(schema.names)) != len(schema.names):
            raise FormatError(f"{url}: two columns have the same name.")
        if min(samples, default=0) < 0:
            raise FormatError(f"{url}: a row group has {plural(min(samples), 'row')}.")
        import zstandard

        return FilePlan(columns, samples, sizes, note=zstandard.compress(footer, 3))

    def plan_uncounted(self, file: DataFile, files: Files) -> FilePlan:
        """Return the plan of a file for a conversion, which reads the file anyway.

        Without size statistics, lists that may be null or empty are searched for null elements.
        """
        plan = self.plan_file(file, files)
        footer = _stored_footer(plan.note, files.url(file))
        metadata = _parse(footer)
        known = check_footer(footer, metadata)
        paths = [metadata.schema.column(number).path for number in known]
        lists = [
            name
            for name, encoding in plan.columns.items()
            if without_optional(encoding).startswith("tensor:")
            and not any(_is_in(path, name) for path in paths)
        ]
        columns, location = dict(plan.columns), files.url(file)
        for number, samples in enumerate(plan.samples if lists else ()):
            shard = ShardPlace(
                file, (number, number), samples, plan.note, as_columns(columns, lists)
            )
            for batch in self.batches(shard, lists, files, location):
                for name in lists:
                    if batch.column(name).flatten().null_count:
                        columns[name] = NULL_ELEMENTS
        return dataclasses.replace(plan, columns=columns)

    def footer(self, file: DataFile, files: Files) -> bytes:
        """Return the footer of a file, from a ``_metadata`` file above it or from the file."""
        shared = shared_footer(file, files) if files.is_far else None
        return read_footer(file, files) if shared is None else shared

    def known_nulls(self, plan: FilePlan) -> frozenset[str]:
        """Return the columns that hold None according to the statistics in the file."""
        return frozenset(name for name, has in _nulls(_footer_of(plan.note)).items() if has)

    @staticmethod
    def schema_of(note: bytes) -> Any:
        """Return the Arrow schema in the note of a file."""
        return _footer_of(note).schema.to_arrow_schema()

    @staticmethod
    def _feature(
        field: Any,
        features: Mapping[str, str],
        metadata: pq.FileMetaData,
        file: DataFile,
        files: Files,
    ) -> str:
        """Return the encoding of a column of images or audio, or '' for any other column.

        ``field`` is the column in the Arrow schema, ``features`` are those of `features_of`.
        Images are recognised by the first bytes of the column in the file.
        """
        kind = features.get(field.name)
        value_type = field.type.value_type if is_list(field.type) else field.type
        if kind is None or not (is_file(value_type) or pyarrow().types.is_binary(value_type)):
            return ""
        if kind == "Audio":
            return "audio"
        # The first chunk of the column decides; there is none in a file without rows.
        for group in range(metadata.num_row_groups):
            for start, end in _spans(metadata, group, {f"{field.name}.bytes", field.name}):
                return encoding_of_file(bytes(files.range(file, start, min(end, start + _SNIFFED))))
        return "bytes"

    def first_row(self, shard: ShardPlace, files: Files) -> int:
        """Return the number of the first row of a row group in its file, by the footer."""
        del files
        metadata = _parsed(shard)
        return sum(metadata.row_group(group).num_rows for group in range(shard.span[0]))

    def shard_of(self, shard: ShardPlace) -> str:
        """Describe a shard by the number of its row group."""
        return f"row group {shard.span[0]}"

    def share(self, shard: ShardPlace) -> float:
        """Return the share of a row group's bytes that the chosen columns have."""
        metadata, group = _parsed(shard), shard.span[0]
        names = set(shard.columns.names)
        chunks = [metadata.row_group(group).column(index) for index in range(metadata.num_columns)]
        sizes = [int(chunk.total_uncompressed_size) for chunk in chunks]
        needed_sizes = [
            size for size, chunk in zip(sizes, chunks, strict=True) if _top(chunk, names)
        ]
        return sum(needed_sizes) / max(sum(sizes), 1)

    def batches(
        self, shard: ShardPlace, names: Sequence[str], files: Files, location: str
    ) -> Iterator[Any]:
        """Yield the rows of a row group as record batches; see `Columnar.batches`."""
        metadata, group = _parsed(shard), shard.span[0]
        stored_names = _names(metadata)
        present = [name for name in names if name in stored_names]
        spans = _spans(metadata, group, set(present))
        body = _Chunks(shard.file, files, spans)
        pq = _module()
        # Rows of a batch: about _BLOCK bytes of them.
        row_size = sum(end - start for start, end in spans) // max(shard.samples, 1) + 16
        rows = max(64, min(_MOST_ROWS, _BLOCK // row_size))
        try:

            def read(names: Sequence[str], unit: str | None = None) -> Iterator[Any]:
                """Decode columns of the row group, and yield record batches.

                Timestamps of INT96 are read in this unit, such as "us"; None means nanoseconds.
                """
                opened = pq.ParquetFile(
                    pyarrow().PythonFile(body, mode="r"),
                    metadata=metadata,
                    pre_buffer=False,
                    page_checksum_verification=True,
                    coerce_int96_timestamp_unit=unit,
                )
                return opened.iter_batches(  # type: ignore[no-any-return]
                    batch_size=rows, row_groups=[group], columns=list(names), use_threads=False
                )

            batches = read(present) if present else _empty_batches(shard.samples, rows)
            paths = _int96(metadata, group)
            if int96_names := [
                name for name in present if any(_is_in(path, name) for path in paths)
            ]:
                # Nanoseconds of 64 bits end in 2262, and beyond that they begin anew. So these
                # columns are read once more, in microseconds.
                pairs = zip(batches, read(int96_names, "us"), strict=True)
                batches = itertools.chain.from_iterable(itertools.starmap(with_wide_times, pairs))
            yield from batches
        except (MdsError, MemoryError):
            raise
        except Exception as error:
            raise unreadable(location, "it cannot be decoded", error) from error


# ---------------------------------------------------------------------- footers


def _parse(footer: bytes) -> pq.FileMetaData:
    return _module().read_metadata(pyarrow().BufferReader(footer))


def _footer_of(note: bytes, location: str = "a table of files") -> pq.FileMetaData:
    """Parse the compressed footer in a file's note.

    ``location`` names the file in errors. Raises FormatError for a note from another program.
    """
    try:
        return _parse(_stored_footer(note, location))
    except MdsError:
        raise
    except Exception as error:
        raise unreadable(location, "the stored footer cannot be read", error) from error


def _stored_footer(note: bytes, location: str) -> bytes:
    """Return the footer in a file's note. Raises FormatError for a note from another program."""
    import zstandard

    try:
        if zstandard.frame_content_size(note) > _LARGEST_FOOTER:
            raise ValueError("it is too large")  # noqa: TRY301 - reported like any damage
        return zstandard.ZstdDecompressor().decompress(note)
    except Exception as error:
        raise unreadable(location, "the stored footer cannot be read", error) from error


def _parsed(shard: ShardPlace) -> pq.FileMetaData:
    """Return the parsed footer of a shard's file. The 16 used last stay in memory."""
    key = shard.note  # the footer itself: files of two datasets may agree in everything else
    # Removed and added again at the end: the dict is in the order of use.
    metadata = _remembered.pop(key, None)
    if metadata is None:
        metadata = _footer_of(key, shard.file.key)
    _remembered[key] = metadata
    while len(_remembered) > 16:
        _remembered.pop(next(iter(_remembered)), None)
    return metadata


_remembered: dict[bytes, pq.FileMetaData] = {}


def _module() -> Any:
    """Import pyarrow.parquet, and return it. Raises MissingDependencyError."""
    pyarrow()  # whose error names the missing package
    from pyarrow import parquet

    return parquet


def _names(metadata: pq.FileMetaData) -> set[str]:
    return set(metadata.schema.to_arrow_schema().names)


def _nulls(metadata: pq.FileMetaData) -> dict[str, bool | None]:
    """Return whether each column holds nulls, according to the statistics; None if unknown.

    A column is True if one row group has nulls, else None if one is unknown, else False. Statistics
    of a list column count empty lists as nulls. In other nested columns a null inside does not show
    whether a whole value is null.
    """
    schema = metadata.schema.to_arrow_schema()
    names = set(schema.names)
    # Columns for which a null in the statistics means a null or an empty list.
    are_plain = {f.name for f in schema if not f.type.num_fields or list_dtype(f.type) is not None}
    kinds = [metadata.schema.column(index).physical_type for index in range(metadata.num_columns)]
    tops: dict[str, str] = {}  # the column that each path is below
    out: dict[str, bool | None] = {}
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            path = column.path_in_schema
            if column.physical_type != kinds[index]:  # its statistics would end the process
                raise ValueError(
                    f"column {path!r} is both {kinds[index]} and {column.physical_type}"
                )
            top = tops.get(path)
            if top is None:
                top = tops[path] = _top_of(path, names) or path
            if out.get(top):  # nulls were counted in another row group
                continue
            statistics = column.statistics
            if statistics is None or not statistics.has_null_count:
                out[top] = None
            elif statistics.null_count:
                out[top] = True if top in are_plain else None
            else:
                out.setdefault(top, False)
    return out


def _with_null_elements(
    metadata: pq.FileMetaData, schema: Any, below_highest: Mapping[int, int]
) -> Iterator[str]:
    """Yield the columns of lists of numbers that have a null among their elements.

    ``below_highest`` is what `check_footer` returned; files of old writers have no such counts.
    """
    names = set(schema.names)
    for number, count in below_highest.items():
        top = _top_of(metadata.schema.column(number).path, names) if count > 0 else None
        if top is None:
            continue
        kind = schema.field(schema.get_field_index(top)).type
        if list_dtype(kind) is not None and kind.value_field.nullable:
            yield top


def _is_in(path: str, top: str) -> bool:
    return path == top or path.startswith(top + ".")


def _top(column: Any, names: set[str]) -> bool:
    return _top_of(column.path_in_schema, names) is not None


def _top_of(path: str, names: set[str]) -> str | None:
    """Return the column that a path in the schema is or is below, or None if it is not in names.

    The path "image.bytes" is below "image". Names may contain dots, so the longest is taken.
    """
    end = len(path)
    while end >= 0:
        if path[:end] in names:
            return path[:end]
        end = path.rfind(".", 0, end)
    return None


def _int96(metadata: pq.FileMetaData, group: int) -> set[str]:
    """Return the paths of timestamps of type INT96, Parquet's first type for them."""
    row_group = metadata.row_group(group)
    columns = [row_group.column(index) for index in range(row_group.num_columns)]
    return {each.path_in_schema for each in columns if each.physical_type == "INT96"}


def _spans(metadata: pq.FileMetaData, group: int, names: set[str]) -> list[tuple[int, int]]:
    """Return (begin, end) of the column chunks of a row group in the file, ascending.

    ``group`` is the number of the row group, ``names`` are the wanted columns.
    """
    row_group, spans = metadata.row_group(group), []
    for index in range(row_group.num_columns):
        column = row_group.column(index)
        if not _top(column, names):
            continue
        spans.append(chunk_span(column))
    return sorted(spans)


def _empty_batches(samples: int, rows: int) -> Iterator[Any]:
    """Yield batches of ``rows`` rows with no wanted column, ``samples`` rows together.

    A batch needs a column to have a number of rows. The column has a name that no other one has.
    """
    pa = pyarrow()
    for start in range(0, samples, rows):
        count = min(rows, samples - start)
        yield pa.record_batch([pa.nulls(count)], names=["\0nothing"])


class _Chunks(io.RawIOBase):
    """A file object for pyarrow, which has methods of `io.RawIOBase`.

    - ``file`` (DataFile), ``files`` (Files): The file, and the reader that fetches its bytes.
    - ``spans`` (Sequence[tuple[int, int]]): Bytes (begin, end) that are fetched beforehand.
      Others are fetched when they are read.
    """

    def __init__(self, file: DataFile, files: Files, spans: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self._file, self._files = file, files
        bounded_spans = [
            (max(begin, 0), min(end, file.size))
            for begin, end in spans
            if begin < min(end, file.size)
        ]
        self._pieces = list(zip(bounded_spans, files.ranges(file, bounded_spans), strict=True))
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._offset, self._file.size)[whence]
        self._offset = max(0, base + offset)
        return self._offset

    def tell(self) -> int:
        return self._offset

    def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes, fewer at the end of the file; -1 for all that remain.

        They come from the spans that were fetched beforehand, or else from the file.
        """
        end = self._file.size if size < 0 else min(self._offset + size, self._file.size)
        start, self._offset = self._offset, max(end, self._offset)
        if end <= start:
            return b""
        for (first, last), piece in self._pieces:
            if first <= start and end <= last:
                return bytes(memoryview(piece)[start - first : end - first])
        return self._files.range(self._file, start, end)
