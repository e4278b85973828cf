"""How many samples a tar has, as others have noted it, so that nothing of it need be read to plan.

    00000.tar.idx     Megatron Energon: where each sample begins and the last one ends, 8 bytes each
    index.json        wids: ``{"shardlist": [{"url": "00000.tar", "nsamples": 1000}, ...]}``
    00000_stats.json  img2dataset: ``{"successes": 998, ...}``

A count that turns out wrong when the tar is read is an error then.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from mds.errors import FormatError
from mds.formats.tar_members import BLOCK

if TYPE_CHECKING:
    from mds.formats.facts import DataFile
    from mds.formats.source import Files

_LARGEST = 64 << 20  # bytes of a note


def noted_samples(file: DataFile, files: Files) -> int | list[int] | None:
    """How many samples a tar has by a note beside it, or where each begins and the last ends.

    None without one. Raises FormatError for a note that cannot be.
    """
    folder, slash, name = file.key.rpartition("/")
    for key, read in (
        (file.key + ".idx", _energon),
        (f"{file.key.removesuffix('.tar')}_stats.json", _img2dataset),
        (f"{folder}{slash}index.json", _wids),
    ):
        note = files.beside(key)
        if note is None or note.size > _LARGEST:
            continue
        try:
            count = read(files.get(note), name, file.size)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError(
                f"{files.url(note)}: it does not say how many samples {name} has: {error}. Delete "
                f"it, and the tar itself is read."
            ) from error
        if count is not None:
            return count
    return None


def _energon(data: bytes, name: str, size: int) -> list[int]:
    del name
    places = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    is_rising = all(one < other for one, other in itertools.pairwise(places))
    # The first sample may be behind a folder, which other tars begin with.
    is_whole = not any(place % BLOCK for place in places)
    if len(data) % 8 or not (places and is_whole and is_rising) or places[-1] > size:
        raise ValueError("it is no list of places in it")
    return places


def _img2dataset(data: bytes, name: str, size: int) -> int:
    del name, size
    return _count(json.loads(data)["successes"])


def _wids(data: bytes, name: str, size: int) -> int | None:
    del size
    found = json.loads(data)
    if not isinstance(found, dict) or "shardlist" not in found:
        return None  # another index.json
    for shard in found["shardlist"]:
        if str(shard["url"]).rpartition("/")[2] == name:
            return _count(shard["nsamples"])
    return None


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError(f"{value!r} is no number of samples")
    return value
