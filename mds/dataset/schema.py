"""The columns of a dataset: encodings from its indexes, and what is noted of them beside these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mds.dataset.notebook import show_dataset
from mds.index.column_notes import ColumnNote, read_notes
from mds.process.fork_safe import cached_property

if TYPE_CHECKING:
    from mds.index import Index
    from mds.storage import Store


class ColumnInfo(NamedTuple):
    """A column: how its values are stored, what it is, and what its numbers mean."""

    encoding: str
    description: str = ""
    class_names: tuple[str, ...] = ()


class HasColumns:
    """Mixin of what is made of indexes, each of which lies in a store."""

    def _indexes(self) -> Iterable[tuple[Index, Store | None]]:
        """Each index with the store where its companions are; None where it has no file."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return show_dataset(self)

    @cached_property
    def columns(self) -> dict[str, ColumnInfo]:
        """What each column is: ``encoding``, ``description`` and ``class_names``, by its name.

        All columns of the data, also where ``columns=`` chooses some. The last two are empty where
        nothing was noted. The first look asks the place of the data for `index.columns.json`.

        >>> dataset.columns["label"].encoding  # doctest: +SKIP
        'int'
        """
        found: dict[str, ColumnInfo] = {}
        for index, store in self._indexes():
            notes = {} if store is None else read_notes(store, index.fingerprint())
            for name, encoding in column_encodings([index]).items():
                note = notes.get(name, ColumnNote())
                known = found.setdefault(name, ColumnInfo(encoding, *note))
                if known.class_names != note.class_names:
                    found[name] = known._replace(class_names=())
        return found

    @cached_property  # not a property: a class of the caller's may have an attribute of that name
    def class_names(self) -> dict[str, list[str]]:
        """The names of the classes of each column that has some, in the order of their numbers.

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
    """The names of all columns of any shard, in the order in which they are met."""
    return list(column_encodings(indexes))


def column_encodings(indexes: Sequence[Index]) -> dict[str, str]:
    """The encoding of each column; where shards differ, that of the first of them."""
    found: dict[str, str] = {}
    for index in indexes:
        for schema in index.schemas:
            for name, encoding in zip(schema.columns.names, schema.columns.encodings, strict=True):
                found.setdefault(name, encoding)
    return found
