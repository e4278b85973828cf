"""The files of a source on this machine, and how a file that this library wrote is recognised.

A source without a remote is the user's own folder and is read in place. Every other source has a
cache folder, in which a shard has the same name as on the remote, so that other readers of the
format find it. All other files of ours are in its `.mds` folder. Compressed shards of the user's
own folder are decompressed into a cache folder of the user, never beside them.

Only files that this library wrote are evicted. There are two proofs that a file is ours:

- stamp: the digest of its inode, modification time and size equals the one in the ledger;
- ownership marker: the nanoseconds of its modification time are a digest of its inode, its size and
  the content that the index lists. They are set when the file is published:

      modification time   2031-05-04 12:30:07 . 482913077
                          as written          digest of (inode, size, content), modulo 10**9

With the marker a cache survives the loss of its ledger, for example in a power cut. A file of
another program has the right nanoseconds with a probability of 1 to 10**9, and a copy has another
inode. On a file system without nanoseconds no file has a marker. Setting it costs two system calls
a file.

`CacheFolder.is_ours` combines both proofs. `mds._cache.recovery` and `mds._cache.fetch` also look
at each proof alone where they treat them differently.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mds._cache.ownership import (
    BY_SPEED,
    Ownership,
    control_folder,
    read_origin,
    source_of,
)
from mds._process.fork_safe import cached_property
from mds._readers.gather import unique_stable
from mds.errors import ConfigError, CorruptError, NotFoundError
from mds.storage._files import is_process, read_back, temporary_owner
from mds.storage._local import version_at
from mds.storage._url import Url

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._cache.source import Source
    from mds._index.shard_object import FileInfo, ShardInfo
    from mds._index.table import Index

_SECOND = 10**9  # nanoseconds


class CacheFolder:
    """The folders of one source on this machine.

    A shard is given by its entry in the index (`ShardInfo`). Its files are pairs: the *raw*
    (uncompressed) file, and the *packed* (compressed) file that is stored in its place, or None.

    Args:
        source: The source.
        number: Position of the source in the dataset.
        first_shard: Number in the dataset of its first shard.
    """

    def __init__(self, source: Source, number: int, first_shard: int) -> None:
        self.source = source
        self.index: Index = source.index
        self.number = number
        self.first_shard = first_shard
        #: Files of a shard that are mapped: one, or data and meta file.
        self.files_per_shard = 1 + any(schema.is_split for schema in self.index.schemas)
        is_in_place = source.remote is None
        #: The user's own folder, which is read in place; None if the source has a remote.
        self.source_folder = source.folder if is_in_place else None
        #: The cache folder.
        self.root = source.folder
        if is_in_place:
            self.root = derived_folder(source.folder, source.user_cache)
        self.remote = Url(source.folder if is_in_place else source.remote or "")
        #: Whether shards are decoded from files in another format. The index lacks their sizes.
        self.is_decoded = source.data is not None and not is_in_place
        name = source.source_name or source_of(self.remote, source.options)
        self._ownership = Ownership(name, self.index, self._version(), self.root)
        #: Whether compressed files are kept. Those of the user's own folder are there already.
        self.keep_zip = source.keep_zip and not is_in_place
        self.validate_hash = source.validate_hash
        #: The folder of the ledger and locks; "" without a cache.
        self.control = control_folder(self.root) if self.is_cached else ""
        self._check_hashes()

    def __len__(self) -> int:
        return len(self.index)

    @property
    def is_cached(self) -> bool:
        """Whether any shard needs a cache folder."""
        return self.source_folder is None or bool(self.index.zip_size.any())

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of each shard in the cache folder, shape (shards,)."""
        index = self.index
        raw_sizes = index.raw_size + index.raw_meta_size
        return raw_sizes + index.zip_size + index.zip_meta_size if self.keep_zip else raw_sizes

    def largest(self) -> int:
        """Return the bytes of the largest shard in the cache folder."""
        return int(self.sizes().max(initial=0))

    def choose_control(self) -> str:
        """Choose the cache folder for this index anew; return the folder of its ledger and locks.

        Called whenever the ledger is opened: the folder may belong to other data by then, for
        example to a newer version of the dataset, and then a fallback folder is chosen.
        """
        # For the user's own folder, the index may have been replaced since it was read. Then the
        # cache folder belongs to the newer index, or soon will.
        is_outdated = self.source_folder is not None and self._version() != self._ownership.version
        root = self._ownership.choose_folder(is_outdated=is_outdated)
        if root != self.root:
            self.root, self.control = root, control_folder(root)
        return self.control

    def _version(self) -> str:
        """Return the version of the index: of the user's own file now, or of the fetched one.

        If the source does not record that, return the version in the note of the folder; "" if it
        is unknown.
        """
        if self.source_folder is not None:
            return version_at(os.path.join(self.source_folder, "index.json"))
        if self.source.version is not None:
            return self.source.version
        origin = read_origin(self.root)
        return origin.version if origin is not None else ""

    def _check_hashes(self) -> None:
        """Raise ConfigError if the index lacks the digests that ``validate_hash`` names."""
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
        """Return the name of the digest to check: ``validate_hash``, else the fastest in the index.

        None if the index has no digest of the file.
        """
        if self.validate_hash:
            return self.validate_hash
        return next((name for name in BY_SPEED if name in file.hashes), None)

    # ------------------------------------------------------------------ files

    def files(self, info: ShardInfo) -> Iterator[FileInfo]:
        """Yield the files of a shard that are kept in the cache folder."""
        for raw, packed in info.files:
            yield raw
            if packed is not None and self.keep_zip:
                yield packed

    def path(self, file: FileInfo, folder: str | None = None) -> str:
        """Return the path of a file in the cache folder, or in another ``folder``."""
        return file.basename.under(folder or self.root)

    def folder_of(self, info: ShardInfo) -> str | None:
        """Return the folder that has all raw files of a shard in full size, or None.

        That is the user's own folder or the cache folder. Contents are not checked.
        """
        for folder in (self.source_folder, self.root):
            if folder is not None and self._has(info, folder):
                return folder
        return None

    def _has(self, info: ShardInfo, folder: str) -> bool:
        if self.is_decoded:
            return self.has_ownership_marker(info)
        return all(size_of(self.path(raw, folder)) == raw.size for raw, _ in info.files)

    def check_files(self, info: ShardInfo, folder: str) -> None:
        """Raise CorruptError if a raw file in ``folder`` differs from the index."""
        for raw, _ in info.files:
            path = self.path(raw, folder)
            try:
                check_file(raw, path, self.hash_of(raw), path)
            except CorruptError as error:
                raise CorruptError(
                    f"{error}. Copy the file again. List all damaged files with mds verify "
                    f"{folder}.",
                    url=path,
                    verb="check",
                ) from error

    def has_raw(self, info: ShardInfo) -> bool:
        """Whether the user's own folder has an uncompressed file of a shard, even a damaged one."""
        return self.source_folder is not None and any(
            os.path.exists(self.path(raw, self.source_folder)) for raw, _ in info.files
        )

    def in_place(self, info: ShardInfo) -> str | None:
        """Return the user's own folder if a shard is read there, and None if it is cached.

        A shard that is damaged or missing there counts as read there, so that reading raises the
        error.
        """
        # Cached: shards of a remote, and those of the user's own folder that are only there
        # compressed, since they are decompressed into a cache folder.
        is_cached = self.source_folder is None or (info.zip is not None and not self.has_raw(info))
        return None if is_cached else self.source_folder

    def can_range(self, number: int) -> bool:
        """Whether rows of a shard can be fetched alone.

        They can if the shard is remote and uncompressed, and its digest need not be checked.
        ``number`` is its number in the folder.
        """
        if self.is_decoded and self.source.data is not None:
            return self.source.data.can_range(number)
        return not (
            self.validate_hash or self.source_folder is not None or self.index.zip_size[number]
        )

    def peak(self, info: ShardInfo) -> int:
        """Return the bytes of all files of a shard in the cache folder, by the index.

        This is the space to reserve before the shard is fetched.
        """
        return sum(file.size for file in self.files(info))

    def stat(self, info: ShardInfo) -> tuple[int, int]:
        """Return the bytes on the disk and the stamp of a shard's files; (0, 0) without any."""
        states = _states(self.path(file) for file in self.files(info))
        return sum(size for _, _, size in states), _digest(states) if states else 0

    def remove(self, info: ShardInfo, stamp: int) -> int:
        """Delete the files of a shard if this library wrote them; return the bytes that remain.

        ``stamp`` is the stamp that the ledger has recorded, as for `is_ours`.
        """
        size, current_stamp = self.stat(info)
        if not self.is_ours(info, current_stamp, stamp):
            return size
        # Files behind a link, and files of other users in a sticky folder, cannot be deleted.
        with contextlib.suppress(ConfigError, PermissionError):
            from mds.storage._relative_name import unlink_beneath

            for file in self.files(info):
                with contextlib.suppress(FileNotFoundError):
                    unlink_beneath(self.root, file.basename)
        return self.stat(info)[0]

    def is_ours(self, info: ShardInfo, stamp: int, recorded_stamp: int) -> bool:
        """Whether this library wrote the files of a shard, so that they may be deleted.

        ``stamp`` is the present stamp of the files (see `stat`), ``recorded_stamp`` the one in the
        ledger, or 0 if there is none.
        """
        return (stamp == recorded_stamp and stamp != 0) or self.has_ownership_marker(info)

    def has_ownership_marker(self, info: ShardInfo) -> bool:
        """Whether all files of a shard have the ownership marker for its content."""
        return have_ownership_markers(
            (self.path(file) for file in self.files(info)), self.content_id(info)
        )

    def remove_parts(self, info: ShardInfo, living: set[int]) -> None:
        """Delete temporary files in the folders of a shard's files, if their process has died.

        ``living`` are ids of processes that use the cache folder.
        """
        self.check_inside(info)
        for folder in {os.path.dirname(self.path(file)) for file in self.files(info)}:
            remove_parts(folder, living)

    def check_inside(self, info: ShardInfo) -> None:
        """Raise ConfigError if a link leads a file of a shard out of the cache folder.

        Call it before files of the shard are written or deleted.
        """
        from mds.storage._relative_name import check_beneath

        for raw, packed in info.files:
            for file in (raw, packed):
                if file is not None and "/" in file.basename:
                    check_beneath(self.root, file.basename)

    def with_size_on_disk(self, info: ShardInfo) -> ShardInfo:
        """Return the entry of a shard with the size of its file, if the index has no size."""
        if not self.is_decoded:
            return info
        return info._replace(raw=info.raw._replace(size=max(size_of(self.path(info.raw)), 0)))

    # ------------------------------------------------------------------ identity

    def name_id(self, info: ShardInfo) -> int:
        """Return the digest of a shard's name that the ledger records."""
        return self.name_id_of(info.raw.basename)

    @staticmethod
    def name_id_of(basename: str) -> int:
        """Return the digest of a file's name that the ledger records; never 0."""
        return _digest(basename) or 1

    def content_id(self, info: ShardInfo) -> int:
        """Return a number that identifies the content of a shard: 64 bits of a digest.

        It depends on the names, sizes and digests of the shard's files in the index. If the index
        has no digests, it also depends on the source and its version.
        """
        files = [raw for raw, _ in info.files]
        facts: list[object] = [[f.basename, f.size, sorted(f.hashes.items())] for f in files]
        if not self.has_digests(info):
            facts.append(self._ownership.identity)
        return _digest(facts)

    def fingerprint(self) -> bytes:
        """Return the identity of the source and its index, see `identity_for`, as bytes."""
        return bytes.fromhex(self._ownership.identity)

    def has_digests(self, info: ShardInfo) -> bool:
        """Whether the index has a digest of every raw file of a shard."""
        return all(self.hash_of(raw) is not None for raw, _ in info.files)

    def accepts_unverified(self, info: ShardInfo) -> bool:
        """Whether files of a shard may be used without a digest and without an entry."""
        return self._ownership.accepts_unverified([self.path(raw) for raw, _ in info.files])

    def accepts_file(self, file: FileInfo) -> bool:
        """Whether a file has a digest to check, or may be used without one."""
        return self.hash_of(file) is not None or self._ownership.accepts_unverified(
            [self.path(file)]
        )

    def mode(self) -> int:
        """Return the permissions of our files: those of the folder, without execution.

        The owner may always read and write.
        """
        try:
            return stat.S_IMODE(os.stat(self.root).st_mode) & 0o666 | 0o600
        except OSError:
            return 0o666 & ~_umask()


def file_stamp(paths: Iterable[str]) -> int:
    """Return the stamp of files: the digest of their inodes, times and sizes."""
    return _digest(_states(paths))


def check_file(file: FileInfo, path: str, name: str | None, name_or_url: str) -> None:
    """Raise CorruptError if size or digest of a file differ from the index.

    Args:
        file: Entry of the file in the index.
        path: Path of the file.
        name: Name of the digest to check; None: only the size.
        name_or_url: Path or URL for error messages.
    """
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
    """Return the digest of a file, as hexadecimal text; ``name`` is an algorithm such as sha1."""
    from mds._shardfile.hashing import new_hash

    digest = new_hash(name)
    read_back(path, digest.update)
    return digest.hexdigest()


def derived_folder(folder: str, root: str | None = None) -> str:
    """Return the cache folder for decompressed shards of the user's own folder of data.

    ``root`` is the root folder of this user's cached data; None (default): that of this moment.
    """
    from mds._cache.source import cache_root

    digest = hashlib.blake2s(os.path.realpath(folder).encode(), digest_size=16).hexdigest()
    return os.path.join(cache_root() if root is None else root, "decompressed", digest)


def remove_parts(folder: str, living: set[int]) -> None:
    """Delete the temporary files in a folder whose process has died.

    ``living`` are ids of processes that use the folder, which may be in another container.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            owner = temporary_owner(entry.name)
            if owner is not None and owner not in living and not is_process(owner):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def _states(paths: Iterable[str]) -> list[tuple[int, int, int]]:
    """Return inode, modification time in nanoseconds, and size of each file that exists."""
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


def _digest(facts: object) -> int:
    """Return 64 bits of the digest of values that have a JSON form."""
    text = json.dumps(facts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _umask() -> int:
    """Return the umask of this process; 0o022 if it is unknown.

    `os.umask` cannot read it without changing it for all threads.
    """
    with (
        contextlib.suppress(OSError, ValueError),
        open("/proc/self/status", encoding="ascii") as file,
    ):
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def mark_as_ours(path: str, content: int) -> None:
    """Set the ownership marker of a file that was just written: its nanoseconds.

    ``content`` is the digest of its content, see `CacheFolder.content_id`.
    """
    state = os.lstat(path)
    time = state.st_mtime_ns // _SECOND * _SECOND + _marker(state, content)
    try:
        os.utime(path, ns=(state.st_atime_ns, time), follow_symlinks=False)
    except FileNotFoundError as error:  # its message lacks the path
        raise FileNotFoundError(error.errno, error.strerror, path) from error


def have_ownership_markers(paths: Iterable[str], content: int) -> bool:
    """Whether some of the files exist, and all of those have the marker for ``content``."""
    matches = []
    for path in paths:
        try:
            state = os.lstat(path)
        except FileNotFoundError:
            continue
        matches.append(state.st_mtime_ns % _SECOND == _marker(state, content))
    return bool(matches) and all(matches)


def _marker(state: os.stat_result, content: int) -> int:
    """Return the nanoseconds that mark a file with this inode, size and content as ours."""
    facts = struct.pack("<QQQ", state.st_ino, state.st_size, content)
    return int.from_bytes(hashlib.blake2b(facts, digest_size=8).digest(), "little") % _SECOND


# ---------------------------------------------------------------------- shards of all folders


class Catalog:
    """The shards of a dataset, numbered from 0 through all of its folders.

    ``folders`` are the cache folders of its sources, in order.
    """

    def __init__(self, folders: Sequence[CacheFolder]) -> None:
        self.folders = folders
        self._first_shards = np.array([folder.first_shard for folder in folders], np.int64)

    @property
    def shards(self) -> int:
        """Number of shards."""
        return sum(map(len, self.folders))

    def locate(self, shard: int) -> tuple[CacheFolder, int]:
        """Return the folder of a shard, and its number in the folder."""
        folder = self.folders[int(self._first_shards.searchsorted(shard, "right")) - 1]
        return folder, shard - folder.first_shard

    def groups(
        self, shards: npt.NDArray[np.int64]
    ) -> list[tuple[CacheFolder, npt.NDArray[np.bool_], npt.NDArray[np.int64]]]:
        """Group shards by folder.

        Returns, for each folder with any of ``shards`` (shape (n,)): the folder, the mask of its
        shards (n,), and their numbers in the folder.
        """
        folder_numbers = self._first_shards.searchsorted(shards, "right") - 1
        out = []
        for number in unique_stable(folder_numbers):
            folder, mask = self.folders[number], folder_numbers == number
            out.append((folder, mask, shards[mask] - folder.first_shard))
        return out

    def info(self, shard: int) -> ShardInfo:
        """Return the entry of a shard in its index."""
        folder, number = self.locate(shard)
        return folder.index.shard(number)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each shard in its cache folder, shape (shards,)."""
        return np.concatenate([folder.sizes() for folder in self.folders])

    def row_size(self, shard: int) -> float:
        """Return the mean bytes of a sample of a shard."""
        folder, number = self.locate(shard)
        return int(folder.index.raw_size[number]) / max(int(folder.index.samples[number]), 1)

    @property
    def samples(self) -> int:
        """Number of samples of all shards."""
        return sum(folder.index.total_samples for folder in self.folders)

    @cached_property
    def mean_row_size(self) -> int:
        """Mean bytes of a sample, over all shards."""
        raw = sum(int(folder.index.raw_size.sum()) for folder in self.folders)
        return raw // max(self.samples, 1)

    @property
    def remote_bytes(self) -> int:
        """Bytes of all data files on their remotes, compressed if they are stored so."""
        total = 0
        for folder in self.folders:
            index = folder.index
            packed = index.zip_size > 0  # mask of the compressed shards
            total += int(np.where(packed, index.zip_size, index.raw_size).sum())
        return total

    @property
    def has_raw(self) -> bool:
        """Whether some shards are stored uncompressed."""
        return any(not folder.index.zip_size.all() for folder in self.folders)

    @property
    def is_cached(self) -> bool:
        """Whether any shard needs a cache folder."""
        return any(folder.is_cached for folder in self.folders)
