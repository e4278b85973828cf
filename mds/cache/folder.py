"""The files of a source on this machine, and how a file of ours is recognised.

A source is read in place when its folder is the user's own data. Everything else has a cache
folder, where a shard has the name that it has on the remote, so that other readers of the format
find it. All other files of ours are in its ``.mds`` folder. The user's compressed data that are
read in place are decompressed into a cache folder of that user, never beside them.

A file is ours when its inode, time and size are those in the ledger, or when it has our ownership
marker: on publishing, the nanoseconds of its modification time are set to a digest of its inode,
its size and the content that it stands for. `CacheFolder.is_ours` decides this for eviction and
for a ledger that is there; `recovery.enter` and fetching look at marker and stamp by themselves,
because they treat them differently. With the marker a cache survives the loss of its ledger, after
a power cut for example: files that were fetched can still be evicted, and a user's own files stay.
A file of another origin has the right number with a probability of 1 to 10**9, and a copy has
another inode. On a file system without nanoseconds no file has a marker. Setting it costs two
system calls a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mds.cache.filesystem import control_folder
from mds.cache.origin import CONTROL, read_origin, source_of
from mds.cache.ownership import BY_SPEED, Ownership, version_of
from mds.errors import ConfigError, CorruptError, NotFoundError
from mds.storage.files import is_process, read_back, temporary_owner
from mds.storage.url import Url

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mds.cache.source import Source
    from mds.index import FileInfo, Index, ShardInfo

_SECOND = 10**9  # nanoseconds


class CacheFolder:
    """Cache folder of one source: ``root`` is ours; ``source_folder`` is read in place."""

    def __init__(self, source: Source, number: int, first_shard: int) -> None:
        self.source = source
        self.index: Index = source.index
        self.number = number
        self.first_shard = first_shard  # the global number of its first shard
        self.files_per_shard = 1 + any(schema.is_split for schema in self.index.schemas)
        is_home = source.remote is None
        self.source_folder = source.folder if is_home else None
        self.root = derived_folder(source.folder) if is_home else source.folder
        self.remote = Url(source.folder if is_home else source.remote or "")
        #: Whether shards are decoded out of files in a format: files of sizes that no index knows.
        self.is_decoded = source.data is not None and not is_home
        name = source.source_name or source_of(self.remote, source.options)
        self._ownership = Ownership(name, self.index, self._version(), self.root)
        # The compressed originals are in the user's own folder already.
        self.keep_zip = source.keep_zip and not is_home
        self.validate_hash = source.validate_hash
        #: The folder of our ledger and locks.
        self.control = control_folder(self.root, CONTROL) if self.is_cached else ""
        self._check_hashes()

    def __len__(self) -> int:
        return len(self.index)

    @property
    def is_cached(self) -> bool:
        """Whether shards of it may have to be kept in a cache folder."""
        return self.source_folder is None or bool(self.index.zip_size.any())

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the bytes that each shard needs on the disk, shape (shards,)."""
        index = self.index
        raw_sizes = index.raw_size + index.raw_meta_size
        return raw_sizes + index.zip_size + index.zip_meta_size if self.keep_zip else raw_sizes

    def largest(self) -> int:
        """Return the bytes that the largest shard needs on the disk."""
        return int(self.sizes().max(initial=0))

    def choose_control(self) -> str:
        """Find out which folder is this index's now; the folder of its ledger and locks."""
        is_outdated = self.source_folder is not None and self._version() != self._ownership.version
        root = self._ownership.choose_folder(is_outdated=is_outdated)
        if root != self.root:
            self.root, self.control = root, control_folder(root, CONTROL)
        return self.control

    def _version(self) -> str:
        """Return the version of the index when it was read, or now where that costs nothing.

        Without one, what is noted of the folder is taken.
        """
        if self.source_folder is not None:
            return version_of(os.path.join(self.source_folder, "index.json"))
        if self.source.version is not None:
            return self.source.version
        noted = read_origin(self.root)
        return noted.version if noted is not None else ""

    def _check_hashes(self) -> None:
        if not self.validate_hash:
            return
        for schema in self.index.schemas:
            if self.validate_hash not in schema.hashes:
                names = ", ".join(schema.hashes)
                has = f"{names}. Name one of those, or" if names else "no hashes at all:"
                raise ConfigError(
                    f"validate_hash={self.validate_hash!r}: the index of {self.remote} has "
                    f"{has} leave validate_hash out."
                )

    def hash_of(self, file: FileInfo) -> str | None:
        """Return the name of the digest to check: `validate_hash`, else the index's fastest."""
        if self.validate_hash:
            return self.validate_hash
        return next((name for name in BY_SPEED if name in file.hashes), None)

    # ------------------------------------------------------------------ files

    def files(self, info: ShardInfo) -> Iterator[FileInfo]:
        """Iterate over the files of a shard that we write to the cache folder."""
        for raw, packed in info.files:
            yield raw
            if packed is not None and self.keep_zip:
                yield packed

    def path(self, file: FileInfo, folder: str | None = None) -> str:
        """Return the path of a file in the cache folder."""
        return file.basename.under(folder or self.root)

    def folder_of(self, info: ShardInfo) -> str | None:
        """Return the folder that has a shard's complete raw files, or None if there is none."""
        for folder in (self.source_folder, self.root):
            if folder is not None and self._has(info, folder):
                return folder
        return None

    def _has(self, info: ShardInfo, folder: str) -> bool:
        if self.is_decoded:
            return self.has_ownership_marker(info)
        return all(size_of(self.path(raw, folder)) == raw.size for raw, _ in info.files)

    def check_files(self, info: ShardInfo, folder: str) -> None:
        """Raise CorruptError when a raw file of a shard in a folder is not what the index says."""
        for raw, _ in info.files:
            path = self.path(raw, folder)
            check_file(raw, path, self.hash_of(raw), path)

    def has_raw(self, info: ShardInfo) -> bool:
        """Whether the user's folder has a raw file of a shard, of whatever size."""
        return self.source_folder is not None and any(
            os.path.exists(self.path(raw, self.source_folder)) for raw, _ in info.files
        )

    def in_place(self, info: ShardInfo) -> str | None:
        """Return the user's own folder if a shard, even a damaged one, is read there, else None."""
        is_cached = self.source_folder is None or (info.zip is not None and not self.has_raw(info))
        return None if is_cached else self.source_folder

    def peak(self, info: ShardInfo) -> int:
        """Return the most bytes that fetching a shard puts on the disk."""
        return sum(file.size for file in self.files(info))

    def stat(self, info: ShardInfo) -> tuple[int, int]:
        """(bytes on the disk, stamp) of the files of a shard; (0, 0) when there are none."""
        states = _states(self.path(file) for file in self.files(info))
        return sum(size for _, _, size in states), _number(states) if states else 0

    def remove(self, info: ShardInfo, stamp: int) -> int:
        """Delete the files of a shard if they are ours; the bytes that stay.

        Ours are those with that stamp, or with our ownership marker, whatever the ledger says.
        """
        size, current_stamp = self.stat(info)
        if not self.is_ours(info, current_stamp, stamp):
            return size
        # Files behind a link, and other users' files in a sticky folder, stay.
        with contextlib.suppress(ConfigError, PermissionError):
            from mds.storage.relative_name import unlink_beneath

            for file in self.files(info):
                with contextlib.suppress(FileNotFoundError):
                    unlink_beneath(self.root, file.basename)
        return self.stat(info)[0]

    def is_ours(self, info: ShardInfo, stamp: int, recorded_stamp: int) -> bool:
        """Whether this library wrote the files of a shard, so that they may be deleted.

        ``stamp`` is the present stamp of the files (see `stat`), ``recorded_stamp`` the one in the
        ledger, 0 for none.
        """
        return (stamp == recorded_stamp and stamp != 0) or self.has_ownership_marker(info)

    def has_ownership_marker(self, info: ShardInfo) -> bool:
        """Whether the ownership marker of each file is that of this shard's content."""
        return have_ownership_markers(
            (self.path(file) for file in self.files(info)), self.content_id(info)
        )

    def remove_parts(self, info: ShardInfo, living: set[int]) -> None:
        """Delete temporary files of a shard whose makers are not among the living."""
        self.check_inside(info)
        for folder in {os.path.dirname(self.path(file)) for file in self.files(info)}:
            remove_parts(folder, living)

    def check_inside(self, info: ShardInfo) -> None:
        """Raise ConfigError when a link would lead a file of a shard out of the cache folder.

        Before anything is made, replaced or removed under the names of the shard.
        """
        from mds.storage.relative_name import check_beneath

        for raw, packed in info.files:
            for file in (raw, packed):
                if file is not None and "/" in file.basename:
                    check_beneath(self.root, file.basename)

    def as_found(self, info: ShardInfo) -> ShardInfo:
        """Return a shard with its size in the cache folder, if its index has no size."""
        if not self.is_decoded:
            return info
        return info._replace(raw=info.raw._replace(size=max(size_of(self.path(info.raw)), 0)))

    # ------------------------------------------------------------------ identity

    def name_id(self, info: ShardInfo) -> int:
        """Return the digest of a shard's name, as in the ledger."""
        return self.name_id_of(info.raw.basename)

    @staticmethod
    def name_id_of(basename: str) -> int:
        """Return the digest of a name; never 0."""
        return _number(basename) or 1

    def content_id(self, info: ShardInfo) -> int:
        """Return the digest of a shard's listed names, sizes and digests."""
        files = [raw for raw, _ in info.files]
        facts: list[object] = [[f.basename, f.size, sorted(f.hashes.items())] for f in files]
        if not self.has_digests(info):
            facts.append(self._ownership.identity)
        return _number(facts)

    def fingerprint(self) -> bytes:
        """Return the digest of the source and index, and of the version if there are no digests."""
        return bytes.fromhex(self._ownership.identity)

    def has_digests(self, info: ShardInfo) -> bool:
        """Whether the content of all raw files of a shard can be checked."""
        return all(self.hash_of(raw) is not None for raw, _ in info.files)

    def believes(self, info: ShardInfo) -> bool:
        """Whether files of a shard that can neither be checked nor are in the ledger are used."""
        return self._ownership.believes([self.path(raw) for raw, _ in info.files])

    def believes_file(self, file: FileInfo) -> bool:
        """Whether one file can be checked, or is used without a check."""
        return self.hash_of(file) is not None or self._ownership.believes([self.path(file)])

    def mode(self) -> int:
        """Return the mode of our files, for the same users as the folder's."""
        try:
            return stat.S_IMODE(os.stat(self.root).st_mode) & 0o666 | 0o600
        except OSError:
            return 0o666 & ~_umask()


def file_stamp(paths: Iterable[str]) -> int:
    """Return the present stamp of files."""
    return _number(_states(paths))


def check_file(file: FileInfo, path: str, name: str | None, name_or_url: str) -> None:
    """Raise CorruptError with the facts when a file is not what the index says."""
    size = size_of(path)
    if size < 0:
        raise NotFoundError(
            f"check {name_or_url}: there is no such file.", url=name_or_url, verb="check"
        )
    if size != file.size:
        raise CorruptError(
            f"{name_or_url}: the index says {file.size} bytes, found {size}",
            url=name_or_url,
            verb="check",
        )
    if name is None or name not in file.hashes:
        return
    value = digest_of(path, name)
    if value != file.hashes[name]:
        raise CorruptError(
            f"{name_or_url}: the index says {name} {file.hashes[name]}, found {value}",
            url=name_or_url,
            verb="check",
        )


def digest_of(path: str, name: str) -> str:
    """Return the digest of a file."""
    from mds.shardfile.hashing import new_hash

    digest = new_hash(name)
    read_back(path, digest.update)
    return digest.hexdigest()


def derived_folder(folder: str) -> str:
    """Return the folder where this user's decompressed copies of a data folder are."""
    from mds.cache.source import cache_root

    digest = hashlib.blake2s(os.path.realpath(folder).encode(), digest_size=16).hexdigest()
    return os.path.join(cache_root(), "decompressed", digest)


def remove_parts(folder: str, living: set[int]) -> None:
    """Delete the temporary files in a folder whose makers are not among the living."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            owner = temporary_owner(entry.name)
            if owner is not None and owner not in living and not is_process(owner):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def _states(paths: Iterable[str]) -> list[tuple[int, int, int]]:
    states = []
    for path in paths:
        with contextlib.suppress(OSError):
            state = os.stat(path)
            states.append((state.st_ino, state.st_mtime_ns, state.st_size))
    return states


def size_of(path: str) -> int:
    """Return the size of a file in bytes, or -1 if there is none."""
    try:
        state = os.stat(path)
    except OSError:
        return -1
    return state.st_size if stat.S_ISREG(state.st_mode) else -1


def _number(facts: object) -> int:
    text = json.dumps(facts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _umask() -> int:
    with (
        contextlib.suppress(OSError, ValueError),
        open("/proc/self/status", encoding="ascii") as file,
    ):
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def mark_as_ours(path: str, tag: int) -> None:
    """Set the ownership marker of a file that was just written; ``tag`` is its content."""
    state = os.lstat(path)
    time = state.st_mtime_ns // _SECOND * _SECOND + _digits(state, tag)
    try:
        os.utime(path, ns=(state.st_atime_ns, time), follow_symlinks=False)
    except FileNotFoundError as error:  # its message lacks the path
        raise FileNotFoundError(error.errno, error.strerror, path) from error


def have_ownership_markers(paths: Iterable[str], tag: int) -> bool:
    """Whether at least one of the files exists, and all that exist have the marker of ``tag``."""
    matches = []
    for path in paths:
        try:
            state = os.lstat(path)
        except FileNotFoundError:
            continue
        matches.append(state.st_mtime_ns % _SECOND == _digits(state, tag))
    return bool(matches) and all(matches)


def _digits(state: os.stat_result, tag: int) -> int:
    facts = struct.pack("<QQQ", state.st_ino, state.st_size, tag)
    return int.from_bytes(hashlib.blake2b(facts, digest_size=8).digest(), "little") % _SECOND
