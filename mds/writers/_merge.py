"""Merging of indexes: one index over datasets that were written side by side.

Shards are neither moved nor read, but each must exist, because an index never names missing files.
The merged index is in a folder above those of the others and names shards with their folders, so
`out` should be the folder that they have in common. Lengths are joined if all datasets recorded
them.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from mds._index.column_notes import NAME as NOTES_NAME
from mds._index.column_notes import ColumnNote, join_notes, pack_notes, read_notes
from mds._index.lengths import KIND, Lengths, emit_lengths_file, lengths_name, parse_lengths
from mds._index.sidecar import parse_sidecar, remove_stale_sidecars, sidecars_of
from mds._index.table import Index, describe_dtypes, fingerprint_of
from mds._redaction import get_logger, mask_foreign, printable
from mds._shardfile.layout import INDEX_NAME, VERSION
from mds.errors import ConfigError, IndexFileError, NotFoundError, WriterError
from mds.storage import open_store
from mds.storage._base import settings_for
from mds.storage._files import write_file
from mds.storage._locks import try_lock_folder
from mds.storage._relative_name import RelativeName, is_reserved
from mds.storage._url import is_local, join, local_path, redact
from mds.writers._destination import ExpectedFile, find_faults
from mds.writers._spec import refuse_storage_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mds._index.shard_object import ShardSchema
    from mds.storage import Store
    from mds.storage._retry import Retrying
    from mds.writers._spec import Out

    Place = str | os.PathLike[str]


log = get_logger("mds.merge")

#: Keys of the files in the index entry of a shard.
_FILE_KEYS = ("raw_data", "zip_data", "raw_meta", "zip_meta")


def read_lengths_files(store: Store, index: str, samples: int) -> Iterator[Lengths]:
    """Yield the content of each lengths file that belongs to an index.

    - ``store`` (Store): The place of the dataset.
    - ``index`` (str): The fingerprint of the index.
    - ``samples`` (int): The number of samples in the index.

    Files of another index and damaged ones are left out; `mds verify` reports them.
    """
    for name in sidecars_of(store):
        try:
            sidecar = parse_sidecar(store.get(name), name, kind=None, index=index)
            if sidecar.kind == KIND:  # other kinds are notes, for example
                yield parse_lengths(sidecar.payload, samples, column=None, location=name)
        except IndexFileError:  # noqa: PERF203 - one file's fault hides no other's
            continue


def join_lengths_files(
    parts: Sequence[Mapping[str, Lengths]], index: str
) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of each lengths file of the merged index.

    There is one for each column whose lengths all merged datasets have recorded.

    - ``parts`` (Sequence[Mapping[str, Lengths]]): The lengths of each merged dataset by column, in
      the order of the datasets.
    - ``index`` (str): The fingerprint of the merged index.
    """
    shared = set(parts[0]).intersection(*parts[1:]) if parts else set()
    for column in sorted(shared):
        lengths = np.concatenate([part[column].all() for part in parts])
        yield lengths_name(column), emit_lengths_file(column, lengths, index)


@overload
def merge_index(
    index_file_urls: Sequence[Place | tuple[Place, Place]],
    out: Out,
    keep_local: bool = True,
    download_timeout: int = 60,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None: ...
@overload
def merge_index(
    out: Out,
    keep_local: bool = True,
    download_timeout: int = 60,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None: ...
def merge_index(*args: Any, **kwargs: Any) -> None:
    """Write one index over several: those that are listed, or all below a folder.

    `merge_index([index_or_pair, ...], out)` takes the indexes in the order of the list; a pair is
    the same file at two places, local first. `merge_index(out)` takes every index below `out`, in
    the order of their paths. `out` is a folder, a URL, or a pair of both; the merged index is
    written to all of these places, or with `keep_local=False` only to the URL. A request fails if
    no data arrive for `download_timeout` seconds. `storage_options` are the settings of the stores
    of all URLs, as those of `StreamingDataset`.

    >>> for part in ("all/0", "all/1"):
    ...     with mds.MDSWriter(part, {"id": "int"}) as writer:
    ...         writer.write({"id": 1})
    >>> merge_index("all")
    >>> len(mds.LocalDataset("all"))
    2
    >>> merge_index(
    ...     "s3://bucket/all", storage_options={"endpoint_url": "https://example.com"}
    ... )  # doctest: +SKIP

    Raises NotFoundError (a FileNotFoundError) if there is nothing to merge, IndexFileError for a
    broken index, ConfigError (a ValueError) when two shards would have the same name, WriterError
    for a shard that is missing, for a folder that a writer is filling, and for an index at `out`
    with shards that the merged index would lose.
    """
    # The second positional argument is `out` after a list, and `keep_local` (a bool) otherwise.
    has_list = "index_file_urls" in kwargs or (bool(args) and "out" in kwargs)
    if has_list or (len(args) > 1 and not isinstance(args[1], bool)):
        _merge_listed(*args, **kwargs)
    else:
        _merge_below(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class _Stores:
    """The settings with which all stores of a merge are opened.

    - ``options`` (Mapping[str, Any] | None): Settings of the stores of URLs.
    - ``timeout`` (float): Seconds without data after which a request fails.
    """

    options: Mapping[str, Any] | None = field(repr=False)
    timeout: float

    def open(self, place: str) -> Retrying:
        """Return the store of a folder or URL."""
        # A `Url` carries options of its own.
        options = settings_for(place, self.options)
        return open_store(place, options=options, timeout=self.timeout)


@contextlib.contextmanager
def lock_places(
    places: list[str], storage_options: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Lock the local folders among the places of a dataset. Raises WriterError if one is in use."""
    with contextlib.ExitStack() as locks:
        for place in places:
            folder = open_store(place, options=settings_for(place, storage_options)).local_path
            if folder is None:
                continue
            if not os.path.isdir(folder):
                # A folder that was created to be locked is deleted again if it stays empty.
                locks.callback(_remove_empty, folder)
            lock = try_lock_folder(os.path.abspath(folder))
            if lock is None:
                raise WriterError(
                    f"the folder {folder!r} is in use: a writer is filling it. Wait until it has "
                    "finished, or finish it yourself."
                )
            locks.callback(lock.close)
        yield


def _remove_empty(folder: str) -> None:
    """Delete a folder if it is empty."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _merge_listed(
    index_file_urls: Sequence[Place | tuple[Place, Place]],
    out: Out,
    keep_local: bool = True,
    download_timeout: int = 60,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Lock the places of `out`, and merge the listed indexes; see `merge_index`."""
    listed = [
        os.fspath(path)
        for item in index_file_urls
        for path in (item if isinstance(item, (list, tuple)) else [item])
    ]
    refuse_storage_options(storage_options, *_places(out), *listed)
    with lock_places(_places(out), storage_options):
        merge_locked(
            index_file_urls, out, keep_local, download_timeout, storage_options, drops_shards=False
        )


# help() shows the arguments of the form with a list; the other one is without the first.
merge_index.__signature__ = inspect.signature(_merge_listed)  # type: ignore[attr-defined]


def merge_locked(
    index_file_urls: Sequence[Any],
    out: Out,
    keep_local: bool = True,
    download_timeout: int = 60,
    storage_options: Mapping[str, Any] | None = None,
    *,
    drops_shards: bool = True,
) -> None:
    """Merge listed indexes as `merge_index` does, in places that are locked already.

    ``drops_shards``: whether an index at ``out`` may be replaced whose shards are in ``out`` itself
    and not in the merged index.
    """
    places, stores = _places(out), _Stores(storage_options, download_timeout)
    merged = _MergedIndex(places, keep_local, stores)
    for item in index_file_urls:
        # A pair is one index at two places, such as ("out/0/index.json", "s3://b/0/index.json").
        paths = item if isinstance(item, (list, tuple)) else [item]
        candidates = [os.fspath(path) for path in paths]
        data, place = _fetch_first(candidates, stores)
        folders = [each.rpartition("/")[0] or "." for each in candidates]
        # The folder in which the index was found comes first.
        folders.insert(0, folders.pop(candidates.index(place)))
        merged.add(data, redact(place), _prefix(candidates, places), folders)
    if not index_file_urls:
        raise NotFoundError("there is no index to merge: the list is empty.")
    merged.publish(drops_shards=drops_shards)


def _merge_below(
    out: Out,
    keep_local: bool = True,
    download_timeout: int = 60,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Merge all indexes below the first of the places of `out` that has any, and lock them."""
    places, stores = _places(out), _Stores(storage_options, download_timeout)
    refuse_storage_options(storage_options, *places)
    with lock_places(places, storage_options):
        for place in places:
            merged = _MergedIndex(places, keep_local, stores)
            with stores.open(place) as store:
                keys = sorted(_keys_below(place, store))
                for key in keys:  # such as "0/index.json", which has the prefix "0/"
                    prefix = key[: -len(INDEX_NAME)]
                    # Shards may be below any of the places, likeliest below this one, which is
                    # first. `dict.fromkeys` drops its repetition.
                    folders = [join(each, prefix) for each in dict.fromkeys([place, *places])]
                    source = printable(f"{redact(place)}/{key}")
                    merged.add(store.get(key), source, prefix, folders)
            if keys:
                return merged.publish(drops_shards=False)
    raise NotFoundError(
        f"there is no {INDEX_NAME} in any folder below {' or '.join(map(redact, places))}."
    )


def _places(out: Out) -> list[str]:
    """Return the folders and URLs of `out`."""
    if isinstance(out, (str, os.PathLike)):
        return [os.fspath(out)]
    places = [os.fspath(place) for place in out if place]
    if not 1 <= len(places) <= 2:
        raise ConfigError(
            f"out must be a folder, a URL, or a pair of those; got {mask_foreign(repr(out))}."
        )
    return places


def _keys_below(place: str, store: Store) -> Iterator[str]:
    """Yield the key of every index in a folder below a place, but not in the place itself."""
    if is_local(place) and not os.path.isdir(local_path(place)):
        return
    if not store.can_list:
        raise ConfigError(
            f"{redact(place)} cannot be listed. Give the indexes: merge_index([...], out)."
        )
    for info in store.list():
        folder, _, name = info.key.rpartition("/")
        # Folders that mds itself creates contain no dataset.
        if name == INDEX_NAME and folder and not any(map(is_reserved, folder.split("/"))):
            yield info.key


def _fetch_first(candidates: list[str], stores: _Stores) -> tuple[bytes, str]:
    """Return the bytes of the first index that exists, and its place.

    - ``candidates`` (list[str]): Paths or URLs of the same index.
    - ``stores`` (_Stores): Opens their folders.

    Raises NotFoundError if there is none.
    """
    for place in candidates:
        folder, _, name = place.rpartition("/")
        if not name:
            raise ConfigError(
                f"{redact(place)!r} is not the URL of a file; end it with /{INDEX_NAME}."
            )
        with (
            contextlib.suppress(NotFoundError),
            stores.open(folder or ".") as store,
        ):
            return store.get(name), place
    ends = all(place.endswith(".json") for place in candidates)
    way_out = "" if ends else f" Name the file, as in {redact(candidates[0])}/{INDEX_NAME}."
    raise NotFoundError(f"there is no index at {' or '.join(map(redact, candidates))}.{way_out}")


def _prefix(candidates: list[str], places: list[str]) -> str:
    """Return the relative path from the merged index to the folder of another index.

    - ``candidates`` (list[str]): The paths or URLs of the other index.
    - ``places`` (list[str]): The folders and URLs of the merged index.

    For "data/train/0/index.json" and the place "data" that is "train/0/". The path is '' or ends
    with a slash.
    """
    folders = [normalize_place(place).rpartition("/")[0] for place in candidates]
    for folder in folders:
        for place in map(normalize_place, places):
            if folder == place:
                return ""
            if folder.startswith(place + "/"):
                return folder[len(place) + 1 :] + "/"
    # The other index is elsewhere; its folder is expected to be moved beside the merged index.
    return folders[-1].rpartition("/")[2] + "/"


class _MergedIndex:
    """A merged index in progress: its entries as JSON texts, and the files that must exist.

    - ``places`` (list[str]): The folders and URLs to publish it in.
    - ``keep_local`` (bool): Whether to publish it in the folder of a pair too.
    - ``stores`` (_Stores): Opens places.
    """

    def __init__(self, places: list[str], keep_local: bool, stores: _Stores) -> None:
        self._places = places
        self._keep_local = keep_local
        self._stores = stores
        self._schemas: list[ShardSchema] = []
        self._entries: list[str] = []
        #: Of each file of the merged index, to find two of one name: the name in the index that
        #: listed it, and the location of that index.
        self._names: dict[str, tuple[str, str]] = {}
        self._files = ShardFiles(places)
        # Of each index that was added: lengths of its samples, and class names and descriptions,
        # by column.
        self._lengths: list[dict[str, Lengths]] = []
        self._notes: list[dict[str, ColumnNote]] = []

    def add(self, data: bytes, location: str, prefix: str, folders: list[str]) -> None:
        """Add the shards of an index, each of which is in one of the folders.

        - ``data`` (bytes): The content of the index.
        - ``location`` (str): Its place, for messages.
        - ``prefix`` (str): The relative path from the merged index to its folder, such as "0/".
        - ``folders`` (list[str]): Its folders; the first is the one that it was read from.
        """
        # Raises for a broken index, and for names outside its folder.
        index = Index.parse(data, location)
        self._schemas += index.schemas
        with self._stores.open(folders[0]) as store:
            lengths_files = read_lengths_files(store, fingerprint_of(data), index.total_samples)
            self._lengths.append({lengths.column: lengths for lengths in lengths_files})
            with contextlib.suppress(IndexFileError):  # `mds verify` reports it
                self._notes.append(read_notes(store, fingerprint_of(data)))
        shards = json.loads(data)["shards"]
        self._files.add(shards, folders)
        for shard in shards:
            for key in _FILE_KEYS:
                info = shard.get(key)
                if info:
                    info["basename"] = self._reserve_name(info["basename"], location, prefix)
            self._entries.append(json.dumps(shard))

    def publish(self, *, drops_shards: bool) -> None:
        """Write the index to its places after checking every file. Raises WriterError.

        ``drops_shards`` is that of `merge_locked`.
        """
        self._files.check(self._stores)
        # The dataset belongs to the URL of a pair, or to the second of two folders. The other
        # place, a folder, only gets a copy of the index.
        urls = [place for place in self._places if not is_local(place)]
        final_places = urls or self._places[-1:]
        copies = [p for p in self._places if self._keep_local and p not in final_places]
        if not drops_shards:
            for place in (*final_places, *copies):
                self._check_dropped(place)
        data = f'{{"version": {VERSION}, "shards": [{", ".join(self._entries)}]}}'.encode()
        for _, text in describe_dtypes(self._schemas):
            log.warning("merge_index: %s. Write all datasets with one encoding.", text)
        notes = self._joined_notes(data)
        for place in final_places:
            try:
                with self._stores.open(place) as store:
                    self._put_sidecars(store, data, notes)
                    store.put(INDEX_NAME, data)
                    remove_stale_sidecars(store, fingerprint_of(data))
            except Exception as error:  # noqa: PERF203 - the message names the place
                raise WriterError(
                    f"{INDEX_NAME} could not be uploaded to {redact(place)}: {error}"
                ) from error
        for place in copies:
            self._put_sidecars(open_store(place), data, notes)
            write_file(os.path.join(local_path(place), INDEX_NAME), data)

    def _check_dropped(self, place: str) -> None:
        """Raise WriterError if the index at a place lists shards that would be in no index then.

        Those are shards in the place itself. Shards in its folders have indexes of their own.
        """
        with self._stores.open(place) as store:
            try:
                data = store.get(INDEX_NAME)
                Index.parse(data, place)
            except (NotFoundError, IndexFileError):
                return  # there is no index, or it cannot be read
            shards = json.loads(data)["shards"]
            infos = [info for shard in shards for key in _FILE_KEYS if (info := shard.get(key))]
            files = {
                ExpectedFile(info["basename"], info["bytes"])
                for info in infos
                if "/" not in info["basename"] and info["basename"] not in self._names
            }
            # A compressed shard also lists its raw file, which need not exist.
            files -= {file for file, _ in find_faults(files, store)}
        if files:
            name = min(file.name for file in files)
            raise WriterError(
                f"{redact(place)}/{INDEX_NAME} lists {printable(name)}, which the merged index "
                "would not list. Move the dataset into a subfolder, or list its index too: "
                f"merge_index(['{redact(place)}/{INDEX_NAME}', ...], '{redact(place)}')."
            )

    def _put_sidecars(self, store: Store, data: bytes, notes: bytes) -> None:
        """Write the files of lengths and of ``notes`` (b"": none) that belong to an index."""
        # Before the index, so that a dataset that has an index has these files too.
        for name, lengths in join_lengths_files(self._lengths, fingerprint_of(data)):
            store.put(name, lengths)
        if notes:
            store.put(NOTES_NAME, notes)
        elif NOTES_NAME in sidecars_of(store):
            store.delete(NOTES_NAME)  # the notes of an index that is replaced

    def _joined_notes(self, index: bytes) -> bytes:
        """Return the file of notes of the merged index, or b"" if there are no notes."""
        notes, differing = join_notes(self._notes)
        for column in differing:
            log.warning(
                "merge_index: the numbers of column %r mean different classes in some datasets, so "
                "the merged dataset has no class names for it.",
                column,
            )
        return pack_notes(notes, fingerprint_of(index)) if notes else b""

    def _reserve_name(self, name: str, location: str, prefix: str) -> str:
        """Check the name of a file in the merged index. Raises ConfigError if it is taken.

        - ``name`` (str): The name in the index at ``location``, whose folder is ``prefix``.
        """
        checked = RelativeName(prefix + name, location, IndexFileError)
        if checked in self._names:
            other_name, other = self._names[checked]
            # An index that lists files in folders is a merged one.
            merged = location if "/" in name else other if "/" in other_name else ""
            if merged and location != other:
                raise ConfigError(
                    f"{merged} is a merged index, which lists the shards of others. Leave it out "
                    "of merge_index([...]), or leave out the others."
                )
            raise ConfigError(
                f"{location}: two shards would have the name {str(checked)!r}. Give each index "
                "once, and merge into the folder above all datasets."
            )
        self._names[checked] = name, location
        return checked


#: A place where a file may be: the root of a store, and the file with its path below the root.
_Choice = tuple[str, ExpectedFile]


class ShardFiles:
    """Files of all merged datasets, with the folders in which each may be.

    A file may be in several places: in a local folder or its remote, compressed or raw. One of
    these choices is enough.

    - ``places`` (list[str]): The folders and URLs of the merged index.
    """

    def __init__(self, places: list[str]) -> None:
        self._places = [normalize_place(place) for place in places]
        #: The choices of each file: (root, file below the root).
        self._files: list[list[_Choice]] = []

    def add(self, shards: list[dict[str, Any]], folders: list[str]) -> None:
        """Add the files of the shards of an index.

        - ``shards`` (list[dict[str, Any]]): Its entries.
        - ``folders`` (list[str]): The folders that may hold the files, the likeliest first.

        A shard needs its compressed or its raw file in one of the folders. Some formats also have
        a meta file per shard, which is looked for alike.
        """
        # (root, prefix): the folder "s3://b/data/0" below the root "s3://b/data" has "0/".
        roots = [self._root(normalize_place(folder)) for folder in folders]
        for shard in shards:
            for suffix in ("data", "meta"):
                infos = [shard.get(f"{kind}_{suffix}") for kind in ("zip", "raw")]
                choices = [
                    (root, ExpectedFile(prefix + info["basename"], info["bytes"]))
                    for root, prefix in roots
                    for info in infos
                    if info
                ]
                if choices:
                    self._files.append(choices)

    def check(self, stores: _Stores) -> None:
        """Raise WriterError for the first file that is in none of its folders."""
        reasons: dict[int, str] = {}  # why the first choice of a file fails, by number of the file
        missing = list(range(len(self._files)))
        # In each round every file that was not found yet is looked for in its next place. Files are
        # grouped by root, so that a store lists all of its files at once.
        for attempt in range(max(map(len, self._files), default=0)):
            expected_by_root: dict[str, dict[ExpectedFile, int]] = defaultdict(dict)
            for number in missing:
                choices = self._files[number]
                # A file that has fewer choices is looked for in its last one again, and so stays
                # in `missing` until the end.
                root, file = choices[min(attempt, len(choices) - 1)]
                expected_by_root[root][file] = number
            missing = []
            for root, files in expected_by_root.items():
                with stores.open(root) as store:
                    for file, reason in find_faults(files, store):
                        missing.append(files[file])
                        reasons.setdefault(files[file], f"{reason} in {redact(root)}")
            if not missing:
                return
        if missing:
            others_text = f" (and {len(missing) - 1} more files)" if len(missing) > 1 else ""
            raise WriterError(
                f"{reasons[missing[0]]}{others_text}: a merged index would list missing "
                "files. No index is published; write that dataset again, or leave it out."
            )

    def _root(self, folder: str) -> tuple[str, str]:
        """Return the root of a folder, and the path from the root to it.

        The root is the place of the merged index that contains the folder, else the folder itself.
        """
        for place in self._places:
            if folder == place:
                return place, ""
            if folder.startswith(place + "/"):
                return place, folder[len(place) + 1 :] + "/"
        return folder, ""


def normalize_place(place: str) -> str:
    """Return the canonical form of a place: an absolute path, or a URL without the last slash."""
    if is_local(place):
        return os.path.abspath(local_path(place)).replace(os.sep, "/")
    return place.rstrip("/")
