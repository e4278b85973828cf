"""Reduce step of a conversion: one shard from the runs of its parts, compressed, to its place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from mds.encodings import parse_encoding
from mds.errors import WriterError
from mds.format.compression import parse_compression
from mds.format.hashing import new_hash
from mds.format.layout import MAX_SIZE, config_bytes, pack_header, shard_name
from mds.index.column_notes import ColumnNote
from mds.process.fork_safe import cached_property
from mds.storage import open_store, redact
from mds.storage.directory import open_directory, sync_file
from mds.storage.files import open_target, publish
from mds.writers.convert.checkpoint import Checkpoint
from mds.writers.convert.shard_split import Shard

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
    checkpoint: Checkpoint
    durable: bool = True
    #: What is kept beside the index of each split.
    notes: Mapping[str, ColumnNote] = field(default_factory=dict)
    #: Column whose lengths are kept there.
    lengths: str | None = None
    #: What offsets can address.
    max_shard_size: int = MAX_SIZE - 1
    #: By what the system knows the folders of the splits, for processes of this machine.
    identities: tuple[tuple[int, int], ...] = ()

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


def replaced_error(output: Output) -> WriterError:
    """The error for a folder that is not in its place any more."""
    return WriterError(
        f"{redact(output.url)}: the output or the work folder was deleted or replaced while the "
        "dataset was written. No index is published; convert anew, with --overwrite."
    )


def write_shard(output: Output, shard: Shard) -> tuple[int, int]:
    """Make a shard, unless that was done before, and give back its split and number."""
    if output.checkpoint.load_shard(shard.split, shard.number) is None:
        assembly = _ShardBuilder(output, shard)
        entry = assembly.write()
        output.checkpoint.save_shard(shard.split, shard.number, entry, assembly.version)
    return shard.split, shard.number


class _ShardBuilder:
    """Builder of one shard."""

    def __init__(self, output: Output, shard: Shard) -> None:
        self._output = output
        self._shard = shard
        header = pack_header(shard.sizes.tolist(), config_bytes(output.config))
        self._header = header
        self._size = len(header) + int(shard.sizes.sum())
        #: What the store calls the file that it was sent, '' where it tells nothing.
        self.version = ""

    def write(self) -> dict[str, Any]:
        """Write it, upload it where the output is remote, and give its entry of the index."""
        name = shard_name(self._shard.number, "mds")
        raw = {"basename": name, "bytes": self._size, "hashes": {}}
        codec = parse_compression(self._output.compression)
        if codec is None:
            with self._file(name) as file:
                _, raw["hashes"] = self._copy(self._raw(), file)
            return self._entry(raw, None)
        # In one piece: where a compressor is fed in pieces, they may show in its output.
        data = b"".join(self._raw())
        raw["hashes"] = self._digests([data])
        zip_name = f"{name}.{codec.extension}"
        with self._file(zip_name) as file:
            size, hashes = self._copy(iter([codec.compress(data)]), file)
        return self._entry(raw, {"basename": zip_name, "bytes": size, "hashes": hashes})

    def _entry(self, raw: dict[str, Any], zipped: dict[str, Any] | None) -> dict[str, Any]:
        samples = len(self._shard.sizes)
        return {**self._output.config, "samples": samples, "raw_data": raw, "zip_data": zipped}

    @contextlib.contextmanager
    def _file(self, name: str) -> Iterator[BinaryIO]:
        """A file to write to; what was written is at its place when the block ends."""
        output, split = self._output, self._shard.split
        store = open_store(output.url)
        key = output.key(split, name)
        if store.local_path is not None:
            with open_directory(os.path.join(store.local_path, output.splits[split])) as folder:
                if output.identities and folder.identity != output.identities[split]:
                    raise replaced_error(output)
                with folder.publish(name) as file:
                    yield file
                    if output.durable:
                        sync_file(file)
            return
        local = os.path.join(output.checkpoint.folder, "upload", *key.split("/"))
        with publish(local) as path, open_target(path) as file:
            yield file
        self.version = store.put_file(key, local).version
        os.unlink(local)

    def _raw(self) -> Iterator[bytes]:
        yield self._header
        for piece in self._shard.pieces:
            with open(
                self._output.checkpoint.run_path(piece.part, self._shard.split), "rb"
            ) as file:
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

    def _copy(self, chunks: Iterator[bytes], file: BinaryIO) -> tuple[int, dict[str, str]]:
        digests = {name: new_hash(name) for name in self._output.hashes}
        size = 0
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
