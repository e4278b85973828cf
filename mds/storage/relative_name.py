"""A file name from outside that was checked: the only thing that is joined to a folder.

Names come from an index.json, from its binary copy, from listings and from arguments, and any of
them may have been written by a stranger. A `RelativeName` cannot be made of a name that leaves its
folder or that is one of ours (``.mds``, temporary files, ``index.json``), in whatever case it is
spelled. A plain name costs one match of a regular expression, 0.6 us; a strange one some 10 us.
"""

from __future__ import annotations

import ntpath
import os
import re
import unicodedata
from typing import Any

from mds.errors import ConfigError, FormatError, MdsError

# What file systems and object stores agree on: NAME_MAX, and the longest key of S3.
MAX_PART_BYTES = 255
MAX_NAME_BYTES = 1024
# Names that need no further look: no part begins with a dot, and none is long.
PLAIN_NAME = r"(?:[0-9A-Za-z_][ !#-.0-9;-\[\]-~]*/)*[0-9A-Za-z_][ !#-.0-9;-\[\]-~]*"
MAX_PLAIN_BYTES = 200
INDEX_NAME = "index.json"

_plain = re.compile(PLAIN_NAME).fullmatch


class RelativeName(str):
    """A relative path with '/' that stays inside the folder it is joined to.

    Raises ``error`` (a FormatError) with ``where`` in its text for anything else.

    >>> RelativeName("train/shard.00000.mds").under("/data")
    '/data/train/shard.00000.mds'
    """

    __slots__ = ()

    def __new__(
        cls, text: str, source: str = "a name", error: type[MdsError] = FormatError
    ) -> RelativeName:
        """Check a name."""
        if len(text) > MAX_PLAIN_BYTES or not _plain(text) or INDEX_NAME in text.lower():
            _check(text, source, error)
        return super().__new__(cls, text)

    def under(self, folder: str) -> str:
        """Return the path of the file below a folder."""
        return os.path.join(folder, self)

    @property
    def directories(self) -> list[str]:
        """The parts before the last one."""
        return self.split("/")[:-1]

    def __reduce__(self) -> tuple[Any, ...]:
        # Checked again wherever it arrives.
        return RelativeName, (str(self),)


def split_folder(split: str | os.PathLike[str] | None) -> str:
    """Return the relative path of a split, or ''. Raises ConfigError if it leaves its folder."""
    tidy = os.fspath(split or "").rstrip("/")
    return str(RelativeName(tidy, f"split={shown(split)}", ConfigError)) if tidy else ""


def is_reserved(part: str) -> bool:
    """Whether a part of a path is one of ours: control folders, temporary files, the index."""
    # File systems differ in which spellings they take for one name.
    plain = unicodedata.normalize("NFKC", part).casefold()
    return (
        plain.startswith(".mds")
        or plain == INDEX_NAME
        or (plain.startswith(".") and plain.endswith(".mds-part"))
    )


def shown(value: object) -> str:
    """Return the repr of a value from outside, shortened if it is long."""
    text = repr(value[:160] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= 120 else f"{text[:80]}...{text[-20:]}"


def _check(name: str, source: str, error: type[MdsError]) -> None:
    parts = name.split("/")
    is_outside = (
        any(part in {"", ".", ".."} for part in parts)
        or not name.isprintable()  # control characters and lone surrogates among others
        or "\\" in name
        or bool(ntpath.splitdrive(name)[0])
    )
    if is_outside:
        raise error(
            f"{source}: {shown(name)} is not a file inside the dataset's folder. "
            "Shards must be named by relative paths without '.', '..', backslashes or control "
            "characters."
        )
    if any(map(is_reserved, parts)):
        raise error(
            f"{source}: a shard cannot be the file {shown(name)}. The names index.json, .mds... "
            "and .*.mds-part belong to the library."
        )
    if len(name.encode()) > MAX_NAME_BYTES or any(
        len(part.encode()) > MAX_PART_BYTES for part in parts
    ):
        raise error(
            f"{source}: the name {shown(name)} has {len(name.encode())} bytes. File systems take "
            f"{MAX_PART_BYTES} between slashes, and {MAX_NAME_BYTES} in all are allowed."
        )
