"""Datasets that the tasks of an engine write: a folder for each task, one index over all of them.

    out/index.json                                            names the shards of the parts
    out/part-5f0c3d1e7a90-000003-9ab2c4d8/shard.00000.mds     job 5f0c..., task 3, attempt 9ab2...

An engine runs a task again if its worker died, or seems to have died. So each attempt writes to a
folder of its own. The engine reports the attempts that count; `publish` writes an index over them
and deletes the others, and `abort` deletes all. No other file is touched, except the shards of a
dataset that is overwritten.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mds._arguments import check_arguments, did_you_mean, mapping, one_of, refuse_unknown
from mds._index.table import Index, column_encodings
from mds._shardfile.layout import INDEX_NAME
from mds.encodings._arrays import ArrayEncoding, length_function
from mds.encodings._base import located
from mds.encodings._registry import parse_encoding
from mds.errors import (
    ConfigError,
    EncodingError,
    NotFoundError,
    UnknownEncodingError,
    WriterError,
)
from mds.formats._arrow_values import encoding_of, number_name, pyarrow, python_values
from mds.formats._columns import NULLS
from mds.formats._fit import as_json
from mds.storage import open_store
from mds.storage._url import Url, is_local, join, local_path, options_of, redact
from mds.writers._leftovers import delete_parts, is_part, is_shard
from mds.writers._mds import MDSWriter
from mds.writers._merge import lock_places, merge_locked
from mds.writers._spec import fill_options, parse_columns, parse_shards, refuse_storage_options

if TYPE_CHECKING:
    import pyarrow as pa

    from mds.storage import Store

#: Encodings of numbers as text, which their columns are when an engine reads them.
_NUMBER_TEXTS = frozenset({"str_decimal", "str_float", "str_int"})
_MAX_ROWS, _MAX_BYTES = 1024, 4 << 20  # that are Python objects at one time
_OPTIONS = (
    *("lengths", "compression", "hashes", "size_limit", "samples_per_shard", "class_names"),
    *("descriptions", "max_workers", "retry", "durable"),
)
_RULES = {
    "mode": one_of("error", "append", "overwrite"),
    "encodings": mapping("an encoding for each column", "{'image': 'jpeg'}").or_none(),
}


@dataclass(frozen=True, slots=True)
class PartedDataset:
    """A dataset that the tasks of one job write; every task gets a pickled copy.

    Make it with `plan`.

    - ``owner`` (str): The caller's class, for messages.
    - ``out`` (str): The folder, as an absolute path, or the URL.
    - ``mode`` (str): "error" refuses a place that is not empty, "append" adds to the dataset there,
      "overwrite" replaces it when all is written.
    - ``encodings`` (Mapping[str, str]): The encodings that the user chose, by column.
    - ``options`` (Mapping[str, Any]): Further arguments of `MDSWriter`.
    - ``columns`` (Mapping[str, str]): The encoding of each column; see `with_schema`.
    - ``job`` (str): Hexadecimal digits that no other job has.
    """

    owner: str
    out: str
    mode: str
    encodings: Mapping[str, str]
    options: Mapping[str, Any]
    columns: Mapping[str, str] = field(default_factory=dict)
    job: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @classmethod
    def plan(
        cls,
        owner: str,
        out: str | os.PathLike[str],
        mode: str,
        encodings: Mapping[str, Any] | None,
        storage_options: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> PartedDataset:
        """Check the arguments and the place. Raises ConfigError, and FileExistsError."""
        check_arguments(owner, {"mode": mode, "encodings": encodings}, _RULES)
        place = os.fspath(out)
        if not place:
            raise ConfigError(f"{owner}: out is an empty text. Give a folder or a URL.")
        refuse_storage_options(storage_options, place)
        refuse_unknown(owner, options, ["out", "mode", "encodings", "storage_options", *_OPTIONS])
        parse_shards(
            fill_options(owner, {name: options[name] for name in options if name != "lengths"})
        )
        chosen = parse_columns(owner, encodings) if encodings else {}
        for name, encoding in chosen.items():
            _check_encoding(owner, name, encoding)
        # A worker may have another working folder.
        url = os.path.abspath(local_path(place)) if is_local(place) else Url(place, storage_options)
        parted = cls(owner, url, mode, chosen, options)
        parted.check_place()
        return parted

    def check_place(self) -> None:
        """Raise FileExistsError if the place is not empty and mode is "error".

        Raises IndexFileError for an invalid index that is to be replaced: its shards are unknown.
        """
        if self.mode == "overwrite":
            self._read_index()
        if self.mode != "error":
            return
        with self._store() as store:
            folder, name = store.local_path, None
            if folder is not None and os.path.isdir(folder):
                name = min(os.listdir(folder), default=None)
            elif folder is None and store.can_list:
                name = next((info.key for info in store.list()), None)
        if name is not None:
            raise FileExistsError(
                f"{self.owner}: {redact(self.out)} is not empty (it holds {name!r}). Choose "
                "another place, add to the dataset there with mode='append', or replace it with "
                "mode='overwrite'."
            )

    def with_schema(self, schema: pa.Schema) -> PartedDataset:
        """Return the dataset with encodings for the columns of an Arrow schema.

        They are those that the user chose, else those of the dataset that is appended to, else
        those that follow from the types. Raises ConfigError for columns that do not fit.
        """
        unknown = sorted(set(self.encodings) - set(schema.names))
        if unknown:
            near = did_you_mean(unknown[0], schema.names)
            raise ConfigError(
                f"{self.owner}: encodings= names the column {unknown[0]!r}, which the rows do not "
                f"have.{near} The columns are {', '.join(schema.names)}."
            )
        old = self._columns_there() if self.mode == "append" else None
        columns = {
            name: self.encodings.get(name) or (old or {}).get(name) or _encoding(self.owner, part)
            for name, part in zip(schema.names, schema, strict=True)
        }
        if old is not None and old != columns:
            name = min(name for name in {*old, *columns} if old.get(name) != columns.get(name))
            before, now = (repr(each.get(name, "missing")) for each in (old, columns))
            raise ConfigError(
                f"{self.owner}: column {name!r} is {before} in the dataset at {redact(self.out)}, "
                f"but {now} in the rows to append. Write rows with the same columns and encodings, "
                "or choose another place."
            )
        if self.options.get("lengths") is not None:
            length_function(columns, self.options["lengths"])
        return replace(self, columns=columns)

    def _columns_there(self) -> dict[str, str] | None:
        """Return the encodings of the dataset at the place, or None if there is none."""
        index = self._read_index()
        if index is None:
            return None
        return column_encodings([index])

    def _read_index(self) -> Index | None:
        """Return the index at the place, or None if there is none."""
        with self._store() as store, contextlib.suppress(NotFoundError):
            return Index.parse(store.get(INDEX_NAME), store.url_of(INDEX_NAME))
        return None

    def write(self, task: int, batches: Iterable[pa.RecordBatch]) -> str:
        """Write the rows of a task, and return the name of its part; '' if there are no rows."""
        samples = self._samples(batches)
        first = next(samples, None)
        if first is None:
            return ""
        name = f"{self._prefix}{task:06}-{uuid.uuid4().hex[:8]}"
        with MDSWriter(
            join(self.out, name), dict(self.columns), strict=True, **self.options
        ) as writer:
            for sample in itertools.chain([first], samples):
                writer.write(sample)
        return name

    def _samples(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        """Yield the rows of batches as samples, a few at a time as Python objects."""
        for batch in batches:
            fitting = _MAX_BYTES * batch.num_rows // max(batch.nbytes, 1)
            step = max(1, min(_MAX_ROWS, fitting))
            for start in range(0, batch.num_rows, step):
                piece = batch.slice(start, step)
                names = piece.schema.names
                values = [self._values(*column) for column in zip(names, piece, strict=True)]
                for row in zip(*values, strict=True):
                    yield dict(zip(names, row, strict=True))

    def _values(self, name: str, column: pa.Array) -> Sequence[Any]:
        """Return the values of a column as its encoding takes them, None for nulls.

        Raises EncodingError for a value that Python or JSON does not have.
        """
        if _is_tensor(column.type):
            is_native = hasattr(column, "to_numpy_ndarray")
            return list(column.to_numpy_ndarray() if is_native else column.to_numpy(False))
        encoding = self.columns.get(name, "").removeprefix("optional[").removesuffix("]")
        try:
            values = python_values(column)
            if encoding in _NUMBER_TEXTS:
                decode = parse_encoding(encoding).decode
                return [
                    decode(value.encode()) if isinstance(value, str) else value for value in values
                ]
            if encoding == "json":
                # A writer checks bytes and stores them as they are.
                values = [value.encode() if isinstance(value, str) else value for value in values]
                return [value if isinstance(value, bytes) else as_json(value) for value in values]
        except EncodingError as error:
            raise located(error, f"column {name!r}") from error
        if encoding.startswith(("ndarray:", "tensor:")):
            array = parse_encoding(encoding)
            assert isinstance(array, ArrayEncoding)
            # An engine may lack the dtype or the shape of a column that it has read.
            return [None if value is None else array.fit_list(value) for value in values]
        return values

    def publish(self, parts: Iterable[str]) -> None:
        """Publish the index over the parts that tasks returned, and delete all other attempts.

        An old dataset that is overwritten is deleted after that. Raises WriterError if there is no
        part.
        """
        names = sorted(filter(None, parts))
        if not names and self.mode != "append":
            raise WriterError(f"{self.owner}: there are no rows to write to {redact(self.out)}.")
        with lock_places([self.out]), self._store() as store:
            old = self._read_index()
            if old is not None and self.mode == "error":
                raise WriterError(
                    f"{self.owner}: another program wrote a dataset to {redact(self.out)} in the "
                    "meantime. Write to another place, or add to it with mode='append'."
                )
            if names:
                indexes = [INDEX_NAME] if old is not None and self.mode == "append" else []
                indexes += [f"{name}/{INDEX_NAME}" for name in names]
                merge_locked(
                    [join(self.out, index) for index in indexes],
                    self.out,
                    storage_options=options_of(self.out),
                )
            published = self._published_parts()
            if old is not None and self.mode == "overwrite":
                _delete_shards(store, old, published)
            delete_parts(store, self._prefix, published)

    def abort(self) -> None:
        """Delete what the tasks of this job wrote, unless it was published."""
        with self._store() as store:
            delete_parts(store, self._prefix, self._published_parts())

    def _published_parts(self) -> set[str]:
        """Return the folders of the shards that the index names."""
        index = self._read_index()
        shards = index.file_names() if index is not None else ()
        return {name.partition("/")[0] for shard in shards for _, name in shard}

    @property
    def _prefix(self) -> str:
        return f"part-{self.job}-"

    def _store(self) -> Store:
        return open_store(self.out, options=options_of(self.out))


def _check_encoding(owner: str, name: str, encoding: str) -> None:
    """Raise UnknownEncodingError for an encoding of a column that does not exist."""
    try:
        parse_encoding(encoding)
    except UnknownEncodingError as error:
        raise UnknownEncodingError(f"{owner}, column {name!r}: {error}") from None


def _encoding(owner: str, column: pa.Field) -> str:
    """Return the encoding for an Arrow field. Raises ConfigError for a column without a type."""
    kind = column.type
    if _is_tensor(kind):
        dtype = number_name(kind.value_type)
        shape = "" if None in kind.shape else ":" + ",".join(map(str, kind.shape))
        return "tensor" if dtype is None else f"ndarray:{dtype}{shape}"
    encoding = encoding_of(kind, may_be_none=False, may_be_empty=False)
    if encoding == NULLS:
        raise ConfigError(
            f"{owner}: the first rows of column {column.name!r} are null, so its type is unknown. "
            f"Choose one, as in encodings={{{column.name!r}: 'optional[str]'}}, or leave the "
            "column out."
        )
    return encoding


def _is_tensor(kind: pa.DataType) -> bool:
    """Whether values of a type are tensors, of Arrow or of Ray."""
    return isinstance(kind, pyarrow().BaseExtensionType) and hasattr(kind, "shape")


def _delete_shards(store: Store, index: Index, keep: Collection[str]) -> None:
    """Delete the shards of a dataset that was overwritten; ``keep`` are the new parts.

    Only names that a writer gives to shards are deleted, so a wrong index deletes nothing else.
    """
    names = {name for shard in index.file_names() for _, name in shard}
    parts = {name.rpartition("/")[0] for name in names}
    for part in parts.difference(keep):
        if is_part(part):
            delete_parts(store, part, ())
    for name in names:
        folder, _, basename = name.rpartition("/")
        if is_shard(basename) and not is_part(folder):
            store.delete(name)
