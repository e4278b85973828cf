"""How many samples a tar has, as others have noted it, so that nothing of it need be read to plan.

    00000.tar.idx     Megatron Energon: where each sample begins and the last one ends, 8 bytes each
    index.json        wids: ``{"shardlist": [{"url": "00000.tar", "nsamples": 1000}, ...]}``
    00000_stats.json  img2dataset: ``{"successes": 998, ...}``

A count that turns out wrong when the tar is read is an error then.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mds.errors import FormatError
from mds.formats.tar_members import BLOCK

if TYPE_CHECKING:
    from mds.formats.facts import DataFile
    from mds.formats.source import Files

_LARGEST = 64 << 20  # bytes of a note


def noted_samples(file: DataFile, files: Files) -> int | list[int] | None:
    """Return the number of a tar's samples by a sidecar, or the bounds of all samples.

    None without one. Raises FormatError for a note that cannot be.
    """
    folder, slash, name = file.key.rpartition("/")
    own = ((f"{file.key}.idx", _energon), (f"{file.key.removesuffix('.tar')}_stats.json", _stats))
    for key, read in own:
        if (note := _there(key, files)) is not None:
            with _told(note, name, files):
                return read(files.get_once(note), file.size)
    note = _there(f"{folder}{slash}index.json", files)
    if note is None:
        return None
    with _told(note, name, files):
        # Of all tars of the folder: fetched and parsed once for them.
        counts = files.once(note.key, lambda: _wids(files.get(note)))
        return _count(counts[name]) if name in counts else None


def _there(key: str, files: Files) -> DataFile | None:
    note = files.beside(key)
    return note if note is not None and note.size <= _LARGEST else None


@contextlib.contextmanager
def _told(note: DataFile, name: str, files: Files) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{files.url(note)}: it does not say how many samples {name} has: {error}. Delete "
            f"it, and the tar itself is read."
        ) from error


def _energon(data: bytes, size: int) -> list[int]:
    places = [
        int.from_bytes(data[offset : offset + 8], "little") for offset in range(0, len(data), 8)
    ]
    is_rising = all(first < second for first, second in itertools.pairwise(places))
    # The first sample may be behind a folder, which other tars begin with.
    is_whole = not any(place % BLOCK for place in places)
    if len(data) % 8 or not (places and is_whole and is_rising) or places[-1] > size:
        raise ValueError("it is not a list of places in it")
    return places


def _stats(data: bytes, size: int) -> int:
    del size
    return _count(json.loads(data)["successes"])


def _wids(data: bytes) -> dict[str, Any]:
    """Return the samples of each tar, or {} for an index.json of another kind."""
    counts = json.loads(data)
    if not isinstance(counts, dict) or "shardlist" not in counts:
        return {}
    return {
        str(shard["url"]).rpartition("/")[2]: shard["nsamples"] for shard in counts["shardlist"]
    }


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError(f"{value!r} is not a number of samples")
    return value
