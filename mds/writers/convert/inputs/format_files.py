"""Tables of columns: Parquet, Arrow files and streams, Delta and Iceberg, through their formats.

Files are planned and read by `mds.formats`, as a dataset of them would be: there is no second
reader here. A part is a run of shards (row groups, record batches) of one file. What a format has a
younger encoding for becomes one that every reader knows: `tensor`, `bool` and `optional` are
younger than the format, and old readers do not know them (`portable_encoding`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from mds.errors import ConfigError, FormatError, SourceError
from mds.formats.arrow_files import Arrow
from mds.formats.arrow_values import python_values
from mds.formats.columnar import Columnar
from mds.formats.columns import as_columns, merge_encodings
from mds.formats.facts import DataFile, FilePlan, ShardPlace
from mds.formats.infer import Column, show_value
from mds.formats.lake import TableFormat
from mds.formats.parquet import Parquet
from mds.formats.place import has_pattern, parse_place
from mds.formats.registry import DELTA_LOG, format_of_files
from mds.formats.source import Files, open_pinned
from mds.storage import is_local, open_store, redact
from mds.writers.convert.inputs.base import Input, InputOptions, InputPart, Record
from mds.writers.convert.inputs.file_input import FileInput
from mds.writers.convert.inputs.listing import Listing, is_wanted

#: Records probed to infer columns, besides the schemas of files; files planned at a time.
_PROBED, _SIDE_BY_SIDE = 100, 16
#: Rows that are Python values at a time.
_ROWS = 1024
_FILES = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_OF_BYTES = ("bytes", "jpeg", "png", "audio")


def portable_encoding(
    encoding: str, values: Sequence[Any], *, has_nulls: bool = False
) -> tuple[str, str]:
    """Return the encoding that old readers know for a column of a file, and a note.

    ``values`` are some of the column's; ``has_nulls``: whether others are known to be null (of a
    list also: empty). What may be null and is not known to be is a plain column.
    """
    plain = encoding[len("optional[") : -1] if encoding.startswith("optional[") else encoding
    plain = plain.replace("tensor:", "ndarray:", 1)
    lacks = has_nulls or any(value is None for value in values)
    if plain == "json":
        return "json", "nested" if any(value is not None for value in values) else ""
    if plain.startswith("ndarray:"):
        is_short = lacks or any(len(value) == 0 for value in values)
        return ("json", "some lists are empty or null") if is_short else (plain, "")
    if plain in _OF_BYTES:
        plain, note = _of_bytes([value for value in values if value is not None])
        # JSON has no word for bytes.
        return (f"optional[{plain}]", "sometimes null") if lacks else (plain, note)
    if lacks:
        return "json", "sometimes null"
    return ("json", "true or false") if plain == "bool" else (plain, "")


def _of_bytes(values: Sequence[Any]) -> tuple[str, str]:
    """`jpeg` or `png` where every value is such a file, else `bytes`."""
    for encoding, start in _FILES.items():
        if values and all(isinstance(v, bytes) and v.startswith(start) for v in values):
            return encoding, "stored as it is"
    return "bytes", ""


class TablesInput(FileInput):
    """The rows of all files, which have columns that go together."""

    title: ClassVar[str] = "table of columns"
    endings: ClassVar[frozenset[str]] = frozenset({*Parquet.endings, *Arrow.endings})

    def __init__(self, listing: Listing, kind: Columnar | None = None) -> None:
        super().__init__(listing)
        #: Of all files; None where their endings say it.
        self._kind = kind
        self._files: Sequence[DataFile] = [
            DataFile(name, size) for name, size in zip(listing.names, listing.sizes, strict=True)
        ]
        self._facts: Mapping[str, bytes] = {}
        self._plans: dict[str, FilePlan] = {}
        self._encodings: dict[str, str] = {}
        self._nulls: set[str] = set()

    @classmethod
    def recognizes(cls, path: str) -> bool:
        """Return whether a path is a URL or pattern of table files, or a table with a log."""
        return _kind_at(path) is not None

    @classmethod
    def open(cls, path: str, options: InputOptions) -> Input:
        """Open the tables of a file, a folder, a URL or a pattern."""
        kind = _kind_at(path)
        if kind is None:
            return super().open(path, options)
        if isinstance(kind, TableFormat) and (options.include or options.exclude):
            raise SourceError(
                f"{redact(path)}: --include and --exclude choose files, and those of a table of "
                f"{kind.name} cannot be chosen: a row may be in each. Convert all of it, or its "
                f"Parquet files by a pattern, deleted rows and all."
            )
        place = kind.narrow(parse_place(path, kind.endings))
        files = open_pinned(place.root, open_store)
        try:
            listed = kind.find(place, files)
        except FormatError as error:
            raise SourceError(str(error)) from error
        files_chosen = [
            f for f in listed.files if is_wanted(f.key, options.include, options.exclude)
        ]
        if not files_chosen:
            raise SourceError(f"{redact(path)}: there are no files of {kind.name}.")
        states = [(file.size, file.version) for file in files_chosen]
        tables = cls(
            Listing(files.store.url, [file.key for file in files_chosen], None, states), kind
        )
        tables._files, tables._facts = files_chosen, listed.facts
        tables._plan()
        return tables

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open the tables of these files."""
        del options
        tables = cls(listing)
        tables._plan()
        return tables

    def _plan(self) -> None:
        """Plan the shards of each file. Raises SourceError for a file that cannot be read."""
        files = self._open()
        files.facts = self._facts

        def look(file: DataFile) -> FilePlan:
            return self._kind_of(file.key).plan_file(file, files)

        try:
            with ThreadPoolExecutor(_SIDE_BY_SIDE, "mds-tables") as pool:
                for file, plan in zip(self._files, pool.map(look, self._files), strict=True):
                    self._add(file, plan)
        except FormatError as error:
            raise SourceError(str(error)) from error
        for plan in self._plans.values():
            self._nulls |= self._encodings.keys() - plan.columns.keys()

    def _add(self, file: DataFile, plan: FilePlan) -> None:
        self._plans[file.key] = plan
        self._nulls |= self._kind_of(file.key).known_nulls(plan)
        for name, encoding in plan.columns.items():
            before = self._encodings.setdefault(name, encoding)
            merged = merge_encodings(before, encoding)
            if merged is None:
                first = next(key for key, each in self._plans.items() if name in each.columns)
                raise SourceError(
                    f"{self._open().url(file)}: column {name!r} is {encoding}, in {first} it is "
                    f"{before}. Convert the files one by one."
                )
            self._encodings[name] = merged

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of all files."""
        rows = [record for _, record in zip(range(_PROBED), self.probe(), strict=False)]
        columns = []
        for name, encoding in sorted(self._encodings.items()):
            values = [row[name] for row in rows if name in row]
            kind, note = portable_encoding(encoding, values, has_nulls=name in self._nulls)
            columns.append(Column(name, kind, show_value(values[0]) if values else "", note))
        return columns

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield runs of shards, each of one file."""
        number = 0
        for file in self._files:
            plan, row = self._plans[file.key], 0
            shards = _shards_of(file, plan)
            step = max(1, len(shards) * size // max(file.size, 1))
            for start in range(0, len(shards), step):
                run = shards[start : start + step]
                yield InputPart(
                    number,
                    file.size * len(run) // len(shards),
                    (file.key, run, row),
                    self.split_of.get(file.key),
                )
                number += 1
                row += sum(shard.samples for shard in run)

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield one sample per row."""
        name, shards, row = part.address
        kind, files = self._kind_of(name), self._open()
        for shard in shards:
            place, names = f"{files.url(name)}, {kind.shard_of(shard)}", shard.columns.names
            for batch in kind.batches(shard, names, files, place):
                present_names = [each for each in names if each in batch.schema.names]
                for begin in range(0, batch.num_rows, _ROWS):
                    piece = batch.slice(begin, _ROWS)
                    columns = [python_values(piece.column(each)) for each in present_names]
                    for values in zip(*columns, strict=True):
                        yield row, dict(zip(present_names, values, strict=True))
                        row += 1

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the file and the row, from 0."""
        return f"{self._open().url(part.address[0])}, row {position}"

    def describe(self) -> str:
        """Summarise number of files, bytes and rows."""
        rows = sum(sum(plan.samples) for plan in self._plans.values())
        return f"{self.listing}, {rows:,} rows"

    def _kind_of(self, name: str) -> Columnar:
        if self._kind is not None:
            return self._kind
        return Parquet() if name.lower().endswith(Parquet.endings) else Arrow()

    def _open(self) -> Files:
        return Files(open_store(self.root or "."))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_found": [], "_facts": {}, "_plans": {}}


def _shards_of(file: DataFile, plan: FilePlan) -> list[ShardPlace]:
    columns = as_columns(plan.columns)
    spans = plan.spans or [(shard, shard) for shard in range(len(plan.samples))]
    return [
        ShardPlace(file, span, samples, plan.note, columns)
        for span, samples in zip(spans, plan.samples, strict=True)
        if samples
    ]


def _kind_at(path: str) -> Columnar | None:
    """Return the format of a URL, a pattern or a folder of a table; None for other paths."""
    if os.path.isdir(path) and not os.path.isdir(os.path.join(path, DELTA_LOG)):
        return None
    is_table = is_local(path) and (os.path.isdir(path) or path.endswith(".metadata.json"))
    if is_local(path) and not is_table and (os.path.exists(path) or not has_pattern(path)):
        return None
    try:
        kind = format_of_files(path)
    except ConfigError:  # a pattern of other files
        return None
    return kind if isinstance(kind, Columnar) else None
