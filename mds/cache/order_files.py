"""Orders that take long to compute, computed once on a node and read by all of its processes.

A file in a cache folder holds the sample ids of the canonical nodes that this node reads, as the
narrowest integers that hold them. Its name is a digest of everything that it depends on. It appears
by rename when it is complete, and it is mapped, so a restarted job finds it again. Its content is
checked block by block before it is used, and computed again when it is damaged. One process
computes while it holds a lock that the kernel releases when the process dies; the others wait for
that lock. A thread of one process prepares the next epoch's file during this epoch. Small orders,
and those that are computed at any position, need no file.

Only files with names of our own are removed: those of earlier epochs, and the oldest beyond a few.

The layout of a file:

    ids       integers of one kind, padded with zeros to a multiple of 8 bytes
    digests   xxh3_64 of each 256 KiB of the part before, 8 bytes each, little-endian
    8 bytes   b"mdsorder"
    8 bytes   xxh3_64 of a key and the digests, little-endian

A power cut leaves files of the right size with zeros in them, and a file may have the name of
another. The digests are checked when the file is opened, each block when it is first read: 256 KiB
take 30 us, including the check that the ids are in range. An epoch of 10**9 ids costs a process
half a second, spread over the epoch.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np

from mds.cache.computed_files import ComputedFiles, remove
from mds.errors import CacheError, CorruptError
from mds.plan.stream_orders import SequentialOrder
from mds.process.fork_safe import new_lock
from mds.process.mmaps import map_descriptor
from mds.redaction import get_logger
from mds.shardfile.hashing import digest
from mds.storage.control_files import open_control_file
from mds.storage.files import is_process, temporary_owner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mds.plan.order import Order
    from mds.plan.stream_orders import StreamOrder

    Ids = NDArray[np.int64]

AnyOrder = TypeVar("AnyOrder", bound="Order")

log = get_logger("mds.cache")

BLOCK = 1 << 18  # bytes of a block with a digest
_MAGIC = b"mdsorder"
_DROP_EVERY = 16  # reads after which mapped pages are released; each touches a few megabytes
_FORMAT = 2  # of the files: part of their names
_NAME = re.compile(r"^order-([0-9a-f]{16})-(\d{6,})-[0-9a-f]{32}\.ids$")
_UNFINISHED = re.compile(r"^\.order-")
_MOST = 8  # files of a folder
_LOCK_TIMEOUT_SECONDS = 3600.0  # seconds to wait for another process that computes
_KEEP = 100_000_000  # samples of a node for which the computing process takes 4 or 8 bytes each
_ABANDONED = 600.0  # seconds without a write after which a dead owner's file is given up
_ATTEMPTS = 3  # at a file that is damaged


def share_order(order: AnyOrder, folder: str) -> AnyOrder:
    """Attach files in ``folder`` to the long parts of an order; return the order.

    The folder is made when the first id is asked for. Where it cannot be used, every process
    computes the order for itself, with a warning.
    """
    for long_order in order.long_orders:
        long_order.attach(_Shared(order, long_order, folder))
    return order


def is_prepared(order: Order, folder: str) -> bool:
    """Whether all files that ``order`` reads exist, so that nothing has to be computed."""
    return all(file.is_there for file in _files_of(order, folder))


def prepare(order: Order, folder: str) -> list[str]:
    """Compute the files that ``order`` reads and that do not exist yet; return the paths of all."""
    files = _files_of(order, folder)
    for file in files:
        file.ensure()
    return [file.path for file in files]


def _files_of(order: Order, folder: str) -> list[OrderFile]:
    if not order.long_orders:
        return []
    nodes = order.nodes_read(order.world.node)
    return [OrderFile(long_order, nodes, folder) for long_order in order.long_orders]


class OrderFile:
    """The file of some canonical nodes of an order."""

    def __init__(self, order: StreamOrder, nodes: Ids, folder: str) -> None:
        self._order, self.nodes = order, np.sort(nodes)
        self._files = ComputedFiles(folder, _LOCK_TIMEOUT_SECONDS)
        starts = order.starts()
        lengths = np.diff(starts)[self.nodes]
        self.size = int(lengths.sum()) * order.id_dtype.itemsize
        params = order.params
        data = order.resampling.data_key()
        family = digest(order.name(), params.nodes, params.seed, params.block, data, self.nodes)
        key = digest(_FORMAT, order.key(), self.nodes, order.id_dtype.name)
        name = f"order-{family[:16]}-{params.epoch:06d}-{key}.ids"
        self.path = os.path.join(folder, name)
        self._key = key
        self._lock = int(key[:7], 16)
        # Where each canonical node begins in the file; those that are not in it, nowhere.
        self.places = np.full(params.nodes, -1, np.int64)
        self.places[self.nodes] = np.cumsum(lengths) - lengths

    @property
    def is_there(self) -> bool:
        """Whether the whole file is; what is in it is checked when it is read."""
        try:
            return os.lstat(self.path).st_size == file_size(self.size)
        except FileNotFoundError:
            return False

    def ensure(self) -> None:
        """Compute the file, or wait for the process that does."""
        if self.is_there:
            with contextlib.suppress(PermissionError):  # another user's, in a folder of a group
                os.utime(self.path, follow_symlinks=False)
            return
        with self._files.alone(self._lock, self.path):
            if not self.is_there:
                self.compute()

    def opened(self, damaged: int | None = None) -> CheckedIds:
        """Return the mapped ids of a file, which is computed unless a valid one exists.

        ``damaged`` is the inode of one that is not. Raises OSError or CacheError where the folder
        cannot be used.
        """
        for _ in range(_ATTEMPTS):
            if damaged is None:
                self.ensure()
            else:
                self._replace(damaged)
            with contextlib.suppress(FileNotFoundError):  # else removed just now
                damaged = os.lstat(self.path).st_ino
                try:
                    return CheckedIds(
                        self.path,
                        self._key,
                        self.size,
                        self._order.id_dtype,
                        self._order.resampling.top,
                    )
                except CorruptError as error:
                    log.warning("%s The order is computed anew.", error)
        raise CorruptError(f"{self.path} is damaged again and again.", url=self.path, verb="read")

    def _replace(self, damaged: int) -> None:
        """Compute the file anew, unless another process did since the damaged one was seen."""
        with self._files.alone(self._lock, self.path):
            try:
                is_old = os.lstat(self.path).st_ino == damaged
            except FileNotFoundError:
                is_old = True
            if is_old:
                self.compute()

    def try_ensure(self) -> None:
        """Compute the file unless another process does."""
        with self._files.alone_at_once(self._lock) as is_alone:
            if is_alone and not self.is_there:
                self.compute()

    def compute(self) -> None:
        """Write the file and tidy the folder."""
        order = self._order
        nodes = self.nodes.tolist()
        if isinstance(order, SequentialOrder):
            windows: Iterator[NDArray[Any]] = order.generate(nodes, keep=_KEEP)
        else:
            windows = order.generate(nodes)
        narrow = (np.ascontiguousarray(window, order.id_dtype) for window in windows)
        with self._files.publish(self.path) as file:
            write_ids(file, narrow, self._key)
        self._tidy()

    def _tidy(self) -> None:
        """Remove what is certainly not needed any more, and the oldest of what may be."""
        family, epoch = _family_and_epoch(self.path)
        for path in self._files.paths(_NAME):
            other_family, other_epoch = _family_and_epoch(path)
            if other_family == family and other_epoch < epoch - 2:
                remove(path)
        for path in filter(_is_abandoned, self._files.paths(_UNFINISHED)):
            remove(path)
        self._files.keep_newest(_NAME, _MOST)


class _Shared:
    """Reads an order from its file, which is computed or found when the first id is asked for."""

    def __init__(self, epoch: Order, order: StreamOrder, folder: str) -> None:
        self._epoch, self._order, self._folder = epoch, order, folder
        self._starts = self._order.starts()
        self._mapped: CheckedIds | None = None
        self._damaged: int | None = None  # the inode of a file that was
        self._places = np.zeros(0, np.int64)
        self._is_all = False
        self._otherwise: Any = None

    def __call__(self, positions: Ids) -> Ids:
        """Sample ids at positions."""
        for _ in range(_ATTEMPTS):
            if self._mapped is None and self._otherwise is None:
                self._begin()
            if self._mapped is None:
                break
            places = positions
            if not self._is_all:
                node = np.searchsorted(self._starts, positions, side="right") - 1
                places = self._places[node]
                if len(places) and int(places.min()) < 0:
                    break  # another node's samples, asked for by an audit
                places += positions - self._starts[node]
            try:
                return self._mapped.take(places)
            except CorruptError as error:
                self._damaged, self._mapped = self._mapped.inode, None
                log.warning("%s The order is computed anew.", error)
        return self._compute(positions)

    def _compute(self, positions: Ids) -> Ids:
        if self._otherwise is None:
            self._otherwise = self._order.new_lookup()
        ids: Ids = self._otherwise(positions)
        return ids

    def _begin(self) -> None:
        nodes = self._epoch.nodes_read(self._epoch.world.node)
        file = OrderFile(self._order, nodes, self._folder)
        try:
            self._mapped = file.opened(self._damaged)
        except (OSError, CacheError) as error:
            warnings.warn(
                f"the order of the epoch cannot be kept in {self._folder} ({error}), so every "
                "process computes it for itself. Free some space there, or use another cache "
                "folder.",
                stacklevel=2,
            )
            self._otherwise = self._order.new_lookup()
            return
        self._places = file.places
        self._is_all = len(file.nodes) == len(file.places)
        _ahead.begin(self._epoch, self._folder)


class _Ahead:
    """The thread of this process that prepares the orders of the next epoch."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._owner = 0
        self._started_paths: set[str] = set()
        self._thread: threading.Thread | None = None

    def begin(self, order: Order, folder: str) -> None:
        """Prepare what comes after ``order``, once, unless a thread is at work already."""
        files = _files_of(order.following(), folder)
        with self._lock:
            if self._owner != os.getpid():  # a forked child has none of its parent's threads
                self._owner, self._thread, self._started_paths = os.getpid(), None, set()
            todo = [file for file in files if file.path not in self._started_paths]
            if not todo or (self._thread is not None and self._thread.is_alive()):
                return
            self._started_paths.update(file.path for file in todo)
            # It ends with the process, whatever it is at.
            self._thread = threading.Thread(
                target=_prepare_quietly, args=(todo,), name="mds-next-order", daemon=True
            )
            self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the thread of this process, if there is one."""
        with self._lock:
            thread = self._thread if self._owner == os.getpid() else None
        if thread is not None:
            thread.join(timeout)


_ahead = _Ahead()


def _prepare_quietly(files: list[OrderFile]) -> None:
    if sys.platform == "linux":
        # Samples come first: the thread takes what time is left over.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
    for file in files:
        # An error here is raised again, with a warning, when the epoch begins.
        with contextlib.suppress(OSError, CacheError):
            if not file.is_there:
                file.try_ensure()


def _is_abandoned(path: str) -> bool:
    owner = temporary_owner(path)
    if owner is None or is_process(owner):
        return False
    # In another container the same folder may have owners that are not seen from here.
    with contextlib.suppress(OSError):
        return time.time() - os.stat(path).st_mtime > _ABANDONED
    return False


def _family_and_epoch(path: str) -> tuple[str, int]:
    """Return the key that the epochs of an order share, and the number of the epoch."""
    _, family, epoch, _ = os.path.basename(path).split("-")
    return family, int(epoch)


def file_size(size: int) -> int:
    """Return the size of a file with ``size`` bytes of ids."""
    padded = -(-size // 8) * 8
    return padded + 8 * -(-padded // BLOCK) + 16


def write_ids(file: BinaryIO, windows: Iterable[NDArray[Any]], key: str) -> None:
    """Write ids that come in windows, and their digests behind them."""
    import xxhash

    digests, hasher, size = bytearray(), xxhash.xxh3_64(), 0

    def add(data: memoryview) -> None:
        nonlocal size
        file.write(data)
        while data:
            room = BLOCK - size % BLOCK
            hasher.update(data[:room])
            size += len(data[:room])
            if size % BLOCK == 0:
                digests.extend(hasher.intdigest().to_bytes(8, "little"))
                hasher.reset()
            data = data[room:]

    for window in windows:
        add(window.view(np.uint8).data)
    add(memoryview(bytes(-size % 8)))
    if size % BLOCK:
        digests.extend(hasher.intdigest().to_bytes(8, "little"))
    file.write(digests + _MAGIC + _seal(key, digests).to_bytes(8, "little"))


class CheckedIds:
    """The ids of a file, mapped; pages that were read are given back now and then.

    Every id is at least 0 and less than ``top``. Raises CorruptError where the file is damaged,
    when it is opened or when an id is asked for.
    """

    def __init__(self, path: str, key: str, size: int, kind: np.dtype[Any], top: int) -> None:
        self.path, self._top = path, top
        descriptor = open_control_file(path, os.O_RDONLY)
        try:
            state = os.fstat(descriptor)
            if state.st_size != file_size(size):
                raise self._damage(f"it has {state.st_size} bytes and should have more or fewer")
            self._map = map_descriptor(descriptor, state.st_size)
        finally:
            os.close(descriptor)
        self.inode = state.st_ino
        self._ids = np.frombuffer(self._map, kind, size // kind.itemsize)
        self._data = memoryview(self._map)[: -(-size // 8) * 8]
        digests = memoryview(self._map)[len(self._data) : -16]
        end = self._map[-16:]
        if end != _MAGIC + _seal(key, digests).to_bytes(8, "little"):
            raise self._damage("its digests are not right")
        self._digests = np.frombuffer(digests, "<u8")
        self._is_right = np.zeros(len(self._digests), np.bool_)
        self._reads = 0

    def take(self, places: Ids) -> Ids:
        """Return the integers at ``places``, int64."""
        if len(places):
            self._check(places)
        out = self._ids[places].astype(np.int64)
        self._reads += 1
        if self._reads % _DROP_EVERY == 0 and sys.platform == "linux":
            # They stay in the page cache, and no longer count as this process's memory.
            self._map.madvise(mmap.MADV_DONTNEED)
        return out

    def _check(self, places: Ids) -> None:
        """Check the blocks of places that were not read yet."""
        per_block = BLOCK // self._ids.itemsize
        first, last = int(places.min()) // per_block, int(places.max()) // per_block
        if self._is_right[first : last + 1].all():
            return
        for block in np.unique(places // per_block).tolist():
            if not self._is_right[block]:
                self._check_block(block, per_block)

    def _check_block(self, block: int, per_block: int) -> None:
        import xxhash

        data = self._data[block * BLOCK : (block + 1) * BLOCK]
        if xxhash.xxh3_64_intdigest(data) != int(self._digests[block]):
            raise self._damage(f"the digest of its block {block} is not right")
        ids = self._ids[block * per_block : (block + 1) * per_block]
        if len(ids) and (int(ids.max()) >= self._top or int(ids.min()) < 0):
            raise self._damage(f"its block {block} has ids of samples that there are not")
        self._is_right[block] = True

    def _damage(self, reason: str) -> CorruptError:
        return CorruptError(f"{self.path}: {reason}.", url=self.path, verb="read")


def _seal(key: str, digests: bytearray | memoryview) -> int:
    import xxhash

    return int(xxhash.xxh3_64_intdigest(key.encode() + bytes(digests)))
