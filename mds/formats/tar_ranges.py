"""Samples of a remote tar by ranges: their files alone, or all that lies between two samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.errors import FormatError
from mds.formats.facts import ShardPlace
from mds.formats.tar_bytes import reads
from mds.formats.tar_members import BLOCK, members
from mds.formats.tar_places import TarPlaces
from mds.formats.tar_samples import KEY, group
from mds.formats.tar_values import TarValues, key_at

if TYPE_CHECKING:
    from mds.formats.source import Files

Span = tuple[int, int]
#: Bytes between two wanted files that one more request is worth, at 30 ms and 8 side by side.
_WORTH = 256 << 10
#: Bytes of wanted files that are in memory at once, and the most samples they are of.
_BATCH_BYTES, _BATCH = 16 << 20, 1024


def is_worth_ranges(places: TarPlaces, shard: ShardPlace) -> bool:
    """Whether the wanted files of a tar come with less than half of its bytes."""
    if not places.files:
        return False
    whole = np.arange(shard.samples)
    spans = [span for each in _spans(places, whole, shard).values() for span in each]
    begins, ends = np.array(sorted(spans), np.int64).reshape(-1, 2).T
    gaps = begins[1:] - ends[:-1]
    fetched = int((ends - begins).sum()) + int(gaps[gaps <= _WORTH].sum())
    return 2 * fetched < shard.file.size


def ranged_records(
    places: TarPlaces, rows: Sequence[int], shard: ShardPlace, files: Files, values: TarValues
) -> Iterator[Mapping[str, Any]]:
    """Records of some samples, of each the bytes of the wanted files and no others."""
    wanted = [name for name in shard.columns.names if name in places.files]
    each = places.size(wanted) // max(len(places), 1) + BLOCK
    step = max(1, min(_BATCH, _BATCH_BYTES // each))
    for at in range(0, len(rows), step):
        yield from _fetched(places, rows[at : at + step], shard, files, values)


def whole_records(
    places: TarPlaces, rows: Sequence[int], shard: ShardPlace, files: Files, values: TarValues
) -> Iterator[Mapping[str, Any]]:
    """Records of some samples of which it is known where they begin, and no more."""
    found = files.ranges(shard.file, places.spans(rows))
    for row, data in zip(rows, found, strict=True):
        read = reads(bytes(data))
        samples = list(group(members(read, values.where)))
        if len(samples) != 1:
            raise FormatError(
                f"{values.where}, sample {row:,}: there are {len(samples)} samples where one was "
                f"planned; what says where they begin does not fit the tar."
            )
        yield values.of_sample(samples[0], read)


def _fetched(
    places: TarPlaces, rows: Sequence[int], shard: ShardPlace, files: Files, values: TarValues
) -> Iterator[Mapping[str, Any]]:
    spans = _spans(places, np.asarray(rows, np.int64), shard)
    flat = [span for each in spans.values() for span in each if span[0] >= 0]
    data = dict(zip(flat, files.ranges(shard.file, flat, _WORTH), strict=True))
    for at, row in enumerate(rows):
        found = {name: each[at] for name, each in spans.items() if each[at][0] >= 0}
        head = found.pop(KEY, None)

        def key(row: int = row, head: Span | None = head) -> str:
            if head is None:
                return f"number {row}"  # for an error: the name was not fetched
            return key_at(reads(bytes(data[head])), values.where, 0)

        yield values.record(key, found, lambda place: bytes(data[place]))


def _spans(places: TarPlaces, rows: Any, shard: ShardPlace) -> dict[str, list[Span]]:
    """Begin and end of what is wanted of each sample, -1 where there is none.

    The name of a sample is in its first header, which ends where its first file begins.
    """
    out = {}
    for name in shard.columns.names:
        if name in places.files:
            begins, ends = (each[rows] for each in places.bounds(name))
        elif name == KEY:
            begins, ends = (each[rows] for each in places.heads())
        else:
            continue
        out[name] = list(zip(begins.tolist(), ends.tolist(), strict=True))
    return out
