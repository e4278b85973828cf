"""Files that one process of a node computes and all of its processes read.

- `OrderFile`: the sample ids of an order that takes long to compute. Small orders, and those that
  can be computed at any position, need no file.
- `PackFile`: the number of packs in each window of an epoch.

The name of a file is a digest of everything that its content depends on, so a restarted job finds
it again. One process computes it while it holds a lock, and the others wait for that lock; the
kernel releases it when the process dies. The file appears by rename when it is complete. If the
folder cannot be used, every process computes for itself. Only files with such names are deleted:
those of earlier epochs, and the oldest ones beyond a few.

An order file holds the ids of the canonical nodes that this machine reads, as the narrowest
integers that can hold them, and is mapped into memory. During an epoch, a thread of one process
prepares the file of the next one. Layout of an order file:

    ids       integers of one type, padded with zeros to a multiple of 8 bytes
    digests   xxh3_64 of each 256 KiB of the ids, 8 bytes each, little-endian
    8 bytes   b"mdsorder"
    8 bytes   xxh3_64 of the key of the file and of the digests, little-endian

After a power cut, a file may have the right size and contain zeros, and a file may have been
renamed. So the last 8 bytes are checked when the file is opened, and each block when it is first
read: 256 KiB take 30 us, including the check that the ids are in range. An epoch of 10**9 ids
costs a process half a second in total. A damaged file is computed again.
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
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from mds._index.sidecar import pack_sidecar, parse_sidecar
from mds._process.fork_safe import new_lock
from mds._process.mmaps import map_descriptor
from mds._redaction import get_logger
from mds._shardfile.hashing import digest
from mds.errors import CacheError, CorruptError, IndexFileError
from mds.plan._stream_orders import SequentialOrder
from mds.storage._control_files import (
    make_control_folder,
    make_shared_folder,
    mode_of,
    open_control_file,
    publish_control_file,
    read_control_file,
)
from mds.storage._files import despite_deletion, is_process, temporary_owner
from mds.storage._locks import describe_processes, holders_of, lock_within, open_locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from mds.plan import EpochPlan
    from mds.plan._stream_orders import StreamOrder

    Ids = NDArray[np.int64]

log = get_logger("mds.cache")

BLOCK = 1 << 18  # bytes of a block with a digest
_MAGIC = b"mdsorder"
_FORMAT = 2  # version of the layout, part of the names of order files
_ORDER_NAME = re.compile(r"^order-([0-9a-f]{16})-(\d{6,})-[0-9a-f]{32}\.ids$")
_UNFINISHED = re.compile(r"^\.order-")
_MAX_ORDER_FILES = 8  # in a folder
_ORDER_LOCK_SECONDS = 3600.0  # to wait for another process that computes an order
_KEEP = 100_000_000  # samples of a node for which the computing process takes 4 or 8 bytes each
_ABANDONED_SECONDS = (
    600.0  # without a write, after which the unfinished file of a dead process goes
)
_ATTEMPTS = 3  # to read a file that is damaged
_DROP_EVERY = 16  # reads after which mapped pages are released; each touches a few megabytes

_PACKS = "packs"
_PACKS_NAME = re.compile(r"^packs-[0-9a-f]{32}\.bin$")
_MAX_PACK_FILES = 16  # in a folder
_PACKS_LOCK_SECONDS = 300.0  # to wait for another process that counts packs


def share_order(order: EpochPlan, folder: str) -> EpochPlan:
    """Attach files in ``folder`` to the long parts of an order; return the order.

    A long part is the order of a stream that takes long to compute (`EpochPlan.long_orders`). Its
    ids are then read from a file that one process computes for all. The folder is created when the
    first id is read. If it cannot be used, every process computes the order for itself, with a
    warning.
    """
    for long_order in order.long_orders:
        long_order.attach(_SharedLookup(order, long_order, folder))
    return order


def is_prepared(order: EpochPlan, folder: str) -> bool:
    """Whether all files that ``order`` reads exist, so that nothing has to be computed."""
    return all(file.is_there for file in _files_of(order, folder))


def prepare(order: EpochPlan, folder: str) -> list[str]:
    """Compute the files that ``order`` reads and that do not exist yet; return the paths of all."""
    files = _files_of(order, folder)
    for file in files:
        file.ensure()
    return [file.path for file in files]


def _files_of(order: EpochPlan, folder: str) -> list[OrderFile]:
    """Return the files of an order, one for each long part (`share_order`).

    They have the ids of the canonical nodes that this machine reads.
    """
    if not order.long_orders:
        return []
    nodes = order.nodes_read(order.world.node)
    return [OrderFile(long_order, nodes, folder) for long_order in order.long_orders]


class OrderFile:
    """File with the ids of some canonical nodes of an order, one node after the other.

    A canonical node is a share of the data that stays together; its ids are a stretch of the order.

    Args:
        order: The order of one stream.
        nodes: Numbers of the canonical nodes, shape (n,).
        folder: Folder of the file.
    """

    def __init__(self, order: StreamOrder, nodes: Ids, folder: str) -> None:
        self._order, self.nodes = order, np.sort(nodes)
        self._files = ComputedFiles(folder, _ORDER_LOCK_SECONDS)
        starts = order.starts()
        lengths = np.diff(starts)[self.nodes]  # number of ids of each node
        self.size = int(lengths.sum()) * order.id_dtype.itemsize  # bytes of the ids
        # Name of the file: order-FAMILY-EPOCH-KEY.ids. The family is the same in all epochs, so
        # files of earlier epochs are found by it. The key is a digest of everything that the ids
        # depend on.
        params = order.params
        data = order.resampling.data_key()
        family = digest(order.name(), params.nodes, params.seed, params.block, data, self.nodes)
        key = digest(_FORMAT, order.key(), self.nodes, order.id_dtype.name)
        name = f"order-{family[:16]}-{params.epoch:06d}-{key}.ids"
        self.path = os.path.join(folder, name)
        self._key = key
        self._lock = int(key[:7], 16)  # byte of the lock file: another one for each file
        #: Index in the file of each canonical node's first id, or -1 if it is not in the file.
        self.places = np.full(params.nodes, -1, np.int64)
        self.places[self.nodes] = np.cumsum(lengths) - lengths  # lengths 5, 3, 4: 0, 5, 8

    @property
    def is_there(self) -> bool:
        """Whether a file of the right size exists; its content is checked when it is read."""
        try:
            return os.lstat(self.path).st_size == file_size(self.size)
        except FileNotFoundError:
            return False

    def ensure(self) -> None:
        """Compute the file if there is none, or wait for the process that is computing it."""
        if self.is_there:
            # Mark it as used, since the oldest files are deleted. It may be of another user.
            with contextlib.suppress(PermissionError):
                os.utime(self.path, follow_symlinks=False)
            return
        with self._files.alone(self._lock, self.path):
            if not self.is_there:
                self.compute()

    def opened(self, damaged: int | None = None) -> CheckedIds:
        """Return the ids of the file, which is computed if there is no valid one.

        Args:
            damaged: Inode of a file that was found to be damaged, and is replaced; None (default):
                none was.

        Raises:
            OSError, CacheError: The folder cannot be used.
        """
        for _ in range(_ATTEMPTS):
            if damaged is None:
                self.ensure()
            else:
                self._replace(damaged)
            with contextlib.suppress(FileNotFoundError):  # if the file was deleted just now
                # If opening it fails, the next attempt replaces the file with this inode.
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
                    log.warning("%s mds computes the order again.", error)
        raise CorruptError(
            f"{self.path} was written again and is damaged again. Check the disk, or use another "
            "cache folder.",
            url=self.path,
            verb="read",
        )

    def _replace(self, damaged: int) -> None:
        """Compute the file again, unless another process has replaced the damaged one.

        ``damaged`` is the inode of the damaged file.
        """
        with self._files.alone(self._lock, self.path):
            try:
                is_old = os.lstat(self.path).st_ino == damaged
            except FileNotFoundError:
                is_old = True
            if is_old:
                self.compute()

    def try_ensure(self) -> None:
        """Compute the file, unless another process is computing it."""
        with self._files.alone_at_once(self._lock) as is_alone:
            if is_alone and not self.is_there:
                self.compute()

    def compute(self) -> None:
        """Compute and write the file, and delete files that are not needed any more.

        The caller holds the lock of the file.
        """
        order = self._order
        nodes = self.nodes.tolist()
        if isinstance(order, SequentialOrder):
            # Such an order is generated from the front. It is faster if all samples of a node may
            # be kept in memory; only this process needs that memory.
            windows: Iterator[NDArray[Any]] = order.generate(nodes, keep=_KEEP)
        else:
            windows = order.generate(nodes)
        # As the narrowest integers that hold all ids.
        narrow = (np.ascontiguousarray(window, order.id_dtype) for window in windows)
        with self._files.publish(self.path) as file:
            write_ids(file, narrow, self._key)
        self._delete_old_files()

    def _delete_old_files(self) -> None:
        """Delete files of this order that are more than two epochs old, and the oldest of all.

        Also unfinished files of processes that have died.
        """
        family, epoch = _family_and_epoch(self.path)
        for path in self._files.paths(_ORDER_NAME):
            other_family, other_epoch = _family_and_epoch(path)
            if other_family == family and other_epoch < epoch - 2:
                _delete(path)
        for path in filter(_is_abandoned, self._files.paths(_UNFINISHED)):
            _delete(path)
        self._files.keep_newest(_ORDER_NAME, _MAX_ORDER_FILES)


class _SharedLookup:
    """Function from positions in an order to sample ids, which reads an order file.

    The file is found or computed at the first call. It has the ids of the canonical nodes that this
    machine reads, one node after the other, so a position in the order is converted to an index in
    the file. For example, nodes of 100 ids each, of which the file has nodes 1 and 3:

        position in the order      100 ... 199   300 ... 399
        index in the file            0 ...  99   100 ... 199

    Args:
        epoch: The order of the epoch.
        order: The long part of it that is in the file.
        folder: Folder of the file.
    """

    def __init__(self, epoch: EpochPlan, order: StreamOrder, folder: str) -> None:
        self._epoch, self._order, self._folder = epoch, order, folder
        self._starts = self._order.starts()  # position of each canonical node's first id
        self._mapped: CheckedIds | None = None  # the file, once it is open
        self._damaged: int | None = None  # inode of a damaged file
        self._places = np.zeros(0, np.int64)  # index in the file of each node's first id, or -1
        self._has_all_nodes = False  # whether index and position are equal
        self._local_lookup: Any = None  # computes the ids in this process, without the file

    def __call__(self, positions: Ids) -> Ids:
        """Return the sample ids at some positions of the order, both (n,)."""
        for _ in range(_ATTEMPTS):
            if self._mapped is None and self._local_lookup is None:
                self._begin()
            if self._mapped is None:
                break
            places = positions  # indices in the file
            if not self._has_all_nodes:
                node = np.searchsorted(self._starts, positions, side="right") - 1
                places = self._places[node]  # of the node's first id; -1: it is not in the file
                if len(places) and int(places.min()) < 0:
                    break  # other machines read these; an audit asks for all, and computes them
                places += positions - self._starts[node]
            try:
                return self._mapped.take(places)
            except CorruptError as error:  # the next attempt replaces the file
                self._damaged, self._mapped = self._mapped.inode, None
                log.warning("%s mds computes the order again.", error)
        return self._compute(positions)

    def _compute(self, positions: Ids) -> Ids:
        """Compute the sample ids at some positions of the order, both (n,), without the file."""
        if self._local_lookup is None:
            self._local_lookup = self._order.new_lookup()
        ids: Ids = self._local_lookup(positions)
        return ids

    def _begin(self) -> None:
        """Open the file and start to compute the file of the next epoch in a thread.

        If the file cannot be used, warn; then this process computes the ids for itself.
        """
        nodes = self._epoch.nodes_read(self._epoch.world.node)
        file = OrderFile(self._order, nodes, self._folder)
        try:
            self._mapped = file.opened(self._damaged)
        except (OSError, CacheError) as error:
            warnings.warn(
                f"the order of the epoch cannot be stored in {self._folder} ({error}), so every "
                "process computes it separately. Free some space there, or use another cache "
                "folder.",
                stacklevel=2,
            )
            self._local_lookup = self._order.new_lookup()
            return
        self._places = file.places
        self._has_all_nodes = len(file.nodes) == len(file.places)
        _ahead.begin(self._epoch, self._folder)


class _Ahead:
    """The thread of this process that computes the order files of the next epoch ahead of time."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._owner = 0  # id of the process that has the thread; 0: none yet
        self._started_paths: set[str] = set()  # files whose computation was started in it
        self._thread: threading.Thread | None = None

    def begin(self, order: EpochPlan, folder: str) -> None:
        """Start to compute the files of the epoch after ``order``, unless the thread is busy.

        Files for which this process has started once are not computed again.
        """
        files = _files_of(order.following(), folder)
        with self._lock:
            if self._owner != os.getpid():  # a forked child has none of its parent's threads
                self._owner, self._thread, self._started_paths = os.getpid(), None, set()
            todo = [file for file in files if file.path not in self._started_paths]
            if not todo or (self._thread is not None and self._thread.is_alive()):
                return
            self._started_paths.update(file.path for file in todo)
            # A daemon: it does not keep the process from exiting.
            self._thread = threading.Thread(
                target=_prepare_quietly, args=(todo,), name="mds-next-order", daemon=True
            )
            self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the thread of this process, at most ``timeout`` seconds."""
        with self._lock:
            thread = self._thread if self._owner == os.getpid() else None
        if thread is not None:
            thread.join(timeout)


_ahead = _Ahead()


def _prepare_quietly(files: list[OrderFile]) -> None:
    """Compute files at a low priority; ignore errors, which occur again when the epoch begins."""
    if sys.platform == "linux":
        # The threads that read samples have priority.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
    for file in files:
        with contextlib.suppress(OSError, CacheError):
            if not file.is_there:
                file.try_ensure()


def _is_abandoned(path: str) -> bool:
    """Whether the process that was writing a file has died."""
    owner = temporary_owner(path)
    if owner is None or is_process(owner):
        return False
    # The process may be in another container, where it is not visible.
    with contextlib.suppress(OSError):
        return time.time() - os.stat(path).st_mtime > _ABANDONED_SECONDS
    return False


def _family_and_epoch(path: str) -> tuple[str, int]:
    """Return, from the name of an order file, the family of its order and the number of the epoch.

    The family is the same for all epochs of one order.
    """
    _, family, epoch, _ = os.path.basename(path).split("-")
    return family, int(epoch)


def file_size(size: int) -> int:
    """Return the bytes of an order file with ``size`` bytes of ids."""
    padded = -(-size // 8) * 8  # rounded up to a multiple of 8
    blocks = -(-padded // BLOCK)  # rounded up
    return padded + 8 * blocks + 16  # ids, their digests, 8 bytes of magic and 8 of end digest


def write_ids(file: BinaryIO, windows: Iterable[NDArray[Any]], key: str) -> None:
    """Write an order file: ids in windows, and their digests.

    Args:
        file: File to write to.
        windows: Arrays of ids, each (n,).
        key: Key of the order, 32 hexadecimal digits.
    """
    import xxhash

    digests, hasher = bytearray(), xxhash.xxh3_64()  # of the full blocks, and of the present one
    size = 0  # bytes written so far

    def add(data: memoryview) -> None:
        """Write bytes of the ids, and add a digest whenever a block is full."""
        nonlocal size
        file.write(data)
        while data:
            room = BLOCK - size % BLOCK  # bytes until the block is full
            hasher.update(data[:room])
            size += len(data[:room])
            if size % BLOCK == 0:
                digests.extend(hasher.intdigest().to_bytes(8, "little"))
                hasher.reset()
            data = data[room:]

    for window in windows:
        add(window.view(np.uint8).data)
    add(memoryview(bytes(-size % 8)))  # zeros up to a multiple of 8 bytes
    if size % BLOCK:  # the last block is not full
        digests.extend(hasher.intdigest().to_bytes(8, "little"))
    file.write(digests + _MAGIC + _end_digest(key, digests).to_bytes(8, "little"))


class CheckedIds:
    """The ids of an order file, mapped into memory and checked block by block.

    Raises CorruptError if the file is damaged, when it is opened or when a block is read.

    Args:
        path: Path of the file.
        key: Key of the order, 32 hexadecimal digits.
        size: Bytes of the ids.
        kind: Integer type of the ids.
        top: Every id is at least 0 and less than ``top``.
    """

    def __init__(self, path: str, key: str, size: int, kind: np.dtype[Any], top: int) -> None:
        self.path, self._top = path, top
        descriptor = open_control_file(path, os.O_RDONLY)
        try:
            state = os.fstat(descriptor)
            if state.st_size != file_size(size):
                raise self._damage(f"it has {state.st_size} bytes instead of {file_size(size)}")
            self._map = map_descriptor(descriptor, state.st_size)
        finally:
            os.close(descriptor)
        self.inode = state.st_ino
        # Three parts of the file: the padded ids, the digests of the blocks, and the end.
        self._ids = np.frombuffer(self._map, kind, size // kind.itemsize)
        self._data = memoryview(self._map)[: -(-size // 8) * 8]
        digests = memoryview(self._map)[len(self._data) : -16]
        end = self._map[-16:]
        if end != _MAGIC + _end_digest(key, digests).to_bytes(8, "little"):
            raise self._damage("the digest at its end is wrong")
        self._digests = np.frombuffer(digests, "<u8")
        self._is_checked = np.zeros(len(self._digests), np.bool_)
        self._reads = 0

    def take(self, places: Ids) -> Ids:
        """Return the ids at the indices ``places`` in the file, both int64, (n,).

        Raises CorruptError if a block of them is damaged.
        """
        if len(places):
            self._check(places)
        out = self._ids[places].astype(np.int64)
        self._reads += 1
        if self._reads % _DROP_EVERY == 0 and sys.platform == "linux":
            # The pages stay in the page cache, but do not count as memory of this process.
            self._map.madvise(mmap.MADV_DONTNEED)
        return out

    def _check(self, places: Ids) -> None:
        """Check the blocks of some indices that have not been checked yet."""
        per_block = BLOCK // self._ids.itemsize  # ids
        # Usually all indices are close together, in blocks that have been checked.
        first, last = int(places.min()) // per_block, int(places.max()) // per_block
        if self._is_checked[first : last + 1].all():
            return
        for block in np.unique(places // per_block).tolist():
            if not self._is_checked[block]:
                self._check_block(block, per_block)

    def _check_block(self, block: int, per_block: int) -> None:
        """Raise CorruptError if the digest or an id of a block of ``per_block`` ids is wrong."""
        import xxhash

        data = self._data[block * BLOCK : (block + 1) * BLOCK]
        if xxhash.xxh3_64_intdigest(data) != int(self._digests[block]):
            raise self._damage(f"the digest of its block {block} is wrong")
        ids = self._ids[block * per_block : (block + 1) * per_block]
        if len(ids) and (int(ids.max()) >= self._top or int(ids.min()) < 0):
            raise self._damage(f"its block {block} has ids of samples that do not exist")
        self._is_checked[block] = True

    def _damage(self, reason: str) -> CorruptError:
        return CorruptError(f"{self.path}: {reason}.", url=self.path, verb="read")


def _end_digest(key: str, digests: bytearray | memoryview) -> int:
    """Return the digest at the end of an order file, of its key and its block digests."""
    import xxhash

    return int(xxhash.xxh3_64_intdigest(key.encode() + bytes(digests)))


# ---------------------------------------------------------------------- numbers of packs


class PackFile:
    """File with the number of packs in each window of an epoch.

    A pack is several documents that fill one row of a batch. Documents are packed a window of some
    thousands at a time (`mds.plan._pack_filling`). The numbers tell where the packs of each window
    are in the epoch, and counting them needs the lengths of all documents.

    Args:
        key: Digest of everything that the packs depend on, 32 hexadecimal digits.
        windows: Number of windows of each canonical node, shape (nodes,).
        folder: Folder of the file.
    """

    def __init__(self, key: str, windows: Ids, folder: str) -> None:
        self._key, self._windows = key, windows
        self._files = ComputedFiles(folder, _PACKS_LOCK_SECONDS)
        self.path = os.path.join(folder, f"packs-{key}.bin")

    def read(self) -> list[Ids] | None:
        """Return the number of packs in each window, an array for each canonical node.

        None if there is no valid file.
        """
        window_count = int(self._windows.sum())
        try:  # 4 bytes for each window, and a header
            content = read_control_file(self.path, 4 * window_count + 2048)
            sidecar = parse_sidecar(content, self.path, _PACKS, self._key)
        except (OSError, CacheError, IndexFileError):
            return None
        if len(sidecar.payload) != 4 * window_count:
            return None
        counts = np.frombuffer(sidecar.payload, "<u4").astype(np.int64)
        return np.split(counts, np.cumsum(self._windows)[:-1])

    def ensure(self, count: Callable[[], list[Ids]]) -> list[Ids]:
        """Return the number of packs in each window, an array for each canonical node.

        Without a valid file, call ``count`` for the numbers and store them. Other processes wait
        meanwhile. If the folder cannot be used, each process counts for itself.
        """
        counts = self.read()
        if counts is not None:
            return counts
        with (
            contextlib.suppress(OSError, CacheError),
            # The lock of the file is the byte whose number is the first 28 bits of its key.
            self._files.alone(int(self._key[:7], 16), self.path),
        ):
            counts = self.read()  # another process may have written the file meanwhile
            if counts is None:
                counts = count()
                self._write(counts)
        return counts if counts is not None else count()

    def _write(self, counts: list[Ids]) -> None:
        """Write the file, with 4 bytes for each window, and delete the oldest files."""
        # The empty array: there may be no counts to concatenate.
        payload = np.concatenate([np.zeros(0, np.int64), *counts]).astype("<u4").tobytes()
        with self._files.publish(self.path) as file:
            file.write(pack_sidecar(_PACKS, 1, self._key, payload))
        self._files.keep_newest(_PACKS_NAME, _MAX_PACK_FILES)


# ---------------------------------------------------------------------- folder and locks


class ComputedFiles:
    """Computed files in a folder, and the locks under which they are computed.

    Args:
        folder: The folder, created when it is first needed.
        lock_seconds: Seconds to wait for another process that computes a file.
    """

    def __init__(self, folder: str, lock_seconds: float) -> None:
        self.folder = folder
        self._lock_seconds = lock_seconds
        self._lock_path = os.path.join(folder, "lock")

    @contextlib.contextmanager
    def alone(self, offset: int, path: str) -> Iterator[None]:
        """Hold the lock at byte ``offset``, under which one process computes the file ``path``.

        Raises TimeoutError if another process holds the lock too long, and OSError or CacheError
        if the folder cannot be used.
        """
        self._make_folder()
        mode = mode_of(self.folder)
        lock = lock_within(self._lock_path, offset, self._lock_seconds, mode, past_stopped=True)
        if lock is None:
            owners = describe_processes(holders_of(self._lock_path, offset))
            raise TimeoutError(f"another process holds the lock of {path}: {owners}")
        try:
            yield
        finally:
            lock.close()

    @contextlib.contextmanager
    def alone_at_once(self, offset: int) -> Iterator[bool]:
        """Hold the lock at byte ``offset`` during the block if it is free; yield whether it was."""
        self._make_folder()
        lock = open_locks(self._lock_path, mode_of(self.folder))
        try:
            yield lock.try_lock(offset)
        finally:
            lock.close()

    def publish(self, path: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Return a context manager of a new file, which appears at ``path`` when the block ends.

        The users of the folder can read it.
        """
        return publish_control_file(path, mode_of(self.folder))

    def keep_newest(self, name: re.Pattern[str], max_files: int) -> None:
        """Delete the oldest files with names that match ``name``, beyond ``max_files``."""
        ages = []
        for path in self.paths(name):
            with contextlib.suppress(OSError):
                ages.append((os.stat(path).st_mtime_ns, path))
        # A process that reads a deleted file keeps its map.
        for _, path in sorted(ages)[:-max_files]:
            _delete(path)

    def paths(self, name: re.Pattern[str]) -> list[str]:
        """Return the paths of the files with names that match ``name``."""
        return [
            os.path.join(self.folder, each) for each in os.listdir(self.folder) if name.match(each)
        ]

    def _make_folder(self) -> None:
        """Create the folder, so that other users of the folder above can use it.

        It is created again if another process deletes the folder above meanwhile.
        """

        def make() -> None:
            make_shared_folder(os.path.dirname(self.folder))
            make_control_folder(self.folder)

        despite_deletion(make)


def _delete(path: str) -> None:
    """Delete a file if that is possible."""
    with contextlib.suppress(OSError):
        os.unlink(path)
