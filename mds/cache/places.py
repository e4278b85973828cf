"""Where the files of a source lie, and how a file of ours is told from anybody else's.

A source is read in place when its folder is the user's own data; everything else has a cache
folder, where a shard has the name that it has on the remote (so other readers of the format find
it too) and all that is ours besides lies in its ``.mds`` folder. Compressed data of the user's that
are read in place are decompressed into a cache folder of that user's, never beside them.

A file is ours when its inode, time and size are those in the ledger. Only such files are deleted.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mds.cache.filesystem import control_folder
from mds.errors import ConfigError, CorruptError, NotFoundError
from mds.storage.files import read_back, temporary_owner

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mds.index import FileInfo, Index, ShardInfo
    from mds.stream import Source

CONTROL = ".mds"
ORIGIN = "origin.json"

# From the fastest to the slowest, as measured on one core: 12, 10, 8, 6, 5, 2.0, 0.7 ... GB/s.
_BY_SPEED = (
    *("xxh3_64", "xxh3_128", "xxh128", "xxh64", "xxh32", "sha1", "sha256", "sha224", "blake2b"),
    *("md5", "sha512", "sha384", "blake2s", "sha3_224", "sha3_256", "sha3_384", "sha3_512"),
)


class Place:
    """The folders of one source: ``home`` is read in place, ``folder`` is a cache of ours."""

    def __init__(self, source: Source, number: int, first: int) -> None:
        self.source = source
        self.index: Index = source.index
        self.number = number
        self.first = first  # the global number of its first shard
        is_home = source.remote is None
        self.home = source.folder if is_home else None
        self.folder = derived_folder(source.folder) if is_home else source.folder
        self.remote = source.folder if is_home else str(source.remote)
        # What was made out of the user's own compressed files never needs them a second time.
        self.keep_zip = source.keep_zip and not is_home
        self.check = source.validate_hash
        self._check_hashes()

    def __len__(self) -> int:
        return len(self.index)

    @property
    def is_cached(self) -> bool:
        """Whether shards of it may have to be kept in a cache folder."""
        return self.home is None or bool(self.index.zip_size.any())

    def sizes(self) -> npt.NDArray[np.int64]:
        """The bytes that each shard needs on the disk."""
        index = self.index
        whole = index.raw_size + index.raw_meta_size
        return whole + index.zip_size + index.zip_meta_size if self.keep_zip else whole

    def largest(self) -> int:
        """The most bytes on the disk that one shard needs."""
        return int(self.sizes().max(initial=0))

    @functools.cached_property
    def control(self) -> str:
        """The folder of our books and locks."""
        return control_folder(self.folder, CONTROL)

    def _check_hashes(self) -> None:
        if not self.check:
            return
        for schema in self.index.schemas:
            if self.check not in schema.hashes:
                has = ", ".join(schema.hashes) or "no hashes at all"
                raise ConfigError(
                    f"validate_hash={self.check!r}: the index of {self.remote} has {has}. Name one "
                    f"of those, or leave validate_hash out."
                )

    def hash_of(self, file: FileInfo) -> str | None:
        """The digest to check a file by: the one asked for, else the fastest in the index."""
        if self.check:
            return self.check
        return next((name for name in _BY_SPEED if name in file.hashes), None)

    # ------------------------------------------------------------------ files

    def files(self, info: ShardInfo) -> Iterator[FileInfo]:
        """The files that we make of a shard in the cache folder."""
        for raw, packed in info.files:
            yield raw
            if packed is not None and self.keep_zip:
                yield packed

    def path(self, file: FileInfo, folder: str | None = None) -> str:
        """Where a file lies in the cache folder."""
        return os.path.join(folder or self.folder, *file.basename.split("/"))

    def folder_of(self, info: ShardInfo) -> str | None:
        """The folder that has a shard's raw files in full size; None when they must be fetched."""
        for folder in (self.home, self.folder):
            if folder is not None and self._has(info, folder):
                return folder
        return None

    def _has(self, info: ShardInfo, folder: str) -> bool:
        return all(size_of(self.path(raw, folder)) == raw.size for raw, _ in info.files)

    def has_raw(self, info: ShardInfo) -> bool:
        """Whether the user's folder has a raw file of a shard, of whatever size."""
        return self.home is not None and any(
            os.path.exists(self.path(raw, self.home)) for raw, _ in info.files
        )

    def peak(self, info: ShardInfo) -> int:
        """The most bytes that fetching a shard puts on the disk."""
        return sum(file.size for file in self.files(info))

    def measure(self, info: ShardInfo) -> tuple[int, int]:
        """(bytes on the disk, mark) of the files of a shard; (0, 0) when there are none."""
        seen = _states(self.path(file) for file in self.files(info))
        return sum(size for _, _, size in seen), _number(seen) if seen else 0

    def remove(self, info: ShardInfo, mark: int) -> int:
        """Delete the files of a shard if they are the ones with that mark; the bytes that stay."""
        size, found = self.measure(info)
        if found != mark:
            return size
        for file in self.files(info):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(file))
        return 0

    def remove_parts(self, info: ShardInfo, living: set[int]) -> None:
        """Delete temporary files of a shard whose makers are not among the living."""
        for folder in {os.path.dirname(self.path(file)) for file in self.files(info)}:
            remove_parts(folder, living)

    def check_inside(self, file: FileInfo) -> None:
        """Raise ConfigError when a link would lead a file of the cache out of its folder."""
        if "/" not in file.basename:
            return
        root = os.path.realpath(self.folder)
        target = os.path.realpath(os.path.dirname(self.path(file)))
        if os.path.commonpath([root, target]) != root:
            raise ConfigError(
                f"{self.path(file)}: a link leads out of the cache folder {self.folder} to "
                f"{target}. Remove it, or choose another local folder."
            )

    # ------------------------------------------------------------------ identity

    def name(self, info: ShardInfo) -> int:
        """The number that stands for the name of a shard in the ledger."""
        return self.number_of(info.raw.basename)

    @staticmethod
    def number_of(basename: str) -> int:
        """The number that stands for a name; never 0."""
        return _number(basename) or 1

    def tag(self, info: ShardInfo) -> int:
        """The number that stands for the content of a shard."""
        files = [raw for raw, _ in info.files]
        facts: list[object] = [[f.basename, f.size, sorted(f.hashes.items())] for f in files]
        if not all(f.hashes for f in files):
            facts.append(self.origin())
        return _number(facts)

    def fingerprint(self) -> bytes:
        """What the ledger belongs to: this index, and where it is from if it has no digests."""
        hashed = all(schema.hashes for schema in self.index.schemas)
        facts = [self.index.fingerprint(), "" if hashed else self.origin()]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).digest()

    def origin(self) -> list[str]:
        """The URL that the index is from, and its version there."""
        told = read_origin(self.folder)
        return [self.remote, str(told.get("version", "")) if told.get("url") == self.remote else ""]

    def mode(self) -> int:
        """The mode of our files, which lets in whom the folder lets in."""
        try:
            return stat.S_IMODE(os.stat(self.folder).st_mode) & 0o666 | 0o600
        except OSError:
            return 0o666 & ~_umask()


def mark_of(paths: Iterable[str]) -> int:
    """The mark of files as they are now."""
    return _number(_states(paths))


def check_file(file: FileInfo, path: str, name: str | None, where: str) -> None:
    """Raise CorruptError with the facts when a file is not what the index says."""
    size = size_of(path)
    if size < 0:
        raise NotFoundError(f"check {where}: there is no such file.", url=where, verb="check")
    if size != file.size:
        raise CorruptError(
            f"{where}: the index says {file.size} bytes, found {size}",
            url=where,
            verb="check",
        )
    if name is None or name not in file.hashes:
        return
    found = digest_of(path, name)
    if found != file.hashes[name]:
        raise CorruptError(
            f"{where}: the index says {name} {file.hashes[name]}, found {found}",
            url=where,
            verb="check",
        )


def digest_of(path: str, name: str) -> str:
    """The digest of a file."""
    from mds.hashing import new_hash

    digest = new_hash(name)
    read_back(path, digest.update)
    return digest.hexdigest()


def derived_folder(folder: str) -> str:
    """Where this user keeps what is decompressed out of a folder of data."""
    from mds.stream import cache_root

    digest = hashlib.blake2s(os.path.realpath(folder).encode(), digest_size=16).hexdigest()
    return os.path.join(cache_root(), "decompressed", digest)


def read_origin(folder: str) -> dict[str, Any]:
    """Where the index in a cache folder is from; empty when nobody noted it."""
    try:
        with open(os.path.join(folder, CONTROL, ORIGIN), encoding="utf-8") as file:
            told = json.load(file)
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def remove_parts(folder: str, living: set[int]) -> None:
    """Delete the temporary files in a folder whose makers are not among the living."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            owner = temporary_owner(entry.name)
            if owner is not None and owner not in living and not _is_alive(owner):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)


def _states(paths: Iterable[str]) -> list[tuple[int, int, int]]:
    seen = []
    for path in paths:
        with contextlib.suppress(OSError):
            state = os.stat(path)
            seen.append((state.st_ino, state.st_mtime_ns, state.st_size))
    return seen


def _is_alive(process: int) -> bool:
    """Whether a process of that number runs; one of another container may, unseen."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def size_of(path: str) -> int:
    """The bytes of a file; -1 when there is none."""
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
