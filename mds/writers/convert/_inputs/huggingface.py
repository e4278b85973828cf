"""Hugging Face datasets, saved to disk or by name, read through `datasets`.

Images and sounds are stored as files, without decoding them. A dataset of several splits becomes a
folder for each; `source_split` chooses one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from mds._shardfile.layout import INDEX_NAME
from mds._units import format_bytes
from mds._words import plural
from mds.errors import SourceError, need
from mds.formats._arrow import encodings_of_table
from mds.formats._arrow_values import encoding_of, encoding_of_file
from mds.formats._columns import Column, settled, show_value
from mds.writers.convert._inputs.base import Input, InputOptions, InputPart, Record

_ROWS = 256


class HuggingFaceInput(Input):
    """The rows of a `datasets.Dataset`, or of each `Dataset` in a `DatasetDict`.

    - ``path`` (str): A folder that `datasets` saved, or a name on the hub.
    - ``config`` (str | None), ``split`` (str | None): The configuration, and the only split to
      read; None for the default one, and for all splits.
    - ``tables`` (dict[str | None, Any] | None): Tables of the user by split, from `undecoded`, for
      which ``path`` is only a name.

    The address of a part is (split, first row, last row + 1).
    """

    title: ClassVar[str] = "Hugging Face dataset"
    takes: ClassVar[frozenset[str]] = frozenset({"config", "source_split"})

    def __init__(
        self,
        path: str,
        *,
        config: str | None = None,
        split: str | None = None,
        tables: dict[str | None, Any] | None = None,
    ) -> None:
        super().__init__(path)
        #: What to load again in a process that reads parts: path, configuration, only split. None
        #: for tables that the user opened.
        self._address = (path, config, split) if tables is None else None
        #: Result of `_open`; None until the first call.
        self._tables = tables
        tables = self._open()
        first = next(iter(tables.values()))
        for name, table in tables.items():
            if table.features != first.features:
                raise SourceError(
                    f"{path}: the split {name!r} has other columns. Choose one split with "
                    "--source-split."
                )
        self.size = sum(int(table.data.nbytes) for table in tables.values())
        self._rows = sum(len(table) for table in tables.values())
        if not self._rows:
            raise SourceError(f"{path}: the dataset has no rows; there is nothing to write.")
        self._splits = [name for name in tables if name is not None]

    @classmethod
    def open(cls, path: str, options: InputOptions) -> Input:
        """Open the dataset of a folder, or of a name after ``hf:``."""
        name = path.removeprefix("hf:") if is_hub_name(path) else path
        return cls(name, config=options.config, split=options.source_split)

    @classmethod
    def recognizes(cls, path: str) -> bool:
        """Return whether this is a name after ``hf:`` or a folder that `datasets` saved."""
        is_mds = os.path.isfile(os.path.join(path, INDEX_NAME))
        return is_hub_name(path) or (_is_saved(path) and not is_mds)

    def infer_columns(self) -> Sequence[Column]:
        """Return one column per feature."""
        rows = [record for _, record in zip(range(200), self.probe(), strict=False)]
        tables = [table.data.table for table in self._open().values()]
        return columns_of_features(next(iter(self._open().values())).features, rows, tables)

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield runs of rows of one split."""
        number = 0
        for split, table in self._open().items():
            rows = len(table)
            part_rows = max(1, int(size * rows / max(1, table.data.nbytes)))
            for start in range(0, rows, part_rows):
                end = min(start + part_rows, rows)
                length = int(table.data.nbytes * (end - start) / rows)
                yield InputPart(number, length, (split, start, end), split)
                number += 1

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield one sample per row."""
        split, start, end = part.address
        table = self._open()[split]
        for begin in range(start, end, _ROWS):
            batch = table[begin : min(begin + _ROWS, end)]  # a dict of columns
            columns = {name: list(map(file_bytes, values)) for name, values in batch.items()}
            for number, values in enumerate(zip(*columns.values(), strict=True), begin):
                yield number, dict(zip(columns, values, strict=True))

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the dataset, the split and the row, from 0."""
        split = f", split {part.address[0]}" if part.address[0] else ""
        return f"{self.root}{split}, row {position}"

    def describe(self) -> str:
        """Summarise number of rows, bytes and splits."""
        splits = f", splits {', '.join(self._splits)}" if self._splits else ""
        return f"{plural(self._rows, 'row')}, {format_bytes(self.size)}{splits}"

    def fingerprint(self) -> str:
        """Return the digests that `datasets` keeps of its tables."""
        return "-".join(str(table._fingerprint) for table in self._open().values())  # noqa: SLF001

    def list_splits(self) -> Sequence[str]:
        """Return the splits of the dataset if there are several."""
        return self._splits

    def _open(self) -> dict[str | None, Any]:
        """Return the table of each split, loaded once per process; None names a single table."""
        if self._tables is None:
            assert self._address is not None, "tables of the user are open"
            self._tables = _load(*self._address)
        return self._tables

    def __getstate__(self) -> dict[str, Any]:
        # Another process loads the tables by itself; tables of the user bring their paths.
        return {**self.__dict__, "_tables": None} if self._address is not None else self.__dict__


def is_hub_name(path: str) -> bool:
    """Return whether a source is the name of a dataset on the hub, such as ``hf:org/name``."""
    return path.startswith("hf:") and not path.startswith("hf://")


def _is_saved(path: str) -> bool:
    names = ("state.json", "dataset_dict.json")
    return os.path.isdir(path) and any(os.path.isfile(os.path.join(path, name)) for name in names)


def _load(path: str, config: str | None, split: str | None) -> dict[str | None, Any]:
    """Load a dataset, and return the table of each split; None is the name of a single one.

    Raises SourceError if it cannot be loaded or lacks the ``split``.
    """
    try:
        import datasets
    except ImportError as error:
        raise need("datasets", "hf", "Hugging Face datasets") from error
    dataset: Any
    try:
        if _is_saved(path):
            dataset = datasets.load_from_disk(path)
        else:
            dataset = datasets.load_dataset(path, config)
    except Exception as error:  # the package raises errors of many kinds
        raise SourceError(f"{path}: the Hugging Face dataset cannot be loaded: {error}") from error
    tables: dict[str | None, Any]
    if isinstance(dataset, dict):
        if split is not None and split not in dataset:
            raise SourceError(
                f"{path}: there is no split {split!r}. The splits are {', '.join(dataset)}."
            )
        split_names = [split] if split is not None else list(dataset)
        tables = {name if len(split_names) > 1 else None: dataset[name] for name in split_names}
    else:
        tables = {None: dataset}
    return {name: undecoded(table) for name, table in tables.items()}


def undecoded(table: Any) -> Any:
    """Return a table that does not decode images and sounds, and returns Python values."""
    for name, feature in table.features.items():
        if (media := _media(feature)) is not None:
            stored = type(media)(decode=False)
            is_list = media is not feature
            table = table.cast_column(name, type(feature)(stored) if is_list else stored)
    return table.with_format(None)


def file_bytes(value: Any) -> Any:
    """Return the bytes of an image or sound that is stored or in a file, and other values as is.

    Lists of images and sounds are lists of bytes.
    """
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [file_bytes(each) for each in value]
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        if value["bytes"] is not None or value["path"] is None:
            return value["bytes"]
        with open(value["path"], "rb") as file:
            return file.read()
    return value


def columns_of_features(
    features: Any, rows: Sequence[Mapping[str, Any]], tables: Sequence[Any] = ()
) -> list[Column]:
    """Return one column per feature of a dataset, sorted by name.

    - ``features`` (datasets.Features): The types of its columns.
    - ``rows`` (Sequence[Mapping[str, Any]]): Some of its rows.
    - ``tables`` (Sequence[pyarrow.Table], default ()): All values. Without them, as in a stream,
      the rows tell whether columns have nulls and empty lists.
    """
    known = [encodings_of_table(table) for table in tables]
    schema = features.arrow_schema
    columns = []
    for name, feature in sorted(features.items()):
        values = [row[name] for row in rows]
        encodings = [encodings[name] for encodings in known]
        encoding, note = _encoding(feature, schema.field(name).type, values, encodings)
        example = show_value(values[0]) if values else ""
        columns.append(Column(name, encoding, example, note, _class_names(feature)))
    return columns


def _class_names(feature: Any) -> tuple[str, ...]:
    import datasets

    return tuple(feature.names) if isinstance(feature, datasets.ClassLabel) else ()


def _encoding(
    feature: Any, kind: Any, values: Sequence[Any], known: Sequence[str]
) -> tuple[str, str]:
    """Return the encoding of a column, and a note.

    - ``feature`` (datasets.Features value): Its type in `datasets`; ``kind``: its Arrow type.
    - ``values`` (Sequence): Some of its values.
    - ``known`` (Sequence[str]): Encodings that hold all values, of each split; none in a stream.
    """
    import datasets

    has_nulls = any(each.startswith("optional[") for each in known) or None in values
    has_empty = any("tensor:" in each for each in known) or any(
        isinstance(value, list) and not value for value in values
    )
    if isinstance(feature, datasets.ClassLabel) and not has_nulls:
        names = ", ".join(feature.names[:4])
        return "int", f"{len(feature.names)} classes: {names}" + ", ..." * (len(feature.names) > 4)
    if "json" in known:  # such as lists with nulls inside
        return "json", ""
    file = ""
    if (media := _media(feature)) is not None:
        files = [
            each for value in values for each in (value if isinstance(value, list) else [value])
        ]
        first = next((each for each in files if each is not None), b"")
        file = "audio" if isinstance(media, datasets.Audio) else encoding_of_file(first[:16])
    encoding = encoding_of(kind, may_be_none=has_nulls, may_be_empty=has_empty, feature=file)
    return settled(encoding), "stored unchanged" if file else ""


def _media(feature: Any) -> Any:
    """Return the feature of images or sounds in a feature, perhaps a list of them; else None."""
    import datasets

    inner = getattr(feature, "feature", feature)
    return inner if isinstance(inner, (datasets.Image, datasets.Audio)) else None
