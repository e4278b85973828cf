"""The incumbent's ``base.stream``: a Stream that can also bring single shards, as code calls it.

Datasets fetch through the library's cache. Where a subclass has its own way to fetch, decrypt or
decompress, the cache asks that way for each shard instead (`prepared.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mds.cache.source import Source, default_folder
from mds.compat.clouds import CloudDownloader
from mds.compat.compressions import decompress, get_hash
from mds.compat.overrides import Overridable, find_remedy, refuse
from mds.compat.prepared import SCHEME
from mds.compat.readers import FileInfo, Reader, reader_from_json
from mds.compat.util import retry
from mds.dataset.stream import Stream as NativeStream
from mds.errors import ConfigError, CorruptError, IndexFileError, NotFoundError
from mds.plan import resolve_weights
from mds.storage import join, publish, source_name, write_file
from mds.storage.relative_name import RelativeName
from mds.storage.url import Url
from mds.world import World

_INDEX = "index.json"
#: What a subclass overrides to bring shards in its own way.
_WAYS = ("prepare_shard", "_prepare_shard_part", "_download_file", "_decompress_shard_part")
_REFUSED = {
    "get_shards": "dataset.select() or limit(), which leave samples out",
    "apply_weights": "proportion, repeat and choose of each Stream",
}
_IGNORED = {
    "set_up_local": "cache_limit: the cache looks after its folder by itself",
    "get_index_size": "cache_limit, which counts the indexes by itself",
}


class NoPlaceError(ConfigError, FileExistsError):
    """A Stream without remote and local."""


class NoIndexError(NotFoundError, RuntimeError):
    """A folder without an index, and no remote to fetch it from."""


class BrokenIndexError(IndexFileError, json.JSONDecodeError):
    """An index that is empty or damaged."""

    def __init__(self, text: str) -> None:
        ValueError.__init__(self, text)
        self.msg, self.doc, self.pos, self.lineno, self.colno = text, "", 0, 1, 1

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg,)


class Stream(Overridable, NativeStream):
    """As `mds.Stream`, with the methods by which 0.13 brings shards."""

    __doc__ = NativeStream.__doc__
    _is_strict = False
    _refused, _ignored = _REFUSED, _IGNORED

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
        super().__init__(
            remote=remote,
            local=local,
            split=split,
            proportion=proportion,
            repeat=repeat,
            choose=choose,
            download_retry=download_retry,
            download_timeout=download_timeout,
            validate_hash=validate_hash,
            keep_zip=keep_zip,
            storage_options=storage_options,
        )
        self._proportion, self._repeat, self._choose = proportion, repeat, choose
        self._download_retry, self._download_timeout = download_retry, download_timeout
        self._keep_zip, self._local = keep_zip, self.local
        if self._has_own_way and self.remote is not None:
            self.storage_options = {"stream": self}

    @property
    def _has_own_way(self) -> bool:
        """Whether a subclass brings shards in its own way."""
        return any(getattr(type(self), name) is not getattr(Stream, name) for name in _WAYS)

    @property
    def remote_folder(self) -> Url | None:
        """The remote URL with the split; for a subclass with its own way one that leads to it."""
        there = super().remote_folder
        if there is None or not self._has_own_way:
            return there
        kind = f"{type(self).__module__}.{type(self).__qualname__}"
        name = f"{kind} {source_name(there)}".encode()
        return Url(f"{SCHEME}://{hashlib.blake2s(name, digest_size=16).hexdigest()}")

    def _find(self) -> Source:
        try:
            return self._checked(super()._find())
        except NotFoundError as error:
            if self.remote_folder is None:
                raise NoIndexError(str(error), url=error.url, verb=error.verb) from error
            raise
        except IndexFileError as error:
            raise BrokenIndexError(str(error)) from error

    def _checked(self, found: Source) -> Source:
        """What is read in place is not fetched, so a digest that it lacks is none to check."""
        asked = found.validate_hash
        if found.remote is not None or not asked:
            return found
        if all(asked in schema.hashes for schema in found.index.schemas):
            return found
        warnings.warn(
            f"validate_hash={asked!r} is left out: {self!r} is read in place and has none.",
            stacklevel=2,
        )
        return dataclasses.replace(found, validate_hash=None)

    # ------------------------------------------------------------------ shards, one by one

    @property
    def _downloader(self) -> CloudDownloader:
        return CloudDownloader.get(self.remote)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_downloader" or name in _WAYS or name in _REFUSED:
            remedy = find_remedy("CloudDownloader" if name == "_downloader" else "Stream", Stream)
            refuse(f"{name} of one Stream", remedy)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in ("proportion", "repeat", "choose"):
            refuse(f"{name} of one Stream", f"Make a Stream without {name}=")
        super().__delattr__(name)

    def _get_temporary_directory(self) -> str:
        return default_folder(self.remote or "")

    def _path(self, basename: str) -> str:
        return RelativeName(basename, repr(self), IndexFileError).under(self.folder)

    def _download_file(self, from_basename: str, to_basename: str | None = None) -> str:
        """Bring a file of the remote to the local folder, with retries; its path there."""
        name = to_basename or from_basename
        # A copy of the index under way has a name that shards may not have.
        path = os.path.join(self.folder, name) if name == f"{_INDEX}.tmp" else self._path(name)
        there = None
        if self.remote is not None:
            there = join(join(self.remote, self.split), from_basename)
        timeout = 60.0 if self.download_timeout is None else self.download_timeout
        again = retry(num_attempts=1 + (2 if self.download_retry is None else self.download_retry))
        again(self._downloader.download)(there, path, timeout)
        return path

    def _decompress_shard_part(
        self, zip_info: FileInfo, zip_filename: str, raw_filename: str, compression: str | None
    ) -> None:
        """Make the raw file of a compressed one. Raises CorruptError (a ValueError)."""
        with open(zip_filename, "rb") as file:
            data = file.read()
        self._check(zip_info, data, zip_filename)
        write_file(raw_filename, decompress(compression, data))

    def _check(self, info: FileInfo, data: bytes, path: str) -> None:
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

    def _prepare_shard_part(
        self, raw_info: FileInfo, zip_info: FileInfo | None = None, compression: str | None = None
    ) -> int:
        """Have one raw file; the bytes by which the folder grew."""
        path = self._path(raw_info.basename)
        if os.path.isfile(path):
            return 0
        if zip_info is None:
            fetched = self._download_file(raw_info.basename)
            if self.validate_hash:
                with open(fetched, "rb") as file:
                    self._check(raw_info, file.read(), fetched)
            return raw_info.bytes
        packed, grown = self._path(zip_info.basename), 0
        if not os.path.isfile(packed):
            packed = self._download_file(zip_info.basename)
            grown += zip_info.bytes
        self._decompress_shard_part(zip_info, packed, path, compression)
        grown += raw_info.bytes
        if not self.safe_keep_zip:
            os.unlink(packed)
            grown -= zip_info.bytes
        return grown

    def prepare_shard(self, shard: Reader) -> int:
        """Have the raw files of a shard; the bytes by which the folder grew."""
        return sum(
            self._prepare_shard_part(raw, packed, shard.compression)
            for raw, packed in shard.file_pairs
        )

    def get_shards(self, world: World, allow_unsafe_types: bool) -> list[Reader]:
        """The shards of the index, which is fetched if need be."""
        del world  # there is nothing to wait for
        path = self._path_of_index()
        with open(path, "rb") as file:
            entries = json.loads(file.read())["shards"]
        shards = [reader_from_json(self.local, self.split, entry) for entry in entries]
        for shard in shards:
            shard.validate(allow_unsafe_types)
        return shards

    def _path_of_index(self) -> str:
        path = os.path.join(self.folder, _INDEX)
        if not os.path.exists(path):
            if self.remote is None:
                raise NoIndexError(f"there is no {path}, and no remote to fetch it from.")
            fetched = self._download_file(_INDEX, f"{_INDEX}.tmp")
            with publish(path) as temporary, open(fetched, "rb") as file:
                write_file(temporary, file.read())
            os.unlink(fetched)
        return path

    def set_up_local(
        self, shards: list[Reader], cache_usage_per_shard: npt.NDArray[np.int64]
    ) -> None:
        """Remove what is half there, and tell the bytes that each shard takes."""
        listing = {
            os.path.join(folder, name)
            for folder, _, names in os.walk(self.folder)
            for name in names
        }
        for at, shard in enumerate(shards):
            cache_usage_per_shard[at] = shard.set_up_local(listing, self.safe_keep_zip)

    def get_index_size(self) -> int:
        """The bytes of the local index."""
        return os.stat(os.path.join(self.folder, _INDEX)).st_size

    @classmethod
    def apply_weights(
        cls,
        streams: Sequence[NativeStream],
        samples_per_stream: npt.NDArray[np.int64],
        choose_per_epoch: int | None,
        seed: int,
    ) -> int:
        """Tell each stream its proportion, repeat and choose; the samples of an epoch."""
        cls.validate_weights(streams)
        shares = [stream._share for stream in streams]  # noqa: SLF001 - a stream's other half
        sizes = [int(size) for size in samples_per_stream]
        found = resolve_weights(sizes, shares, choose_per_epoch, seed)
        for at, stream in enumerate(streams):
            stream.proportion, stream.repeat = found.proportion[at], found.repeat[at]
            stream.choose = found.choose[at]
        return found.epoch_size
