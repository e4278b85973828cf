"""Whose cache folder it is: the source that its files are from, as noted in ``.mds/origin.json``.

The folder belongs to whichever source came first. Another one is kept apart in a folder of its own
below ``.mds/sources``, and so is a process whose dataset was published anew under it: two never
write to one folder, and what a file is called never says what it is. The note holds no credentials
and is believed only if every field is what it should be.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from mds.errors import CacheError
from mds.storage.control_files import (
    make_control_folder,
    make_shared_folder,
    publish_control_file,
    read_control_file,
)
from mds.storage.files import publish_first
from mds.storage.url import source_name

CONTROL = ".mds"
ORIGIN = "origin.json"
SOURCES = "sources"

_LARGEST = 1 << 16  # bytes of a note
_LONGEST = 1 << 13  # letters of a text in it
# Options that say where the bytes are, and not how to get at them.
_PLACES = ("account_name", "endpoint", "endpoint_url", "host", "namespace", "revision")


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Note of a folder.

    ``identity`` stands for the source, its index and, where shards have no digests, its version.
    ``copy`` are inode, time and size of the index.json beside it. A file that has no digest and
    that our ledger does not know is believed if it was changed at ``since`` (nanoseconds) or later;
    never when that is -1.
    """

    source: str
    identity: str
    version: str = ""
    size: int = -1
    copy: tuple[int, int, int] = (0, 0, 0)
    since: int = -1

    def to_json(self) -> bytes:
        """Return the text of the note."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def parse(cls, data: bytes) -> Origin | None:
        """Parse a note; return None if it is none, or one of an earlier version."""
        try:
            note = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if not isinstance(note, dict):
            return None
        texts = [note.get(name) for name in ("source", "identity", "version")]
        copy = note.get("copy")
        numbers = [note.get("size"), note.get("since"), *(copy if isinstance(copy, list) else ())]
        is_right = (
            len(numbers) == 5
            and all(isinstance(text, str) and len(text) <= _LONGEST for text in texts)
            and all(type(number) is int and -1 <= number < 1 << 64 for number in numbers)
        )
        if not is_right:
            return None
        source, identity, version = map(str, texts)
        size, since, *state = numbers
        return cls(source, identity, version, size, (state[0], state[1], state[2]), since)


def read_origin(folder: str) -> Origin | None:
    """Read the note of a folder; return None if it has none or an invalid one."""
    try:
        # It has two names for a moment, or for good where its maker was killed just then.
        data = read_control_file(_path(folder), _LARGEST, max_names=2)
    except (OSError, CacheError):
        return None
    return Origin.parse(data)


def write_origin(folder: str, origin: Origin, mode: int) -> None:
    """Write the note of a folder, in place of an older one."""
    with publish_control_file(_path(folder), mode) as file:
        file.write(origin.to_json())


def claim(folder: str, origin: Origin, mode: int) -> bool:
    """Write the note of a folder that has none; return False if another source was first.

    Two nodes of a network file system have no lock in common, and two processes none after the
    folder was deleted under them, so it is the name of the note that there is only one of.
    """
    if read_origin(folder) is None and os.path.lexists(_path(folder)):
        write_origin(folder, origin, mode)  # of an earlier version, or damaged
    else:
        publish_first(_path(folder), origin.to_json(), mode=mode)
    now = read_origin(folder)
    return now is not None and (now.source, now.identity) == (origin.source, origin.identity)


def source_of(remote: str, options: Mapping[str, Any] | None) -> str:
    """Return the name of a source: its URL without secrets, and a digest of its address options."""
    address_options = [
        (name, str((options or {})[name])) for name in _PLACES if (options or {}).get(name)
    ]
    digest = f"#{_digest(address_options)}" if address_options else ""
    return source_name(remote) + digest


def identity_of(source: str, index: str, version: str) -> str:
    """Return the digest of a source, the digest of its index, and its version."""
    return hashlib.blake2b(
        json.dumps([source, index, version]).encode(), digest_size=16
    ).hexdigest()


def apart(folder: str, name: str) -> str:
    """Return the folder for ``name`` below a folder that belongs to another source."""
    return os.path.join(folder, CONTROL, SOURCES, _digest(name))


def make_folders(folder: str) -> None:
    """Make a cache folder, which may be one that is kept apart, and its control folder."""
    parent, _ = os.path.split(folder)
    if parent.endswith(os.path.join(os.sep + CONTROL, SOURCES)):
        make_folders(os.path.dirname(os.path.dirname(parent)))
        make_control_folder(parent)
        make_control_folder(folder)
    else:
        make_shared_folder(folder)
    make_control_folder(os.path.join(folder, CONTROL))


def folder_for(folder: str, source: str) -> str | None:
    """Return the folder of a source whose user gave ``folder``, or None if not decided yet."""
    origin = read_origin(folder)
    if origin is not None and origin.source == source:
        return folder
    other = apart(folder, source)
    if origin is not None:
        return other
    origin_below = read_origin(other)
    return other if origin_below is not None and origin_below.source == source else None


def parts_of(folder: str) -> list[str]:
    """Return the folders of other sources below a folder."""
    with (
        contextlib.suppress(OSError),
        os.scandir(os.path.join(folder, CONTROL, SOURCES)) as entries,
    ):
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _path(folder: str) -> str:
    return os.path.join(folder, CONTROL, ORIGIN)


def _digest(facts: object) -> str:
    return hashlib.blake2s(json.dumps(facts).encode(), digest_size=8).hexdigest()
