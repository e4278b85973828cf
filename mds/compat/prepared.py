"""A store of the shards that a user's Stream brings in its own way.

The library's cache asks for the raw files of shards; each is made by the stream's own
``prepare_shard`` in its local folder, and handed on from there.
"""

from __future__ import annotations

import io
import json
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NoReturn

from mds.compat.readers import reader_from_json
from mds.errors import ConfigError, NotFoundError
from mds.process.fork_safe import new_lock
from mds.shardfile.hashing import hexdigest
from mds.storage import Body, ObjectInfo, Store, register_store

SCHEME = "mds-compat"
_INDEX = "index.json"
_RAW = ("raw_data", "raw_meta")
_MOST_OPEN = 8


class PreparedShards(Store):
    """The raw files of a stream's shards, and an index that knows no compressed ones."""

    can_list = False
    can_write = False

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        del timeout  # it is the stream's to wait
        self.url = url
        self._stream = options["stream"]
        self._entries: dict[str, Any] = {}
        self._index = b""
        self._lock = new_lock()
        # Files that were brought last: several ranges of one are brought once.
        self._files: dict[str, _Handle] = {}

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """The file, or a range of it; the stream brings it first."""
        file: Any = io.BytesIO(self._read_index()) if key == _INDEX else self._opened(key)
        info = self._info(key, file.seek(0, os.SEEK_END))
        file.seek(start)
        length = (info.size if end is None else end) - start
        return Body(info, _chunks(file, length), length, url=self.url_of(key), close=file.close)

    def head(self, key: str) -> ObjectInfo:
        """The size that the index tells."""
        data = self._read_index()
        return self._info(key, len(data) if key == _INDEX else self._file(key)["bytes"])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Nothing: the index names what there is."""
        del prefix
        return iter(())

    def delete(self, key: str) -> NoReturn:
        """Refuse."""
        raise ConfigError(f"{self.url_of(key)} cannot be deleted.")

    def _write(self, key: str, file: BinaryIO, size: int) -> NoReturn:
        del file, size
        raise ConfigError(f"{self.url_of(key)} cannot be written.")

    def _info(self, key: str, size: int) -> ObjectInfo:
        return ObjectInfo(key, size, hexdigest("xxh3_64", self._read_index()))

    def _read_index(self) -> bytes:
        """The stream's index without what is compressed, read once."""
        with self._lock:
            if not self._index:
                path = self._stream._download_file(_INDEX, f"{_INDEX}.tmp")  # noqa: SLF001 - its own way
                with open(path, "rb") as file:
                    index = json.loads(file.read())
                os.unlink(path)
                for entry in index["shards"]:
                    names = [entry[kind]["basename"] for kind in _RAW if entry.get(kind)]
                    self._entries.update({name: dict(entry) for name in names})
                    gone = {kind: None for kind in ("zip_data", "zip_meta") if kind in entry}
                    entry.update(gone, compression=None)
                self._index = json.dumps(index).encode()
            return self._index

    def _entry(self, key: str) -> dict[str, Any]:
        self._read_index()
        if key not in self._entries:
            raise NotFoundError(f"the index knows no {key!r}.", url=self.url_of(key), verb="get")
        entry: dict[str, Any] = self._entries[key]
        return entry

    def _file(self, key: str) -> dict[str, Any]:
        entry = self._entry(key)
        return next(entry[kind] for kind in _RAW if entry[kind]["basename"] == key)

    def _opened(self, key: str) -> io.IOBase:
        """The file of that name, brought by the stream; one call of the stream's at a time."""
        entry = self._entry(key)
        with self._lock:
            file = self._files.pop(key, None)
            if file is None:
                file = self._brought(key, entry)
            self._files[key] = file
            while len(self._files) > _MOST_OPEN:
                del self._files[next(iter(self._files))]
            return _View(file)

    def _brought(self, key: str, entry: dict[str, Any]) -> _Handle:
        stream = self._stream
        path = os.path.join(stream.folder, key)
        was_there = os.path.exists(path)
        stream.prepare_shard(reader_from_json(stream.local, stream.split, entry))
        file = _Handle(os.open(path, os.O_RDONLY))
        if not was_there:
            # The cache gives it this name again, with its own account of it.
            os.unlink(path)
        return file


class _Handle:
    """A descriptor that is closed with its last user."""

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, os.close, number)


class _View(io.RawIOBase):
    """A file with a place of its own, of a descriptor that others read from too."""

    def __init__(self, handle: _Handle) -> None:
        super().__init__()
        self._handle, self._at = handle, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, counted from the beginning or from the end."""
        self._at = offset + (os.fstat(self._handle.number).st_size if whence == os.SEEK_END else 0)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The bytes from here on."""
        data = os.pread(self._handle.number, size, self._at)
        self._at += len(data)
        return data


def _chunks(file: Any, length: int) -> Iterator[bytes]:
    while length > 0 and (data := file.read(min(length, 1 << 20))):
        length -= len(data)
        yield data


register_store(SCHEME, PreparedShards)
