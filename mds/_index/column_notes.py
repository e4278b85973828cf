"""Column notes: names of classes and descriptions of columns, in `index.columns.json`.

An index only has names and encodings of columns. The names of classes are in a sidecar, which is
fetched to show columns, never to read samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mds._arguments import did_you_mean
from mds._index.sidecar import pack_sidecar, read_sidecar, sidecar_name
from mds._words import plural
from mds.errors import ConfigError, IndexFileError

if TYPE_CHECKING:
    from mds.storage import Store

KIND = "columns"
NAME = sidecar_name(KIND, end="json")
_VERSION = 1
_MAX_PAYLOAD_BYTES = 16 << 20
_MAX_COLUMNS = 1 << 14
_MAX_CLASSES = 1 << 20


class ColumnNote(NamedTuple):
    """Description of a column, and the meaning of its numbers.

    ``class_names[n]`` is the name of the class with number ``n``.
    """

    description: str = ""
    class_names: tuple[str, ...] = ()


def make_notes(
    class_names: Mapping[str, Sequence[str]], descriptions: Mapping[str, str]
) -> dict[str, ColumnNote]:
    """Return the notes of columns, by name.

    - ``class_names``: the names of the classes 0, 1, ... by column.
    - ``descriptions``: a text in words, by column.

    Raises ConfigError for values of other types, and for text that UTF-8 cannot hold.
    """
    for argument, value in (("class_names", class_names), ("descriptions", descriptions)):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{argument} must be a dict by column names, got {value!r}.")
    notes: dict[str, ColumnNote] = {}
    for column, names in class_names.items():
        is_list = isinstance(names, (list, tuple))
        if not is_list or not all(isinstance(name, str) for name in names):
            raise ConfigError(
                f"class_names[{column!r}] must be a list of texts, the names of the classes 0, 1, "
                f"..., got {names!r}."
            )
        notes[column] = ColumnNote(class_names=tuple(names))
    for column, text in descriptions.items():
        if not isinstance(text, str):
            raise ConfigError(f"descriptions[{column!r}] must be a text, got {text!r}.")
        notes[column] = notes.get(column, ColumnNote())._replace(description=text)
    for column, note in notes.items():
        for text in (note.description, *note.class_names):
            if not _is_unicode(text):
                raise ConfigError(
                    f"class_names and descriptions of column {column!r}: {text!r} has a lone "
                    "surrogate, which UTF-8 cannot encode. Leave it out, or decode the text with "
                    "errors='replace'."
                )
    return notes


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold a text: it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_noted(notes: Mapping[str, ColumnNote], columns: Iterable[str]) -> None:
    """Raise ConfigError for a note on a column that is not one of the dataset's ``columns``."""
    column_names = list(columns)
    for column in notes:
        if column not in column_names:
            raise ConfigError(
                f"class_names and descriptions: there is no column {column!r}."
                f"{did_you_mean(column, column_names)} The columns are {', '.join(column_names)}."
            )


def pack_notes(notes: Mapping[str, ColumnNote], index: str) -> bytes:
    """Return the bytes of a sidecar with the notes of columns, by name.

    ``index`` is the fingerprint of the index that it belongs to.
    """
    payload = {
        column: {
            **({"description": note.description} if note.description else {}),
            **({"class_names": list(note.class_names)} if note.class_names else {}),
        }
        for column, note in sorted(notes.items())
    }
    text = json.dumps({"columns": payload}, ensure_ascii=False, indent=1)
    return pack_sidecar(KIND, _VERSION, index, text.encode() + b"\n")


def read_notes(store: Store, index: str) -> dict[str, ColumnNote]:
    """Read the notes beside the index with fingerprint ``index``; {} if there are none.

    Raises IndexFileError if the file is damaged or belongs to another index, and StoreError if the
    store cannot be read.
    """
    sidecar = read_sidecar(store, NAME, KIND, index, _VERSION, _MAX_PAYLOAD_BYTES)
    return {} if sidecar is None else parse_notes(sidecar.payload, store.url_of(NAME))


def join_notes(
    parts: Sequence[Mapping[str, ColumnNote]],
) -> tuple[dict[str, ColumnNote], list[str]]:
    """Join the notes of several datasets.

    Returns the joined notes, and the columns whose class names contradict. The first description of
    a column is kept. Class names are kept only if they agree, since a number must not have two
    meanings.
    """
    joined: dict[str, ColumnNote] = {}
    differing: dict[str, None] = {}  # a set that keeps its order
    for notes in parts:
        for column, note in notes.items():
            first_note = joined.setdefault(column, note)
            if (
                first_note.class_names
                and note.class_names
                and first_note.class_names != note.class_names
            ):
                differing[column] = None
            joined[column] = ColumnNote(
                first_note.description or note.description,
                first_note.class_names or note.class_names,
            )
    for column in differing:
        joined[column] = joined[column]._replace(class_names=())
    return {name: note for name, note in joined.items() if any(note)}, list(differing)


def parse_notes(payload: bytes | memoryview, location: str) -> dict[str, ColumnNote]:
    """Parse the payload of a sidecar to notes by column. Raises IndexFileError for other bytes.

    ``location`` names the sidecar in errors.
    """
    try:
        columns = json.loads(bytes(payload))["columns"]
        notes = {column: _note(raw_note) for column, raw_note in columns.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IndexFileError(
            f"{location} does not describe columns: {error}. Remove the file."
        ) from error
    if len(notes) > _MAX_COLUMNS:
        raise IndexFileError(
            f"{location} describes {plural(len(notes), 'column')}, more than {_MAX_COLUMNS}. "
            "Remove the file."
        )
    return notes


def _note(raw_note: Any) -> ColumnNote:
    """Return the note of a parsed JSON object with the keys "description" and "class_names".

    Both may be missing. Raises AttributeError, TypeError or ValueError for another value.
    """
    description, names = raw_note.get("description", ""), raw_note.get("class_names", [])
    is_text = isinstance(description, str) and isinstance(names, list)
    if not is_text or not all(isinstance(name, str) for name in names):
        raise TypeError("a description must be a text, and class_names a list of texts")
    if len(names) > _MAX_CLASSES:
        raise ValueError(f"{len(names)} classes")
    return ColumnNote(description, tuple(names))
