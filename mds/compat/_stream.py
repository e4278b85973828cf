"""Stream as in mosaicml-streaming 0.13, whose methods bring shards: `streaming.base.stream`.

Datasets fetch shards through the cache of mds. If a subclass overrides a method that brings shards,
for example to decrypt them, the cache asks the subclass instead: the stream then has a URL of the
scheme ``mds-compat``, whose store, `SubclassStore`, calls ``prepare_shard`` for each shard.

    cache -> SubclassStore -> prepare_shard -> _prepare_shard_part -> _download_file
                                                                   -> _decompress_shard_part

In this package, 0.13 is mosaicml-streaming 0.13, "native" is the class of mds of the same name, and
"code" is code of the user that was written for 0.13.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar, NoReturn, cast

import numpy as np
import numpy.typing as npt

from mds._arguments import Rule, check_arguments, plain_scalar
from mds._cache.folder import size_of
from mds._cache.index_copy import find_index
from mds._cache.ownership import BY_SPEED
from mds._cache.source import Source, default_folder
from mds._dataset.settings import STREAM_RULES
from mds._dataset.stream import Stream as NativeStream
from mds._index.shard_object import FileInfo as NativeFileInfo
from mds._process.fork_safe import new_lock
from mds._redaction import get_logger
from mds._shardfile.hashing import hexdigest
from mds.compat._clouds import CloudDownloader
from mds.compat._compressions import decompress, get_hash
from mds.compat._overrides import OVERRIDE_IN_CLASS, Overridable, find_remedy, refuse
from mds.compat._readers import FileInfo, Reader, reader_from_json
from mds.compat._util import retry
from mds.errors import (
    ConfigError,
    CorruptError,
    IndexFileError,
    MdsError,
    MissingDependencyError,
    NotFoundError,
    StoreError,
)
from mds.plan._weights import resolve_weights
from mds.storage import Body, ObjectInfo, Store, register_store
from mds.storage._files import publish, write_file
from mds.storage._relative_name import RelativeName
from mds.storage._url import Url, join, source_name
from mds.world import World

log = get_logger("mds.cache")

_INDEX = "index.json"
#: Name of a copy of the index that is being fetched.
_INDEX_COPY = f"{_INDEX}.tmp"
#: Methods that bring shards; a subclass may override them.
_SHARD_METHODS = (
    "prepare_shard",
    "_prepare_shard_part",
    "_download_file",
    "_decompress_shard_part",
)


class NoPlaceError(ConfigError, FileExistsError):
    """Stream without remote and local."""


class NoIndexError(NotFoundError, RuntimeError):
    """Folder without an index, and no remote to fetch it from."""


class BrokenIndexError(IndexFileError, json.JSONDecodeError):
    """Index that is empty or damaged; ``text`` is the message.

    As in 0.13 it is a JSONDecodeError, whose attributes are set without a document.
    """

    def __init__(self, text: str) -> None:
        # Not that of JSONDecodeError, which adds a line and a column to the message.
        ValueError.__init__(self, text)
        self.msg, self.doc, self.pos, self.lineno, self.colno = text, "", 0, 1, 1

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg,)


def to_whole_number(owner: str, name: str, value: Any, rules: Mapping[str, Rule]) -> Any:
    """Return a number as an int if it is whole, as YAML may give 64.0 for 64.

    Other values are returned as they are: 0.13 accepts some. Raises ArgumentError for a text.

    - ``owner``, ``name``: class and argument, for the message.
    - ``value``: value of the argument.
    - ``rules``: rules of the arguments of the class.
    """
    value = plain_scalar(value)
    if isinstance(value, float) and (value.is_integer() or name == "predownload"):
        value = int(value)
    if isinstance(value, float) and name in {"batch_size", "shuffle_seed"}:
        check_arguments(owner, {name: value}, rules)
    refuse_texts(owner, {name: value}, rules)
    return value


def refuse_texts(
    owner: str, arguments: Mapping[str, Any], rules: Mapping[str, Rule] = STREAM_RULES
) -> None:
    """Raise ArgumentError for a text among arguments that must be numbers.

    - ``owner``: class, for the message.
    - ``arguments``: values by name.
    - ``rules``: rules of the arguments of the class.
    """
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    check_arguments(owner, texts, rules)


class Stream(Overridable, NativeStream):
    """Shards in one remote or local folder, one of several in a dataset; see `mds.Stream`.

    A user's subclass may override methods that bring shards (fetch and decompress their files).
    """

    __doc__ = NativeStream.__doc__
    #: Whether arguments are refused that 0.13 accepts.
    _is_strict = False
    # Methods that mds never calls, and attributes that cannot be set on one object, with what to
    # use instead: see `Overridable`.
    _refused: ClassVar[Mapping[str, str]] = {
        "get_shards": "select() or limit() of the dataset to leave samples out",
        "apply_weights": "proportion, repeat and choose of each Stream",
    }
    _ignored: ClassVar[Mapping[str, str]] = {
        "set_up_local": "the cache, which deletes incomplete files by itself",
        "get_index_size": "cache_limit=, towards which the index counts",
    }
    _fixed: ClassVar[Mapping[str, str]] = {
        "_downloader": find_remedy("CloudDownloader"),
        **dict.fromkeys(_SHARD_METHODS, OVERRIDE_IN_CLASS),
    }

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
    ) -> None:
        if not remote and local:
            remote = None  # 0.13 takes an empty text for no remote
        if local == "":
            local = os.curdir
        if remote is None and local is None:
            raise NoPlaceError("a Stream needs remote= (where the data are), local=, or both.")
        download_retry = to_whole_number("Stream", "download_retry", download_retry, STREAM_RULES)
        choose = to_whole_number("Stream", "choose", choose, STREAM_RULES)
        refuse_texts(
            "Stream",
            {"proportion": proportion, "repeat": repeat, "download_timeout": download_timeout},
        )
        super().__init__(
            remote=remote,
            local=local,
            split=split,
            proportion=proportion,
            repeat=repeat,
            choose=choose,
            download_retry=download_retry,
            download_timeout=download_timeout,
            validate_hash=cast("Any", validate_hash),
            keep_zip=keep_zip,
            storage_options=storage_options,
        )
        # Private attributes that 0.13 has, for subclasses that read them.
        self._proportion, self._repeat, self._choose = proportion, repeat, choose
        self._download_retry, self._download_timeout = download_retry, download_timeout
        self._keep_zip, self._local = keep_zip, self.local
        if self._brings_shards and self.remote is not None:
            self.storage_options = {"stream": self}  # for the SubclassStore

    def __delattr__(self, name: str) -> None:
        if name in ("proportion", "repeat", "choose"):
            refuse(f"{name} of one Stream", f"Make a Stream without {name}=")
        super().__delattr__(name)

    # ------------------------------------------------------------------ the cache's side

    @property
    def _url_and_split(self) -> tuple[str, str]:
        """URL or path with the split, which is always a folder, and no further split."""
        return self._place, ""

    @property
    def _brings_shards(self) -> bool:
        """Whether a subclass overrides a method that brings shards."""
        return any(
            getattr(type(self), name) is not getattr(Stream, name) for name in _SHARD_METHODS
        )

    @property
    def remote_folder(self) -> Url | None:
        """Remote URL with the split, or the URL of a `SubclassStore`; None to read in place."""
        url = super().remote_folder
        if url is None or not self._brings_shards:
            return url
        # The cache tells data apart by URL, and another class may make other files of the same
        # remote. So the URL is mds-compat://<digest of class name and remote>.
        class_name = f"{type(self).__module__}.{type(self).__qualname__}"
        source = f"{class_name} {source_name(url)}".encode()
        return Url(f"{_SCHEME}://{hashlib.blake2s(source, digest_size=16).hexdigest()}")

    def _find(self) -> Source:
        """Find the index, and return a description of the data.

        Raises NoIndexError and BrokenIndexError, which have the types of the errors in 0.13.
        """
        try:
            return self._without_missing_hash(self._find_or_copy())
        except NotFoundError as error:
            if self.remote_folder is None:
                raise NoIndexError(str(error), url=error.url, verb=error.verb) from error
            raise
        except IndexFileError as error:
            raise BrokenIndexError(str(error)) from error

    def _find_or_copy(self) -> Source:
        """Find the index; if the remote fails, read a complete local copy in place, as 0.13 does.

        0.13 asks a remote only for files that are missing in the local folder.
        """
        try:
            return super()._find()
        except (StoreError, MissingDependencyError) as error:
            source = self._find_copy()
            if source is None:
                raise
            log.warning(
                "%s The remote cannot be read, so mds reads the complete copy in %s, which it did "
                "not fetch.",
                error,
                source.folder,
            )
            return source

    def _find_copy(self) -> Source | None:
        """Return the source of a complete copy in the local folder, or None.

        Complete means that all shards have the sizes in the index. Digests are checked when a shard
        is opened, if the index has any.
        """
        if self.remote_folder is None:
            return None
        try:
            located = find_index(None, self.folder)
        except MdsError:
            return None
        index = located.index

        def has(files: Sequence[NativeFileInfo | None]) -> bool:
            """Whether all of these files are there, in their full sizes."""
            return all(
                file is not None and size_of(file.basename.under(self.folder)) == file.size
                for file in files
            )

        for info in index:
            raw_files, packed_files = zip(*info.files, strict=True)
            if not has(raw_files) and not has(packed_files):
                return None
        names = [set(schema.hashes) for schema in index.schemas]
        common_names = set.intersection(*names) if names else set()
        digest = next((name for name in BY_SPEED if name in common_names), None)
        return Source(
            index,
            None,
            self.folder,
            keep_zip=True,
            validate_hash=self.validate_hash or digest,
            version=located.version,
        )

    def _without_missing_hash(self, source: Source) -> Source:
        """Return ``source`` without its hash to check if the index does not have that hash.

        This is for data that are read in place. 0.13 checks files when it fetches them, so it never
        misses the hash of local files.
        """
        algo = source.validate_hash
        if source.remote is not None or not algo:
            return source
        if all(algo in schema.hashes for schema in source.index.schemas):
            return source
        warnings.warn(
            f"validate_hash={algo!r} is left out: {self!r} is read in place, and its index does "
            "not have that hash.",
            stacklevel=2,
        )
        return dataclasses.replace(source, validate_hash=None)

    # ------------------------------------------------------------------ methods that bring shards

    def prepare_shard(self, shard: Reader) -> int:
        """Fetch and decompress the files of a shard into the local folder.

        Returns the bytes by which the folder grew.
        """
        return sum(
            self._prepare_shard_part(raw, compressed, shard.compression)
            for raw, compressed in shard.file_pairs
        )

    def _prepare_shard_part(
        self, raw_info: FileInfo, zip_info: FileInfo | None = None, compression: str | None = None
    ) -> int:
        """Fetch and decompress one file of a shard, unless its raw file exists.

        - ``raw_info`` (FileInfo): raw file.
        - ``zip_info`` (FileInfo | None, default None): compressed file; None if there is none.
        - ``compression`` (str | None, default None): name of the compression.

        Returns the bytes by which the folder grew.
        """
        raw_path = self._path(raw_info.basename)
        if os.path.isfile(raw_path):
            return 0
        if zip_info is None:
            fetched_path = self._download_file(raw_info.basename)
            if self.validate_hash:
                with open(fetched_path, "rb") as file:
                    self._check_hash(raw_info, file.read(), fetched_path)
            return raw_info.bytes
        zip_path, growth = self._path(zip_info.basename), 0
        if not os.path.isfile(zip_path):
            zip_path = self._download_file(zip_info.basename)
            growth += zip_info.bytes
        self._decompress_shard_part(zip_info, zip_path, raw_path, compression)
        growth += raw_info.bytes
        if not self.safe_keep_zip:
            os.unlink(zip_path)
            growth -= zip_info.bytes
        return growth

    def _download_file(self, from_basename: str, to_basename: str | None = None) -> str:
        """Download a file into the local folder, with retries; return its path there.

        ``from_basename``: name below the remote folder; ``to_basename``: name below the local one,
        None for the same.
        """
        name = to_basename or from_basename
        # The copy of the index has a name that files of shards may not have.
        path = os.path.join(self.folder, name) if name == _INDEX_COPY else self._path(name)
        url = None
        if self._absolute_remote is not None:
            url = join(join(self._absolute_remote, self.split), from_basename)
        timeout = 60.0 if self.download_timeout is None else self.download_timeout
        attempts = 2 if self.download_retry is None else max(self.download_retry, 1)
        retry(num_attempts=attempts)(self._downloader.download)(url, path, timeout)
        return path

    def _decompress_shard_part(
        self, zip_info: FileInfo, zip_filename: str, raw_filename: str, compression: str | None
    ) -> None:
        """Check the digest of a compressed file, and decompress it.

        - ``zip_info`` (FileInfo): compressed file, with its digests.
        - ``zip_filename``, ``raw_filename`` (str): paths of the compressed and the raw file.
        - ``compression`` (str | None): name of the compression.

        Raises CorruptError (a ValueError) for a wrong digest.
        """
        with open(zip_filename, "rb") as file:
            data = file.read()
        self._check_hash(zip_info, data, zip_filename)
        write_file(raw_filename, decompress(compression, data))

    def _check_hash(self, info: FileInfo, data: bytes, path: str) -> None:
        """Raise CorruptError unless a file has the digest for ``validate_hash`` in the index.

        - ``info`` (FileInfo): file, with its digests by the name of the hash.
        - ``data`` (bytes): content of the file.
        - ``path`` (str): path of the file, for the message.

        Raises ConfigError if the index does not have that hash.
        """
        algo = self.validate_hash
        if not algo:
            return
        if algo not in info.hashes:
            raise ConfigError(
                f"validate_hash={algo!r}: the index has {', '.join(info.hashes) or 'no hashes'} "
                f"of {info.basename}."
            )
        if get_hash(algo, data) != info.hashes[algo]:
            raise CorruptError(
                f"{path}: its {algo} is not that of the index.", url=path, verb="get"
            )

    def _path(self, basename: str) -> str:
        """Return the path of a shard's file. Raises IndexFileError for one outside the folder."""
        return RelativeName(basename, repr(self), IndexFileError).under(self.folder)

    @property
    def _downloader(self) -> CloudDownloader:
        return CloudDownloader.get(self.remote)

    def _get_temporary_directory(self) -> str:
        return default_folder(self.remote or "")

    # ------------------------------------------------------------------ methods that users call

    def get_shards(self, world: World, allow_unsafe_types: bool) -> list[Reader]:
        """Return readers of all shards, after fetching the index if necessary.

        - ``world`` (World): no effect; 0.13 lets one rank of a node fetch the index.
        - ``allow_unsafe_types`` (bool): whether pickled columns are allowed.

        Raises UnsafeTypeError (a ValueError) for pickled columns that are not allowed.
        """
        del world
        with open(self._fetch_index(), "rb") as file:
            entries = json.loads(file.read())["shards"]
        shards = [reader_from_json(self._absolute_local, self.split, entry) for entry in entries]
        for shard in shards:
            shard.validate(allow_unsafe_types)
        return shards

    def _fetch_index(self) -> str:
        """Fetch the index unless the folder has it; return its path."""
        path = os.path.join(self.folder, _INDEX)
        if not os.path.exists(path):
            if self.remote is None:
                raise NoIndexError(f"there is no {path}, and no remote to fetch it from.")
            # Fetched under another name first, so that no process reads a part of an index.
            fetched_path = self._download_file(_INDEX, _INDEX_COPY)
            with publish(path) as temporary, open(fetched_path, "rb") as file:
                write_file(temporary, file.read())
            os.unlink(fetched_path)
        return path

    def set_up_local(
        self, shards: list[Reader], cache_usage_per_shard: npt.NDArray[np.int64]
    ) -> None:
        """Delete incomplete files of shards, and count the bytes of the complete ones.

        ``cache_usage_per_shard``: int64 of shape (shards,), filled with the bytes of each shard.
        """
        listing = {
            os.path.join(folder, name)
            for folder, _, names in os.walk(self.folder)
            for name in names
        }
        for index, shard in enumerate(shards):
            cache_usage_per_shard[index] = shard.set_up_local(listing, self.safe_keep_zip)

    def get_index_size(self) -> int:
        """Return the bytes of the local index."""
        return os.stat(os.path.join(self.folder, _INDEX)).st_size

    @classmethod
    def apply_weights(
        cls,
        streams: Sequence[NativeStream],
        samples_per_stream: npt.NDArray[np.int64],
        choose_per_epoch: int | None,
        seed: int,
    ) -> int:
        """Set proportion, repeat and choose of each stream to the values that its weight implies.

        - ``streams`` (Sequence[Stream]): streams of a dataset.
        - ``samples_per_stream`` (int64 of shape (streams,)): their samples.
        - ``choose_per_epoch`` (int | None): samples of an epoch; None for what the weights imply.
        - ``seed`` (int): seed of the random choice of streams that are rounded up.

        Returns the samples of an epoch.
        """
        cls.validate_weights(streams)
        shares = [stream._share for stream in streams]  # noqa: SLF001 - a part of the stream
        sizes = [int(size) for size in samples_per_stream]
        weights = resolve_weights(sizes, shares, choose_per_epoch, seed)
        for index, stream in enumerate(streams):
            stream.proportion, stream.repeat = weights.proportion[index], weights.repeat[index]
            stream.choose = weights.choose[index]
        return weights.epoch_size


# ---------------------------------------------------------------------- shards of a subclass

_SCHEME = "mds-compat"
_RAW_KEYS = ("raw_data", "raw_meta")
#: Files of a `SubclassStore` that stay open.
_MAX_OPEN = 8


class SubclassStore(Store):
    """Store of the raw files of a stream whose subclass brings them, and of their index.

    The index in the store is that of the stream without compressed files, so that the cache asks
    for raw files only.

    - ``url`` (str): URL of scheme ``mds-compat``.
    - ``options`` (Mapping): ``options["stream"]`` is the stream.
    - ``timeout`` (float, seconds): no effect.
    """

    can_list = False
    can_write = False

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        del timeout  # the stream has its own
        self.url = url
        self._stream = options["stream"]
        #: Name of a raw file -> entry of its shard in the index.
        self._entries: dict[str, Any] = {}
        self._index = b""  # read when it is first needed
        self._lock = new_lock()
        #: Open files that were read last, so that a file is brought once for several ranges of it.
        self._open_files: dict[str, _FileDescriptor] = {}

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Return the bytes of a file from ``start`` up to ``end`` (not included; None: to its end).

        ``key``: "index.json", or the name of a raw file, which the user's stream brings first.
        """
        file: Any = io.BytesIO(self._read_index()) if key == _INDEX else self._open(key)
        info = self._object_info(key, file.seek(0, os.SEEK_END))
        file.seek(start)
        length = (info.size if end is None else end) - start
        return Body(
            info, _read_chunks(file, length), length, url=self.url_of(key), close=file.close
        )

    def head(self, key: str) -> ObjectInfo:
        """Return the size of a file, as the index has it: the stream need not bring it for that."""
        index = self._read_index()
        if key == _INDEX:
            return self._object_info(key, len(index))
        entry = self._entry_of(key)
        raw_files = [entry[kind] for kind in _RAW_KEYS if entry.get(kind)]
        size = next(file["bytes"] for file in raw_files if file["basename"] == key)
        return self._object_info(key, size)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Return nothing: the files are those of the index."""
        del prefix
        return iter(())

    def delete(self, key: str) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError(f"{self.url_of(key)} cannot be deleted.")

    def _write(self, key: str, file: BinaryIO, size: int) -> NoReturn:
        del file, size
        raise ConfigError(f"{self.url_of(key)} cannot be written.")

    def _object_info(self, key: str, size: int) -> ObjectInfo:
        """Return name, size and version of a file; its version is a digest of the index."""
        return ObjectInfo(key, size, hexdigest("xxh3_64", self._read_index()))

    def _read_index(self) -> bytes:
        """Return the stream's index without compressed files, as JSON; it is fetched once.

        Keeps the original entry of each raw file in ``_entries``, for ``prepare_shard``.
        """
        with self._lock:
            if not self._index:
                path = self._stream._download_file(_INDEX, _INDEX_COPY)  # noqa: SLF001 - may be overridden
                with open(path, "rb") as file:
                    index = json.loads(file.read())
                os.unlink(path)
                for entry in index["shards"]:
                    names = [entry[kind]["basename"] for kind in _RAW_KEYS if entry.get(kind)]
                    self._entries.update({name: dict(entry) for name in names})
                    without_zip = {kind: None for kind in ("zip_data", "zip_meta") if kind in entry}
                    entry.update(without_zip, compression=None)
                self._index = json.dumps(index).encode()
            return self._index

    def _entry_of(self, key: str) -> dict[str, Any]:
        """Return the index entry of the shard that a raw file belongs to."""
        self._read_index()
        if key not in self._entries:
            raise NotFoundError(f"the index has no {key!r}.", url=self.url_of(key), verb="get")
        entry: dict[str, Any] = self._entries[key]
        return entry

    def _open(self, key: str) -> io.IOBase:
        """Return a raw file by its name, after the stream has brought it if it is not open.

        The stream is called by one thread at a time.
        """
        entry = self._entry_of(key)
        with self._lock:
            file = self._open_files.pop(key, None)
            if file is None:
                file = self._bring(key, entry)
            self._open_files[key] = file
            while len(self._open_files) > _MAX_OPEN:  # the first is the one read longest ago
                del self._open_files[next(iter(self._open_files))]
            return _SharedFile(file)

    def _bring(self, key: str, entry: dict[str, Any]) -> _FileDescriptor:
        """Call ``prepare_shard`` of the stream for an index entry; return its raw file, opened."""
        stream = self._stream
        path = os.path.join(stream.folder, key)
        existed = os.path.exists(path)  # then the stream does not make it
        reader = reader_from_json(stream._absolute_local, stream.split, entry)  # noqa: SLF001
        stream.prepare_shard(reader)
        file = _FileDescriptor(os.open(path, os.O_RDONLY))
        if not existed:
            # The cache writes its own copy to this path, which it counts toward cache_limit.
            os.unlink(path)
        return file


class _FileDescriptor:
    """Owner of a file descriptor (``number``), which is closed when nothing refers to the owner."""

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, os.close, number)


class _SharedFile(io.RawIOBase):
    """File for reading with a position of its own, on a descriptor that several files share."""

    def __init__(self, descriptor: _FileDescriptor) -> None:
        super().__init__()
        self._descriptor, self._position = descriptor, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, in bytes from the beginning or the end; return it."""
        size = os.fstat(self._descriptor.number).st_size
        self._position = offset + (size if whence == os.SEEK_END else 0)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes from the position on."""
        data = os.pread(self._descriptor.number, size, self._position)
        self._position += len(data)
        return data


def _read_chunks(file: Any, length: int) -> Iterator[bytes]:
    while length > 0 and (data := file.read(min(length, 1 << 20))):
        length -= len(data)
        yield data


register_store(_SCHEME, SubclassStore)
