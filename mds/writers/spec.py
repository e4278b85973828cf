"""A writer's arguments, parsed once at the door."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mds.compression import parse_compression
from mds.errors import ConfigError
from mds.hashing import hash_names, is_hash
from mds.layout import MAX_SIZE
from mds.storage import is_local, local_path
from mds.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mds.compression import Codec

    Out = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

# Shards that may be in memory beside the one being filled, unless max_workers says more.
_SHARDS_AHEAD = 2


@dataclass(frozen=True, slots=True)
class OutSpec:
    """Where a dataset goes: a folder, and a store when the folder is not the end.

    `local` is None when there is only a store; shards then pass through a temporary folder.
    """

    local: str | None
    remote: str | None
    keep_local: bool
    exist_ok: bool
    retry: int


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """What every shard of a dataset has in common. `size_limit` None means no limit."""

    compression: str | None
    codec: Codec | None
    hashes: tuple[str, ...]
    size_limit: int | None
    samples_per_shard: int | None


@dataclass(frozen=True, slots=True)
class WorkSpec:
    """How much may go on at once: threads, and shards in memory beside the one being filled."""

    threads: int
    shards_ahead: int
    progress_bar: bool


def parse_out(out: Out, *, keep_local: bool, exist_ok: bool, retry: int) -> OutSpec:
    """Where to write. Raises ConfigError unless `out` is a path, a URL, or a pair of those."""
    if isinstance(out, (str, os.PathLike)):
        place = os.fspath(out)
        if is_local(place):
            return OutSpec(_folder(place), None, True, exist_ok, retry)
        return OutSpec(None, place, keep_local, exist_ok, retry)
    if not isinstance(out, (list, tuple)) or len(out) != 2:
        raise ConfigError(f"out is a folder, a URL, or a pair (local folder, remote); got {out!r}.")
    local, remote = (None if place is None else os.fspath(place) for place in out)
    if not local or not remote:
        raise ConfigError(f"out=(local, remote) needs both; got {out!r}.")
    if not is_local(local):
        raise ConfigError(f"the first of out=(local, remote) is a local folder, got {local!r}.")
    folder = _folder(local)
    if is_local(remote):
        remote = _folder(remote)
        if os.path.realpath(remote) == os.path.realpath(folder):
            # Uploading a file onto itself and removing the source would be the end of it.
            return OutSpec(folder, None, True, exist_ok, retry)
    return OutSpec(folder, remote, keep_local, exist_ok, retry)


def _folder(place: str) -> str:
    """A local path that stays the same when the process changes its folder."""
    return os.path.abspath(os.path.expanduser(local_path(place)))


def parse_shards(
    compression: str | None,
    hashes: Sequence[str] | None,
    size_limit: float | str | None,
    samples_per_shard: int | None,
) -> ShardSpec:
    """What the shards are like. Raises ConfigError (a ValueError)."""
    codec = parse_compression(compression)
    if samples_per_shard is not None and samples_per_shard < 1:
        raise ConfigError(f"samples_per_shard is at least 1, got {samples_per_shard}.")
    return ShardSpec(
        codec.name if codec else None,
        codec,
        _parse_hashes(hashes),
        _parse_limit(size_limit),
        samples_per_shard,
    )


def _parse_hashes(hashes: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(hashes, str):
        raise ConfigError(f"hashes is a list of names, got the text {hashes!r}: [{hashes!r}]?")
    names = tuple(hashes or ())
    for name in names:
        if not is_hash(name):
            raise ConfigError(f"there is no hash {name!r}. Known are {', '.join(hash_names())}.")
    if list(names) != sorted(names):
        raise ConfigError(f"hashes must be sorted: {sorted(names)}, got {list(names)}.")
    return names


def _parse_limit(size_limit: float | str | None) -> int | None:
    if not size_limit:
        return None
    limit = parse_bytes(size_limit)
    if not 0 <= limit < MAX_SIZE:
        raise ConfigError(f"size_limit is below {MAX_SIZE} bytes (4 GiB), got {size_limit!r}.")
    return limit or None


def parse_work(kwargs: dict[str, Any]) -> tuple[WorkSpec, dict[str, Any]]:
    """How to work, and what is left for `parse_out`. Raises ConfigError for unknown arguments."""
    known = {"progress_bar": False, "max_workers": None, "retry": 2, "exist_ok": False}
    for name in kwargs:
        if name not in known:
            raise ConfigError(
                f"a writer has no argument {name!r}. Besides those in its signature it takes "
                f"{', '.join(sorted(known))}."
            )
    given = {**known, **kwargs}
    workers, retry = given["max_workers"], given["retry"]
    if workers is not None and workers < 1:
        raise ConfigError(f"max_workers is at least 1, got {workers}.")
    if retry < 0:
        raise ConfigError(f"retry is a number of tries, got {retry}.")
    threads = workers or min(32, (os.cpu_count() or 1) + 4)
    work = WorkSpec(threads, workers or _SHARDS_AHEAD, bool(given["progress_bar"]))
    return work, {"exist_ok": bool(given["exist_ok"]), "retry": int(retry)}
