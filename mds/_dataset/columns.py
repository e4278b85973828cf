"""What a dataset shows of its shards and columns, from the indexes of its streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from mds._index.table import column_encodings
from mds._process.fork_safe import cached_property
from mds._words import plural

if TYPE_CHECKING:
    import pyarrow as pa

    from mds._dataset.arrow_rows import ArrowRows
    from mds._index.column_notes import ColumnNote
    from mds._index.shard_object import ShardInfo
    from mds._index.table import Index
    from mds._iteration.shard_map import ShardMap
    from mds._readers.base import Reader, Rows
    from mds._readers.fields import ColumnSelection
    from mds.formats._dataset import FormatData
    from mds.storage import Store


class ShardList(Sequence["ShardInfo"]):
    """Sequence of facts about the shards of a dataset, each made when it is read.

    Its indexes are numbers of shards through all streams.
    """

    def __init__(self, shards: ShardMap) -> None:
        self._shards = shards

    def __len__(self) -> int:
        return self._shards.num_shards

    @overload
    def __getitem__(self, index: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[ShardInfo]: ...
    def __getitem__(self, index: int | slice) -> ShardInfo | list[ShardInfo]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        shard = index + len(self) if index < 0 else index
        if not 0 <= shard < len(self):
            raise IndexError(f"shard {index} of {len(self)}")
        stream = int(self._shards.stream_per_shard[shard])
        shard_in_stream = shard - int(self._shards.shard_offset_per_stream[stream])
        return self._shards.indexes[stream].shard(shard_in_stream)

    def __iter__(self) -> Iterator[ShardInfo]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<{plural(len(self), 'shard')}>"


class Spanner:
    """Map from sample number to (shard, row), as in mosaicml-streaming: ``spanner[17]``."""

    def __init__(self, shards: ShardMap) -> None:
        self._shards = shards

    def __getitem__(self, sample: int) -> tuple[int, int]:
        if not 0 <= sample < self._shards.num_samples:
            raise ValueError(f"sample {sample} of {self._shards.num_samples}")
        return self._shards.locate(sample)


class HasColumns:
    """Mixin of datasets: properties about columns, and a display in notebooks."""

    _columns: ColumnSelection  # the columns that are read

    def _indexes(self) -> Sequence[Index]:
        """Return the index of each stream."""
        raise NotImplementedError

    def _sidecar_stores(self) -> Iterable[Store | FormatData]:
        """Return the store of the sidecar files beside each index, or the files of a format."""
        raise NotImplementedError

    def _read_rows(self, columns: ColumnSelection) -> Iterator[tuple[Reader, Rows]]:
        """Yield a reader of each shard with these columns, and the rows of the dataset in it."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        from mds._preview import show_dataset

        return show_dataset(self)

    def to_arrow_reader(
        self, columns: Sequence[str] | None = None, batch_rows: int = 16_384
    ) -> pa.RecordBatchReader:
        """Return a reader of all rows as Arrow record batches, in the order of their storage.

        Every rank gets all rows, whatever the shuffle is. Shards are read one after the other, so
        memory holds a few batches. DuckDB, Polars, pandas and pyarrow also take the dataset itself.

        - ``columns`` (Sequence[str] | None, default None): Columns to read, in this order; None
          reads those of the dataset. Bytes of other columns are not copied.
        - ``batch_rows`` (int, default 16384, rows): Most rows of a batch. A batch also ends with
          its shard, and after about 2 MB.

        Text and JSON columns are strings, images are the bytes of their files, arrays are lists or
        tensors; docs/guides/arrow.md has the table. Needs pyarrow: ``mds-streaming[arrow]``. Raises
        ConfigError for an unknown column, for an encoding that Arrow has no type for, and if
        functions change the samples; while it is read EncodingError for a damaged value.

        >>> reader = dataset.to_arrow_reader(columns=["text"])  # doctest: +SKIP
        >>> reader.read_all().num_rows  # doctest: +SKIP
        8
        """
        return self._arrow_rows().reader(columns, batch_rows)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return all rows as a capsule with an Arrow C stream; see `to_arrow_reader`.

        Programs that know Arrow's PyCapsule interface call it, such as ``duckdb.sql`` and
        ``polars.DataFrame(dataset)``. ``requested_schema`` is a capsule with the wanted columns and
        types, or None.
        """
        return self._arrow_rows().stream(requested_schema)

    def _arrow_rows(self) -> ArrowRows:
        from mds._dataset.arrow_rows import ArrowRows

        return ArrowRows(type(self).__name__, self._indexes(), self.columns, self._read_rows)

    @cached_property  # not a property: a class of the caller's may have an attribute of that name
    def schema(self) -> dict[str, str]:
        """Encoding of each column of a sample as stored, by name.

        It comes from the index, so nothing is read. Columns that ``columns=`` leaves out are not
        part of it. A writer takes it: ``MDSWriter(out, dataset.schema)``.

        >>> dataset.schema  # doctest: +SKIP
        {'image': 'jpeg', 'label': 'int'}
        """
        encodings = column_encodings(self._indexes())
        return {name: encoding for name, encoding in encodings.items() if name in self._columns}

    @cached_property
    def columns(self) -> list[str]:
        """Names of the columns of a sample as stored, without those that ``columns=`` leaves out.

        >>> dataset.columns  # doctest: +SKIP
        ['image', 'label']
        """
        return list(self.schema)

    @cached_property
    def class_names(self) -> dict[str, list[str]]:
        """Names of the classes of each column that has some, in the order of their numbers.

        They come from `index.columns.json` beside the index, which is read at the first access, or
        from the folders of pictures that are read in place. A column whose classes differ between
        streams is left out.

        >>> dataset.class_names["label"][3]  # doctest: +SKIP
        'horse'
        """
        names: dict[str, tuple[str, ...]] = {}
        for column, note in self._column_notes:
            # Class names hold only if all streams agree.
            is_same = names.setdefault(column, note.class_names) == note.class_names
            names[column] = note.class_names if is_same else ()
        return {column: list(classes) for column, classes in names.items() if classes}

    @cached_property
    def descriptions(self) -> dict[str, str]:
        """Description of each column that has one, of the first stream with the column.

        They come from `index.columns.json` beside the index, which is read at the first access.
        """
        texts: dict[str, str] = {}
        for column, note in self._column_notes:
            texts.setdefault(column, note.description)
        return {column: text for column, text in texts.items() if text}

    @cached_property
    def _column_notes(self) -> list[tuple[str, ColumnNote]]:
        """Each column of each stream with its note, which is empty if there is none."""
        from mds._index.column_notes import ColumnNote, read_notes
        from mds.formats._dataset import FormatData

        pairs: list[tuple[str, ColumnNote]] = []
        for index, store in zip(self._indexes(), self._sidecar_stores(), strict=True):
            notes: Mapping[str, ColumnNote]
            if isinstance(store, FormatData):
                classes = store.class_names().items()
                notes = {name: ColumnNote(class_names=tuple(each)) for name, each in classes}
            else:
                notes = read_notes(store, index.fingerprint())
            names = [name for name in column_encodings([index]) if name in self._columns]
            pairs += [(name, notes.get(name, ColumnNote())) for name in names]
        return pairs


def column_names(indexes: Sequence[Index]) -> list[str]:
    """Return the names of all columns of any shard, in the order of their first shards."""
    return list(column_encodings(indexes))
