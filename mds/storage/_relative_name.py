"""A checked name of a file below a folder, and access to that file without following links.

Names come from an index.json, its binary copy, listings and arguments, none of which can be
trusted. A `RelativeName` cannot be a name that leaves its folder, or one that this library reserves
(``.mds``, temporary files, ``index.json``), in any spelling. Only such names are joined to folders.
A plain name costs one match of a regular expression, 0.6 us; others some 10 us.

The path of the folder itself may contain links, since its owner chose it. Below it, a link in place
of a directory could lead to files of another owner, so it is refused before a file is read, written
or deleted. Deletion uses directory descriptors (openat), so that a link that is created meanwhile
is not followed either.
"""

from __future__ import annotations

import contextlib
import ntpath
import os
import posixpath
import re
import stat
import unicodedata
from typing import Any

from mds.errors import ConfigError, FormatError, MdsError

# Limits of file systems (NAME_MAX) and of object stores (the longest key of S3), in bytes.
MAX_PART_BYTES = 255
MAX_NAME_BYTES = 1024
# Names of ordinary characters in which no part begins with a dot: they need no further check.
PLAIN_NAME = r"(?:[0-9A-Za-z_][ !#-.0-9;-\[\]-~]*/)*[0-9A-Za-z_][ !#-.0-9;-\[\]-~]*"
MAX_PLAIN_BYTES = 200
INDEX_NAME = "index.json"

_plain = re.compile(PLAIN_NAME).fullmatch


class RelativeName(str):
    """A relative path with '/' that stays inside the folder it is joined to.

    Args:
        text: The name.
        source: Origin of the name, with which the text of an error begins.
        error: Class of the error that is raised for other names (default FormatError).

    >>> RelativeName("train/shard.00000.mds").under("/data")
    '/data/train/shard.00000.mds'
    """

    __slots__ = ()

    def __new__(
        cls, text: str, source: str = "a name", error: type[MdsError] = FormatError
    ) -> RelativeName:
        """Return the checked name; raise ``error`` for one that `_check` refuses.

        Most names are plain, for which one match of a regular expression is enough.
        """
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
        # The receiving process checks it again.
        return RelativeName, (str(self),)


def split_folder(split: str | os.PathLike[str] | None) -> str:
    """Return the relative path of a split, or ''. Raises ConfigError if it leaves its folder.

    >>> split_folder("./train/"), split_folder("a/../train"), split_folder(".")
    ('train', 'train', '')
    """
    text = os.fspath(split or "")
    tidy = posixpath.normpath(text) if text else "."
    if tidy == ".":
        return ""
    if tidy.startswith(("/", "../")) or tidy == "..":
        raise ConfigError(
            f"split={shown(split)} is not a folder inside the dataset's folder. Give the path from "
            "there, such as split='train'."
        )
    return str(RelativeName(tidy, f"split={shown(split)}", ConfigError))


def is_reserved(part: str) -> bool:
    """Whether a part of a path is reserved: control folders, temporary files and the index."""
    # Some file systems ignore case or Unicode variants, so ".MDS" may be the same file as ".mds".
    plain = unicodedata.normalize("NFKC", part).casefold()
    return (
        plain.startswith(".mds")
        or plain == INDEX_NAME
        or (plain.startswith(".") and plain.endswith(".mds-part"))
    )


def shown(value: object) -> str:
    """Return the repr of an untrusted value, shortened to about 100 characters."""
    text = repr(value[:160] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= 120 else f"{text[:80]}...{text[-20:]}"


def _check(name: str, source: str, error: type[MdsError]) -> None:
    """Raise ``error`` for a name that leaves its folder, is reserved or is too long.

    ``source`` begins the message. Names are also checked for Windows, where a name may have a drive
    ("C:x") and parts are separated by backslashes.
    """
    parts = name.split("/")
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise error(f"{source}: the name {shown(name)} is not UTF-8. Rename the file or folder.")
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
            f"{source}: the name {shown(name)} has {len(name.encode())} bytes. At most "
            f"{MAX_PART_BYTES} are allowed between slashes, and {MAX_NAME_BYTES} in all."
        )


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def check_beneath(folder: str, name: RelativeName) -> None:
    """Raise ConfigError if a directory of ``name`` below ``folder`` is a link or a file."""
    path = folder
    for part in name.directories:
        path = os.path.join(path, part)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            raise _no_folder(folder, path)


def unlink_beneath(folder: str, name: RelativeName) -> None:
    """Delete a file below ``folder``, without following links.

    Each directory is opened by its descriptor in the one above, so a link that another process
    creates meanwhile is not followed either.

    Raises FileNotFoundError if it is missing, and ConfigError if one of its directories is a link.
    """
    if not name.directories:
        os.unlink(name.under(folder))
        return
    with contextlib.ExitStack() as stack:
        path, parent = folder, os.open(folder, _FOLDER)
        stack.callback(os.close, parent)
        for part in name.directories:
            path = os.path.join(path, part)
            try:
                parent = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
            except FileNotFoundError:
                raise
            except OSError as error:
                if os.path.islink(path) or not os.path.isdir(path):
                    raise _no_folder(folder, path) from error
                raise
            stack.callback(os.close, parent)
        # The last part of the name is the file.
        os.unlink(name.rpartition("/")[2], dir_fd=parent)


def _no_folder(folder: str, path: str) -> ConfigError:
    """Return the error for a link or a file at ``path``, where ``folder`` needs a directory."""
    if os.path.islink(path):
        return ConfigError(
            f"{path}: a link leads out of the cache folder {folder} to {os.path.realpath(path)}. "
            "Remove it, or choose another local folder."
        )
    return ConfigError(
        f"{path}: the dataset needs a folder of this name, but this is something else. Remove it, "
        "or choose another local folder."
    )
