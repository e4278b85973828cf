"""Columns that were not there when a file was planned: how they are found when it is read.

Columns of lines and of tars are told from some samples of a file. The names that were found are its
note; a sample with another one is an error where all columns are wanted, or it would lose a value
without a word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mds.errors import FormatError

if TYPE_CHECKING:
    from mds.formats.facts import ShardPlace


def note_of(columns: Iterable[str], extra: bytes = b"") -> bytes:
    """Return the note of a file with these columns, and with further bytes."""
    names = json.dumps(sorted(columns)).encode()
    return len(names).to_bytes(4, "little") + names + extra


def more_of(note: bytes) -> bytes:
    """Return the bytes of a note behind its columns."""
    return note[4 + int.from_bytes(note[:4], "little") :]


class KnownColumns:
    """The columns of a file as planned, and which of them are wanted."""

    def __init__(self, shard: ShardPlace) -> None:
        names = shard.columns.names
        self.selected = frozenset(names)
        end = 4 + int.from_bytes(shard.note[:4], "little")
        try:
            noted = frozenset(json.loads(shard.note[4:end]))
        except (ValueError, TypeError, RecursionError) as error:
            raise FormatError(
                f"a table of {shard.file.key} has no columns of it: {error}. Make it anew."
            ) from error
        #: Columns that were planned and are not wanted.
        self.omitted = noted - {*names}
        #: All that a sample may have; None where more do not matter.
        self._allowed = None if self.omitted or shard.has_chosen else noted
        pairs = zip(names, shard.columns.encodings, strict=True)
        #: None for each column that may be it, which a sample need not have.
        self.gaps: dict[str, None] = dict.fromkeys(
            name for name, kind in pairs if kind == "json" or kind.startswith("optional[")
        )

    def is_late(self, record: Mapping[str, object]) -> bool:
        """Whether a sample has a column that was not planned, and that matters."""
        return self._allowed is not None and not record.keys() <= self._allowed

    def check(self, names: Iterable[str], location: str, subject: str) -> None:
        """Raise FormatError for a column that was not planned; ``subject`` it comes from."""
        if self._allowed is None or self._allowed.issuperset(names):
            return
        late = ", ".join(map(repr, sorted({*names} - self._allowed)))
        raise FormatError(
            f"{location}: {subject} {late}, and none of those had it that columns were inferred "
            f"from. Name the columns that you want with columns=."
        )
