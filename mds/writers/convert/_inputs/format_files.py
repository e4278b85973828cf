"""Files that a format of `mds.formats` reads, as inputs: tables, tars, lines, and any other format.

The format finds the files, plans them and reads them (`Format`, `Files`), as it does for a dataset
that reads them in place. An input adds what a conversion needs beyond that:

    detection       which paths, URLs and patterns are such files
    parts           pieces of a file that processes read side by side, smaller than its shards
    columns         encodings that old readers know; readers in place also have younger ones
    bad records     what is wrong with a record, so that `on_error="skip"` can leave it out

A position is the row in a table, the key in a tar, and the byte at which a line begins.

Class attributes of inputs: `title` for people, `endings` of files, `takes` (special options),
`reads` (class of the format), `is_json` (values came from JSON), `is_encoded` (values are the bytes
of their columns), `has_late_keys` (records may have keys that the probed ones lack).
"""

from __future__ import annotations

import contextlib
import json
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np

from mds.errors import ConfigError, FormatError, SourceError
from mds.formats._arrow import Arrow
from mds.formats._arrow_values import python_values
from mds.formats._base import Format
from mds.formats._columnar import Columnar
from mds.formats._columns import (
    Column,
    as_columns,
    encoding_of,
    infer_columns,
    merge_encodings,
    show_value,
)
from mds.formats._dataset import FormatData, open_files
from mds.formats._facts import DataFile, FilePlan, ShardPlace
from mds.formats._lake import TableFormat
from mds.formats._lines import JsonLines, Lines, TextLines, read_lines
from mds.formats._parquet import Parquet
from mds.formats._registry import DELTA_LOG, format_of_files
from mds.formats._source import Files, has_pattern, open_pinned, parse_place
from mds.formats._tar import Tar
from mds.formats._tar_members import ReadAt
from mds.formats._tar_samples import KEY, TarSample, encoding_by_ending, value_of
from mds.formats._unpack import compression_of, content
from mds.storage import open_store
from mds.storage._url import is_local, redact
from mds.writers.convert._inputs.base import (
    BadRecord,
    FileInput,
    Input,
    InputOptions,
    InputPart,
    Record,
)
from mds.writers.convert._inputs.files import bad_line, not_utf8
from mds.writers.convert._inputs.listing import Listing, is_wanted
from mds.writers.convert._inputs.mds import column_splitter

#: Number of files that are planned at the same time.
_FILES_SIDE_BY_SIDE = 16
#: Number of rows of a table that are converted to Python values at once.
_ROWS = 1024
#: Number of records from whose values the columns of a table and of a tar are inferred.
_PROBED_ROWS, _PROBED_TAR_SAMPLES = 100, 200
_BOM = b"\xef\xbb\xbf"


class FormatInput(FileInput):
    """Files that a format reads, on a disk or behind a URL. Subclasses turn them into records.

    - ``listing`` (Listing): Names, sizes and versions of the files.
    - ``kind`` (Format | None, default None): Their format; None: by the name of each file.
    - ``data_files`` (Sequence[DataFile] | None, default None): The files as the format listed them;
      None: as they are in ``listing``.
    - ``facts`` (Mapping[str, bytes] | None, default None): What the format learned about single
      files when it listed them, by name; the format needs it to plan and read them.

    The address of a part is (name of the file, first byte, last byte + 1, file): the processes that
    read parts have no table of files, so the part brings the `DataFile`.
    """

    #: Class of the formats that the input reads.
    reads: ClassVar[type[Format]]

    def __init__(
        self,
        listing: Listing,
        kind: Format | None = None,
        data_files: Sequence[DataFile] | None = None,
        facts: Mapping[str, bytes] | None = None,
    ) -> None:
        super().__init__(listing)
        #: The format of all files; None if it follows from the name of each.
        self.kind = kind
        self._data_files = data_files or [
            DataFile(name, size) for name, size in zip(listing.names, listing.sizes, strict=True)
        ]
        self._facts = facts or {}

    @classmethod
    def recognizes(cls, path: str) -> bool:
        """Return whether a path is a URL or pattern of such files, or a Delta or Iceberg table."""
        return isinstance(_format_at(path), cls.reads)

    @classmethod
    def open(cls, path: str, options: InputOptions) -> Input:
        """Open the files of a path, a folder, a URL or a pattern. Raises SourceError for none."""
        kind = _format_at(path)
        if kind is None or not isinstance(kind, cls.reads):
            return super().open(path, options)
        if isinstance(kind, TableFormat) and (options.include or options.exclude):
            raise SourceError(
                f"{redact(path)}: --include and --exclude cannot choose files of a {kind.name} "
                f"table, because its log decides which rows of a file exist. Convert the whole "
                f"table, or its Parquet files by a pattern, including deleted rows."
            )
        # Some formats need only a part of the folder, and list fewer files.
        place = kind.narrow(parse_place(path, kind.endings))
        # A revision such as a branch is resolved once, so later commits change nothing.
        files = open_pinned(place.root, open_store)
        with _source_errors():
            listed = kind.find(place, files)
        chosen_files = [
            f for f in listed.files if is_wanted(f.key, options.include, options.exclude)
        ]
        if not chosen_files:
            raise SourceError(f"{redact(path)}: there are no {kind.name} files.")
        states = [(file.size, file.version) for file in chosen_files]
        listing = Listing(files.store.url, [file.key for file in chosen_files], None, states)
        opened = cls(listing, kind, chosen_files, listed.facts)
        opened.begin(options)
        return opened

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open the files of a listing, which are on a disk; the name of each shows its format."""
        opened = cls(listing)
        opened.begin(options)
        return opened

    def begin(self, options: InputOptions) -> None:
        """Apply the options; a subclass may also plan its files to infer their columns."""

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield pieces of the files, numbered from 0."""
        number = 0
        for file in self._data_files:
            with _source_errors():
                for start, end in self.cut_file(file.key, file.size, size):
                    address = (file.key, start, end, file)
                    yield InputPart(number, end - start, address, self.split_of.get(file.key))
                    number += 1

    def read_records(self, part: InputPart) -> Iterator[Record]:
        """Yield what `read` yields. Raises SourceError if the file itself is broken."""
        with _source_errors():
            yield from super().read_records(part)

    def open_files(self) -> Files:
        """Return a reader of the bytes of the files, which a format reads them with."""
        files = Files(open_store(self.root or "."))
        files.facts = self._facts
        return files

    def __getstate__(self) -> dict[str, Any]:
        # Processes that read parts need no table of all files: each part has its own.
        return {**super().__getstate__(), "_data_files": [], "_facts": {}}


@contextlib.contextmanager
def _source_errors() -> Iterator[None]:
    """Raise a FormatError as a SourceError with the same message."""
    try:
        yield
    except FormatError as error:
        raise SourceError(str(error)) from error


def _format_at(path: str) -> Format | None:
    """Return the format of a URL, a pattern or a folder of a table; None for other paths.

    Other files and folders on a disk are recognised by the names of the files (`open_input`).
    """
    is_folder = os.path.isdir(path)
    is_delta = is_folder and os.path.isdir(os.path.join(path, DELTA_LOG))
    if is_folder and not is_delta:
        return None
    if is_local(path):
        # The metadata file of an Iceberg table.
        is_iceberg = path.endswith(".metadata.json")
        is_pattern = has_pattern(path) and not os.path.exists(path)
        if not (is_delta or is_iceberg or is_pattern):
            return None
    try:
        return format_of_files(path)
    except ConfigError:  # a pattern of other files
        return None


# ---------------------------------------------------------------------- shards of a format


class ShardsInput(FormatInput):
    """Files whose shards a format has planned: a shard is a row group of Parquet, for example.

    The address of a part is (name of the file, consecutive shards of it, number of their first row
    in the file).
    """

    @abstractmethod
    def format_of(self, name: str) -> Format:
        """Return the format of a file."""

    @abstractmethod
    def shards_of(self, file_number: int) -> Sequence[ShardPlace]:
        """Return the shards of a file that hold samples, in order; files count from 0."""

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield consecutive shards of one file, of about ``size`` bytes together.

        A file of 100 MB with 10 shards gives parts of 2 shards for a size of 25 MB.
        """
        number = 0
        for file_number, file in enumerate(self._data_files):
            shards, row = self.shards_of(file_number), 0  # row: the first one of the next part
            # The sizes of single shards are not known here: all count as equal.
            shards_per_part = max(1, len(shards) * size // max(file.size, 1))
            for start in range(0, len(shards), shards_per_part):
                run = shards[start : start + shards_per_part]
                part_size = file.size * len(run) // len(shards)
                address = (file.key, run, row)
                yield InputPart(number, part_size, address, self.split_of.get(file.key))
                number += 1
                row += sum(shard.samples for shard in run)

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the file and the row, from 0."""
        return f"{self.open_files().url(part.address[0])}, row {position}"


class AnyFormatInput(ShardsInput):
    """The samples of files in any format, with the encodings that the format gives them.

    It reads files whose format is named (``--format megatron``), and the files of a conversion that
    keeps their shards (`writers/convert/_keep_shards.py`).

    - ``data`` (FormatData): The shards and columns that the format has planned.
    - ``files`` (Files): Reads the bytes of the files.

    A position is the number of a row in its file. The format returns samples as the bytes of an MDS
    shard, which are not decoded, except for columns that the user gave another encoding.
    """

    is_encoded: ClassVar[bool] = True

    def __init__(self, data: FormatData, files: Files) -> None:
        table = data.table
        states = [(file.size, file.version) for file in table.files]
        listing = Listing(files.store.url, table.keys, None, states)
        super().__init__(listing, data.format, table.files, files.facts)
        #: None in processes that read parts: a part has its shards.
        self._data: FormatData | None = data
        #: Columns that get another encoding, so that their values are decoded.
        self._decoded_columns: frozenset[str] = frozenset()

    @classmethod
    def recognizes(cls, path: str) -> bool:
        """Return False: other inputs come first, unless ``--format`` names the format."""
        del path
        return False

    @classmethod
    def open(cls, path: str, options: InputOptions) -> AnyFormatInput:
        """Open the files of the format that ``options.format`` names, or that the path shows."""
        return cls.open_columns(path, options, None)

    @classmethod
    def open_columns(
        cls, path: str, options: InputOptions, columns: Sequence[str] | None
    ) -> AnyFormatInput:
        """Open the files at a path, to read some of their columns (None: all).

        Raises SourceError if there are no files, or if they cannot be read.
        """
        with _source_errors():
            data, files = open_files(path, options.format, columns)
        if not len(data.table):
            raise SourceError(f"{redact(path)}: there are no {data.format.name} files.")
        opened = cls(data, files)
        opened._decoded_columns = frozenset(options.encodings)
        return opened

    @property
    def title(self) -> str:  # type: ignore[override]
        """The name of the format."""
        return f"{self.format_of('').name} files"

    @property
    def data(self) -> FormatData:
        """The files and shards as the format planned them; not in processes that read parts."""
        assert self._data is not None, "an input is cut into parts where it was opened"
        return self._data

    def format_of(self, name: str) -> Format:
        """Return the format, which is that of all files."""
        del name
        assert self.kind is not None, "it is opened with a format"
        return self.kind

    def shards_of(self, file_number: int) -> Sequence[ShardPlace]:
        """Return the shards of a file, with the columns of all files."""
        # `table.file` has the number of the file of each shard, in ascending order.
        first, end = np.searchsorted(self.data.table.file, [file_number, file_number + 1])
        return [self.data.place(number) for number in range(int(first), int(end))]

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of all files."""
        columns = self.data.columns
        return [
            Column(name, encoding)
            for name, encoding in zip(columns.names, columns.encodings, strict=True)
        ]

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield samples as the bytes of their columns."""
        name, shards, row = part.address
        kind, files = self.format_of(name), self.open_files()
        for shard in shards:
            split_columns = column_splitter(shard.columns, self._decoded_columns)
            # A block has the encoded samples of some rows end to end, and the size of each.
            for block in kind.blocks(shard, files):
                data, start = memoryview(block.data), 0
                for size in block.sizes.tolist():
                    yield row, split_columns(data[start : start + size])
                    start += size
                    row += 1

    def describe(self) -> str:
        """Summarise number of files, bytes, shards and samples."""
        table = self.data.table
        samples = int(table.samples.sum())
        return f"{self.listing}, {len(table):,} shards, {samples:,} samples"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_data": None}


# ---------------------------------------------------------------------- tables


class TablesInput(ShardsInput):
    """The rows of Parquet and Arrow files and of Delta and Iceberg tables.

    Rows are Python values and are encoded again, because formats give columns encodings that old
    readers do not know (`portable_encoding`). The arguments are those of `FormatInput`.
    """

    title: ClassVar[str] = "table of columns"
    endings: ClassVar[frozenset[str]] = frozenset({*Parquet.endings, *Arrow.endings})
    reads: ClassVar[type[Format]] = Columnar  # type: ignore[type-abstract]

    def __init__(
        self,
        listing: Listing,
        kind: Format | None = None,
        data_files: Sequence[DataFile] | None = None,
        facts: Mapping[str, bytes] | None = None,
    ) -> None:
        super().__init__(listing, kind, data_files, facts)
        #: Columns and shards of each file, by its name.
        self._plans: dict[str, FilePlan] = {}
        #: Encoding of each column of all files, as the format gives it.
        self._encodings: dict[str, str] = {}

    def begin(self, options: InputOptions) -> None:
        """Plan the shards of each file. Raises SourceError for a file that cannot be read."""
        del options
        files = self.open_files()

        def plan(file: DataFile) -> FilePlan:
            """Plan the shards of one file, in a thread."""
            return self.format_of(file.key).plan_file(file, files)

        with _source_errors(), ThreadPoolExecutor(_FILES_SIDE_BY_SIDE, "mds-plan") as pool:
            plans = pool.map(plan, self._data_files)
            for file, file_plan in zip(self._data_files, plans, strict=True):
                self._plans[file.key] = file_plan
                self._add_columns(file, file_plan)

    def _add_columns(self, file: DataFile, plan: FilePlan) -> None:
        """Add the columns of a file, which may lack some. Raises SourceError if they differ."""
        for name, encoding in plan.columns.items():
            before = self._encodings.setdefault(name, encoding)
            merged = merge_encodings(before, encoding)
            if merged is None:
                first = next(key for key, each in self._plans.items() if name in each.columns)
                raise SourceError(
                    f"{self.open_files().url(file)}: column {name!r} is {encoding}, but in {first} "
                    f"it is {before}. Convert the files one by one."
                )
            self._encodings[name] = merged

    def format_of(self, name: str) -> Columnar:
        """Return the format of a file: the format of all files, else by its ending."""
        if isinstance(self.kind, Columnar):
            return self.kind
        return Parquet() if name.lower().endswith(Parquet.endings) else Arrow()

    def shards_of(self, file_number: int) -> Sequence[ShardPlace]:
        """Return the shards of a file, with the columns of the file itself."""
        file = self._data_files[file_number]
        plan = self._plans[file.key]
        columns = as_columns(plan.columns)
        # Without spans, the address of a shard is its number.
        spans = plan.spans or [(shard, shard) for shard in range(len(plan.samples))]
        return [
            ShardPlace(file, span, samples, plan.note, columns)
            for span, samples in zip(spans, plan.samples, strict=True)
            if samples
        ]

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of all files."""
        # Columns that have nulls, or that some files lack.
        null_columns: set[str] = set()
        for name, plan in self._plans.items():
            null_columns |= self.format_of(name).known_nulls(plan)
            null_columns |= self._encodings.keys() - plan.columns.keys()
        rows = [record for _, record in zip(range(_PROBED_ROWS), self.probe(), strict=False)]
        columns = []
        for name, encoding in sorted(self._encodings.items()):
            values = [row[name] for row in rows if name in row]
            portable, note = portable_encoding(encoding, values, has_nulls=name in null_columns)
            columns.append(Column(name, portable, show_value(values[0]) if values else "", note))
        return columns

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield one sample per row."""
        name, shards, row = part.address
        kind, files = self.format_of(name), self.open_files()
        for shard in shards:
            names = shard.columns.names
            place = f"{files.url(name)}, {kind.shard_of(shard)}"  # for errors
            # A batch is a `pyarrow.RecordBatch`.
            for batch in kind.batches(shard, names, files, place):
                # Some files lack columns that others have: their samples lack the key.
                present_names = [each for each in names if each in batch.schema.names]
                # Python objects take much memory, so few rows are converted at once.
                for begin in range(0, batch.num_rows, _ROWS):
                    piece = batch.slice(begin, _ROWS)
                    columns = [python_values(piece.column(each)) for each in present_names]
                    for values in zip(*columns, strict=True):
                        yield row, dict(zip(present_names, values, strict=True))
                        row += 1

    def describe(self) -> str:
        """Summarise number of files, bytes and rows."""
        rows = sum(sum(plan.samples) for plan in self._plans.values())
        return f"{self.listing}, {rows:,} rows"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_plans": {}}


#: First bytes of image files, by encoding.
_IMAGE_STARTS = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_BYTES_ENCODINGS = ("bytes", "jpeg", "png", "audio")


def portable_encoding(
    encoding: str, values: Sequence[Any], *, has_nulls: bool = False
) -> tuple[str, str]:
    """Return the encoding that old readers know for a column of a table, and a note.

    `tensor`, `bool` and `optional` are younger than the format of shards, so arrays become
    `ndarray`, and truth values and columns with nulls become `json`.

    - ``encoding`` (str): The encoding that a format gives the column.
    - ``values`` (Sequence): Some values of the column.
    - ``has_nulls`` (bool, default False): Whether other values are known to be null or, in a column
      of lists, empty. A column that may have nulls, and is not known to, gets a plain encoding.
    """
    plain = encoding[len("optional[") : -1] if encoding.startswith("optional[") else encoding
    plain = plain.replace("tensor:", "ndarray:", 1)
    lacks_values = has_nulls or any(value is None for value in values)
    if plain == "json":
        return "json", "nested" if any(value is not None for value in values) else ""
    if plain.startswith("ndarray:"):
        has_gaps = lacks_values or any(len(value) == 0 for value in values)
        return ("json", "some lists are empty or null") if has_gaps else (plain, "")
    if plain in _BYTES_ENCODINGS:
        plain, note = _bytes_encoding([value for value in values if value is not None])
        # JSON cannot hold bytes.
        return (f"optional[{plain}]", "sometimes null") if lacks_values else (plain, note)
    if lacks_values:
        return "json", "sometimes null"
    return ("json", "true or false") if plain == "bool" else (plain, "")


def _bytes_encoding(values: Sequence[Any]) -> tuple[str, str]:
    """Return `jpeg` or `png` if every value is such a file, else `bytes`, and a note."""
    for encoding, start in _IMAGE_STARTS.items():
        if values and all(isinstance(v, bytes) and v.startswith(start) for v in values):
            return encoding, "stored unchanged"
    return "bytes", ""


# ---------------------------------------------------------------------- tars


class WebDatasetInput(FormatInput):
    """Tars of samples: files with one name before the first dot, a column for each ending.

    A part is a run of samples in one tar. To cut a tar, only the headers of its members are read.
    A tar that is compressed or behind a URL is read from its beginning to its end and is one part.
    """

    title: ClassVar[str] = "WebDataset"
    endings: ClassVar[frozenset[str]] = frozenset({".tar", ".tgz"})
    reads: ClassVar[type[Format]] = Tar
    has_late_keys: ClassVar[bool] = True

    def begin(self, options: InputOptions) -> None:
        """Set the column that decides the split of a sample: its key."""
        del options
        self.key = KEY

    def infer_columns(self) -> Sequence[Column]:
        """Return the column of the key, and one per ending."""
        values_of: dict[str, list[Any]] = {}
        count = 0
        for record in self.probe():
            count += 1
            for name, value in record.items():
                values_of.setdefault(name, []).append(value)
            if count == _PROBED_TAR_SAMPLES:
                break
        columns = []
        for name, values in sorted(values_of.items()):
            by_ending = encoding_by_ending(name)
            encoding, note = (by_ending, "") if by_ending else encoding_of(values)
            if encoding in ("jpeg", "png"):
                note = "stored unchanged"
            if len(values) < count:
                note = f"only in {len(values)} of the first {count} samples"
            columns.append(Column(name, encoding, show_value(values[0]), note))
        return columns

    def cut_file(self, name: str, length: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of about ``size`` bytes that begin and end where a sample does."""
        file, files = DataFile(name, length), self.open_files()
        if length <= size or not _can_cut(file, files):
            yield 0, length
            return
        start = 0
        for sample, _ in Tar.samples(file, files):
            # `sample.start` is the byte at which the header of its first member begins.
            if sample.start - start >= size:
                yield start, sample.start
                start = sample.start
        yield start, length

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield one sample per key, which is its position."""
        _, start, end, file = part.address
        files = self.open_files()
        # The bytes of the tar to read; None: all of them, as a tar that cannot be cut is one part.
        span = (start, end) if _can_cut(file, files) else None
        for sample, read_bytes in Tar.samples(file, files, span):
            yield _tar_record(sample, read_bytes)

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the tar and the key."""
        return f"{os.path.join(self.root, part.address[0])}, sample {position}"


def _can_cut(file: DataFile, files: Files) -> bool:
    """Return whether samples of a tar can be read without those before them."""
    return not files.is_far and compression_of(file.key) is None


def _tar_record(sample: TarSample, read: ReadAt) -> Record:
    """Return the key of a sample, and its values by ending or the reason why it has none.

    - ``read`` (function): Returns the bytes of the tar from one offset to another.
    """
    if sample.problem:
        return sample.key, BadRecord(sample.problem)
    record: dict[str, Any] = {KEY: sample.key}
    name = ""
    try:
        for ending, member in sample.files.items():
            name = member.name
            data = read(member.start, member.start + member.size)
            if len(data) < member.size:  # the size of a compressed tar is not known before
                return sample.key, BadRecord(f"the tar ends inside the file {name!r}")
            record[ending] = value_of(ending, data)
    except ValueError as error:
        return sample.key, BadRecord(f"the file {name!r}: {error}")
    return sample.key, record


# ---------------------------------------------------------------------- lines


class LinesInput(FormatInput):
    """Files whose lines are records; subclasses say what a line means.

    A plain file is cut at any byte, and a part takes the lines that begin in it, so that several
    processes read one large file without a pass over it first. A compressed file is one part.
    """

    takes: ClassVar[frozenset[str]] = frozenset({"encoding"})
    #: The format that says what a line is.
    lines: ClassVar[Lines]

    def begin(self, options: InputOptions) -> None:
        """Take the encoding of the text from the options."""
        self.encoding = options.encoding or self.encoding

    @abstractmethod
    def describe_fault(self, line: bytes, error: ValueError) -> BadRecord:
        """Return what is wrong with a line that is no record."""

    def cut_file(self, name: str, length: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield byte ranges of ``size`` bytes, whatever lines are there; see the class."""
        step = length if compression_of(name) else size
        for start in range(0, length, max(step, 1)):
            yield start, min(start + step, length)

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield the records of the lines that begin in the part."""
        _, start, end, file = part.address
        for offset, line in read_lines(file, start, end, self.open_files()):
            if not (self.lines.skips_blank and line.isspace()):
                yield offset, self._record(line)

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the file and the number of the line, from 1; the lines before it are counted."""
        name, _, _, file = part.address
        path = os.path.join(self.root, name)
        with contextlib.closing(content(file, self.open_files())) as chunks:
            return f"{path}, line {line_number(chunks, position)}"

    def _record(self, line: bytes) -> dict[str, Any] | BadRecord:
        """Return the record of a line, or what is wrong with it."""
        try:
            # Formats read UTF-8 only. A line in another encoding of the user is converted.
            is_utf8 = self.encoding == "utf-8"
            return self.lines.record(line if is_utf8 else line.decode(self.encoding).encode())
        except UnicodeDecodeError as error:
            return bad_line(line, error)
        except RecursionError as error:
            return BadRecord(f"this is not JSON that Python can read: {error}")
        except ValueError as error:
            return self.describe_fault(line, error)


def line_number(chunks: Iterable[bytes], offset: int) -> int:
    """Return the number, from 1, of the line that begins at the byte ``offset`` of some content."""
    # Count the line breaks before the offset, which is made relative to each chunk.
    number = 1
    for chunk in chunks:
        number += chunk.count(b"\n", 0, max(offset, 0))
        offset -= len(chunk)
        if offset <= 0:
            break
    return number


class TextLinesInput(LinesInput):
    """Every line of the files is a sample; empty ones too."""

    title: ClassVar[str] = "lines of text"
    reads: ClassVar[type[Format]] = TextLines
    lines: ClassVar[Lines] = TextLines()

    @classmethod
    def recognizes(cls, path: str) -> bool:
        """Return False: a text file is a document unless ``--format lines`` is given."""
        del path
        return False

    def infer_columns(self) -> Sequence[Column]:
        """Return the column of the text."""
        first = next((record for record in self.probe()), {"text": ""})
        return [Column("text", "str", show_value(first["text"]))]

    def describe_fault(self, line: bytes, error: ValueError) -> BadRecord:
        """Return the error: no line of text that can be decoded has a fault."""
        del line
        return BadRecord(str(error))


class JsonLinesInput(LinesInput):
    """One JSON object a line; every object is a sample."""

    title: ClassVar[str] = "JSON lines"
    endings: ClassVar[frozenset[str]] = frozenset({".jsonl", ".ndjson", ".json"})
    reads: ClassVar[type[Format]] = JsonLines
    lines: ClassVar[Lines] = JsonLines()
    is_json: ClassVar[bool] = True
    has_late_keys: ClassVar[bool] = True

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open lines, or lists if the files hold lists."""
        lists = [name for name in listing.names if is_document(listing.path(name))]
        if lists and len(lists) < len(listing):
            raise SourceError(
                f"{listing.root}: some files are one JSON document ({lists[0]}), others are JSON "
                "lines. Convert them one by one, or choose with --include."
            )
        opened = JsonListInput(listing) if lists else JsonLinesInput(listing)
        opened.begin(options)
        return opened

    def infer_columns(self) -> Sequence[Column]:
        """Infer columns that hold every value of the probed records."""
        return infer_columns(self.probe())

    def describe_fault(self, line: bytes, error: ValueError) -> BadRecord:
        """Return what is wrong with the JSON of a line, and in which column."""
        if isinstance(error, json.JSONDecodeError):
            text = show_value(line.rstrip().decode("utf-8", "replace"))
            return BadRecord(f"{error.msg} in {text}", column=error.colno)
        return BadRecord(str(error))


class JsonListInput(JsonLinesInput):
    """Files that each hold one JSON list of objects, or one object over several lines.

    A file is one part: a list can only be cut after it was read.
    """

    title: ClassVar[str] = "JSON list"
    endings: ClassVar[frozenset[str]] = frozenset()

    def cut_file(self, name: str, length: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield one part per file."""
        del name, size
        yield 0, length

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield the objects of the list, numbered from 1; 0 is for a fault of the whole file."""
        _, _, _, file = part.address
        data = b"".join(content(file, self.open_files()))
        try:
            items = json.loads(data if self.encoding == "utf-8" else data.decode(self.encoding))
        except UnicodeDecodeError as error:
            yield 0, BadRecord(not_utf8(data, error))
            return
        except ValueError as error:
            yield 0, BadRecord(f"this is not JSON: {error}")
            return
        for number, item in enumerate(items if isinstance(items, list) else [items], 1):
            yield number, item if isinstance(item, dict) else _not_an_object(item)

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the file and the number of the item."""
        path = os.path.join(self.root, part.address[0])
        return f"{path}, item {position}" if position else path


def is_document(path: str) -> bool:
    """Return whether a JSON file is one list or one object, instead of an object per line."""
    if compression_of(path):
        return False
    with open(path, "rb") as file:
        start = file.read(4096).removeprefix(_BOM).lstrip()
    # json.dump(indent=...) writes a brace alone on the first line; JSON lines do not.
    first, _, following = start.partition(b"\n")
    return start[:1] == b"[" or (first.strip() == b"{" and bool(following.strip()))


def _not_an_object(value: Any) -> BadRecord:
    return BadRecord(f"expected an object with the columns as keys, got {show_value(value)}")
