"""The incumbent's functions that merge indexes: ``merge_index`` of ``base.util`` and its parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mds.errors import ConfigError, NotFoundError
from mds.redaction import get_logger
from mds.writers import merge_index as merge

log = get_logger("mds.compat")

Place = str | tuple[str, str]


class MissingIndexError(NotFoundError, RuntimeError):
    """An index that was named and is not there."""


class MergeCallError(ConfigError, IndexError):
    """A call that names nothing to merge."""


def merge_index(*args: Any, **kwargs: Any) -> None:
    """One index over many: of a list and ``out``, or of all that is below ``out``."""
    # After a place comes keep_local, after a list the place.
    has_out = "out" in kwargs or (len(args) > 1 and not isinstance(args[1], bool))
    if "index_file_urls" in kwargs or (args and not isinstance(args[0], (str, int)) and has_out):
        _merge_index_from_list(*args, **kwargs)
    elif args and isinstance(args[0], (str, os.PathLike, tuple)):
        _merge_index_from_root(*args, **kwargs)
    elif "out" in kwargs and not args:
        _merge_index_from_root(**kwargs)
    elif not args:
        raise MergeCallError("merge_index needs the folder or the URL to merge in.")
    else:
        raise ConfigError(f"merge_index takes a list of indexes or a place, got {args[0]!r}.")


def _merge_index_from_list(
    index_file_urls: Sequence[str | tuple[str, str]],
    out: Place,
    keep_local: bool = True,
    download_timeout: int = 60,
) -> None:
    """One index over those of a list; none, with a warning, for an empty list.

    Raises MissingIndexError (a RuntimeError) for one that is not there.
    """
    if not index_file_urls or not out:
        log.warning("no index was merged: none was named.")
        return
    try:
        merge([*index_file_urls], out, keep_local, download_timeout)
    except NotFoundError as error:
        raise MissingIndexError(str(error), url=error.url, verb=error.verb) from error


def _merge_index_from_root(out: Place, keep_local: bool = True, download_timeout: int = 60) -> None:
    """One index over all below a place; none, with a warning, where there are none."""
    try:
        merge(out, keep_local, download_timeout)
    except NotFoundError as error:
        log.warning("no index was merged: %s", error)


def _not_merged_index(index_file_path: str, out: str) -> bool:
    """Whether an index is of a part, and not the one that lies in ``out`` itself."""
    folder = os.path.dirname(index_file_path)
    return folder.rstrip("/") != out.rstrip("/")


def _format_remote_index_files(remote: str, files: Sequence[str]) -> list[str]:
    """The URLs of the indexes among the keys of the bucket of a URL."""
    scheme, colon, rest = remote.partition("://")
    if remote.startswith("dbfs:"):
        begin = "dbfs:/"
    elif colon:
        begin = f"{scheme}://{rest.partition('/')[0]}/"
    else:
        begin = ""
    return [begin + name.lstrip("/") if begin else name for name in files if _is_index(name)]


def _is_index(name: str) -> bool:
    return name.rpartition("/")[2] == "index.json"
