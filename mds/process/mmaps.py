"""Memory maps of files that keep no descriptor, and how many a process may have.

CPython before 3.13 duplicates the descriptor of a file that it maps and keeps it as long as the
map, so a dataset of 1,000 shards ends at the usual limit of 1,024 open files. Here a map of
nameless memory is made, and the file is laid over it: ``mmap`` with MAP_FIXED, through ctypes. What
comes out is an ordinary ``mmap.mmap``: slices are bytes, views of it keep it alive, and the last of
them ends the map. That costs 5 us a file more than ``mmap.mmap`` does.

The system bounds maps too (``vm.max_map_count``, 65,530 by default), so every map is counted while
it lives. What keeps maps for later calls ``make_room``, and then all keepers of the process drop
idle ones, one each in turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mds.process.fork_safe import call_in_child, new_lock

MAX_MAPS = 16_384  # of a process, where the system allows four times as many
UNCOUNTED_MAPS = 512  # so few need no look at the limits of the system
MIN_MAPS = 32
DEFAULT_MAX_MAP_COUNT = 65_530
VARIABLE = "MDS_MAX_MAPS"
_MAP_FIXED = 0x10  # on Linux, macOS and the BSDs alike

_live: set[weakref.ref[mmap.mmap]] = set()


def map_descriptor(
    descriptor: int, size: int, *, start: int = 0, is_shared: bool = False
) -> mmap.mmap:
    """``size`` bytes (one or more) of an open file, which may be closed afterwards.

    They begin at ``start``, a multiple of the size of a page. They are read-only, or with
    ``is_shared`` writable, and every process sees what is written. Raises OSError when the system
    refuses, and ValueError for a file that is shorter: reading beyond its end would end the
    process.
    """
    if not 0 < size <= os.fstat(descriptor).st_size - start:
        raise ValueError(f"{size} bytes are to be mapped of a file that does not have as many")
    system_mmap = _system_mmap()
    if system_mmap is None:
        access = mmap.ACCESS_WRITE if is_shared else mmap.ACCESS_READ
        view = mmap.mmap(descriptor, size, access=access, offset=start)
    else:
        view = _lay_over(system_mmap, descriptor, size, start, is_shared=is_shared)
    _live.add(weakref.ref(view, _live.discard))
    return view


def _lay_over(
    system_mmap: Any, descriptor: int, size: int, start: int, *, is_shared: bool
) -> mmap.mmap:
    kind = mmap.MAP_SHARED if is_shared else mmap.MAP_PRIVATE
    access = mmap.PROT_READ | (mmap.PROT_WRITE if is_shared else 0)
    view = mmap.mmap(-1, size, flags=kind | mmap.MAP_ANONYMOUS, prot=access)
    address = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    if system_mmap(address, size, access, kind | _MAP_FIXED, descriptor, start) != address:
        code = ctypes.get_errno()
        # A refused call may have released the memory, and another thread may have it by now. The
        # map is never closed, since that would unmap the other thread's memory.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(view))
        raise OSError(code, os.strerror(code))
    return view


@functools.cache
def _system_mmap() -> Callable[..., int] | None:
    """Return the C library's ``mmap``; None on a system without it."""
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
    """Return the number of maps of this kind in the process."""
    return len(_live)


class Keeper(Protocol):
    """Owner of maps that stay open while they are not in use."""

    def drop_idle(self) -> bool:
        """Drop the one that was not used for longest; False when there is none."""


_keepers: weakref.WeakValueDictionary[int, Keeper] = weakref.WeakValueDictionary()
_lock = new_lock()
# A child does not use the parent's keepers; one that continues in the child calls make_room there.
call_in_child(_keepers.clear)


def make_room(keeper: Keeper) -> None:
    """Close idle maps until the limit holds; ``keeper`` owns one of them."""
    if not _is_over():
        if id(keeper) not in _keepers:
            with _lock:
                _keepers[id(keeper)] = keeper
        return
    with _lock:
        _keepers[id(keeper)] = keeper
        keepers = list(_keepers.values())
    while _is_over() and sum(each.drop_idle() for each in keepers):
        continue


def _is_over() -> bool:
    count = len(_live)
    return (count > UNCOUNTED_MAPS or VARIABLE in os.environ) and count > max_maps()


@functools.cache
def max_maps() -> int:
    """Return the most maps that the library keeps in this process: half the system's limit.

    At most MAX_MAPS, or what the variable MDS_MAX_MAPS of the environment says. Where the system
    allows three times as many, those of others are not counted: that takes 0.5 ms.
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
    if _system_mmap() is None:
        room = min(room, _max_descriptors() // 2)
    return max(MIN_MAPS, min(MAX_MAPS, room))


def _max_descriptors() -> int:
    try:
        import resource
    except ImportError:  # on Windows
        return 2 * MAX_MAPS
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


# ------------------------------------------------------------------ files in memory


def open_nameless(name: str) -> int:
    """Return the descriptor of an empty file that is in no folder.

    ``name`` is shown by /proc. Raises OSError where the system gives none.
    """
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            return os.memfd_create(name)
    import tempfile  # rarely needed

    with tempfile.TemporaryFile() as file:  # gone from its folder as soon as it is made
        return os.dup(file.fileno())
