"""Samples that are files: each row has one or more of them, and consecutive rows make a shard.

    kind of rows       a sample                                   format
    a listing          a file, perhaps with the class of its      ImageFiles, AudioFiles, TextFiles,
                       folder                                     RawFiles without a manifest
    a table            a row of the table and the file it names   RawFiles, Metadata
    pairs              files with one name before the ending      PairedFiles

A kind says which rows there are (`RowsOfFiles.list_rows`, or `find` and `rows_of` if no folder is
listed). All else is here: files of a shard are fetched side by side, files on a local disk are read
in place, and a file that cannot be a sample is a `Problem` with its name.

The column that a file becomes says what the file must be (`content_kind`):

    image    the bytes of a picture           text     text, in the encoding of the format
    audio    the bytes of a sound             bytes    the bytes of the file, as they are
    array    a file .npy, or text             others   text, which is parsed

A shard is named by its first file, and has the bytes of all of its files. Its note has the rows
(`pack_rows`): values by column, and path, size and version of each file.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from mds._words import plural
from mds.errors import ConfigError, FormatError, NotFoundError
from mds.formats._base import Format
from mds.formats._columns import without_optional
from mds.formats._encode import Fitting, encode_records, sample_encoder
from mds.formats._facts import Block, DataFile, FilePlan, FoundFiles, Problem, ShardPlace
from mds.formats._fit import as_json
from mds.formats._made_reader import MadeReader
from mds.formats._media import PICTURE_STARTS, SOUND_STARTS
from mds.formats._names import FolderClasses, check_class_links, find_splits
from mds.formats._source import memory_error, read_local
from mds.formats._suggestions import fit_chosen
from mds.formats._unpack import unpack_document
from mds.formats._utf8 import decode_document
from mds.storage._base import check_key

if TYPE_CHECKING:
    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds._shardfile.layout import Columns
    from mds.formats._source import FilePlace, Files

#: Values by column, as JSON has them.
Values = dict[str, Any]
#: Returns the bytes of a file.
ReadFile = Callable[[DataFile], bytes]

#: Key of the only value of an object that stands for bytes.
_BASE64 = "\0base64"
_LARGEST_ROWS = 1 << 30  # bytes of the rows of a shard as JSON

#: Beginnings of the encodings whose values are made of lists, but for "optional[".
ARRAYS = ("ndarray", "tensor")
#: First bytes of a file .npy.
_NPY = b"\x93NUMPY"
#: First bytes of the files of a kind, and what a file is that has them.
_STARTS = {"image": PICTURE_STARTS, "audio": SOUND_STARTS}
_NAMES = {"image": "a picture", "audio": "wav, flac, mp3 or ogg"}
#: Remedy for a file that is no sample.
LEAVE_OUT = (
    "Remove it, or leave such samples out with on_error='skip' (mds-convert --on-error skip)."
)


class FileRow(NamedTuple):
    """A row: values and files, by column. ``problem`` says why it is no sample, or is ''."""

    values: Mapping[str, Any]
    files: Mapping[str, DataFile]
    problem: str = ""

    @property
    def path(self) -> str:
        """Path of the file that names the row in errors."""
        first = next(iter(self.files.values()), None)
        return self.values["path"] if first is None else first.key


class ListedRows(NamedTuple):
    """All rows of a dataset.

    - ``columns``: encodings by column.
    - ``rows``: the rows, in the order of their samples.
    - ``split_of``: split of each row by its path; None if its folders name it.
    - ``extras``: columns that a sample has only if ``columns`` names them.
    - ``classes``: names of the classes that the column ``label`` counts; empty if it counts none.
    - ``notes``: sentences for the plan of a conversion.
    """

    columns: Mapping[str, str]
    rows: Sequence[FileRow]
    split_of: Mapping[str, str] | None = None
    extras: Sequence[str] = ()
    classes: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsOfFiles(Format):
    """Base of formats whose samples are files; see the module's docstring.

    - ``samples_per_shard`` (int, default 256): Number of consecutive rows in a shard. Another
      number changes the order of an epoch.
    """

    has_many_samples: ClassVar[bool] = False

    samples_per_shard: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples_per_shard < 1:
            raise ConfigError(f"samples_per_shard={self.samples_per_shard} must be at least 1.")

    # ------------------------------------------------------------------ rows

    def list_rows(self, place: FilePlace, files: Files) -> ListedRows:
        """Return the rows of all files of a place, and count the files that are left out."""
        raise NotImplementedError

    def find(self, place: FilePlace, source: Files) -> FoundFiles:
        """List the rows, and return a file for each shard, with the shard's rows as its facts."""
        listed = self.list_rows(place, source)
        split_of = listed.split_of
        if split_of is None:
            split_of = find_splits([row.path for row in listed.rows], by_file=False)
        shards: list[DataFile] = []
        facts: dict[str, bytes] = {}
        for rows in self._cut_rows(listed.rows, split_of):
            # The size of all of its files, so that states and costs count every file.
            all_files = [file for row in rows for file in row.files.values()]
            first = all_files[0]
            shards.append(first._replace(size=sum(file.size for file in all_files)))
            plan = json.dumps({"columns": listed.columns, "rows": len(rows)}).encode()
            facts[first.key] = plan + b"\n" + pack_rows(_as_json(rows), source.url(first))
        splits = {file.key: split_of[file.key] for file in shards} if split_of else {}
        class_names = {"label": listed.classes} if listed.classes else {}
        return FoundFiles(
            shards,
            facts=facts,
            splits=splits,
            class_names=class_names,
            extras=tuple(listed.extras),
            notes=tuple(listed.notes),
        )

    def _cut_rows(
        self, all_rows: Sequence[FileRow], split_of: Mapping[str, str]
    ) -> Iterator[Sequence[FileRow]]:
        """Yield the rows of each shard, all of one split; the first row has a file."""
        step = self.samples_per_shard
        splits: list[str | None] = [*sorted({*split_of.values()})] or [None]
        for split in splits:
            rows = [row for row in all_rows if split_of.get(row.path) == split]
            # Rows whose files do not exist follow those of the last shard, which has a name.
            lost_rows = [row for row in rows if not row.files]
            rows = [row for row in rows if row.files]
            last = max(len(rows) - 1, 0) // step * step
            for start in range(0, len(rows), step):
                yield rows[start : start + step] + (lost_rows if start == last else [])

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Return one shard, of the rows that `find` put together. No file is read."""
        plan, _, note = files.facts[file.key].partition(b"\n")
        facts = json.loads(plan)
        return FilePlan(facts["columns"], samples=[facts["rows"]], sizes=[file.size], note=note)

    def rows_of(self, shard: ShardPlace) -> Sequence[FileRow]:
        """Return the rows of a shard, checked since the table may be from anywhere."""
        location = shard.file.key
        try:
            rows = [_parse_row(*row) for row in unpack_rows(shard.note, location)]
        except (TypeError, ValueError, AttributeError) as error:
            raise damaged_table(location, str(error)) from error
        check_count(rows, shard)
        return rows

    # ------------------------------------------------------------------ reading

    def shard_of(self, shard: ShardPlace) -> str:
        """Describe a shard by its number of files and its first one."""
        return f"{plural(shard.samples, 'file')} from {shard.file.key!r}"

    def location_of(self, shard: ShardPlace, row: int, files: Files) -> str:
        """Return the URL of the file of a sample."""
        return files.url(self.rows_of(shard)[row].path)

    def share(self, shard: ShardPlace) -> float:
        """Return 1, or 0 if no file needs to be read for the wanted columns."""
        return 1.0 if {*shard.columns.names} & _content_columns(self.rows_of(shard)) else 0.0

    def cut(self, shard: ShardPlace, files: Files, size: int) -> Iterator[ShardPlace]:
        """Yield runs of rows whose files have about ``size`` bytes together."""
        del files
        rows = unpack_rows(shard.note, shard.file.key)
        ends = np.cumsum([sum(file[1] for file in row[1].values()) for row in rows])
        first = 0
        while first < len(rows):
            start = int(ends[first - 1]) if first else 0
            last = max(int(np.searchsorted(ends, start + size, "right")), first + 1)
            note = pack_rows(rows[first:last], shard.file.key)
            yield dataclasses.replace(shard, samples=last - first, note=note)
            first = last

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block | Problem]:
        """Yield the rows of a shard; files behind a network are fetched side by side."""
        rows = self.rows_of(shard)
        make = self._sample_maker(shard, files.whole, files.url)
        samples = files.map(make, rows) if files.is_far else map(make, rows)
        yield from encode_records(
            shard.columns,
            samples,
            lambda row: files.url(rows[row].path),
            self._fitting(shard.columns, rows),
        )

    def can_range(self, shard: ShardPlace) -> bool:
        """Return True: a sample has files of its own."""
        del shard
        return True

    def rows(self, shard: ShardPlace, rows: Sequence[int], files: Files) -> Mapping[int, bytes]:
        """Return the samples of some rows, fetching their files alone."""
        rows_of_shard = self.rows_of(shard)
        encode = sample_encoder(shard.columns, self._fitting(shard.columns, rows_of_shard))
        make = self._sample_maker(shard, files.whole, files.url)
        samples = files.map(make, [rows_of_shard[row] for row in rows])
        return {
            row: encode(
                _raise_problem(sample), functools.partial(files.url, rows_of_shard[row].path)
            )
            for row, sample in zip(rows, samples, strict=True)
        }

    def is_read_in_place(self, files: Sequence[DataFile]) -> bool:
        """Return True: a file on a local disk is read when its sample is asked for."""
        del files
        return True

    def reader(self, shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader:
        """Return a reader that opens the files of each sample.

        ``path`` is the local path of the shard's file, from which the dataset's folder follows.
        """
        root = path[: -len(shard.file.key)]
        rows = self.rows_of(shard)
        encode = sample_encoder(shard.columns, self._fitting(shard.columns, rows))

        def url(key: str) -> str:
            return f"{root}{key}"

        make = self._sample_maker(shard, lambda file: read_local(url(file.key), file.version), url)

        def mds_bytes(row: int) -> bytes:
            """Return the bytes of a sample as in an MDS shard."""
            try:
                sample = _raise_problem(make(rows[row]))
                return encode(sample, lambda: url(rows[row].path))
            except MemoryError as error:
                raise memory_error(url(rows[row].path)) from error

        return MadeReader(shard.columns, shard.samples, path, mds_bytes, columns)

    @property
    def _text_encoding(self) -> str:
        """Encoding of texts in files."""
        return "utf-8"

    def _fitting(self, columns: Columns, rows: Sequence[FileRow]) -> Fitting | None:
        """Return the functions that fit values to their columns, if any needs one.

        Rows are JSON, which has lists for arrays and texts for decimals, and the content of a file
        may be a text to parse.
        """
        contents = _content_columns(rows)
        fitted = {
            name: encoding
            for name, encoding in zip(columns.names, columns.encodings, strict=True)
            if without_optional(encoding).startswith((*ARRAYS, "str_decimal"))
            or (name in contents and content_kind(name, encoding) == "parsed")
        }
        return fit_chosen(columns, {**(self.encodings or {}), **fitted}, type(self).__name__)

    def _lister(self, shard: ShardPlace) -> str:
        """Return the name of the table that names files which may not exist; '' if all did."""
        del shard
        return ""

    def _sample_maker(
        self, shard: ShardPlace, read: ReadFile, url: Callable[[str], str]
    ) -> Callable[[FileRow], Mapping[str, Any] | Problem]:
        """Return a function that makes the sample of a row, or says why it is none.

        Args:
            shard: The shard of the rows, with the wanted columns.
            read: Reads a file. Raises NotFoundError if there is none, and FormatError if it cannot
                be read.
            url: Returns the URL of a file, for errors.
        """
        columns = shard.columns
        kinds = {
            name: content_kind(name, encoding)
            for name, encoding in zip(columns.names, columns.encodings, strict=True)
        }
        lister = self._lister(shard)

        def make(row: FileRow) -> Mapping[str, Any] | Problem:
            if row.problem:
                return Problem(url(row.path), row.problem)
            sample = dict(row.values)
            for column, file in row.files.items():
                if column not in kinds:
                    continue
                try:
                    sample[column] = self._value(column, kinds[column], read(file), file, url)
                except NotFoundError:
                    if not lister:
                        raise
                    return missing_file(url(file.key), lister)
                except FormatError as error:
                    return Problem.of(error, url(file.key))
            return sample

        return make

    def _value(
        self, column: str, kind: str, data: bytes, file: DataFile, url: Callable[[str], str]
    ) -> Any:
        """Return the content of a file as a value. Raises FormatError for another kind of file.

        Args:
            column: The column.
            kind: What the file must be, see `content_kind`.
            data: Its content.
            file: The file.
            url: Returns its URL, for errors.
        """
        if kind == "array" and data.startswith(_NPY):
            try:
                return np.load(io.BytesIO(data), allow_pickle=False)
            except Exception as error:  # NumPy raises errors of many classes for damage
                raise FormatError(Problem(url(file.key), str(error), LEAVE_OUT)) from error
        if kind in ("text", "parsed", "array"):
            location = url(file.key)
            try:
                return decode_document(
                    unpack_document(data, location), file.key, self._text_encoding
                )
            except FormatError:
                raise
            except ValueError as error:
                if kind != "text":
                    raise FormatError(
                        Problem(
                            f"{location}, column {column!r}",
                            "the file is not text, so it cannot be parsed for the encoding of the "
                            "column",
                            f"Store its bytes with encodings={{{column!r}: 'bytes'}}.",
                        )
                    ) from error
                place, _, reason = str(error).partition(": ")  # line and column
                raise FormatError(Problem(f"{location}, {place}", reason)) from error
        if kind in _STARTS and not data.startswith(_STARTS[kind]):
            reason = f"it starts with {data[:8]!r}"
            reason = f"this is not {_NAMES[kind]}: {reason}" if data else "it is empty"
            raise FormatError(Problem(url(file.key), reason, LEAVE_OUT))
        return data


def _content_columns(rows: Sequence[FileRow]) -> set[str]:
    """Return the columns of rows that come from files."""
    return {column for row in rows for column in row.files}


def content_kind(column: str, encoding: str) -> str:
    """Return what a file must be: "image", "audio", "text", "array"; "bytes" for any file.

    It is "parsed" for a text from which the value of a column with another encoding is parsed.

    Args:
        column: Column of the content.
        encoding: Encoding of the column.
    """
    plain = without_optional(encoding)
    if plain == "str":
        return "text"
    if plain in ("jpeg", "png"):
        return "image"
    if plain.startswith(ARRAYS):
        return "array"
    if plain not in ("bytes", "audio"):
        return "parsed"
    return column if column in ("image", "audio") else "bytes"


def find_classes(
    keys: Sequence[str], files: Files, takes: Callable[[str], bool]
) -> FolderClasses | None:
    """Return the classes of the folders of files, or None if a file has none.

    Args:
        keys: Paths of the files.
        files: All files of the folder: those that a pattern leaves out count classes, too.
        takes: Returns True for a file of the format.

    Raises DeniedError for the folder of a class behind a link that is not followed.
    """
    if not FolderClasses.are_in(keys):
        return None
    check_class_links(files.url(""), files.untrusted_folders)
    return FolderClasses(keys, [*filter(takes, files.not_included)])


def missing_file(location: str, table: str) -> Problem:
    """Return the problem of a row whose file does not exist.

    Args:
        location: URL of the file.
        table: Path of the table that names it.
    """
    return Problem(location, missing_reason(table), "Remove the row, or add the file.")


def missing_reason(table: str) -> str:
    """Return why a row whose file does not exist is no sample."""
    return f"{table} lists it, but there is no such file"


def _raise_problem(sample: Mapping[str, Any] | Problem) -> Mapping[str, Any]:
    """Return a sample. Raises FormatError for a problem."""
    if isinstance(sample, Problem):
        raise FormatError(sample)
    return sample


# --------------------------------------------------------------------- packed rows


def _as_json(rows: Iterable[FileRow]) -> list[Any]:
    """Return rows as values of JSON: values, files by column, and the problem if there is one."""
    return [
        [row.values, row.files, row.problem] if row.problem else [row.values, row.files]
        for row in rows
    ]


def _parse_row(values: Values, files: Mapping[str, Sequence[Any]], problem: str = "") -> FileRow:
    """Return a row that `_as_json` described. Raises ValueError for a path outside the folder."""
    data_files = {column: DataFile(*file) for column, file in files.items()}
    for file in data_files.values():
        check_key(file.key)  # so that it stays below the dataset's folder
    return FileRow(dict(values), data_files, problem)


def pack_rows(rows: Sequence[Any], location: str) -> bytes:
    """Compress rows as JSON, in which bytes are base64, and dates and decimals are texts.

    Raises FormatError for a value that JSON does not have.
    """
    import zstandard

    def as_known(value: Any) -> Any:
        """Return a value that JSON does not have as one that it has."""
        if isinstance(value, bytes):
            return {_BASE64: base64.b64encode(value).decode()}
        if (known := as_json(value)) is value:
            raise TypeError(f"{type(value).__name__} {value!r} is no value of JSON")
        return known

    try:
        text = json.dumps(rows, default=as_known)
    except TypeError as error:
        raise FormatError(
            f"{location}: {error}; the table may have numbers, texts, dates, bytes, and lists of "
            "them."
        ) from error
    return zstandard.ZstdCompressor().compress(text.encode())


def unpack_rows(data: bytes, location: str) -> list[Any]:
    """Return the rows that `pack_rows` packed. Raises FormatError for other bytes."""
    import zstandard

    unpack = zstandard.ZstdDecompressor().decompress
    try:
        text = unpack(data, max_output_size=_LARGEST_ROWS)
        has_bytes = json.dumps(_BASE64).encode() in text
        return [*json.loads(text, object_hook=_as_bytes if has_bytes else None)]
    except (ValueError, TypeError, RecursionError, zstandard.ZstdError) as error:
        raise damaged_table(location, str(error)) from error


def _as_bytes(value: dict[str, Any]) -> Any:
    """Return the bytes that `pack_rows` made an object of; other objects as they are."""
    return base64.b64decode(value[_BASE64]) if {*value} == {_BASE64} else value


def check_count(rows: Sequence[Any], shard: ShardPlace) -> None:
    """Raise FormatError unless there is a row for each sample of a shard."""
    if len(rows) != shard.samples:
        reason = f"{plural(len(rows), 'row')} for a shard of {shard.samples:,}"
        raise damaged_table(shard.file.key, reason)


def damaged_table(location: str, reason: str) -> FormatError:
    """Return the error for rows of a shard that are not those that were written."""
    return FormatError(
        f"the table of files has no rows of {location}: {reason}. Delete the table, or run mds "
        "index again."
    )
