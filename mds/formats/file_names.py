"""The names of files in a state: texts of a few kilobytes, so that a refusal can say which differ.

They go with a checkpoint to machines that never saw the files as they were. Lists that stay longer
when they are compressed (some ten thousand numbered files, two thousand random names) are left out;
the digest beside them says all the same that they differ.
"""

from __future__ import annotations

import base64
import binascii
import os
import zlib
from collections.abc import Sequence
from typing import Any

#: Letters of all texts, and of one.
_LARGEST, _LETTERS = 32 << 10, 400
#: From so many letters on names are not packed to see how small they become.
_MOST_LETTERS = 2 << 20
_MOST_NAMES_BYTES = 64 << 20
_SHOWN = 5


def pack_names(keys: Sequence[str]) -> list[str]:
    """The names as texts for a state; none where they would be too large."""
    if sum(map(len, keys)) > _MOST_LETTERS:
        return []
    packed = base64.b85encode(zlib.compress("\0".join(keys).encode(), 9)).decode()
    if len(packed) > _LARGEST:
        return []
    return [packed[at : at + _LETTERS] for at in range(0, len(packed), _LETTERS)]


def unpack_names(texts: Any) -> list[str] | None:
    """The names of `pack_names`; None for anything else, since a state comes from outside."""
    if not isinstance(texts, (list, tuple)) or not texts or not all(map(_is_text, texts)):
        return None
    unpack = zlib.decompressobj()
    try:
        data = unpack.decompress(base64.b85decode("".join(texts)), _MOST_NAMES_BYTES)
        return data.decode().split("\0") if unpack.eof else None
    except (ValueError, binascii.Error, zlib.error):
        return None


def tell_changes(before: Sequence[str], now: Sequence[str]) -> str:
    """Which names came and went between two lists of files, in words."""
    came, gone = sorted({*now} - {*before}), sorted({*before} - {*now})
    told = [
        f"{what}: {first_names([*map(repr, names)])}"
        for what, names in (("came", came), ("went", gone))
        if names
    ]
    return "; ".join(told) or "the names are the same, and what is in them is not"


def first_names(names: Sequence[str]) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def below_their_folder(keys: Sequence[str]) -> list[str]:
    """The keys without the folder that all are in, which is no more than where they lie."""
    # Cut behind a slash, so half a name is no folder.
    cut = os.path.commonprefix([*keys]).rfind("/") + 1 if keys else 0  # noqa: RUF071
    return [key[cut:] for key in keys]


def _is_text(text: Any) -> bool:
    return isinstance(text, str)
