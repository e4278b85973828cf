"""Memory maps of files that keep no descriptor open, and a bound on their number.

Before Python 3.13, `mmap.mmap` duplicates the descriptor of the file and keeps it as long as the
map, so 1,000 mapped shards reach the usual limit of 1,024 open files. Here anonymous memory is
mapped first, and the file is mapped over it:

    view = mmap.mmap(-1, size)                           anonymous memory, no descriptor
    mmap(address of view, size, ..., MAP_FIXED, file)    C library: replaces it by the file

The result is an ordinary ``mmap.mmap``: slices are bytes, views of it keep it alive, and the last
of them removes the map. That costs 5 us more than ``mmap.mmap`` for each file.

The system limits the number of maps too (``vm.max_map_count``, 65,530 by default), so every map is
counted while it lives. Objects that keep idle maps for later use register with `make_room`. When
there are too many maps, each of them drops its oldest idle map in turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mds._process.fork_safe import call_in_child, new_lock
from mds._words import plural
from mds.errors import StoreError

MAX_MAPS = 16_384  # of a process, where the system allows four times as many
UNCOUNTED_MAPS = 512  # up to this number the limits of the system are not read
MIN_MAPS = 32  # `max_maps` is never lower
DEFAULT_MAX_MAP_COUNT = 65_530
VARIABLE = "MDS_MAX_MAPS"
_MAP_FIXED = 0x10  # on Linux, macOS and the BSDs alike

_live: set[weakref.ref[mmap.mmap]] = set()


def map_descriptor(
    descriptor: int, size: int, *, start: int = 0, is_shared: bool = False
) -> mmap.mmap:
    """Map a part of an open file, which may be closed afterwards.

    Args:
        descriptor: Descriptor of the file.
        size: Number of bytes, at least 1.
        start: Offset of the first byte, a multiple of the page size (default 0).
        is_shared: Whether the map is writable, and every process sees changes (default False:
            read-only).

    Raises:
        OSError: The system refuses the map.
        ValueError: The file is shorter; reading beyond its end would kill the process.
    """
    if not 0 < size <= os.fstat(descriptor).st_size - start:
        raise ValueError(f"{size} bytes cannot be mapped: the file is smaller")
    system_mmap = _system_mmap()
    if system_mmap is None:
        access = mmap.ACCESS_WRITE if is_shared else mmap.ACCESS_READ
        view = mmap.mmap(descriptor, size, access=access, offset=start)
    else:
        view = _lay_over(system_mmap, descriptor, size, start, is_shared=is_shared)
    _live.add(weakref.ref(view, _live.discard))  # counted until it is collected
    return view


def _lay_over(
    system_mmap: Any, descriptor: int, size: int, start: int, *, is_shared: bool
) -> mmap.mmap:
    """Map anonymous memory, and map the file over it with the C library's ``system_mmap``.

    So the ``mmap.mmap`` object keeps no descriptor. The other arguments are as in `map_descriptor`.
    """
    kind = mmap.MAP_SHARED if is_shared else mmap.MAP_PRIVATE
    access = mmap.PROT_READ | (mmap.PROT_WRITE if is_shared else 0)
    view = mmap.mmap(-1, size, flags=kind | mmap.MAP_ANONYMOUS, prot=access)
    address = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    if system_mmap(address, size, access, kind | _MAP_FIXED, descriptor, start) != address:
        code = ctypes.get_errno()
        # A failed call may have unmapped the memory, and another thread may have mapped it again.
        # Leak our map: closing it would unmap the memory of the other thread.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(view))
        raise OSError(code, os.strerror(code))
    return view


@functools.cache
def _system_mmap() -> Callable[..., int] | None:
    """Return the ``mmap`` function of the C library, or None on a system without it."""
    if sys.platform == "win32" or not hasattr(mmap, "MAP_ANONYMOUS"):
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).mmap
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    number = ctypes.c_int
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long]
    return function


def count_maps() -> int:
    """Return the number of maps that `map_descriptor` has made and that are alive."""
    return len(_live)


class Keeper(Protocol):
    """Owner of maps that stay open while they are idle."""

    def drop_idle(self) -> bool:
        """Drop the map that has been idle longest; return False if none is idle."""


_keepers: weakref.WeakValueDictionary[int, Keeper] = weakref.WeakValueDictionary()
_lock = new_lock()
# A keeper that is used in a forked child registers again at its next `make_room`.
call_in_child(_keepers.clear)


def make_room(keeper: Keeper) -> None:
    """Register an owner of maps, and drop idle maps of all owners while there are too many."""
    if not _is_over():
        if id(keeper) not in _keepers:  # without the lock, since this is the usual case
            with _lock:
                _keepers[id(keeper)] = keeper
        return
    with _lock:
        _keepers[id(keeper)] = keeper
        keepers = list(_keepers.values())
    # In every round each owner drops one map, until no owner has an idle one.
    while _is_over() and sum(each.drop_idle() for each in keepers):
        continue


def _is_over() -> bool:
    """Whether the process has more maps than `max_maps`, which is computed only if needed."""
    count = len(_live)
    return (count > UNCOUNTED_MAPS or VARIABLE in os.environ) and count > max_maps()


@functools.cache
def max_maps() -> int:
    """Return the most maps that `map_descriptor` should make in this process.

    That is half of what the system allows, and at most `MAX_MAPS`. The environment variable
    MDS_MAX_MAPS, if it is a number, replaces it. Maps of other code are counted only if the system
    allows fewer than three times `MAX_MAPS`, since counting takes 0.5 ms.
    """
    variable = os.environ.get(VARIABLE, "")
    if variable.isascii() and variable.isdigit():
        return max(MIN_MAPS, int(variable))
    if variable:
        message = f"{VARIABLE}={variable!r} is not used. Set it to a number of files, such as 4096."
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    allowed, other_maps = DEFAULT_MAX_MAP_COUNT, 0
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
            allowed = int(file.read())
        if allowed < 3 * MAX_MAPS:
            with open("/proc/self/maps", "rb") as file:
                other_maps = sum(1 for _ in file) - len(_live)
    room = (allowed - other_maps) // 2
    if _system_mmap() is None:  # then every map keeps a descriptor
        room = min(room, _max_descriptors() // 2)
    return max(MIN_MAPS, min(MAX_MAPS, room))


def explain_limit(error: OSError, place: str) -> OSError:
    """Return an error with the limit and a remedy for "too many open files", else ``error``.

    ``place`` is the file that could not be opened.
    """
    if error.errno != errno.EMFILE:
        return error
    return StoreError(
        f"open {place}: this process has {plural(_max_descriptors(), 'file')} open, which is its "
        "limit. "
        "Raise the limit before it starts (ulimit -n 65536), or keep fewer datasets and loaders.",
        url=place,
        verb="open",
    )


def _max_descriptors() -> int:
    """Return the most files that this process may have open."""
    try:
        import resource
    except ImportError:  # on Windows, where the limit is not known
        return 2 * MAX_MAPS
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


# ------------------------------------------------------------------ files in memory


def open_nameless(name: str) -> int:
    """Return the descriptor of a new, empty file that is in no folder.

    ``name`` is shown by /proc. Raises OSError if the system cannot create one.
    """
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            return os.memfd_create(name)
    import tempfile

    try:
        with tempfile.TemporaryFile() as file:  # its name is deleted already
            return os.dup(file.fileno())  # it lives until the copied descriptor is closed
    except OSError as error:
        raise explain_limit(error, name) from error
