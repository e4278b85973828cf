"""Digests of the shards of a dataset, by which a state recognizes its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._shardfile.hashing import hexdigest

if TYPE_CHECKING:
    from mds._index.table import Index

_MAX_BLOCKS = 32  # digests of contents in a state
_LETTERS = 8  # of each of them


class Contents:
    """Digests of the shards of a dataset, by which a state recognizes its data.

    A state has one digest for each block of consecutive shards, of 8 letters. A dataset of up to 32
    shards has a block for each; others have larger blocks, so that a state stays small::

        {"shards": 70, "block": 3, "digests": "5e0c6f1a90...", "settings": "90a1b2c3"}

    Shards can only be compared if the settings of their writers are equal, see
    `Index.raw_contents`. So each block also has a digest of the settings of its shards. It is
    recorded once if it is the same for all blocks.

    Args:
        indexes: Index of each stream; the shards are numbered through all of them.
    """

    def __init__(self, indexes: Sequence[Index]) -> None:
        contents, settings, has_digests = zip(
            *(index.raw_contents() for index in indexes), strict=True
        )
        samples = np.concatenate([np.asarray(index.samples, np.int64) for index in indexes])
        self._rows = np.stack([samples, np.concatenate(contents)], 1).astype("<i8")
        self._settings = np.concatenate(settings).astype("<i8")
        self._has_digests = np.concatenate(has_digests)

    def emit(self) -> dict[str, Any]:
        """Return the digests as an entry of a state, as plain JSON."""
        count = len(self._rows)
        size = max(1, -(-count // _MAX_BLOCKS))
        blocks = [(first, min(first + size, count)) for first in range(0, count, size)]
        settings = [self._settings_digest(*block) for block in blocks]
        return {
            "shards": count,
            "block": size,
            "digests": "".join(self._digest(*block) for block in blocks),
            "settings": settings[0] if len(set(settings)) == 1 else "".join(settings),
        }

    def compare(self, recorded: Any) -> list[tuple[int, int, bool | None]]:
        """Return (first shard, end, whether it is equal) of each block of a state.

        The shards of this dataset are compared with the first ones of the state, or the reverse, if
        one of them has more. Whether a block is equal is None if it is not known. A block is known
        to be equal only if all of its shards have digests.

        ``recorded`` is the entry of the state. One that is missing or malformed has no blocks.
        """
        if not isinstance(recorded, Mapping):
            return []
        count, size = recorded.get("shards"), recorded.get("block")
        if type(count) is not int or type(size) is not int or not 0 < size <= count <= 1 << 31:
            return []
        blocks = [(first, min(first + size, count)) for first in range(0, count, size)[:4096]]
        digests, settings = recorded.get("digests"), recorded.get("settings")
        if not isinstance(digests, str) or not isinstance(settings, str):
            return []
        if len(settings) == _LETTERS:
            settings *= len(blocks)
        result: list[tuple[int, int, bool | None]] = []
        for number, (first, end) in enumerate(blocks):
            if end > len(self._rows):
                break
            letters = slice(number * _LETTERS, (number + 1) * _LETTERS)
            is_equal: bool | None = None
            if digests[letters] == self._digest(first, end):
                is_equal = True if self._has_digests[first:end].all() else None
            elif settings[letters] == self._settings_digest(first, end):
                is_equal = False
            result.append((first, end, is_equal))
        return result

    def _digest(self, first: int, end: int) -> str:
        return hexdigest("xxh3_64", self._rows[first:end].tobytes())[:_LETTERS]

    def _settings_digest(self, first: int, end: int) -> str:
        """Return a digest of the settings of some shards.

        If all of them have the same settings, it does not depend on their number.
        """
        settings = self._settings[first:end]
        changes = np.flatnonzero(np.diff(settings)) + 1
        changes = np.concatenate([[0], changes]).astype("<i8")
        return hexdigest("xxh3_64", changes.tobytes() + settings[changes].tobytes())[:_LETTERS]
