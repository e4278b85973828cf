"""Streams: where samples are stored, how many of them an epoch takes, and how a state names them.

A Stream is plain data that a user makes. A dataset fills in a copy of it and never changes the
user's own. `find_sources` opens its index and returns a Source, which is all that the cache needs.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mds.arguments import check_arguments, did_you_mean, plain_scalar, takes_names
from mds.cache.source import Source, default_folder
from mds.dataset.settings import STREAM_RULES, raise_fixed
from mds.errors import ConfigError, StateError
from mds.index.table import FilesIndexError
from mds.redaction import mask_foreign
from mds.storage.relative_name import split_folder
from mds.storage.url import Url, is_local, join, local_path, path_on_disk

if TYPE_CHECKING:
    from mds.dataset.shard_map import ShardMap
    from mds.formats import Format
    from mds.formats.facts import FileCosts

_DEFAULTS = {
    "download_retry": 2,
    "download_timeout": 60.0,
    "validate_hash": None,
    "keep_zip": False,
}
#: What a dataset without streams makes one of.
PLACE = ("remote", "local", "split", "format")
_MAX_NAME = 100  # letters of the name of a stream
#: What a dataset gives to its streams that were not told themselves.
STREAM_SETTINGS = ("split", *_DEFAULTS, "storage_options", "columns")


class Stream:
    """Dataset in one place, used alone or mixed with others.

    One of ``remote`` and ``local`` is needed, and at most one of ``proportion``, ``repeat`` and
    ``choose`` may be given. What has no default here is taken from the dataset.

    - ``remote`` (str | None, default None): URL or path to read from.
    - ``local`` (str | None, default None): Folder that keeps what was fetched; without ``remote``
      the data are read there in place, with ``remote`` alone they are kept in a folder of this user
      (``$MDS_CACHE_DIR``, else ``~/.cache/mds``).
    - ``split`` (str | os.PathLike[str] | None, default None): Sub-folder of both, as ``"train"``.
    - ``proportion`` (float | None, default None): Share of the epoch.
    - ``repeat`` (float | None, default None): How often an epoch takes its samples.
    - ``choose`` (int | None, default None, samples): How many an epoch takes.
    - ``download_retry`` (int | None, default None, tries): How often a failed request is repeated.
    - ``download_timeout`` (float | None, default None, seconds): Longest wait for one request.
    - ``validate_hash`` (str | None, default None): Digest by which fetched files are checked.
    - ``keep_zip`` (bool | None, default None): Whether compressed files stay beside what they hold.
    - ``storage_options`` (Mapping[str, Any] | None, default None): Settings of the store, which
      come before the environment (see docs/storage.md).
    - ``format`` (str | Format | None, default None): What files are read as they lie, without
      conversion, such as ``"parquet"`` or ``Parquet(columns=["text"])``; None goes by their endings
      and takes everything else for MDS.

    Raises ConfigError (a ValueError) for more than one weight, a negative one, or no place.

    >>> Stream(remote="s3://bucket/c4", split="train", proportion=0.7)
    Stream(remote='s3://bucket/c4', split='train', proportion=0.7)
    """

    _is_strict = True
    _name: str | None = None  # in a mapping of streams

    @takes_names
    def __init__(
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | os.PathLike[str] | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        format: str | Format | None = None,  # noqa: A002 - what it is
    ) -> None:
        if self._is_strict:
            check_arguments(type(self).__name__, locals(), STREAM_RULES)
        self.remote = Url(os.fspath(remote)) if remote is not None else None
        self.split = split_folder(split)
        if not local and local is not None and self.remote is not None:
            raise ConfigError(
                "local= is an empty text. Leave it out to keep what is fetched in a folder of this "
                "user, or give the path of a folder."
            )
        if local is None and self.remote is None:
            raise ConfigError("a Stream needs remote= (where the data are), local=, or both.")
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
            from mds.formats.registry import parse_format

            self.format = parse_format(format)
        self._columns_wanted: Sequence[str] | None = None  # columns= of the dataset
        # Of files that are read in place, once they are known: facts for a state, and costs.
        self._files_pin: Mapping[str, Any] = {}
        self._file_changes = ("", "")
        self._file_costs: FileCosts | None = None
        self._check_numbers()

    def __setattr__(self, name: str, value: Any) -> None:
        if "_is_in_use" in vars(self) and name in STREAM_RULES:
            remedy = ", or call set_weights() of the dataset" if name == "proportion" else ""
            raise_fixed(self, name, value, remedy)
        super().__setattr__(name, value)

    def _take_weights(self, proportion: float, repeat: float, choose: int) -> None:
        """Set the resolved weights; from now on the stream belongs to a dataset."""
        vars(self).update(proportion=proportion, repeat=repeat, choose=choose)
        if self._is_strict:
            self._is_in_use = True

    def _check_weights(self) -> None:
        given = {
            name: getattr(self, name)
            for name in ("proportion", "repeat", "choose")
            if getattr(self, name) is not None
        }
        if len(given) > 1:
            raise ConfigError(
                f"a Stream takes one of proportion, repeat and choose; got {' and '.join(given)}."
            )
        for name, value in given.items():
            if value < 0:
                raise ConfigError(f"{name} of a Stream must not be negative, got {value}.")

    def _check_numbers(self) -> None:
        if self.download_retry is not None and self.download_retry < 0:
            raise ConfigError(f"download_retry must not be negative, got {self.download_retry}.")
        if self.download_timeout is not None and self.download_timeout <= 0:
            raise ConfigError(
                f"download_timeout is in seconds and positive, got {self.download_timeout}."
            )

    def apply_default(self, default: Mapping[str, Any]) -> None:
        """Set the settings from ``default`` that this stream does not have."""
        for name, value in default.items():
            if name in (*_DEFAULTS, "storage_options") and getattr(self, name, None) is None:
                setattr(self, name, value)
            elif name == "split" and not self.split:
                self.split = split_folder(value)
        self._check_numbers()

    def _filled(self, default: Mapping[str, Any]) -> Stream:
        """Return a copy with the defaults applied; the user's stream stays as it is."""
        stream = copy.copy(self)
        vars(stream).pop("_is_in_use", None)
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
        """Local folder with the split."""
        return os.path.join(self.local, self.split) if self.split else self.local

    @property
    def remote_folder(self) -> Url | None:
        """Remote URL with the split; None when the data are read in place."""
        if self.remote is None:
            return None
        url = Url(join(self.remote, self.split))
        same = os.path.abspath(url.removeprefix("file://")) == os.path.abspath(self.folder)
        return None if same else url

    @property
    def safe_keep_zip(self) -> bool:
        """Whether compressed files are kept: asked for, or all that there is."""
        return bool(self.keep_zip) or self.remote_folder is None

    def _find(self) -> Source:
        """Return the source for the cache: the index, and the folder for fetched files.

        That is the stream's own, or one below it if that belongs to another source. Raises as
        `read_index` does.
        """
        from mds.cache import find_index

        filled = self._filled({})
        kind = self._format()
        if kind is not None:
            return self._find_in(kind, filled)
        try:
            source = find_index(
                self.remote_folder,
                self.folder,
                options=self.storage_options,
                timeout=float(filled.download_timeout or 60.0),
                retries=int(filled.download_retry or 0),
            )
        except FilesIndexError as error:
            from mds.formats.dataset import pinned_format

            return self._find_in(pinned_format(error), filled, error)
        return Source(
            index=source.index,
            remote=self.remote_folder,
            folder=source.folder,
            version=source.version,
            store=source.store,
            options=self.storage_options,
            keep_zip=self.safe_keep_zip,
            validate_hash=self.validate_hash or None,
            retries=int(filled.download_retry or 0),
            timeout=float(filled.download_timeout or _DEFAULTS["download_timeout"]),  # type: ignore[arg-type]
        )

    def _format(self) -> Format | None:
        """Return the format of files that are not MDS, as given or by their endings."""
        if self.format is not None:
            return self.format
        place = join(self.remote if self.remote is not None else self.local, self.split)
        if is_local(place) and os.path.exists(os.path.join(local_path(place), "index.json")):
            return None
        from mds.formats.registry import format_of_files

        return format_of_files(place)

    def _find_in(
        self, kind: Format, filled: Stream, pinned: FilesIndexError | None = None
    ) -> Source:
        """Return the source of files in a format, or of those that an index has ``pinned``.

        Raises as `find_table` does.
        """
        from mds.cache.find_table import find_table

        if self.validate_hash:
            raise ConfigError(
                f"validate_hash={self.validate_hash!r}: files of {kind.name} have no digests."
            )
        source = find_table(
            kind,
            join(self.remote if self.remote is not None else self.local, self.split),
            self.folder if self.remote is not None else None,
            self._columns_wanted,
            self.storage_options,
            timeout=float(filled.download_timeout or 60.0),
            retries=int(filled.download_retry or 0),
            pinned=pinned,
        )
        assert source.data is not None, "what is in a format has what reads it"
        costs = source.data.costs()
        # Files behind a network are never read in place.
        self._file_costs = costs._replace(is_in_place=costs.is_in_place and source.remote is None)
        self._files_pin = {"kind": kind.name, **source.data.pin()}
        self._file_changes = source.data.table.last_changes
        return source

    @classmethod
    def validate_weights(cls, streams: Sequence[Stream]) -> tuple[bool, bool]:
        """Whether the streams are weighed relatively (all by proportion), and whether at all.

        Raises ConfigError when some have a proportion and others do not.
        """
        relative = [stream.proportion is not None for stream in streams]
        if any(relative) and not all(relative):
            raise ConfigError(
                "proportion is given for some streams and not for others; give it to all of them, "
                "or use repeat or choose."
            )
        weighed = any(s.repeat is not None or s.choose is not None for s in streams)
        return all(relative) and bool(relative), any(relative) or weighed

    def __repr__(self) -> str:
        shown = {
            name: getattr(self, name)
            for name in ("remote", "local", "split", "proportion", "repeat", "choose")
        }
        if self.remote is not None and self.local == default_folder(self.remote):
            del shown["local"]
        told = ", ".join(f"{name}={value!r}" for name, value in shown.items() if value)
        return f"{type(self).__name__}({told})"


class StreamRegistry:
    """Registry of stream classes by name, for ``stream_name=`` of a dataset."""

    def __init__(self) -> None:
        self._classes: dict[str, Callable[..., Stream]] = {}

    def register(self, name: str, *, func: Callable[..., Stream] | None = None) -> Any:
        """Make ``stream_name=name`` use ``func`` for streams; return a decorator without it."""
        if func is None:
            return functools.partial(self._add, name)
        return self._add(name, func)

    def _add(self, name: str, func: Callable[..., Stream]) -> Callable[..., Stream]:
        self._classes[name] = func
        return func

    def get(self, name: str) -> Callable[..., Stream]:
        """Return the class of a name. Raises ConfigError, with the known names, for others."""
        if name not in self._classes:
            from mds.lazy_imports import load_plugin

            loaded = load_plugin("mds.streams", name, "stream class")
            if loaded is None:
                from mds.lazy_imports import plugin_names

                names = sorted({*self._classes, *plugin_names("mds.streams")})
                raise ConfigError(
                    f"there is no stream class {name!r}.{did_you_mean(name, names)} Registered "
                    f"are: {', '.join(names)}."
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


def fill_streams(
    streams: Sequence[Stream] | Mapping[str, Stream] | None,
    place: dict[str, Any],
    stream_name: str,
    defaults: Mapping[str, Any],
) -> list[Stream]:
    """Return copies of the streams of a dataset, with its defaults."""
    if streams is None:
        if place["remote"] is None and place["local"] is None:
            raise ConfigError("give streams=, remote= or local=: there is nothing to read.")
        given = {name: value for name, value in place.items() if name != "format" or value}
        return [streams_registry.get(stream_name)(**given)._filled(defaults)]
    if place["remote"] is not None or place["local"] is not None:
        raise ConfigError(
            "streams= goes without remote= and local=; put them into a Stream of their own."
        )
    if place.get("format") is not None:
        raise ConfigError("streams= goes without format=; give each Stream its own.")
    if not streams:
        raise ConfigError("streams= is empty; give at least one Stream.")
    if not isinstance(streams, Mapping):
        return [stream._filled(defaults) for stream in streams]
    names: list[Any] = list(streams)
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise ConfigError(f"streams= has {str(name)[:60]!r} for a name; expected a short text.")
    filled = [stream._filled(defaults) for stream in streams.values()]
    for stream, name in zip(filled, names, strict=True):
        stream._name = name
    return filled


def find_sources(streams: Sequence[Stream]) -> list[Source]:
    """Return the source of every stream; many are looked up at once, as most of it is waiting."""
    if len(streams) == 1:
        return [streams[0]._find()]
    with ThreadPoolExecutor(min(len(streams), 32)) as pool:
        return list(pool.map(Stream._find, streams))


# --------------------------------------------------------------- the data that a state names

_DIGEST_LETTERS = 16


def name_data(
    streams: Sequence[Stream],
    shards: ShardMap,
    contents: Sequence[str],
    shares: Sequence[Mapping[str, float]],
    epoch_size: int | None,
) -> dict[str, Any]:
    """Return the streams with their places and requested shares, as plain JSON.

    ``contents``: a digest for the data of each.
    """
    places = [
        mask_foreign(str(stream.remote_folder or os.path.abspath(stream.folder)))
        for stream in streams
    ]
    # Streams are often in one folder, and a state with many of them shall stay small.
    root = os.path.commonprefix(places) if len(places) > 1 else ""  # noqa: RUF071 - cut below
    root = root[: root.rfind("/") + 1]
    facts: dict[str, Any] = {"streams": []}
    if root:
        facts["root"] = root
    for place, stream, content, share in zip(places, streams, contents, shares, strict=True):
        entry = {"at": place[len(root) :], "index": content[:_DIGEST_LETTERS], **share}
        if stream.format is not None:
            entry["format"] = stream.format.name
        entry |= stream._files_pin
        facts["streams"].append(entry)
    if epoch_size is not None:
        facts["epoch_size"] = epoch_size
    if shards.selection is not None:
        facts["selected"] = shards.num_samples
    return facts


def check_files(
    recorded: Mapping[str, Any] | None,
    current: Mapping[str, Any],
    changes: Sequence[tuple[str, str]],
) -> None:
    """Raise StateError where a state is of other files than those that are read in place.

    A copy in another format has the same order, so only a list of the same format is compared.
    ``changes``: of each stream the digest of its files before they last changed, and what changed.
    """
    before = (recorded or {}).get("streams")
    streams = current.get("streams", ())
    if not isinstance(before, list) or len(before) != len(streams):
        return
    for old, new, (since, changed) in zip(before, streams, changes, strict=True):
        if not isinstance(old, dict) or "list" not in old or old.get("kind") != new.get("kind"):
            continue
        if old["list"] != new.get("list"):
            # Otherwise this cache folder never had the files of the state.
            differences = changed if old["list"] == since else "their names or sizes differ"
            raise StateError(
                f"the state is of {_files(old)}, and {current.get('root', '')}{new['at']} has "
                f"{_files(new)}: {differences}. {_way_back(old)}"
            )


def _files(stream: Mapping[str, Any]) -> str:
    pins = "".join(f", {name} {value}" for name, value in _pin(stream).items())
    return f"{stream.get('files')} files of {stream.get('kind')}{pins}"


def _pin(stream: Mapping[str, Any]) -> Mapping[str, Any]:
    pin = stream.get("pin")
    return pin if isinstance(pin, dict) else {}


def _way_back(old: Mapping[str, Any]) -> str:
    pin = _pin(old)
    if "remote" in pin:
        return f"Read those of the state: remote={pin['remote']!r}, with the pattern behind it."
    for name, value in pin.items():
        return f"Read that of the state: format={str(old['kind']).title()}({name}={value})."
    return "Put back those of the state; `mds index` pins the files of a run."


def other_data(
    recorded_data: Mapping[str, Any] | None, current_data: Mapping[str, Any]
) -> list[str]:
    """Return clauses about streams whose data differ from those that a state names.

    A copy of the same index in another place is the same, and so is a version of a table whether
    it was asked for or was the latest.
    """
    clauses = []
    for recorded, current in zip(_contents(recorded_data), _contents(current_data), strict=False):
        (before, old, version), (after, new, version_now) = recorded, current
        if old == new or (version and version == version_now):
            continue
        if before == after:
            clauses.append(f"{after} has the index {new} now and had {old}: it was replaced")
        else:
            clauses.append(f"{after} with the index {new} is read now, and {before} with {old} was")
    return clauses


def _contents(data: Mapping[str, Any] | None) -> list[tuple[str, str, Any]]:
    """Return place, digest and version of each stream, as far as a state records them."""
    streams = (data or {}).get("streams")
    if not isinstance(streams, (list, tuple)):
        return []
    entries = [entry for entry in streams if isinstance(entry, Mapping)]
    root = (data or {}).get("root", "")
    return [
        (f"{root}{entry.get('at')}", str(entry.get("index")), _version(entry)) for entry in entries
    ]


def _version(stream: Mapping[str, Any]) -> Any:
    """Return what identifies the files of a version of a table, or None if nothing does."""
    pin = {name: value for name, value in _pin(stream).items() if name != "remote"}
    return (stream.get("kind"), stream.get("list"), pin) if pin else None
