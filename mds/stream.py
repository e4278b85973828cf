"""Where a source of samples lives, and how much of it an epoch takes.

A Stream is plain data that a user makes; a dataset copies and fills it and never changes the
user's own. What the cache has to know of it is a Source.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mds.errors import ConfigError

if TYPE_CHECKING:
    from mds.index import Index

_DEFAULTS = {
    "download_retry": 2,
    "download_timeout": 60.0,
    "validate_hash": None,
    "keep_zip": False,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """What the cache needs to know of a stream: plain, frozen, and fit for a pickle.

    Without ``remote`` the folder is the user's own: read in place, never copied, never evicted.
    """

    index: Index
    remote: str | None
    folder: str
    options: Mapping[str, Any] | None = None
    keep_zip: bool = False
    validate_hash: str | None = None
    retries: int = 2
    timeout: float = 60.0


class Stream:
    """A dataset in one place, to be used alone or mixed with others.

    ``remote`` is a URL or path to read from, ``local`` the folder that keeps what was fetched;
    with ``local`` alone the data are read in place, with ``remote`` alone they are kept in a folder
    of this user (``$MDS_CACHE_DIR``, else ``~/.cache/mds``). ``split`` is a sub-folder of both.
    At most one of ``proportion`` (share of the epoch), ``repeat`` (factor) and ``choose`` (number
    of samples) says how much is taken. ``storage_options`` go to the store and come before the
    environment (see docs/storage.md). The rest take the dataset's values when not given.

    Raises ConfigError (a ValueError) for more than one weight, a negative one, or no place.

    >>> Stream(remote="s3://bucket/c4", split="train", proportion=0.7)
    Stream(remote='s3://bucket/c4', split='train', proportion=0.7)
    """

    def __init__(
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.remote = os.fspath(remote) if remote is not None else None
        self.split = split or ""
        if local is None and self.remote is None:
            raise ConfigError("a Stream needs remote= (where the data are), local=, or both.")
        self.local = os.fspath(local) if local is not None else default_folder(str(self.remote))
        self.proportion, self.repeat, self.choose = proportion, repeat, choose
        self._check_weights()
        self.download_retry, self.download_timeout = download_retry, download_timeout
        self.validate_hash = validate_hash
        self.keep_zip = keep_zip
        self.storage_options = storage_options
        self._check_numbers()

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
        """Take from ``default`` what this stream was not told itself."""
        for name, value in default.items():
            if name in (*_DEFAULTS, "storage_options") and getattr(self, name, None) is None:
                setattr(self, name, value)
            elif name == "split" and not self.split:
                self.split = value or ""
        self._check_numbers()

    def filled(self, default: Mapping[str, Any]) -> Stream:
        """A copy with the defaults applied; the user's stream stays as it is."""
        stream = copy.copy(self)
        stream.apply_default({**_DEFAULTS, **default})
        return stream

    @property
    def share(self) -> dict[str, float]:
        """How much of it was asked for: at most one of proportion, repeat and choose."""
        given = {name: getattr(self, name) for name in ("proportion", "repeat", "choose")}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def folder(self) -> str:
        """The local folder with the split."""
        return os.path.join(self.local, self.split) if self.split else self.local

    @property
    def remote_folder(self) -> str | None:
        """The remote URL with the split; None when the data are read in place."""
        if self.remote is None:
            return None
        url = f"{self.remote.rstrip('/')}/{self.split}" if self.split else self.remote
        same = os.path.abspath(url.removeprefix("file://")) == os.path.abspath(self.folder)
        return None if same else url

    @property
    def safe_keep_zip(self) -> bool:
        """Whether compressed files are kept: asked for, or all that there is."""
        return bool(self.keep_zip) or self.remote_folder is None

    def source(self, index: Index) -> Source:
        """What the cache needs to know, given the stream's index."""
        filled = self.filled({})
        return Source(
            index=index,
            remote=self.remote_folder,
            folder=self.folder,
            options=self.storage_options,
            keep_zip=self.safe_keep_zip,
            validate_hash=self.validate_hash or None,
            retries=int(filled.download_retry or 0),
            timeout=float(filled.download_timeout or _DEFAULTS["download_timeout"]),  # type: ignore[arg-type]
        )

    def read_index(self) -> Index:
        """The stream's index: from its folder, or fetched from its remote and kept there.

        Raises IndexFileError (a ValueError) when it is broken, NotFoundError when there is none.
        """
        from mds.cache import fetch_index

        source = self.filled({})
        return fetch_index(
            self.remote_folder,
            self.folder,
            options=self.storage_options,
            timeout=float(source.download_timeout or 60.0),
            retries=int(source.download_retry or 0),
        )

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


def default_folder(remote: str) -> str:
    """The folder of this user's cache for a remote."""
    digest = hashlib.blake2s(remote.encode(), digest_size=16).hexdigest()
    return os.path.join(cache_root(), digest)


def cache_root() -> str:
    """Where this user's cached data lie.

    ``$MDS_CACHE_DIR``, else ``$XDG_CACHE_HOME/mds``, else ``~/.cache/mds``.
    """
    told = os.environ.get("MDS_CACHE_DIR")
    if told:
        return told
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if home.startswith("~"):  # no home directory: a folder of this user alone
        import getpass
        import tempfile

        return os.path.join(tempfile.gettempdir(), f"mds-{getpass.getuser()}")
    return os.path.join(home, "mds")


class StreamRegistry:
    """Stream classes by name, for ``stream_name=`` of a dataset."""

    def __init__(self) -> None:
        self._classes: dict[str, Callable[..., Stream]] = {}

    def register(self, name: str, *, func: Callable[..., Stream] | None = None) -> Any:
        """Let ``stream_name=name`` make streams with ``func``; without it, a decorator."""
        if func is None:
            return functools.partial(self._add, name)
        return self._add(name, func)

    def _add(self, name: str, func: Callable[..., Stream]) -> Callable[..., Stream]:
        self._classes[name] = func
        return func

    def get(self, name: str) -> Callable[..., Stream]:
        """The class of that name; ConfigError names those that there are."""
        if name not in self._classes:
            from importlib.metadata import entry_points

            found = {e.name: e for e in entry_points(group="mds.streams")}
            if name not in found:
                known = ", ".join(sorted({*self._classes, *found}))
                raise ConfigError(f"there is no stream class {name!r}. Registered are: {known}.")
            self._classes[name] = found[name].load()
        return self._classes[name]

    def get_all(self) -> dict[str, Callable[..., Stream]]:
        """All registered classes by name."""
        return dict(self._classes)

    def __contains__(self, name: str) -> bool:
        return name in self._classes


streams_registry = StreamRegistry()
streams_registry.register("stream", func=Stream)


def fill_streams(
    streams: Sequence[Stream] | None,
    place: dict[str, Any],
    stream_name: str,
    defaults: Mapping[str, Any],
) -> list[Stream]:
    """The streams of a dataset, copied, with its defaults."""
    if streams is None:
        if place["remote"] is None and place["local"] is None:
            raise ConfigError("give streams=, remote= or local=: there is nothing to read.")
        return [streams_registry.get(stream_name)(**place).filled(defaults)]
    if place["remote"] is not None or place["local"] is not None:
        raise ConfigError(
            "streams= goes without remote= and local=; put them into a Stream of their own."
        )
    if not streams:
        raise ConfigError("streams= is empty; give at least one Stream.")
    return [stream.filled(defaults) for stream in streams]


def read_indexes(streams: Sequence[Stream]) -> list[Index]:
    """The index of every stream; many are read side by side, since most of it is waiting."""
    if len(streams) == 1:
        return [streams[0].read_index()]
    with ThreadPoolExecutor(min(len(streams), 32)) as pool:
        return list(pool.map(Stream.read_index, streams))
