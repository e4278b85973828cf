"""Which data a cache folder belongs to: a source, at one version of its index.

A folder belongs to the source that used it first, as recorded in its note `.mds/origin.json`. Two
jobs must never write different data to one folder, so everything else gets a folder below it:

    FOLDER/                             the first source
    FOLDER/.mds/                        control folder: note, ledger and locks
    FOLDER/.mds/sources/DIGEST/         another source whose user gave the same folder
    FOLDER/.mds/sources/DIGEST/         fallback folder: an older index of the first source, which a
                                        job still reads after the dataset was published anew

On a network file system, locks may not reach other machines, and a mapped file is not the same
everywhere at the same time. There each node has its ledger and locks on its own disk
(`control_folder`), and nodes share only files that appear by rename.

The note contains no credentials and is used only if every field is valid. A process reads it
whenever it opens the ledger, so it notices when its folder has been given to other data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mds._process.fork_safe import cached_property
from mds._redaction import get_logger
from mds.errors import CacheError
from mds.storage._base import ObjectInfo
from mds.storage._control_files import (
    make_control_folder,
    make_shared_folder,
    private_temporary_folder,
    publish_control_file,
    read_control_file,
)
from mds.storage._files import publish_first
from mds.storage._local import network_kind, revised_version
from mds.storage._url import source_name

if TYPE_CHECKING:
    from mds._index.table import Index

log = get_logger("mds.cache")

CONTROL = ".mds"
ORIGIN = "origin.json"
SOURCES = "sources"

_MAX_NOTE_BYTES = 1 << 16
_MAX_TEXT = 1 << 13  # characters of a text in a note
_MAX_VERSION = 256  # characters of a version in a note
_ENDPOINT_MARK = " @ "
#: Options that say where the objects are; others say how to get access to them.
_ADDRESS_OPTIONS = ("account_name", "endpoint", "endpoint_url", "host", "namespace", "revision")
#: Digests from the fastest to the slowest, measured on one core: 12, 10, 8, 6, 5, 2, 0.7 ... GB/s.
BY_SPEED = (
    *("xxh3_64", "xxh3_128", "xxh128", "xxh64", "xxh32", "sha1", "sha256", "sha224", "blake2b"),
    *("md5", "sha512", "sha384", "blake2s", "sha3_224", "sha3_256", "sha3_384", "sha3_512"),
)


class Ownership:
    """The right of one source, at one version of its index, to a cache folder.

    Args:
        source: Name of the source, see `source_of`.
        index: Its index.
        version: Version of the index at its store; "" if unknown.
        folder: Path of the cache folder.
    """

    def __init__(self, source: str, index: Index, version: str, folder: str) -> None:
        self.source, self.version = source, version
        self._index, self._folder = index, folder
        # Time from which files without digests are used: `Origin.since` in the note of the chosen
        # folder, or -1.
        self._since = -1

    @cached_property
    def identity(self) -> str:
        """Digest of the source, its index and its version, see `identity_for`."""
        return identity_for(self.source, self._index, self.version)

    def choose_folder(self, *, is_outdated: bool = False) -> str:
        """Return the folder to use from now on: the cache folder or the fallback folder.

        Called whenever the ledger is opened. ``is_outdated`` (default False) says that the caller
        knows that the cache folder belongs to a newer index.
        """
        if not is_outdated:
            origin = self._ensure_note(self._folder)
            if origin is None or origin.identity == self.identity:
                self._since = origin.since if origin is not None else -1
                return self._folder
        fallback = folder_below(self._folder, self.identity)
        if not os.path.exists(fallback):
            log.warning(
                "%s now belongs to another version of the dataset: was it published again? This "
                "process continues with its own version, in %s.",
                self._folder,
                fallback,
            )
        origin = self._ensure_note(fallback)
        self._since = origin.since if origin is not None else -1
        return fallback

    def accepts_unverified(self, paths: Sequence[str]) -> bool:
        """Whether files may be used that have no digest and are not in the ledger.

        They may if all were changed at or after the time ``since`` in the note of the folder.
        """
        if self._since < 0:
            return False
        try:
            return all(os.stat(path).st_mtime_ns >= self._since for path in paths)
        except OSError:
            return False

    def _ensure_note(self, folder: str) -> Origin | None:
        """Return the note of a folder, in which ours is written if there is none.

        None if there is no note and the folder cannot be written.
        """
        origin = read_origin(folder)
        if origin is None:
            # The folder was deleted. Files that appear in it from now on are of this index.
            with contextlib.suppress(OSError):
                make_cache_folder(folder)
                since = -1
                if is_shared_by_nodes(folder):  # other nodes fetch files that our ledger lacks
                    since = os.stat(os.path.join(folder, CONTROL)).st_mtime_ns
                mode = stat.S_IMODE(os.stat(folder).st_mode) & 0o666 | 0o600
                claim(folder, Origin(self.source, self.identity, self.version, since=since), mode)
            origin = read_origin(folder)
        return origin


# ---------------------------------------------------------------------- the note of a folder


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Note of a cache folder: the source that it belongs to.

    Stored as JSON: ``{"source": "s3://bucket/data", "identity": "3f...", "version": "...", "size":
    1234, "copy": [inode, time, size], "since": -1}``. The fields are explained below.
    """

    #: Name of the source, see `source_of`.
    source: str
    #: Digest of the source and its index, see `identity_for`.
    identity: str
    #: Version of the index at its store, see `full_version`; "" if unknown.
    version: str = ""
    #: Bytes of the index at its store; -1 if unknown.
    size: int = -1
    #: Inode, modification time in nanoseconds, and size of the copy of the index in the folder.
    copy: tuple[int, int, int] = (0, 0, 0)
    #: A file that has no digest and is not in the ledger is used if it was changed at this time or
    #: later, in nanoseconds since 1970; -1: such files are not used.
    since: int = -1

    def to_json(self) -> bytes:
        """Return the text of the note."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def parse(cls, data: bytes) -> Origin | None:
        """Parse the text of a note; return None if it is invalid or of an earlier version."""
        try:
            note = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if not isinstance(note, dict):
            return None
        # Check the type and range of every field.
        texts: list[Any] = [note.get(name) for name in ("source", "identity", "version")]
        copy = note.get("copy")
        numbers = [note.get("size"), note.get("since"), *(copy if isinstance(copy, list) else ())]
        is_valid = (
            len(numbers) == 5  # size, since, and the three numbers of the copy
            and {*map(type, texts)} == {str}
            and max(map(len, texts)) <= _MAX_TEXT
            and {*map(type, numbers)} == {int}
            and -1 <= min(numbers) <= max(numbers) < 1 << 64
        )
        if not is_valid:
            return None
        source, identity, version = map(str, texts)
        size, since, inode, modification_time, copy_size = numbers
        copied = (inode, modification_time, copy_size)
        return cls(source, identity, version, size, copied, since)


def read_origin(folder: str) -> Origin | None:
    """Read the note of a folder; return None if there is none or it is invalid."""
    try:
        # Publishing gives a file two names for a moment, or for good if the process is killed then.
        data = read_control_file(_note_path(folder), _MAX_NOTE_BYTES, max_names=2)
    except (OSError, CacheError):
        return None
    return Origin.parse(data)


def write_origin(folder: str, origin: Origin, mode: int) -> None:
    """Write the note of a folder with these permissions; replace an older note."""
    with publish_control_file(_note_path(folder), mode) as file:
        file.write(origin.to_json())


def claim(folder: str, origin: Origin, mode: int) -> bool:
    """Write the note of a folder that has none; return whether the folder is this origin's now.

    It is not if another source was first. Only one process can create the file, so no lock is
    needed, which nodes of a network file system do not have in common.

    Args:
        folder: The cache folder.
        origin: The note.
        mode: Permissions of the note.
    """
    if read_origin(folder) is None and os.path.lexists(_note_path(folder)):
        write_origin(folder, origin, mode)  # the note is of an earlier version, or damaged
    else:
        publish_first(_note_path(folder), origin.to_json(), mode=mode)
    now = read_origin(folder)
    return now is not None and (now.source, now.identity) == (origin.source, origin.identity)


def _note_path(folder: str) -> str:
    return os.path.join(folder, CONTROL, ORIGIN)


# ---------------------------------------------------------------------- identity of the data


def source_of(remote: str, options: Mapping[str, Any] | None) -> str:
    """Return the name of a source: its URL without secrets, and a digest of its address options.

    >>> source_of("s3://user:secret@bucket/data", None)
    's3://bucket/data'
    """
    if options:
        from mds.storage._spellings import own_options

        options = own_options(remote, options)
    address_options = [
        (name, str((options or {})[name])) for name in _ADDRESS_OPTIONS if (options or {}).get(name)
    ]
    digest = f"#{_digest(address_options)}" if address_options else ""
    return source_name(remote) + digest


def identity_for(source: str, index: Index, version: str) -> str:
    """Return the digest of a source and its index, and of its version if shards lack digests."""
    return identity_of(source, index.fingerprint(), "" if is_hashed(index) else version)


def identity_of(source: str, index: str, version: str) -> str:
    """Return the digest of the name of a source, the fingerprint of its index, and a version."""
    return hashlib.blake2b(
        json.dumps([source, index, version]).encode(), digest_size=16
    ).hexdigest()


def is_hashed(index: Index) -> bool:
    """Whether an index has, for every raw file, a digest that can be checked."""
    # Raw files are the uncompressed ones: "raw_data", "raw_meta".
    return all(
        any(name in BY_SPEED for name, _ in file.hashes)
        for schema in index.schemas
        for file in schema.stored
        if file.kind.startswith("raw")
    )


def full_version(info: ObjectInfo, folder: str | None = None, endpoint: str = "") -> str:
    """Return a text that differs if an object was written again or is of another server.

    Args:
        info: Facts about the object.
        folder: Folder of an object on a mounted disk; None (default): it is behind a network.
        endpoint: `Store.endpoint` of its store (default "").
    """
    version = revised_version(info, folder)
    if len(version) > _MAX_VERSION:
        version = _digest(version)
    return f"{version}{_ENDPOINT_MARK}{_digest(endpoint)}" if endpoint else version


def is_of_endpoint(version: str, endpoint: str) -> bool:
    """Whether `full_version` made a version with this endpoint, which is "" if there is none."""
    return version.partition(_ENDPOINT_MARK)[2] == (_digest(endpoint) if endpoint else "")


def _digest(facts: object) -> str:
    return hashlib.blake2s(json.dumps(facts).encode(), digest_size=8).hexdigest()


# ---------------------------------------------------------------------- folders


def folder_below(folder: str, name: str) -> str:
    """Return the path of the folder for ``name`` below a folder that belongs to another source.

    ``name`` is the name of a source, or an identity for a fallback folder.
    """
    return os.path.join(folder, CONTROL, SOURCES, _digest(name))


def folder_for(folder: str, source: str) -> str | None:
    """Return the folder of a source whose user gave ``folder``, or None if none is chosen yet.

    That is ``folder``, or a folder below it if ``folder`` belongs to another source.
    """
    origin = read_origin(folder)
    if origin is not None and origin.source == source:
        return folder
    below = folder_below(folder, source)
    if origin is not None:
        return below
    origin_below = read_origin(below)
    return below if origin_below is not None and origin_below.source == source else None


def folders_below(folder: str) -> list[str]:
    """Return the paths of all folders of other sources and identities below a folder."""
    with (
        contextlib.suppress(OSError),
        os.scandir(os.path.join(folder, CONTROL, SOURCES)) as entries,
    ):
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def make_cache_folder(folder: str) -> None:
    """Create a cache folder, also one below another, and its control folder."""
    parent, _ = os.path.split(folder)
    # A folder of `folder_below`: FOLDER/.mds/sources/DIGEST
    if parent.endswith(os.path.join(os.sep + CONTROL, SOURCES)):
        make_cache_folder(os.path.dirname(os.path.dirname(parent)))
        make_control_folder(parent)
        make_control_folder(folder)
    else:
        make_shared_folder(folder)
    make_control_folder(os.path.join(folder, CONTROL))


def control_folder(folder: str) -> str:
    """Return the path for the ledger and locks of a cache folder.

    That is `.mds` in the folder, or a folder of this user on the node's own disk if the cache
    folder is on a network file system.
    """
    if network_kind(folder) is None:
        return os.path.join(folder, CONTROL)
    digest = hashlib.blake2s(os.path.realpath(folder).encode(), digest_size=16).hexdigest()
    return os.path.join(private_temporary_folder(), digest)


def is_shared_by_nodes(folder: str) -> bool:
    """Whether a folder is on a network file system, so that every node has its own ledger."""
    return control_folder(folder) != os.path.join(folder, CONTROL)
