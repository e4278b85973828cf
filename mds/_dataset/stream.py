"""Streams: where samples are stored, how many of them an epoch takes, and how a state names them.

A Stream is plain data that a user makes. A dataset fills in a copy of it and never changes the
user's own. `find_sources` opens its index and returns a Source, which is all that the cache needs.
"""

from __future__ import annotations

import copy
import functools
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mds._arguments import check_arguments, did_you_mean, plain_scalar, shown, takes_names
from mds._cache.source import Source, cache_root, default_folder
from mds._dataset.settings import STREAM_RULES, check_assignment, raise_fixed
from mds._index.table import FilesIndexError
from mds._redaction import mask_foreign
from mds.errors import ArgumentError, ConfigError
from mds.storage._relative_name import split_folder
from mds.storage._url import (
    Url,
    absolute_path,
    absolute_place,
    is_local,
    join,
    local_path,
    path_on_disk,
    redact,
)

if TYPE_CHECKING:
    from mds._index.table import Index
    from mds._iteration.shard_map import ShardMap
    from mds._words import Digest
    from mds.formats import Format
    from mds.formats._facts import FileCosts

_RETRIES, _TIMEOUT = 2, 60.0
_DEFAULTS = {
    "download_retry": _RETRIES,
    "download_timeout": _TIMEOUT,
    "validate_hash": None,
    "keep_zip": False,
}
#: Several places of a dataset, each a path, a URL or a `Stream`.
Streams = (
    Sequence["Stream | str | os.PathLike[str]"] | Mapping[str, "Stream | str | os.PathLike[str]"]
)
#: Arguments of a dataset without ``streams`` from which its only stream is made.
PLACE = ("remote", "local", "split", "format")
_TAKEN = {*_DEFAULTS, "storage_options"}
_MAX_NAME = 100  # letters of the name of a stream
#: Arguments of a dataset that its streams take if they have none of their own.
STREAM_SETTINGS = ("split", *_DEFAULTS, "storage_options", "columns")


class Stream:
    """Dataset in one place, used alone or mixed with others.

    One of ``place``, ``remote`` and ``local`` is needed, and at most one of ``proportion``,
    ``repeat`` and ``choose`` may be given. Other arguments that are None are taken from the
    StreamingDataset.

    - ``place`` (str | os.PathLike[str] | None, default None): Path or URL of the data, given first
      and without a name. A path is read in place, as with ``local``; a URL, or a path beside
      ``local``, is fetched, as with ``remote``.
    - ``remote`` (str | os.PathLike[str] | None, default None): URL or path to read from.
    - ``local`` (str | os.PathLike[str] | None, default None): Folder that keeps what was fetched;
      without ``remote`` the data are read there in place, with ``remote`` alone they are kept in a
      folder of this user (``$MDS_CACHE_DIR``, else ``~/.cache/mds``).
    - ``split`` (str | os.PathLike[str] | None, default None): Sub-folder of both, as ``"train"``.
      In another format than MDS, also the split in the names of files, as in ``train-0.parquet``,
      or ``"all"`` to mix all splits.
    - ``proportion`` (float | None, default None): Share of the epoch.
    - ``repeat`` (float | None, default None): How often an epoch takes each of its samples.
    - ``choose`` (int | None, default None, samples): Number of its samples in an epoch.
    - ``download_retry`` (int | None, default None, tries): Least number of tries of a request that
      fails. mds gives up after these tries if no byte has arrived for five minutes. 0 and 1 mean
      one try.
    - ``download_timeout`` (float | None, default None, seconds): Time without a byte after which a
      try fails.
    - ``validate_hash`` (str | None, default None): Digest by which fetched files are checked, such
      as ``"sha1"`` or ``"xxh3_64"``, of those that the writer stored (``hashes=``).
    - ``keep_zip`` (bool | None, default None): Whether compressed files are kept beside the
      decompressed ones.
    - ``storage_options`` (Mapping[str, Any] | None, default None): Settings of the store of a URL,
      which take precedence over the environment (see docs/storage.md). Refused beside a path.
    - ``format`` (str | Format | None, default None): Format of files that are read without
      conversion, such as ``"parquet"`` or ``Parquet(columns=["text"])``. None chooses by the
      endings of the files, and MDS for all others.

    Raises ConfigError (a ValueError) for more than one weight, a negative one, or no place.

    >>> Stream("s3://bucket/c4", split="train", proportion=0.7)
    Stream(remote='s3://bucket/c4', split='train', proportion=0.7)
    """

    _is_strict = True
    _name: str | None = None  # in a mapping of streams
    # `remote` and `local` in absolute form, since they name the same places after an os.chdir.
    _absolute_remote: Url | None
    _absolute_local: str

    @takes_names
    def __init__(
        self,
        place: str | os.PathLike[str] | None = None,
        /,
        *,
        remote: str | os.PathLike[str] | None = None,
        local: str | os.PathLike[str] | None = None,
        split: str | os.PathLike[str] | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: Digest | None = None,
        keep_zip: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        format: str | Format | None = None,  # noqa: A002 - what it is
    ) -> None:
        places = name_place(type(self).__name__, place, {"remote": remote, "local": local})
        remote, local = places["remote"], places["local"]
        if self._is_strict:
            check_arguments(type(self).__name__, locals(), STREAM_RULES)
        self.remote = Url(os.fspath(remote)) if remote is not None else None
        self.split = split_folder(split)
        if not local and local is not None and self.remote is not None:
            raise ConfigError(
                "local= is an empty text. Give the path of a folder. Without local=, data are "
                "cached in a folder of this user."
            )
        if local is None and self.remote is None:
            raise ConfigError(
                "a Stream needs a place: a path or URL as the first argument, remote= (the "
                "data), local= (the folder), or both."
            )
        self.local = (
            default_folder(self.remote or "")
            if local is None
            else path_on_disk(local, "local=", "Give the URL as remote=.")
        )
        self.proportion, self.repeat, self.choose = proportion, repeat, choose
        self._check_weights()
        self.download_retry, self.download_timeout = download_retry, download_timeout
        self.validate_hash = validate_hash
        self.keep_zip = keep_zip
        self.storage_options = storage_options
        self.format: Format | None = None
        if format is not None:
            from mds.formats._registry import parse_format

            self.format = parse_format(format)
        self._columns_wanted: Sequence[str] | None = None  # columns= of the dataset
        # Of files of another format than MDS, set when they are found: facts for a state, the
        # digest of the files before their last change with what changed, and costs to explain.
        self._files_pin: Mapping[str, Any] = {}
        self._file_changes = ("", "")
        self._file_costs: FileCosts | None = None
        self._check_numbers()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Raises an error if it looks like a setting and has no effect."""
        if "_file_costs" in vars(self):  # __init__ has set it, so it is over
            if "_is_in_use" in vars(self) and name in STREAM_RULES:
                remedy = ", or call dataset.edits.set_weights()" if name == "proportion" else ""
                raise_fixed(self, name, value, remedy)
            if self._is_strict:
                check_assignment(self, name, value, STREAM_RULES, STREAM_RULES)
        super().__setattr__(name, value)
        if name == "local":
            self._absolute_local = absolute_path(os.fspath(value))
        elif name == "remote":
            place = None if value is None else absolute_place(os.fspath(value))
            self._absolute_remote = None if place is None else Url(place)

    def _take_weights(self, proportion: float, repeat: float, choose: int) -> None:
        """Set the resolved weights; from now on the stream belongs to a dataset."""
        vars(self).update(proportion=proportion, repeat=repeat, choose=choose)
        if self._is_strict:
            self._is_in_use = True

    def _check_weights(self) -> None:
        """Raise ConfigError if more than one weight was given, or a negative one."""
        requests = {
            name: getattr(self, name)
            for name in ("proportion", "repeat", "choose")
            if getattr(self, name) is not None
        }
        if len(requests) > 1:
            raise ConfigError(
                "a Stream takes only one of proportion, repeat and choose, got "
                f"{' and '.join(requests)}."
            )
        for name, value in requests.items():
            if value < 0:
                raise ConfigError(f"{name} of a Stream must not be negative, got {value}.")

    def _check_numbers(self) -> None:
        """Raise ConfigError for a negative number of tries or a timeout that is not positive."""
        if self.download_retry is not None and self.download_retry < 0:
            raise ConfigError(f"download_retry must not be negative, got {self.download_retry}.")
        if self.download_timeout is not None and self.download_timeout <= 0:
            raise ConfigError(
                "download_timeout must be a positive number of seconds, got "
                f"{self.download_timeout}."
            )

    def apply_default(self, default: Mapping[str, Any]) -> None:
        """Take the settings of ``default``, by name, that this stream does not have."""
        for name, value in default.items():
            if value is None:
                continue  # nothing to take
            if name in _TAKEN and getattr(self, name, None) is None:
                setattr(self, name, value)
            elif name == "split" and not self.split:
                self.split = split_folder(value)
        self._check_numbers()

    def _filled(self, default: Mapping[str, Any]) -> Stream:
        """Return a copy in which settings of a dataset replace those that are None.

        ``default`` has the settings by name. The user's stream stays unchanged.
        """
        stream = copy.copy(self)
        vars(stream).pop("_is_in_use", None)  # so that the settings of the copy can be set
        stream.apply_default({**_DEFAULTS, **default})
        stream._columns_wanted = default.get("columns")
        return stream

    @property
    def _share(self) -> dict[str, float]:
        """Requested share: at most one of proportion, repeat and choose."""
        requests = {name: getattr(self, name) for name in ("proportion", "repeat", "choose")}
        return {name: plain_scalar(value) for name, value in requests.items() if value is not None}

    @property
    def folder(self) -> str:
        """Absolute path of the local folder, split included."""
        local = self._absolute_local
        return os.path.join(local, self.split) if self.split else local

    @property
    def remote_folder(self) -> Url | None:
        """Remote URL or absolute path, split included; None when the data are read in place."""
        if self._absolute_remote is None:
            return None
        url = Url(join(self._absolute_remote, self.split))
        # ``remote=`` may be the path of the folder that ``local=`` names too.
        path, folder = url.removeprefix("file://"), os.path.normpath(self.folder)
        is_local_folder = os.path.abspath(path) == folder
        return None if is_local_folder else url

    @property
    def _place(self) -> str:
        """URL or absolute path of the data, split included."""
        return join(self._absolute_remote or self._absolute_local, self.split)

    @property
    def _url_and_split(self) -> tuple[str, str]:
        """URL or absolute path of the files in another format of all splits, and the split."""
        return self._absolute_remote or self._absolute_local, self.split

    @property
    def safe_keep_zip(self) -> bool:
        """Whether compressed files are kept: as requested, and always without a remote."""
        return bool(self.keep_zip) or self.remote_folder is None

    def _find(self) -> Source:
        """Find the index of this stream; return the Source for the cache.

        Fetched files go to ``Source.folder``. It is the folder of the stream, or a folder below it
        if the stream's folder already has files of another source.

        Raises what `mds._cache.find_index` raises.
        """
        from mds._cache.index_copy import find_index

        kind = self._format()
        if kind is not None:
            return self._find_in(kind)
        remote = self.remote_folder
        timeout, attempts = self._patience
        try:
            source = find_index(
                remote,
                self.folder,
                options=self.storage_options,
                timeout=timeout,
                attempts=attempts,
                split=self.split or "",
            )
        except FilesIndexError as error:
            from mds.formats._dataset import pinned_format

            return self._find_in(pinned_format(error), error)
        return Source(
            index=source.index,
            remote=remote,
            folder=source.folder,
            version=source.version,
            store=source.store,
            options=self.storage_options,
            keep_zip=bool(self.keep_zip) or remote is None,
            validate_hash=self.validate_hash or None,
            attempts=attempts,
            timeout=timeout,
            source_name=source.source,
            user_cache=cache_root() if remote is None else "",  # it serves folders of the user
        )

    @property
    def _patience(self) -> tuple[float, int]:
        """Timeout in seconds and number of tries; the general defaults for those not set."""
        timeout, attempts = self.download_timeout, self.download_retry
        return float(timeout or _TIMEOUT), int(_RETRIES if attempts is None else attempts)

    def _format(self) -> Format | None:
        """Return the format as given, else by the endings of the files; None for MDS."""
        if self.format is not None:
            return self.format
        place = self._place
        if is_local(place) and os.path.exists(os.path.join(local_path(place), "index.json")):
            return None
        from mds.formats._detect import format_of_split

        return format_of_split(*self._url_and_split)

    def _find_in(self, kind: Format, pinned: FilesIndexError | None = None) -> Source:
        """Return the Source of files of another format than MDS.

        Args:
            kind: Format of the files.
            pinned: Error with the contents of an index.json, if `mds index` has written one that
                lists the files. Then exactly these files are read (they are pinned).

        Raises what `mds._cache.find_table.find_table` raises.
        """
        from mds._cache.find_table import find_table
        from mds.formats._dataset import open_split

        if self.validate_hash:
            raise ConfigError(
                f"validate_hash={self.validate_hash!r} does not work with {kind.name} files, "
                "which have no digests. Leave validate_hash out."
            )
        timeout, attempts = self._patience

        def open_at(url: str, split: str) -> Source:
            return find_table(
                kind,
                url,
                self.folder if self.remote is not None else None,
                self._columns_wanted,
                self.storage_options,
                timeout=timeout,
                attempts=attempts,
                pinned=pinned,
                split=split,
            )

        if pinned is not None:  # an index of one split is in its folder
            source = open_at(self._place, "")
        else:
            source = open_split(kind, *self._url_and_split, open_at)
        assert source.data is not None  # it reads the files; only sources of MDS have None
        costs = source.data.costs()
        # Facts for `explain` and for states, which name the files that were read. Files behind a
        # network are never read in place.
        self._file_costs = costs._replace(is_in_place=costs.is_in_place and source.remote is None)
        self._files_pin = {"kind": kind.recorded_name(), **source.data.pin()}
        self._file_changes = source.data.table.last_changes
        return source

    @classmethod
    def validate_weights(cls, streams: Sequence[Stream]) -> tuple[bool, bool]:
        """Check the weights of streams; return whether they are relative, and whether any exist.

        Weights are relative if all streams have a ``proportion``. Raises ConfigError if some have
        one and others do not.
        """
        has_proportion = [stream.proportion is not None for stream in streams]
        if any(has_proportion) and not all(has_proportion):
            raise ConfigError(
                "proportion is given for some streams but not for others. Give it to all "
                "streams, or use repeat or choose."
            )
        has_absolute = any(s.repeat is not None or s.choose is not None for s in streams)
        is_relative = all(has_proportion) and bool(streams)
        return is_relative, any(has_proportion) or has_absolute

    def __repr__(self) -> str:
        attributes = {
            name: getattr(self, name)
            for name in ("remote", "local", "split", "proportion", "repeat", "choose")
        }
        if self._absolute_remote and self.local == default_folder(self._absolute_remote):
            del attributes["local"]
        arguments = ", ".join(f"{name}={value!r}" for name, value in attributes.items() if value)
        return f"{type(self).__name__}({arguments})"


class StreamRegistry:
    """Registry of stream classes by name, for ``stream_name=`` of a dataset."""

    def __init__(self) -> None:
        self._classes: dict[str, Callable[..., Stream]] = {}

    def register(self, name: str, *, func: Callable[..., Stream] | None = None) -> Any:
        """Make ``stream_name=name`` use a class for streams; return the class.

        - ``name`` (str): Name of the class.
        - ``func`` (Callable | None, default None): The class; None returns a decorator for it.
        """
        if func is None:
            return functools.partial(self._add, name)
        return self._add(name, func)

    def _add(self, name: str, func: Callable[..., Stream]) -> Callable[..., Stream]:
        self._classes[name] = func
        return func

    def get(self, name: str) -> Callable[..., Stream]:
        """Return the class of a name. Raises ConfigError for a name that is not registered."""
        if name not in self._classes:
            from mds._lazy_imports import load_plugin

            loaded = load_plugin("mds.streams", name, "stream class")
            if loaded is None:
                from mds._lazy_imports import plugin_names

                names = sorted({*self._classes, *plugin_names("mds.streams")})
                raise ConfigError(
                    f"there is no stream class {name!r}.{did_you_mean(name, names)} The "
                    f"stream classes are: {', '.join(names)}."
                )
            self._classes[name] = loaded
        return self._classes[name]

    def get_all(self) -> dict[str, Callable[..., Stream]]:
        """Return all registered classes by name."""
        return dict(self._classes)

    def __contains__(self, name: str) -> bool:
        return name in self._classes


streams_registry = StreamRegistry()
streams_registry.register("stream", func=Stream)


def name_place(owner: str, place: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments about places, with the first one that has no name under its name.

    A path is ``local``, and a URL is ``remote``. Beside ``local``, which is then the cache, a path
    is ``remote``, too. A list or dict is ``streams``.

    Args:
        owner: Name of the user's class, for errors.
        place: First argument of a dataset or Stream; None if there is none.
        named: Values of ``remote``, ``local`` and, for a dataset, ``streams``.

    Raises ArgumentError for another type, and for a place that is also given by name.
    """
    if place is None:
        return dict(named)
    remote, local, streams = named["remote"], named["local"], named.get("streams")
    is_path = isinstance(place, (str, os.PathLike))
    if not is_path and not ("streams" in named and _has_streams(place)):
        kinds = ", or a list or dict of places" if "streams" in named else ""
        raise ArgumentError(
            f"{owner}({shown(place)}): the first argument must be the path or URL of the "
            f"data{kinds}. Write {owner}('data/train')."
        )
    call = f"{owner}({shown(place)}, "
    if not is_path:
        for name in ("streams", "remote", "local"):
            if named[name] is not None:
                raise ArgumentError(
                    f"{call}{name}={shown(named[name])}): the first argument already has all "
                    f"streams. Put {name}= into a Stream of the list."
                )
        return {"remote": None, "local": None, "streams": place}
    text = os.fspath(place)
    if streams is not None:
        raise ArgumentError(
            f"{call}streams={shown(streams)}): the first argument and streams= both name places. "
            f"Add Stream({shown(place)}) to streams=, or leave one of the two out."
        )
    if remote is not None:
        is_cache = local is None and is_local(text)
        way_out = f"Write {owner}({shown(remote)}, local={shown(place)})." if is_cache else ""
        raise ArgumentError(
            f"{call}remote={shown(remote)}): both arguments name the place of the data. "
            f"{way_out or 'Leave one of the two out.'}"
        )
    if local is None and is_local(text):
        return {**named, "local": place}
    return {**named, "remote": place}


def _has_streams(place: Any) -> bool:
    """Whether a value is a Stream, or a list, tuple or dict that may contain some."""
    return isinstance(place, (list, tuple, Mapping, Stream))


def streams_of_places(streams: Any) -> Any:
    """Return the argument ``streams`` of a dataset with a Stream for each path, dict or weight.

    A dict has the arguments of a Stream, as in a configuration file. In a dict of streams, a number
    is the proportion of the path or URL that is its key. Values of other types are left to
    `mds._dataset.settings.check_settings`.
    """

    def stream_of(value: Any) -> Any:
        if isinstance(value, Mapping):
            return Stream(**value)
        return Stream(value) if isinstance(value, (str, os.PathLike)) else value

    if not isinstance(streams, Mapping):
        return [*map(stream_of, streams)] if isinstance(streams, (list, tuple)) else streams
    by_name = {}
    for name, value in streams.items():
        is_weight = isinstance(value, numbers.Real) and not isinstance(value, bool)
        by_name[name] = Stream(name, proportion=value) if is_weight else stream_of(value)
    return by_name


def fill_streams(
    streams: Sequence[Stream] | Mapping[str, Stream] | None,
    place: dict[str, Any],
    stream_name: str,
    defaults: Mapping[str, Any],
) -> list[Stream]:
    """Return copies of the streams of a dataset, with settings that they lack taken from it.

    Args:
        streams: Streams of the user; None to make one from ``place``.
        place: Arguments of the only stream, as in `PLACE`.
        stream_name: Registered class of the only stream.
        defaults: Settings of the dataset, as in `STREAM_SETTINGS`.
    """
    if streams is None:
        if place["remote"] is None and place["local"] is None:
            raise ConfigError(
                "no data was named. Give a path or URL as the first argument, as in "
                "StreamingDataset('data/train'), or give streams=, remote= or local=."
            )
        arguments = {name: value for name, value in place.items() if name != "format" or value}
        return [streams_registry.get(stream_name)(**arguments)._filled(defaults)]
    if place["remote"] is not None or place["local"] is not None:
        raise ConfigError(
            "streams= does not work with remote= and local=. Put those into another Stream of "
            "the list."
        )
    if place.get("format") is not None:
        raise ConfigError("streams= does not work with format=. Give each Stream its own format.")
    if not streams:
        raise ConfigError("streams= is empty. Give at least one Stream.")
    if not isinstance(streams, Mapping):
        return [stream._filled(defaults) for stream in streams]
    names: list[Any] = list(streams)
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise ConfigError(f"streams= has the name {str(name)[:60]!r}; expected a short text.")
    filled = [stream._filled(defaults) for stream in streams.values()]
    for stream, name in zip(filled, names, strict=True):
        stream._name = name
    return filled


def find_sources(streams: Sequence[Stream]) -> list[Source]:
    """Return the source of every stream.

    Many are looked up at once, since most of the time is waiting. But on the disks of this machine
    threads only wait for each other.
    """
    if len(streams) == 1 or all(_is_near(stream) for stream in streams):
        return [stream._find() for stream in streams]
    with ThreadPoolExecutor(min(len(streams), 32)) as pool:
        return list(pool.map(Stream._find, streams))


def _is_near(stream: Stream) -> bool:
    """Whether the data of a stream are in a folder on a disk of this machine."""
    from mds.storage._local import network_kind

    place = stream._place
    return is_local(place) and network_kind(local_path(place)) is None


def refuse_store_settings(
    owner: str,
    options: Mapping[str, Any] | None,
    streams: Sequence[Stream],
    sources: Sequence[Source],
) -> None:
    """Raise ConfigError for settings of a store if no file that they are about is at a URL.

    An index or a table may name files elsewhere, so the sources must be open already.

    Args:
        owner: Name of the user's class of the dataset, for the error.
        options: ``storage_options`` of the dataset; streams without their own take them.
        streams: Streams of the dataset.
        sources: Their sources, in the same order.
    """
    pairs = [*zip(streams, sources, strict=True)]
    takers = [pair for pair in pairs if pair[0].storage_options is options]
    if options and not takers:
        raise ConfigError(
            f"{owner}(storage_options=...): every stream has its own settings, so these have no "
            "effect. Leave them out, or remove the settings of each stream that should use these."
        )
    if options and takers and all(_unused_settings(options, *pair) for pair in takers):
        raise _unused_error(owner, options, *takers[0])
    for stream, source in pairs:
        own = stream.storage_options
        if own and own is not options and _unused_settings(own, stream, source):
            raise _unused_error(type(stream).__name__, own, stream, source)


def _unused_settings(options: Mapping[str, Any], stream: Stream, source: Source) -> list[str]:
    """Return the names of settings of a store that have no effect, as the files have paths.

    Files that are fetched from a path to a cache folder use the settings of all stores.
    """
    places = (stream.local if stream.remote is None else stream.remote, source.remote)
    if any(place is not None and not is_local(place) for place in places):
        return []
    if source.remote is None:
        return [*options]
    from mds.storage._base import unused_settings

    return unused_settings(source.remote, options)


def _unused_error(
    owner: str, options: Mapping[str, Any], stream: Stream, source: Source
) -> ConfigError:
    """Return the error for settings of a store beside a path; their values are not shown."""
    place = redact(stream.remote if stream.remote is not None else stream.local)
    names = ", ".join(map(repr, _unused_settings(options, stream, source)))
    return ConfigError(
        f"{owner}(storage_options=...): {names} would have no effect: storage_options= are "
        f"settings for the store of a URL, but {place!r} is a path. Leave them out, or give a URL."
    )


# --------------------------------------------------------------- the data that a state names

_DIGEST_LETTERS = 16


def name_data(
    streams: Sequence[Stream],
    shards: ShardMap,
    contents: Sequence[str],
    shares: Sequence[Mapping[str, float]],
    epoch_size: int | None,
) -> dict[str, Any]:
    """Return the entry ``data`` of a state: streams, places and requested shares, as plain JSON.

    Args:
        streams: Streams of the dataset.
        shards: Shards of the dataset, or the selected samples of them.
        contents: Digest of the data of each stream.
        shares: Requested proportion, repeat or choose of each stream.
        epoch_size: Requested size of an epoch, in samples.
    """
    places = [mask_foreign(str(stream.remote_folder or stream.folder)) for stream in streams]
    # Streams are often in one folder; its path is stored once, to keep states small.
    root = os.path.commonprefix(places) if len(places) > 1 else ""  # noqa: RUF071 - cut below
    root = root[: root.rfind("/") + 1]
    facts: dict[str, Any] = {"streams": []}
    if root:
        facts["root"] = root
    for place, stream, content, share in zip(places, streams, contents, shares, strict=True):
        entry = {"at": place[len(root) :], "index": content[:_DIGEST_LETTERS], **share}
        if stream.format is not None:
            entry["format"] = stream.format.recorded_name()
        entry |= stream._files_pin
        facts["streams"].append(entry)
    if epoch_size is not None:
        facts["epoch_size"] = epoch_size
    if shards.selection is not None:
        facts["selected"] = shards.num_samples
    return facts


def other_files(
    recorded: Mapping[str, Any] | None,
    current: Mapping[str, Any],
    changes: Sequence[tuple[str, str]],
) -> list[tuple[str, str]]:
    """Describe each stream whose files, read in place, differ from those of a state.

    A copy in another format has the same order, so only files of the same format are compared.

    Args:
        recorded: Entry ``data`` of the state.
        current: Entry ``data`` of this run.
        changes: For each stream, the digest of its files before their last change, and a
            description of the change.

    Returns pairs of a clause on the difference, and a sentence with a remedy.
    """
    before = (recorded or {}).get("streams")
    streams = current.get("streams", ())
    pairs: list[tuple[str, str]] = []
    if not isinstance(before, list) or len(before) != len(streams):
        return pairs
    for old, new, (digest, description) in zip(before, streams, changes, strict=True):
        if not isinstance(old, dict) or "list" not in old or old.get("kind") != new.get("kind"):
            continue
        if old["list"] != new.get("list"):  # digests of the lists of files
            # The change can be described only if this cache folder had the files of the state.
            differences = description if old["list"] == digest else "their names or sizes differ"
            clause = (
                f"{_files(old)}, but {current.get('root', '')}{new['at']} "
                f"has {_files(new)}: {differences}"
            )
            pairs.append((clause, _way_back(old)))
    return pairs


def _files(stream: Mapping[str, Any]) -> str:
    """Describe the files of a stream of a state: number, format, and version of a table."""
    pins = "".join(f", {name} {value}" for name, value in _pin(stream).items())
    count = stream.get("files")
    return f"{count} file{'' if count == 1 else 's'} of {stream.get('kind')}{pins}"


def _pin(stream: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments by which a stream of a state was pinned, such as a table's version."""
    pin = stream.get("pin")
    return pin if isinstance(pin, dict) else {}


def _way_back(old: Mapping[str, Any]) -> str:
    """Return a sentence that says how to read the files of a stream of a state again.

    ``old`` is the stream's entry in the state. Its pin is a URL of certain files, an argument of
    the format such as ``{"version": 7}`` of a table, or empty.
    """
    pin = _pin(old)
    if "remote" in pin:
        return (
            f"Read the files of the state with remote={pin['remote']!r}, followed by the pattern."
        )
    if pin:
        name, value = next(iter(pin.items()))
        return (
            f"Read the version of the state with format={str(old['kind']).title()}({name}={value})."
        )
    return "Restore the files of the state. Use `mds index` to pin the files of a run."


def other_shards(
    recorded: Mapping[str, Any] | None, current: Mapping[str, Any], shards: ShardMap
) -> tuple[list[str], list[str]]:
    """Describe the streams whose shards have, or may have, other contents than in a state.

    ``recorded`` is the entry ``data`` of the state, and ``current`` that of this run.

    Returns clauses on the streams that are known to differ, by the digests of their shards, and on
    those that may differ, because their indexes do. Copies of one index in two places do not
    differ, nor does a version of a table that was given by number from the same version read as the
    latest, nor do shards with equal digests and other names.
    """
    from mds._dataset.contents import Contents

    blocks = Contents(shards.indexes).compare((recorded or {}).get("contents"))
    # The state may have other streams (not strict); its order is checked elsewhere.
    before = _contents(recorded)
    known, possible = [], []
    for stream, (place, digest, version) in enumerate(_contents(current)):
        first = int(shards.shard_offset_per_stream[stream])
        end = first + int(shards.shards_per_stream[stream])
        own_blocks = [block for block in blocks if block[0] < end and block[1] > first]
        other_blocks = [block for block in own_blocks if block[2] is False]
        is_compared = bool(own_blocks) and own_blocks[0][0] <= first and own_blocks[-1][1] >= end
        if other_blocks:
            bounds = max(other_blocks[0][0], first), min(other_blocks[-1][1], end)
            known.append(_other_contents(place, shards.indexes[stream], first, bounds))
        elif is_compared and all(is_equal for _, _, is_equal in own_blocks):
            continue
        elif stream < len(before):
            old_place, old_digest, old_version = before[stream]
            if old_digest == digest or (old_version and old_version == version):
                continue
            if old_place == place:
                possible.append(
                    f"the index of {place} changed from {old_digest} to {digest}, so the dataset "
                    "was replaced"
                )
            else:
                possible.append(
                    f"this run reads {place} with the index {digest}, but the state was saved with "
                    f"{old_place} and the index {old_digest}"
                )
    return known, possible


def _other_contents(place: str, index: Index, offset: int, bounds: tuple[int, int]) -> str:
    """Return a clause that names the shards of a stream whose contents differ.

    ``offset`` is the number of the stream's first shard, ``bounds`` are the first shard that
    differs and the end; both count through all streams.
    """
    first, last = bounds[0] - offset, bounds[1] - offset - 1
    names = [index.shard(number).raw.basename for number in dict.fromkeys((first, last))]
    numbers = f"shard {first}" if first == last else f"shards {first} to {last}"
    return (
        f"{numbers} of {len(index)} in {place} ({' to '.join(names)}) had other contents, by the "
        "numbers of samples and the digests in the index"
    )


def _contents(data: Mapping[str, Any] | None) -> list[tuple[str, str, Any]]:
    """Return place, digest and version of each stream of the entry ``data`` of a state.

    Entries of a wrong form are left out, so a damaged state gives fewer streams.
    """
    streams = (data or {}).get("streams")
    if not isinstance(streams, (list, tuple)):
        return []
    entries = [entry for entry in streams if isinstance(entry, Mapping)]
    root = (data or {}).get("root", "")
    return [
        (f"{root}{entry.get('at')}", str(entry.get("index")), _version(entry)) for entry in entries
    ]


def _version(stream: Mapping[str, Any]) -> Any:
    """Return what identifies the version of a table: format, digest of its files, and version.

    Two streams with equal results read the same files. ``stream`` is the entry of a stream in a
    state. The result is None for streams that are no tables, whose entries have no version.
    """
    pin = {name: value for name, value in _pin(stream).items() if name != "remote"}
    return (stream.get("kind"), stream.get("list"), pin) if pin else None
