"""Orders that take long to compute, computed once on a node and read by all of its processes.

A file in a cache folder holds the sample ids of the canonical nodes that this node reads, as the
narrowest integers that hold them. Its name stands for everything that it depends on, it appears by
rename when it is whole, and it is mapped, so after a restart it is simply there again. One process
computes while it holds a lock that the kernel drops with its owner; the others wait for that lock.
The next epoch's file is prepared by a thread of one process during this epoch. Small orders, and
those that are computed place by place, need no file.

Only files of our own naming are removed: those of earlier epochs, and the oldest beyond a few.
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
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.cache.locks import lock_within, open_locks
from mds.plan.digests import digest
from mds.plan.orders import DrawnOrder
from mds.storage.files import make_folder, publish, temporary_owner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mds.plan import EpochPlan
    from mds.plan.orders import Order

    Ids = NDArray[np.int64]

_FORMAT = 1  # of the files: part of their names
_NAME = re.compile(r"^order-([0-9a-f]{16})-(\d{6,})-[0-9a-f]{32}\.ids$")
_MOST = 8  # files of a folder
_PATIENCE = 3600.0  # seconds to wait for another process that computes
_KEEP = 100_000_000  # samples of a node for which the computing process takes 4 or 8 bytes each
_DROP_EVERY = 16  # reads after which mapped pages are given back; each touches a few megabytes
_ABANDONED = 600.0  # seconds without a write after which a dead owner's file is given up
_write_size = 1 << 22  # bytes


def shared_plan(plan: EpochPlan, folder: str) -> EpochPlan:
    """The plan, with its large orders read from files in ``folder`` when ids are asked for.

    The folder is made when it is missing. Where it cannot be used every process computes the order
    for itself, with a warning.
    """
    for number, order in enumerate(plan.orders):
        if not order.is_light:
            order.attach(_Shared(plan, number, folder))
    return plan


def prepare(plan: EpochPlan, folder: str) -> list[str]:
    """Compute what ``plan`` will read and is not there yet; the paths of all its files."""
    paths = []
    for order in plan.orders:
        if not order.is_light:
            file = OrderFile(order, plan.rows.canonical_of(plan.world.node), folder)
            file.ensure()
            paths.append(file.path)
    return paths


class OrderFile:
    """The file of some canonical nodes of an order."""

    def __init__(self, order: Order, nodes: Ids, folder: str) -> None:
        self._order, self.nodes, self._folder = order, np.sort(nodes), folder
        starts = order.starts()
        lengths = np.diff(starts)[self.nodes]
        self.size = int(lengths.sum()) * order.kind.itemsize
        turn = order.turn
        data = order.chosen.data_key()
        family = digest(order.name(), turn.nodes, turn.seed, turn.block, data, self.nodes)
        key = digest(_FORMAT, order.key(), self.nodes, order.kind.name)
        name = f"order-{family[:16]}-{turn.epoch:06d}-{key}.ids"
        self.path = os.path.join(folder, name)
        self._lock = int(key[:7], 16)
        # Where each canonical node begins in the file; those that are not in it, nowhere.
        self.places = np.full(turn.nodes, -1, np.int64)
        self.places[self.nodes] = np.cumsum(lengths) - lengths

    @property
    def is_there(self) -> bool:
        """Whether the whole file is."""
        try:
            return os.stat(self.path).st_size == self.size
        except FileNotFoundError:
            return False

    def ensure(self) -> None:
        """Compute the file, or wait for the process that does."""
        if self.is_there:
            os.utime(self.path)
            return
        make_folder(self._folder)
        lock = lock_within(os.path.join(self._folder, "lock"), self._lock, _PATIENCE)
        if lock is None:
            raise TimeoutError(f"another process holds the lock of {self.path}")
        try:
            if not self.is_there:
                self.compute()
        finally:
            lock.close()

    def try_ensure(self) -> None:
        """Compute the file unless another process does."""
        make_folder(self._folder)
        lock = open_locks(os.path.join(self._folder, "lock"))
        try:
            if lock.try_lock(self._lock) and not self.is_there:
                self.compute()
        finally:
            lock.close()

    def compute(self) -> None:
        """Write the file and tidy the folder."""
        order = self._order
        nodes = self.nodes.tolist()
        if isinstance(order, DrawnOrder):
            windows: Iterator[NDArray[Any]] = order.produce(nodes, keep=_KEEP)
        else:
            windows = order.produce(nodes)
        with publish(self.path) as temporary, open(temporary, "wb", _write_size) as file:
            file.writelines(window.astype(order.kind, copy=False).data for window in windows)
        self._tidy()

    def open(self) -> Mapped:
        """The ids, mapped."""
        return Mapped(self.path, self.size, self._order.kind)

    def _tidy(self) -> None:
        """Remove what is certainly not needed any more, and the oldest of what may be."""
        mine = _NAME.match(os.path.basename(self.path))
        assert mine is not None
        family, epoch = mine[1], int(mine[2])
        found = []
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            other = _NAME.match(name)
            if other is not None and other[1] == family and int(other[2]) < epoch - 2:
                _remove(path)
            elif other is not None:
                with contextlib.suppress(FileNotFoundError):
                    found.append((os.stat(path).st_mtime_ns, path))
            elif name.startswith(".order-") and _is_abandoned(path):
                _remove(path)
        # A process that still reads a removed file keeps what it has mapped.
        for _, path in sorted(found)[:-_MOST]:
            _remove(path)


class Mapped:
    """Integers in a file, mapped; pages that were read are given back now and then."""

    def __init__(self, path: str, size: int, kind: np.dtype[Any]) -> None:
        with open(path, "rb") as file:
            # An empty file cannot be mapped.
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else None
        self._ids = np.frombuffer(self._map or b"", kind)
        self._reads = 0

    def take(self, places: Ids) -> Ids:
        """The integers at places, int64."""
        out = self._ids[places].astype(np.int64)
        self._reads += 1
        if self._map is not None and self._reads % _DROP_EVERY == 0 and sys.platform == "linux":
            # They stay in the page cache, and no longer count as this process's memory.
            self._map.madvise(mmap.MADV_DONTNEED)
        return out


class _Shared:
    """Reads an order from its file, which is computed or found when the first id is asked for."""

    def __init__(self, plan: EpochPlan, number: int, folder: str) -> None:
        self._plan, self._number, self._folder = plan, number, folder
        self._order = plan.orders[number]
        self._starts = self._order.starts()
        self._mapped: Mapped | None = None
        self._places = np.zeros(0, np.int64)
        self._is_all = False
        self._otherwise: Any = None

    def __call__(self, positions: Ids) -> Ids:
        """Sample ids at positions."""
        if self._mapped is None and self._otherwise is None:
            self._begin()
        if self._mapped is None:
            return self._compute(positions)
        if self._is_all:
            return self._mapped.take(positions)
        node = np.searchsorted(self._starts, positions, side="right") - 1
        places = self._places[node]
        if len(places) and int(places.min()) < 0:
            # Another node's samples, asked for by an audit.
            return self._compute(positions)
        places += positions - self._starts[node]
        return self._mapped.take(places)

    def _compute(self, positions: Ids) -> Ids:
        if self._otherwise is None:
            self._otherwise = self._order.read()
        found: Ids = self._otherwise(positions)
        return found

    def _begin(self) -> None:
        nodes = self._plan.rows.canonical_of(self._plan.world.node)
        file = OrderFile(self._order, nodes, self._folder)
        try:
            file.ensure()
            self._mapped = file.open()
        except OSError as error:
            warnings.warn(
                f"the order of the epoch cannot be kept in {self._folder} ({error}), so every "
                "process computes it for itself. Free some space there, or use another cache "
                "folder.",
                stacklevel=2,
            )
            self._otherwise = self._order.read()
            return
        self._places = file.places
        self._is_all = len(file.nodes) == len(file.places)
        _ahead.begin(self._plan, self._folder)


class _Ahead:
    """The thread of this process that prepares the orders of the next epoch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._done: set[str] = set()
        self._thread: threading.Thread | None = None

    def begin(self, plan: EpochPlan, folder: str) -> None:
        """Prepare what comes after ``plan``, once, unless a thread is at work already."""
        following = plan.following()
        files = [
            OrderFile(order, following.rows.canonical_of(plan.world.node), folder)
            for order in following.orders
            if not order.is_light
        ]
        with self._lock:
            if self._owner != os.getpid():  # a forked child has none of its parent's threads
                self._owner, self._thread, self._done = os.getpid(), None, set()
            todo = [file for file in files if file.path not in self._done]
            if not todo or (self._thread is not None and self._thread.is_alive()):
                return
            self._done.update(file.path for file in todo)
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
        # What fails here fails again, and is told, when the epoch begins.
        with contextlib.suppress(OSError):
            if not file.is_there:
                file.try_ensure()


def _is_abandoned(path: str) -> bool:
    owner = temporary_owner(path)
    if owner is None or owner == os.getpid():
        return False
    try:
        os.kill(owner, 0)
    except ProcessLookupError:
        # In another container the same folder may have owners that are not seen from here.
        with contextlib.suppress(OSError):
            return time.time() - os.stat(path).st_mtime > _ABANDONED
    except OSError:
        return False
    return False


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
