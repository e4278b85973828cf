"""From a full shard to its files: hash, compress, write and upload, in threads.

The writer fills the next shard meanwhile (`Pipeline`). A shard holds one of a few places in memory
from when it is full until it is on disk, and the writer waits for a place, which bounds memory.
What a thread does is a function of the shard alone (`finalize_shard`), so the number of threads
changes nothing in the output. The first failure stops the rest, and the next call of the writer
raises it.

The libraries that hash and compress release the GIL. A shard is taken in pieces that stay in the
processor's cache, so a compressed shard is never in memory as a whole.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from mds._process.fork_safe import new_semaphore
from mds._shardfile.hashing import new_hash
from mds._shardfile.layout import shard_name
from mds.errors import WriterError
from mds.storage._files import sync_file
from mds.writers._destination import ExpectedFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mds._shardfile.hashing import Hash
    from mds.storage._files import Directory
    from mds.writers._destination import Destination
    from mds.writers._spec import ShardSpec, WorkSpec

    Data = bytes | bytearray | memoryview

#: Bytes that are gathered before they are written.
GATHERED = 1 << 20
#: Bytes of a shard that are hashed or written between two checks whether to stop.
_PIECE = 1 << 20


class Pipeline:
    """Thread pool that finalizes and uploads the shards of one writer.

    A writer calls `submit` for each full shard, and `finish` or `close` at the end. If samples have
    one size, it also calls `spill` with the samples of the shard that it fills (`EarlyFile`).

    - ``shards`` (ShardSpec): How shards are compressed and hashed.
    - ``work`` (WorkSpec): The number of threads, and of full shards that may be in memory.
    - ``destination`` (Destination): Where files are written and uploaded.
    """

    def __init__(self, shards: ShardSpec, work: WorkSpec, destination: Destination) -> None:
        self._shards = shards
        self._destination = destination
        self._free_places = new_semaphore(work.shards_ahead)
        self._pool = ThreadPoolExecutor(work.threads, thread_name_prefix="mds-writer")
        #: Submitted shards, the oldest first; a result is the index entry and the files.
        self._pending: deque[Future[tuple[str, list[ExpectedFile]]]] = deque()
        #: Index entries, as JSON, and files of the shards that are written, in order.
        self._entries: list[str] = []
        self._files: list[ExpectedFile] = []
        #: File of each shard that is written while it is filled, by number of the shard.
        self._early_files: dict[int, EarlyFile] = {}
        #: Error of the first shard that failed; it stops the others, and the writer raises it.
        self._failure: BaseException | None = None
        self._stopped = False
        self._progress = _start_progress(destination.name) if work.progress_bar else None

    def spill(self, number: int, header: bytes, piece: memoryview) -> EarlyFile:
        """Write some samples of a shard that is being filled, and return its file.

        The file is created with the header at the first call for a shard.

        - ``number`` (int): The number of the shard.
        - ``header`` (bytes): The header that the shard has if it becomes full.
        - ``piece`` (memoryview): The samples that follow those written before.

        The calling thread writes. Raises WriterError, also for an earlier shard that failed.
        """
        self._raise_failure()
        try:
            self._raise_if_stopped()
            early = self._early_files.get(number)
            if early is None:
                name = shard_name(number, "mds")
                early = EarlyFile(self._destination.directory, name, header, self._shards.hashes)
                self._early_files[number] = early
            early.append(piece)
        except Exception as error:  # noqa: BLE001 - raised as a WriterError, like one of a thread
            self._failure = error
            self._raise_failure()
        return self._early_files[number]

    def submit(self, shard: FullShard) -> None:
        """Queue a full shard, and wait until one of the places in memory is free.

        Raises WriterError if an earlier shard failed.
        """
        self._free_places.acquire()
        try:
            self._raise_failure()
            self._pending.append(self._pool.submit(self._write_and_upload, shard))
        except BaseException:
            self._free_places.release()
            raise
        while self._pending and self._pending[0].done():
            self._collect()

    def finish(self) -> tuple[list[str], list[ExpectedFile]]:
        """Wait for all shards, and return their index entries, in order, and their files.

        Raises WriterError if one failed.
        """
        while self._pending:
            self._collect()
        self._raise_failure()
        return self._entries, self._files

    def close(self) -> None:
        """Stop: queued shards are dropped, and running threads stop at their next piece."""
        self._stopped = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        for early in self._early_files.values():
            with contextlib.suppress(OSError):  # the folder may have been deleted with the file
                early.discard()
        self._early_files.clear()
        if self._progress is not None:
            self._progress.stop()

    def _collect(self) -> None:
        """Wait for the oldest shard, and keep its index entry and its files."""
        future = self._pending.popleft()
        if future.exception() is not None:
            # Raise the failure that happened first; it stopped the others.
            self._raise_failure()
        entry, files = future.result()
        self._entries.append(entry)
        self._files += files
        self._show_progress()

    def _write_and_upload(self, shard: FullShard) -> tuple[str, list[ExpectedFile]]:
        """Write and upload a shard, in a thread; return its index entry and its files."""
        place = self._destination
        try:
            finalized = finalize_shard(
                replace(shard, release=self._release_function(shard)),
                self._shards,
                place.directory,
                self._raise_if_stopped,
                syncs=place.syncs_shards,
            )
            self._early_files.pop(shard.number, None)
            files = []
            for file in finalized.files:
                self._raise_if_stopped()
                files.append(place.upload(file))
        except BaseException as error:
            if self._failure is None:
                self._failure = error
            raise
        else:
            return finalized.entry, files

    def _release_function(self, shard: FullShard) -> Callable[[], None]:
        """Return a function that frees the memory of a shard, and its place for the next one."""

        def release() -> None:
            """Free both, when the memory of the shard is no longer needed."""
            shard.release()
            self._free_places.release()

        return release

    def _raise_if_stopped(self) -> None:
        """Raise WriterError if the writer was closed, a shard failed, or a folder was replaced."""
        if self._stopped or self._failure is not None:
            raise WriterError("the writer was stopped")
        self._destination.check_in_place()

    def _raise_failure(self) -> None:
        """Raise the first failure as a WriterError, if there is one."""
        error = self._failure
        if isinstance(error, WriterError):
            raise error
        if error is not None:
            raise WriterError(
                f"a shard could not be written to {self._destination.folder}: {error}"
            ) from error

    def _show_progress(self) -> None:
        if self._progress is not None:
            written = len(self._entries)
            self._progress.update(
                self._progress.task_ids[0], completed=written, total=written + len(self._pending)
            )


def _start_progress(name: str) -> Any:
    """Return a running progress bar with one task: the shards written to ``name``."""
    from rich.progress import Progress

    progress = Progress(transient=True)
    progress.add_task(f"shards to {name}", total=None)
    progress.start()
    return progress


# ---------------------------------------------------------------------- one shard


@dataclass(frozen=True, slots=True)
class FullShard:
    """A shard that is ready to be written.

    - ``number`` (int), ``samples`` (int): Its place in the dataset, from 0; its samples.
    - ``format`` (str): The format, such as "mds", which names its files.
    - ``files``: The parts of its data file and, if the format has one, of its meta file: a file is
      the concatenation of its parts.
    - ``config`` (dict[str, Any]): Its index entry without files and number of samples.
    - ``release`` (function): Called when the memory of the parts is no longer needed.
    """

    number: int
    samples: int
    format: str
    files: tuple[Sequence[Data], ...]
    config: dict[str, Any]
    release: Callable[[], None]
    #: Data file that holds most of the samples already; `files` then has the header and the rest.
    early: EarlyFile | None = None


@dataclass(frozen=True, slots=True)
class FinalizedShard:
    """A shard on disk: its index entry as JSON, and its files."""

    entry: str
    files: tuple[ExpectedFile, ...]


def finalize_shard(
    shard: FullShard,
    spec: ShardSpec,
    folder: Directory,
    check: Callable[[], None],
    *,
    syncs: bool,
) -> FinalizedShard:
    """Write a shard into `folder`, release its memory, and return its index entry and files.

    - ``shard`` (FullShard), ``spec`` (ShardSpec): The shard, and how it is compressed and hashed.
    - ``check`` (function): Called between pieces; it raises to stop.
    - ``syncs`` (bool): Whether the files are synced to the disk.
    """
    if shard.early is not None:
        return _finalize_early(shard, shard.early, check, syncs=syncs)
    entry: dict[str, Any] = {**shard.config, "samples": shard.samples}
    expected = []
    # The files get their names when this block ends without an error.
    with contextlib.ExitStack() as files:
        written = []
        try:
            # `shard.files` has a data file, and in some formats also a meta file.
            for suffix, parts in zip(("data", "meta"), shard.files, strict=False):
                extension = shard.format + (".meta" if suffix == "meta" else "")
                name = shard_name(shard.number, extension)
                zip_name = f"{name}.{spec.codec.extension}" if spec.codec else name
                file = files.enter_context(folder.publish(zip_name))
                written.append(file)
                raw, zipped = _write_file(name, zip_name, parts, spec, file, check)
                entry[f"raw_{suffix}"], entry[f"zip_{suffix}"] = raw, zipped
                expected.append(ExpectedFile(zip_name, (zipped or raw)["bytes"]))
        finally:
            shard.release()
        for file in written if syncs else ():
            sync_file(file)
        check()
    # As text: half a million entries would take a gigabyte as dictionaries.
    return FinalizedShard(json.dumps(entry, sort_keys=True), tuple(expected))


def _finalize_early(
    shard: FullShard, early: EarlyFile, check: Callable[[], None], *, syncs: bool
) -> FinalizedShard:
    """Complete a file that holds most of the samples already, and publish it.

    Only shards without compression are written early, so ``shard.files`` is one file: its header,
    and the samples that are not in the file yet.
    """
    ((header, *blocks),) = shard.files
    try:
        for piece in _pieces(blocks):
            check()
            early.append(piece)
    finally:
        shard.release()
    raw = early.complete(bytes(header), check)
    if syncs:
        os.fsync(early.fd)
    check()
    early.publish()
    entry = {**shard.config, "samples": shard.samples, "raw_data": raw, "zip_data": None}
    expected = ExpectedFile(early.name, raw["bytes"])
    return FinalizedShard(json.dumps(entry, sort_keys=True), (expected,))


def _write_file(
    name: str,
    zip_name: str,
    parts: Sequence[Data],
    spec: ShardSpec,
    file: BinaryIO,
    check: Callable[[], None],
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Write one file of a shard, compressed if `spec` says so.

    - ``name`` (str), ``zip_name`` (str): The name without and with the ending of the compression.
    - ``parts`` (Sequence[Data]): The content of the file.

    Returns the index entries of the raw and of the compressed file; the latter is None without
    compression.
    """
    codec, hashes = spec.codec, {hash_: new_hash(hash_) for hash_ in spec.hashes}
    if codec is None:
        size = 0
        for piece in _pieces(parts):
            check()
            _update_hashes(hashes, piece)
            size += file.write(piece)
        return _file_entry(name, size, hashes), None
    # The compressor reads the parts itself, so the raw bytes are hashed before.
    for piece in _pieces(parts) if hashes else ():
        _update_hashes(hashes, piece)
    zip_hashes = {hash_: new_hash(hash_) for hash_ in spec.hashes}
    zip_size = 0
    for out in codec.compress_parts(parts):
        check()
        _update_hashes(zip_hashes, out)
        zip_size += file.write(out)
    raw = _file_entry(name, sum(map(len, parts)), hashes)
    return raw, _file_entry(zip_name, zip_size, zip_hashes)


def _pieces(parts: Sequence[Data]) -> list[memoryview]:
    """Return views of the parts, each of at most `_PIECE` bytes."""
    return [
        memoryview(part)[start : start + _PIECE]
        for part in parts
        for start in range(0, len(part), _PIECE)
    ]


def _update_hashes(hashes: dict[str, Hash], piece: Data) -> None:
    for digest in hashes.values():
        digest.update(piece)


def _file_entry(name: str, size: int, hashes: dict[str, Hash]) -> dict[str, Any]:
    """Return what the index records of a file: its name, its size in bytes and its digests."""
    digests = {hash_: digest.hexdigest() for hash_, digest in hashes.items()}
    return {"basename": name, "bytes": size, "hashes": digests}


# ---------------------------------------------------------------------- a file written early


class EarlyFile:
    """Data file of one shard that is written while the shard is filled, by one thread at a time.

    The header of a shard has the offsets of all samples, so it is usually known last. If all
    samples have the same size, the header of a full shard is known first. Samples then go to the
    file a mebibyte at a time, from memory that stays in the processor's cache, and a writer holds
    two such pieces instead of three shards. A piece is hashed just before it is written. A shard
    that ends early, such as the last one of a dataset, gets another header. Its samples are moved
    within the file, and hashed again.

    New memory is what makes writing expensive: with three shards of it per writer, a sample of 8 KB
    took 5 us on a system without free huge pages, as much as everything else together.

    - ``directory`` (Directory): The folder of the file; ``name`` (str): its final name.
    - ``header`` (bytes): The header that the shard has if it becomes full.
    - ``hashes`` (Sequence[str]): The digests of the file, by name.
    """

    def __init__(
        self, directory: Directory, name: str, header: bytes, hashes: Sequence[str]
    ) -> None:
        self._pending = directory.begin(name)
        self._header = header
        self._hashes = {hash_: new_hash(hash_) for hash_ in hashes}
        self._size = 0
        self.append(header)

    @property
    def name(self) -> str:
        """The name that the file gets when it is published."""
        return self._pending.name

    @property
    def fd(self) -> int:
        """The file descriptor."""
        return self._pending.fd

    def append(self, piece: bytes | memoryview) -> None:
        """Append a piece. Raises NoSpaceError and other errors of a disk."""
        _update_hashes(self._hashes, piece)
        with self._pending.explaining():
            _write_at(self.fd, piece, self._size)
        self._size += len(piece)

    def complete(self, header: bytes, check: Callable[[], None]) -> dict[str, Any]:
        """Write the final header, and return the index entry of the file.

        A shard that ends early, such as the last one, has fewer samples than planned. Its header
        is shorter, so all samples are moved. ``check`` is called between pieces and raises to stop.
        """
        if header != self._header:
            with self._pending.explaining():  # translates errors of the disk
                self._replace_header(header, check)
        return _file_entry(self.name, self._size, self._hashes)

    def _replace_header(self, header: bytes, check: Callable[[], None]) -> None:
        """Write another header, move the samples behind it, and hash all again."""
        planned_length = len(self._header)
        body_length = self._size - planned_length
        starts = range(0, body_length, GATHERED)
        if len(header) > planned_length:
            # From the last piece on, so that none is overwritten before it is read. Only a subclass
            # with samples of another size than their columns has a longer header.
            for start in reversed(starts):
                check()
                piece = os.pread(self.fd, GATHERED, planned_length + start)
                _write_at(self.fd, piece, len(header) + start)
            planned_length = len(header)
        self._hashes = {hash_: new_hash(hash_) for hash_ in self._hashes}
        _update_hashes(self._hashes, header)
        for start in starts:
            check()
            piece = os.pread(self.fd, min(GATHERED, body_length - start), planned_length + start)
            _update_hashes(self._hashes, piece)
            if len(header) < planned_length:
                _write_at(self.fd, piece, len(header) + start)
        _write_at(self.fd, header, 0)
        self._size = len(header) + body_length
        os.ftruncate(self.fd, self._size)

    def publish(self) -> None:
        """Rename the file to its final name."""
        self._pending.publish()

    def discard(self) -> None:
        """Delete the file if it was not published."""
        self._pending.discard()


def _write_at(file: int, data: bytes | memoryview, offset: int) -> None:
    """Write all data at an offset of an open file; one call of pwrite may write only some."""
    written = 0
    while written < len(data):
        written += os.pwrite(
            file, memoryview(data)[written:] if written else data, offset + written
        )
