"""Second step of a conversion: choose the samples of each shard, and write the shard.

Parts arrive in order, each as a run of sample bytes per split. End to end the runs of a split form
one stream, and a shard is a range of the stream, so the boundaries of parts have no effect:

    runs      |  part 0   |    part 1    | part 2 |
    shards    | shard 0 | shard 1 | shard 2  | ...

Shards end where those of a writer do (FORMAT.md), so a conversion by many processes writes the
bytes of one `MDSWriter`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mds._index.column_notes import ColumnNote
from mds._process.fork_safe import cached_property
from mds._shardfile.compression import parse_compression
from mds._shardfile.hashing import new_hash
from mds._shardfile.layout import MAX_SIZE, config_bytes, pack_header, shard_name
from mds.encodings import parse_encoding
from mds.errors import WriterError
from mds.storage import open_store
from mds.storage._files import open_directory, open_target, publish, sync_file
from mds.storage._url import redact
from mds.writers.convert._checkpoint import Checkpoint

Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of bytes of a run, which is the file with the samples of one part for one split.

    - ``part`` (int): The number of the part.
    - ``start`` (int), ``end`` (int): Offset of the first byte, and of the byte after the last.
    """

    part: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard to write: which bytes of which runs it joins.

    - ``split`` (int), ``number`` (int): Number of the split, and of the shard in it, from 0.
    - ``sizes`` (int64 array): The size of each sample in bytes.
    - ``pieces`` (tuple[Piece, ...]): Where the bytes of the samples are, in order.
    - ``padding`` (bytes): End tokens after the pieces, which complete the last block of tokens.
    """

    split: int
    number: int
    sizes: Sizes
    pieces: tuple[Piece, ...]
    padding: bytes = b""


class ShardCutter:
    """Cutter that divides the samples of one split into shards, from their sizes alone.

    Runs are added in order with `feed`; ``samples`` and ``shards`` count what was added and cut.
    Samples that fill no shard yet wait in ``_pieces`` (where their bytes are) and ``_sizes``:

        added      | part 0 (80 bytes) | part 1 (50 bytes) |
        shard 0    | 0 to 80           | 0 to 20 |             2 pieces, 100 bytes
        _pieces                                  | 20 to 50 |  samples of the next shard

    Samples of a tokenizer are blocks of a fixed size, and a run may end inside a block. The bytes
    of an unfinished block are in ``_pieces`` without a size in ``_sizes``: the leftover.

    - ``split`` (int): The number of the split.
    - ``size_limit`` (int, bytes): The size at which a shard ends; 0 for no limit.
    - ``overhead`` (int, bytes): The size of a shard without samples.
    - ``max_shard_size`` (int, bytes): The size that offsets can address.
    - ``keeps_parts`` (bool): Whether a shard ends where a part does. There is no limit then.
    """

    def __init__(
        self,
        split: int,
        *,
        size_limit: int,
        overhead: int,
        max_shard_size: int = MAX_SIZE - 1,
        keeps_parts: bool = False,
    ) -> None:
        self.split = split
        self.samples = 0
        self.shards = 0
        self._limit = size_limit
        self._overhead = overhead
        self._max_shard_size = max_shard_size
        self._keeps_parts = keeps_parts
        # Runs and sizes of samples that belong to no finished shard yet.
        self._pieces: list[Piece] = []
        self._sizes: list[Sizes] = []
        self._count = 0  # samples in `_sizes`
        #: Bytes that the current shard can still take. Without a limit the size of it, negated.
        self._free_bytes = size_limit - overhead

    def holds(self, part: int) -> bool:
        """Return whether some samples of a part are in no shard yet."""
        return any(piece.part == part for piece in self._pieces)

    def feed(self, part: int, length: int, sizes: Sizes) -> Iterator[Shard]:
        """Add the run of a part, and yield the shards that are full then.

        - ``length`` (int): Bytes of the run.
        - ``sizes`` (int64 array): Sizes of the samples that end in the run; blocks of tokens may
          begin in the run before.
        """
        if length:
            self._pieces.append(Piece(part, 0, length))
        self.samples += len(sizes)
        if not self._limit:
            self._add_to_shard(sizes)
            if self._keeps_parts and self._count:
                yield self._end_shard()
            return
        # Bytes of the samples 0 to i in a shard. A sample also takes an offset of 4 bytes in the
        # header: sizes of 96, 46 and 26 bytes give [100, 150, 180].
        costs = np.cumsum(sizes + 4)
        start = 0  # the first sample that is in no shard yet
        while start < len(sizes):
            cost_before = int(costs[start - 1]) if start else 0
            # Find the first sample that does not fit into the current shard: with 160 free bytes
            # that is sample 2, as 150 <= 160 < 180.
            limit = cost_before + self._free_bytes
            stop = max(start, int(np.searchsorted(costs, limit, side="right")))
            if stop == start:
                # Not one sample fits: the samples so far become a shard, even if there is none, and
                # the next shard takes the sample whatever its size.
                yield self._end_shard()
                stop = start + 1
            self._add_to_shard(sizes[start:stop])
            start = stop

    def finish(self, padding: bytes = b"", sizes: Sizes | None = None) -> Iterator[Shard]:
        """Yield the last shard, if it has samples, and a full one before it if one becomes full.

        - ``padding`` (bytes): End tokens that are in no run; they complete the last block.
        - ``sizes`` (int64 array | None): Size of the block that the padding completes, as the only
          element; None without padding.
        """
        if sizes is not None:
            # The bytes of the block are in the runs and the padding, so no run is added: a length
            # of 0 adds no piece, and the number of the part (-1) is not used.
            yield from self.feed(-1, 0, sizes)
        if self._count:
            yield self._end_shard(padding)

    def leftover_bytes(self) -> int:
        """Return the number of bytes that were added and belong to no sample yet."""
        held_bytes = sum(piece.end - piece.start for piece in self._pieces)
        return held_bytes - sum(int(sizes.sum()) for sizes in self._sizes)

    def drop_leftover(self) -> None:
        """Drop the bytes that belong to no sample."""
        self._pieces, _ = self._split_pieces(sum(int(sizes.sum()) for sizes in self._sizes))

    def _add_to_shard(self, sizes: Sizes) -> None:
        """Add samples to the current shard.

        Raises WriterError if there is no size limit, so that all samples share one shard, and that
        becomes larger than offsets can address.
        """
        self._sizes.append(sizes)
        self._count += len(sizes)
        # A sample also takes an offset of 4 bytes in the header.
        self._free_bytes -= int(sizes.sum()) + 4 * len(sizes)
        # Without a limit `_free_bytes` began at -overhead: it is the size of the shard, negated.
        if not self._limit and -self._free_bytes > self._max_shard_size:
            raise WriterError(
                f"a single shard would have {-self._free_bytes} bytes, more than the maximum of "
                f"{self._max_shard_size}. Set a size_limit."
            )

    def _end_shard(self, padding: bytes = b"") -> Shard:
        """Return the current shard, and begin another.

        - ``padding`` (bytes): End tokens that are in no run; they complete the last block of
          tokens, which is the last sample of the shard.
        """
        sizes = np.concatenate(self._sizes) if self._sizes else np.zeros(0, np.int64)
        # The size of the last sample includes the padding, which the runs do not have: the runs
        # give the other bytes only.
        bytes_from_runs = int(sizes.sum()) - len(padding)
        pieces, self._pieces = self._split_pieces(bytes_from_runs)
        number, self.shards = self.shards, self.shards + 1
        self._sizes, self._count, self._free_bytes = [], 0, self._limit - self._overhead
        return Shard(self.split, number, sizes, tuple(pieces), padding)

    def _split_pieces(self, size: int) -> tuple[list[Piece], list[Piece]]:
        """Return the waiting pieces that hold the first ``size`` bytes, and the other pieces.

        The piece at the border is cut in two: of pieces with 80 and 50 bytes, the first 100 bytes
        are [0 to 80] and [0 to 20], the others are [20 to 50]. `_pieces` stays as it was.
        """
        pieces: list[Piece] = []
        for number, piece in enumerate(self._pieces):
            length = piece.end - piece.start
            if length > size:
                end = piece.start + size
                if size:
                    pieces.append(Piece(piece.part, piece.start, end))
                return pieces, [Piece(piece.part, end, piece.end), *self._pieces[number + 1 :]]
            pieces.append(piece)
            size -= length
        return pieces, []


#: Bytes of a run that are copied at once.
_CHUNK = 4 << 20


@dataclass(frozen=True)
class Output:
    """Target and settings that all shards of a conversion share.

    - ``url`` (str): The folder or URL; ``splits``: the folders below it, '' for the output itself.
    - ``names``, ``encodings`` (tuple[str, ...]): The columns, sorted by name, and their encodings.
    - ``compression``, ``hashes``, ``size_limit``: As in `MDSWriter`.
    - ``checkpoint`` (Checkpoint): The work folder, which has the samples.
    - ``durable`` (bool): Whether shards are synced to the disk.
    """

    url: str
    splits: tuple[str, ...]
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    checkpoint: Checkpoint
    durable: bool = True
    #: Whether a shard ends where a part does.
    keeps_parts: bool = False
    #: Notes that are stored beside the index of each split.
    notes: Mapping[str, ColumnNote] = field(default_factory=dict)
    #: Column of arrays whose lengths are stored there too.
    lengths: str | None = None
    #: Largest shard in bytes that offsets can address.
    max_shard_size: int = MAX_SIZE - 1
    #: Device and inode number of the folder of each split; empty on a cluster.
    identities: tuple[tuple[int, int], ...] = ()

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Return the part of the index that describes the columns."""
        return {
            "column_names": list(self.names),
            "column_encodings": list(self.encodings),
            "column_sizes": [parse_encoding(name).size for name in self.encodings],
        }

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return the configuration that every shard contains (FORMAT.md)."""
        return {
            **self.columns,
            "compression": self.compression,
            "format": "mds",
            "hashes": list(self.hashes),
            "size_limit": self.size_limit,
            "version": 2,
        }

    def key(self, split: int, name: str) -> str:
        """Return the key of a file of a split in the store: ``"train/shard.00000.mds"``."""
        return f"{self.splits[split]}/{name}" if self.splits[split] else name


def replaced_error(output: Output) -> WriterError:
    """Return the error for an output or work folder that was replaced or deleted meanwhile."""
    return WriterError(
        f"{redact(output.url)}: the output or the work folder was deleted or replaced while the "
        "dataset was written. No index is published; convert again, with --overwrite."
    )


def write_shard(output: Output, shard: Shard) -> tuple[int, int]:
    """Write a shard, unless it was written before, and return its split and number."""
    if output.checkpoint.load_shard(shard.split, shard.number) is None:
        builder = _ShardBuilder(output, shard)
        entry = builder.write()
        output.checkpoint.save_shard(shard.split, shard.number, entry, builder.version)
    return shard.split, shard.number


class _ShardBuilder:
    """Builder that assembles one shard from its pieces and writes it to the output."""

    def __init__(self, output: Output, shard: Shard) -> None:
        self._output = output
        self._shard = shard
        header = pack_header(shard.sizes.tolist(), config_bytes(output.config))
        self._header = header
        self._size = len(header) + int(shard.sizes.sum())
        #: Version that the store gave the uploaded file; '' if it gives none.
        self.version = ""

    def write(self) -> dict[str, Any]:
        """Write the shard, upload it if the output is remote, and return its index entry."""
        name = shard_name(self._shard.number, "mds")
        raw = {"basename": name, "bytes": self._size, "hashes": {}}
        codec = parse_compression(self._output.compression)
        if codec is None:
            with self._open_file(name) as file:
                _, raw["hashes"] = self._copy_and_hash(self._raw_chunks(), file)
            return self._entry(raw, None)
        # In one piece, because the output of some compressors depends on the pieces of their input.
        data = b"".join(self._raw_chunks())
        raw["hashes"] = self._digests(data)
        zip_name = f"{name}.{codec.extension}"
        with self._open_file(zip_name) as file:
            size, hashes = self._copy_and_hash(iter([codec.compress(data)]), file)
        return self._entry(raw, {"basename": zip_name, "bytes": size, "hashes": hashes})

    def _entry(self, raw: dict[str, Any], zipped: dict[str, Any] | None) -> dict[str, Any]:
        """Return the index entry of the shard, given the entries of its raw and compressed file."""
        samples = len(self._shard.sizes)
        return {**self._output.config, "samples": samples, "raw_data": raw, "zip_data": zipped}

    @contextlib.contextmanager
    def _open_file(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for writing, which gets its name or is uploaded when the block ends.

        An upload sets ``version``. Raises WriterError if the folder is not the one that the
        conversion has locked, because it was deleted or replaced meanwhile.
        """
        output, split = self._output, self._shard.split
        store = open_store(output.url)
        key = output.key(split, name)
        if store.local_path is not None:
            with open_directory(os.path.join(store.local_path, output.splits[split])) as folder:
                # Empty on a cluster, because inode numbers differ on other machines.
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

    def _raw_chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the shard: header, samples from the runs, padding."""
        yield self._header
        for piece in self._shard.pieces:
            with open(
                self._output.checkpoint.run_path(piece.part, self._shard.split), "rb"
            ) as file:
                file.seek(piece.start)
                remaining = piece.end - piece.start
                while remaining:
                    chunk = file.read(min(remaining, _CHUNK))
                    if not chunk:
                        raise EOFError(f"{file.name}: {remaining} bytes are missing")
                    remaining -= len(chunk)
                    yield chunk
        if self._shard.padding:
            yield self._shard.padding

    def _copy_and_hash(self, chunks: Iterator[bytes], file: BinaryIO) -> tuple[int, dict[str, str]]:
        """Write chunks to a file, and return their size in bytes and their digests by name."""
        digests = {name: new_hash(name) for name in self._output.hashes}
        size = 0
        for chunk in chunks:
            file.write(chunk)
            size += len(chunk)
            for digest in digests.values():
                digest.update(chunk)
        return size, {name: digest.hexdigest() for name, digest in digests.items()}

    def _digests(self, data: bytes) -> dict[str, str]:
        """Return the digests of some bytes, by name."""
        digests = {name: new_hash(name) for name in self._output.hashes}
        for digest in digests.values():
            digest.update(data)
        return {name: digest.hexdigest() for name, digest in digests.items()}
