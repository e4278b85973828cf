"""The columns of a dataset: encodings from its indexes, and what is noted of them beside these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mds.process.fork_safe import cached_property

if TYPE_CHECKING:
    from mds.index import Index
    from mds.storage import Store


class ColumnInfo(NamedTuple):
    """Column: how its values are stored, what it is, and what its numbers mean."""

    encoding: str
    description: str = ""
    class_names: tuple[str, ...] = ()


class HasColumns:
    """Mixin of datasets, which have indexes in stores."""

    def _indexes(self) -> Iterable[tuple[Index, Store | None]]:
        """Return each index with the store of its sidecar files, or None if it has none."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        from mds.dataset.notebook import show_dataset

        return show_dataset(self)

    @cached_property
    def columns(self) -> dict[str, ColumnInfo]:
        """Encoding, description and class names of each column, by name.

        All columns of the data, also where ``columns=`` chooses some. The last two are empty where
        nothing was noted. The first look asks the place of the data for `index.columns.json`.

        >>> dataset.columns["label"].encoding  # doctest: +SKIP
        'int'
        """
        from mds.index.column_notes import ColumnNote, read_notes

        columns_by_name: dict[str, ColumnInfo] = {}
        for index, store in self._indexes():
            notes = {} if store is None else read_notes(store, index.fingerprint())
            for name, encoding in column_encodings([index]).items():
                note = notes.get(name, ColumnNote())
                column = columns_by_name.setdefault(name, ColumnInfo(encoding, *note))
                if column.class_names != note.class_names:
                    columns_by_name[name] = column._replace(class_names=())
        return columns_by_name

    @cached_property  # not a property: a class of the caller's may have an attribute of that name
    def class_names(self) -> dict[str, list[str]]:
        """Names of the classes of each column that has some, in the order of their numbers.

        A column whose numbers mean other classes in another stream is not among them.

        >>> dataset.class_names["label"][3]  # doctest: +SKIP
        'horse'
        """
        return {
            name: list(column.class_names)
            for name, column in self.columns.items()
            if column.class_names
        }


def column_names(indexes: Sequence[Index]) -> list[str]:
    """Return the names of all columns of any shard, in the order of their first shards."""
    return list(column_encodings(indexes))


def column_encodings(indexes: Sequence[Index]) -> dict[str, str]:
    """Return the encoding of each column; if shards differ, that of the first one."""
    encodings_by_name: dict[str, str] = {}
    for index in indexes:
        for schema in index.schemas:
            for name, encoding in zip(schema.columns.names, schema.columns.encodings, strict=True):
                encodings_by_name.setdefault(name, encoding)
    return encodings_by_name
