"""merge_index: one index over datasets that were written side by side.

No shard is moved or read. The merged index lies above the folders of the others and names their
shards through them, so `out` should be the folder that they have in common.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, overload

from mds.errors import ConfigError, NotFoundError, WriterError
from mds.index import Index
from mds.layout import INDEX_NAME, VERSION
from mds.storage import is_local, local_path, open_store, redact, write_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mds.writers.spec import Out

    Place = str | os.PathLike[str]

_FILES = ("raw_data", "zip_data", "raw_meta", "zip_meta")


@overload
def merge_index(
    index_file_urls: Sequence[Place | tuple[Place, Place]],
    out: Out,
    keep_local: bool = True,
    download_timeout: int = 60,
) -> None: ...
@overload
def merge_index(out: Out, keep_local: bool = True, download_timeout: int = 60) -> None: ...
def merge_index(*args: Any, **kwargs: Any) -> None:
    """Write one index over many: of the files that are listed, or of all below a folder.

    `merge_index([index_or_pair, ...], out)` takes the indexes in the order of the list; a pair is
    the same file at two places, local first. `merge_index(out)` takes every index below `out`, in
    the order of their paths. `out` is a folder, a URL, or a pair of those; the result goes to all
    of its places, or with `keep_local=False` only to the URL. A request may be silent for
    `download_timeout` seconds.

    Raises NotFoundError (a FileNotFoundError) when there is nothing to merge, IndexFileError for a
    broken index, ConfigError (a ValueError) when two shards would have the same name.
    """
    listed = "index_file_urls" in kwargs or (bool(args) and "out" in kwargs)
    if listed or (len(args) > 1 and not isinstance(args[1], bool)):
        _merge_listed(*args, **kwargs)
    else:
        _merge_below(*args, **kwargs)


def _merge_listed(
    index_file_urls: Sequence[Any], out: Out, keep_local: bool = True, download_timeout: int = 60
) -> None:
    places = _places(out)
    entries: list[str] = []
    names: set[str] = set()
    for item in index_file_urls:
        candidates = [os.fspath(p) for p in (item if isinstance(item, (list, tuple)) else [item])]
        data, found = _fetch_first(candidates, download_timeout)
        _add(entries, names, data, found, _prefix(candidates, places))
    if not entries and not index_file_urls:
        raise NotFoundError("there is no index to merge: the list is empty.")
    _put(entries, places, keep_local, download_timeout)


def _merge_below(out: Out, keep_local: bool = True, download_timeout: int = 60) -> None:
    places = _places(out)
    entries: list[str] = []
    names: set[str] = set()
    for place in places:
        with open_store(place, timeout=download_timeout) as store:
            keys = sorted(_keys_below(place, store))
            for key in keys:
                where = f"{redact(place)}/{key}"
                _add(entries, names, store.get(key), where, key[: -len(INDEX_NAME)])
        if keys:
            return _put(entries, places, keep_local, download_timeout)
    raise NotFoundError(
        f"there is no {INDEX_NAME} in any folder below {' or '.join(map(redact, places))}."
    )


def _places(out: Out) -> list[str]:
    """The folders and URLs of `out`."""
    if isinstance(out, (str, os.PathLike)):
        return [os.fspath(out)]
    places = [os.fspath(place) for place in out if place]
    if not 1 <= len(places) <= 2:
        raise ConfigError(f"out is a folder, a URL, or a pair of those; got {out!r}.")
    return places


def _keys_below(place: str, store: Any) -> Iterator[str]:
    if is_local(place) and not os.path.isdir(local_path(place)):
        return
    if not store.can_list:
        raise ConfigError(
            f"{redact(place)} cannot be listed. Give the indexes: merge_index([...], out)."
        )
    for info in store.list():
        if info.key.endswith("/" + INDEX_NAME):
            yield info.key


def _fetch_first(candidates: list[str], timeout: float) -> tuple[bytes, str]:
    """The index at the first place where it is, and that place."""
    for place in candidates:
        folder, _, name = place.rpartition("/")
        if not name:
            raise ConfigError(f"{redact(place)!r} names no file; end it with /{INDEX_NAME}.")
        with (
            contextlib.suppress(NotFoundError),
            open_store(folder or ".", timeout=timeout) as store,
        ):
            return store.get(name), redact(place)
    raise NotFoundError(f"there is no index at {' or '.join(map(redact, candidates))}.")


def _prefix(candidates: list[str], places: list[str]) -> str:
    """What leads from the merged index to the folder of this one."""
    folders = [_tidy(place).rpartition("/")[0] for place in candidates]
    for folder in folders:
        for place in map(_tidy, places):
            if folder == place:
                return ""
            if folder.startswith(place + "/"):
                return folder[len(place) + 1 :] + "/"
    # Elsewhere: its folder is expected to be moved beside the merged index.
    return folders[-1].rpartition("/")[2] + "/"


def _tidy(place: str) -> str:
    if is_local(place):
        return os.path.abspath(local_path(place)).replace(os.sep, "/")
    return place.rstrip("/")


def _add(entries: list[str], names: set[str], data: bytes, where: str, prefix: str) -> None:
    """Add the shards of an index, as text: they may be many."""
    Index.parse(data, where)  # refuses whatever is broken or climbs out of its folder
    for shard in json.loads(data)["shards"]:
        for key in _FILES:
            info = shard.get(key)
            if info:
                info["basename"] = prefix + info["basename"]
                if info["basename"] in names:
                    raise ConfigError(
                        f"{where}: two shards would be called {info['basename']!r}. Merge into the "
                        "folder that the datasets have in common."
                    )
                names.add(info["basename"])
        entries.append(json.dumps(shard))


def _put(entries: list[str], places: list[str], keep_local: bool, timeout: float) -> None:
    data = f'{{"version": {VERSION}, "shards": [{", ".join(entries)}]}}'.encode()
    ends = [place for place in places if not is_local(place)] or places[-1:]
    for place in ends:
        try:
            with open_store(place, timeout=timeout) as store:
                store.put(INDEX_NAME, data)
        except Exception as error:  # noqa: PERF203 - the place belongs into the sentence
            raise WriterError(
                f"{INDEX_NAME} could not be brought to {redact(place)}: {error}"
            ) from error
    for place in places:
        if keep_local and place not in ends:
            write_file(os.path.join(local_path(place), INDEX_NAME), data)
