"""The version of every object that a node reads parts of, so that the parts are of one object.

A dataset may be published anew behind a running job. The ranges of a shard then come from two
files, and offsets of one cut samples out of the other without an error. So each answer is compared
with the size that the index tells and with the version (etag, generation, time of change) of the
first answer for that object: of this process, and of all processes that share the cache folder.
They note 32 bits of it in the ledger, which forgets them when a process finds itself alone. An
answer costs a look-up here and one in shared memory, and the first for an object a lock of the
folder. Where a store tells no version, the size alone is compared; where no ledger can be written,
within the process alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from typing import TYPE_CHECKING, NoReturn

from mds.errors import CorruptError, ReplacedError
from mds.process.fork_safe import new_lock

if TYPE_CHECKING:
    from mds.cache.ledger import Ledger
    from mds.index import FileInfo, ShardInfo
    from mds.storage import ObjectInfo

_WAY_OUT = (
    "The dataset was replaced under the run: start again to read what is there now, and publish a "
    "changed dataset under a name of its own. (If a new start says the same, shards and index do "
    "not belong together: upload them again)"
)


@dataclasses.dataclass(slots=True, eq=False)
class ObjectVersions:
    """Versions of the objects below one remote when they were first read. Thread-safe."""

    #: The ledger that all processes of the folder share, once it is open.
    ledger: Ledger | None = None
    _first: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)
    _lock: threading.Lock = dataclasses.field(default_factory=new_lock)

    def agree(
        self,
        shard: ShardInfo,
        file: FileInfo,
        info: ObjectInfo,
        url: str,
        *,
        is_whole: bool = False,
    ) -> None:
        """Raise ReplacedError when an answer is of another object than the index or one before.

        The size of an object that comes ``is_whole`` is judged where its bytes are.
        """
        if not is_whole and info.size not in (-1, file.size):
            raise _replaced(url, f"the index says {file.size} bytes, the store has {info.size} now")
        if not info.version:
            return
        version, key = _number(info.version), _key(shard, file)
        with self._lock:
            first = self._first.setdefault(key, version)
        if first == version and self.ledger is not None:
            first = _first_of_folder(self.ledger, key, version)
        if first != version:
            raise _replaced(
                url,
                f"its version is {info.version!r} now and was another when reading began (if "
                f"the servers behind this address give one object several versions, set the "
                f"storage option compare_versions=False)",
            )

    def record_verified_version(self, shard: ShardInfo, file: FileInfo, info: ObjectInfo) -> None:
        """Record the object version whose bytes matched the digest."""
        if not info.version:
            return
        version, key = _number(info.version), _key(shard, file)
        with self._lock:
            self._first[key] = version
        if self.ledger is not None:
            with self.ledger.change() as entries:
                entries["versions"][key] = version


def raise_replaced(error: CorruptError, url: str) -> NoReturn:
    """Raise ReplacedError for an object that is too short for a range, or that changed."""
    if _WAY_OUT in str(error):
        raise error
    reason = str(error).removeprefix(f"get {url}: ").rstrip(".")
    raise _replaced(url, reason) from error


def _replaced(url: str, reason: str) -> ReplacedError:
    return ReplacedError(f"get {url}: {reason}. {_WAY_OUT}.", url=url, verb="get")


def _first_of_folder(ledger: Ledger, key: tuple[int, int], version: int) -> int:
    """Return the version that a process of the folder saw first, or this one if none did."""
    first = int(ledger.refresh()["versions"][key])
    if not first:
        with ledger.change() as entries:  # looked at once more: another may have been quicker
            first = int(entries["versions"][key])
            if not first:
                entries["versions"][key] = first = version
    return first


def _key(shard: ShardInfo, file: FileInfo) -> tuple[int, int]:
    """Return the position of a file in the ledger: its shard, and 0 for data or 1 for meta."""
    return shard.number, int(file in (shard.raw_meta, shard.zip_meta))


def _number(text: str) -> int:
    """32 bits that stand for a version; never 0."""
    digest = hashlib.blake2s(text.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") or 1
