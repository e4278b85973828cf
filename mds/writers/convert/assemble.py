"""One shard from the runs of its parts: header, samples, compression, digests, and to its place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mds.compression import parse_compression
from mds.encodings import parse_encoding
from mds.hashing import new_hash
from mds.layout import config_bytes, pack_header, shard_name
from mds.storage import open_store
from mds.storage.files import publish
from mds.writers.convert.cut import Shard
from mds.writers.convert.work import Work

_CHUNK = 4 << 20


@dataclass(frozen=True)
class Output:
    """What all shards of a conversion have in common, and where they go."""

    url: str
    splits: tuple[str, ...]
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    work: Work

    @cached_property
    def columns(self) -> dict[str, Any]:
        """The part of the index that tells the columns."""
        return {
            "column_names": list(self.names),
            "column_encodings": list(self.encodings),
            "column_sizes": [parse_encoding(name).size for name in self.encodings],
        }

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration that every shard holds (FORMAT.md)."""
        return {
            **self.columns,
            "compression": self.compression,
            "format": "mds",
            "hashes": list(self.hashes),
            "size_limit": self.size_limit,
            "version": 2,
        }

    def key(self, split: int, name: str) -> str:
        """The key of a file of a split."""
        return f"{self.splits[split]}/{name}" if self.splits[split] else name


def write_shard(output: Output, shard: Shard) -> tuple[int, int]:
    """Make a shard, unless that was done before, and give back its split and number."""
    if output.work.load_shard(shard.split, shard.number) is None:
        entry = _Assembly(output, shard).write()
        output.work.save_shard(shard.split, shard.number, entry)
    return shard.split, shard.number


class _Assembly:
    """One shard under way."""

    def __init__(self, output: Output, shard: Shard) -> None:
        self._output = output
        self._shard = shard
        header = pack_header(shard.sizes.tolist(), config_bytes(output.config))
        self._header = header
        self._size = len(header) + int(shard.sizes.sum())

    def write(self) -> dict[str, Any]:
        """Write it, upload it where the output is remote, and give its entry of the index."""
        name = shard_name(self._shard.number, "mds")
        raw = {"basename": name, "bytes": self._size, "hashes": {}}
        codec = parse_compression(self._output.compression)
        if codec is None:
            with self._file(name) as path:
                _, raw["hashes"] = self._copy(self._raw(), path)
            return self._entry(raw, None)
        # In one piece: where a compressor is fed in pieces, they may show in its output.
        data = b"".join(self._raw())
        raw["hashes"] = self._digests([data])
        zip_name = f"{name}.{codec.extension}"
        with self._file(zip_name) as path:
            size, hashes = self._copy(iter([codec.compress(data)]), path)
        return self._entry(raw, {"basename": zip_name, "bytes": size, "hashes": hashes})

    def _entry(self, raw: dict[str, Any], zipped: dict[str, Any] | None) -> dict[str, Any]:
        samples = len(self._shard.sizes)
        return {**self._output.config, "samples": samples, "raw_data": raw, "zip_data": zipped}

    @contextlib.contextmanager
    def _file(self, name: str) -> Iterator[str]:
        """A path to write to; what was written is at its place when the block ends."""
        store = open_store(self._output.url)
        key = self._output.key(self._shard.split, name)
        if store.local_path is not None:
            with publish(os.path.join(store.local_path, *key.split("/"))) as path:
                yield path
            return
        local = os.path.join(self._output.work.folder, "upload", *key.split("/"))
        with publish(local) as path:
            yield path
        store.put_file(key, local)
        os.unlink(local)

    def _raw(self) -> Iterator[bytes]:
        yield self._header
        for piece in self._shard.pieces:
            with open(self._output.work.run(piece.part, self._shard.split), "rb") as file:
                file.seek(piece.start)
                left = piece.end - piece.start
                while left:
                    chunk = file.read(min(left, _CHUNK))
                    if not chunk:
                        raise EOFError(f"{file.name}: {left} bytes are missing")
                    left -= len(chunk)
                    yield chunk
        if self._shard.padding:
            yield self._shard.padding

    def _copy(self, chunks: Iterator[bytes], path: str) -> tuple[int, dict[str, str]]:
        digests = {name: new_hash(name) for name in self._output.hashes}
        size = 0
        with open(path, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
                size += len(chunk)
                for digest in digests.values():
                    digest.update(chunk)
        return size, {name: digest.hexdigest() for name, digest in digests.items()}

    def _digests(self, chunks: list[bytes]) -> dict[str, str]:
        digests = {name: new_hash(name) for name in self._output.hashes}
        for chunk in chunks:
            for digest in digests.values():
                digest.update(chunk)
        return {name: digest.hexdigest() for name, digest in digests.items()}
