"""A full shard becomes files: hashed, compressed, written whole, and described for the index.

Runs in a thread. The libraries that do the work release the GIL, and the shard is taken in pieces
that stay in the processor's cache, so a compressed shard is never in memory as a whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mds.hashing import new_hash
from mds.layout import shard_name
from mds.storage import publish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mds.hashing import Hash
    from mds.writers.spec import ShardSpec

    Data = bytes | bytearray | memoryview

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class FullShard:
    """A shard that is ready to be written.

    `files` are the parts of its data file, and of its meta file where the format has one.
    `config` is what the shard and the index tell about it beside files and samples. `release` is
    called when the parts are not needed any more.
    """

    number: int
    samples: int
    format: str
    files: tuple[Sequence[Data], ...]
    config: dict[str, Any]
    release: Callable[[], None]


@dataclass(frozen=True, slots=True)
class SealedShard:
    """A shard on disk: its entry for the index, as text, and the files to upload."""

    entry: str
    names: tuple[str, ...]


def seal(shard: FullShard, spec: ShardSpec, folder: str, check: Callable[[], None]) -> SealedShard:
    """Write a shard into `folder`. `check` is called now and then and may raise to stop it."""
    entry: dict[str, Any] = {**shard.config, "samples": shard.samples}
    names = []
    for what, parts in zip(("data", "meta"), shard.files, strict=False):
        extension = shard.format + (".meta" if what == "meta" else "")
        raw, zipped = _write(shard_name(shard.number, extension), parts, spec, folder, check)
        entry[f"raw_{what}"], entry[f"zip_{what}"] = raw, zipped
        names.append((zipped or raw)["basename"])
    # Text at once: half a million of these would be a gigabyte as dictionaries.
    return SealedShard(json.dumps(entry, sort_keys=True), tuple(names))


def _write(
    name: str,
    parts: Sequence[Data],
    spec: ShardSpec,
    folder: str,
    check: Callable[[], None],
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """One file; its infos for the index, raw and compressed."""
    codec, hashes = spec.codec, {hash_: new_hash(hash_) for hash_ in spec.hashes}
    zip_name = f"{name}.{codec.extension}" if codec else name
    with publish(os.path.join(folder, zip_name)) as temporary, open(temporary, "wb") as file:
        if codec is None:
            size = 0
            for piece in _pieces(parts):
                check()
                _update(hashes, piece)
                size += file.write(piece)
            return _info(name, size, hashes), None
        for piece in _pieces(parts) if hashes else ():
            _update(hashes, piece)
        zip_hashes = {hash_: new_hash(hash_) for hash_ in spec.hashes}
        zip_size = 0
        for out in codec.compress_parts(parts):
            check()
            _update(zip_hashes, out)
            zip_size += file.write(out)
    raw = _info(name, sum(map(len, parts)), hashes)
    return raw, _info(zip_name, zip_size, zip_hashes)


def _pieces(parts: Sequence[Data]) -> list[memoryview]:
    return [
        memoryview(part)[start : start + _PIECE]
        for part in parts
        for start in range(0, len(part), _PIECE)
    ]


def _update(hashes: dict[str, Hash], piece: Data) -> None:
    for digest in hashes.values():
        digest.update(piece)


def _info(name: str, size: int, hashes: dict[str, Hash]) -> dict[str, Any]:
    digests = {hash_: digest.hexdigest() for hash_, digest in hashes.items()}
    return {"basename": name, "bytes": size, "hashes": digests}
