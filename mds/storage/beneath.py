"""Files below a folder, reached without following a link in between.

A folder may be reached through links, since its owner chose it. Below it a link in the place of a
directory would lead a name from outside to files of another owner, so it is refused before anything
is read, written or removed. Removal goes by directory descriptors (openat), so a link that is put
there in the meantime is not followed either.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from mds.errors import ConfigError

if TYPE_CHECKING:
    from mds.storage.relative_name import RelativeName

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def check_beneath(folder: str, name: RelativeName) -> None:
    """Raise ConfigError unless every directory part of ``name`` is one, or is still to be made."""
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
    """Remove a file below ``folder``.

    Raises FileNotFoundError when there is none, and ConfigError when a link is in between.
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
        os.unlink(name.rpartition("/")[2], dir_fd=parent)


def _no_folder(folder: str, path: str) -> ConfigError:
    if os.path.islink(path):
        return ConfigError(
            f"{path}: a link leads out of the cache folder {folder} to {os.path.realpath(path)}. "
            "Remove it, or choose another local folder."
        )
    return ConfigError(
        f"{path}: the dataset needs a folder of this name and there is something else. Remove it, "
        "or choose another local folder."
    )
