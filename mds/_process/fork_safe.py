"""Locks that are free in a forked child, and objects that each process has for itself.

A fork copies every lock as it is, but only the thread that forked. A lock that another thread held
would stay held in the child for ever: a deadlock. So every lock of the package is created here and
remembered by a weak reference. In a forked child all of them are reset before other code of the
package runs. That costs about two microseconds for each new lock and nothing when it is used, since
the lock is the standard library's own object.

The state that a lock protects may be half changed in the child, since the thread that was changing
it is gone. Code that uses a lock does one of three things:

- The state belongs to one process (threads, connections, mapped files): the child drops it. See
  `per_process`, and `mds._cache.shard_cache` for the state of a cache.
- Every change is one store of a finished value, or a count: the child continues with the state.
- `call_in_child`: a function that repairs the state, called once in each child.

A thread may fork while it holds an RLock or a Condition itself: it still holds them in the child.
It must not fork while it holds a plain lock, which is free in the child and cannot be released.

Python locks each module while it is imported, and does not reset these locks. If a thread imports a
module during a fork, the child waits for ever when it imports that module. So a fork waits until
the imports that mds has begun in other threads are finished (`_finish_imports`).
"""

from __future__ import annotations

import _imp
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from types import FrameType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_IMPORT_SECONDS = 10.0  # longest wait for imports of other threads
_LOOK_SECONDS = 0.001  # between two looks at the threads

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_in_child: list[Callable[[], None]] = []


def new_lock() -> threading.Lock:
    """Return a `threading.Lock` that is free in a forked child."""
    return _remember(threading.Lock())


def new_rlock() -> threading.RLock:
    """Return a reentrant lock that a forked child holds only if the forking thread did."""
    return _remember(threading.RLock())


def new_condition() -> threading.Condition:
    """Return a condition on a reentrant lock; in a forked child no thread holds it or waits."""
    return _remember(threading.Condition(threading.RLock()))


def new_event() -> threading.Event:
    """Return an event that keeps its flag in a forked child, without waiting threads."""
    return _remember(threading.Event())


def new_semaphore(count: int) -> threading.Semaphore:
    """Return a semaphore whose value is ``count`` again in a forked child."""
    return _remember(_Semaphore(count))


def call_in_child(function: Callable[[], None]) -> None:
    """Call ``function()`` in every forked child, after the locks were reset.

    Functions are called in the order of registration. A module registers its function when it is
    imported, so the modules that it uses are ready before it.
    """
    _in_child.append(function)


class cached_property(Generic[T]):  # noqa: N801 - named as in functools
    """``functools.cached_property`` without a lock.

    Before Python 3.12, functools holds one lock for each class while it computes, and a forked
    child would find it held. Here two threads may compute the same value; the last one is kept.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, owner: Any, _: Any = None) -> T:
        if owner is None:  # looked up in the class
            return self  # type: ignore[return-value]
        value = self._compute(owner)
        # The next lookup finds the value in the instance and does not call this method.
        owner.__dict__[self._name] = value
        return value


class _Semaphore(threading.Semaphore):
    """A semaphore that is reset in a forked child."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._count = count

    def _at_fork_reinit(self) -> None:
        """Free the lock and restore the count; `_reset_lock` calls it in a forked child."""
        _reset_lock(self._cond)  # type: ignore[attr-defined]
        self._value = self._count


def _remember(lock: T) -> T:
    """Remember a lock, so that it is reset in a forked child, and return it."""
    _locks.add(lock)
    return lock


def _reset_child() -> None:
    """Reset all locks that the forking thread does not hold, and call registered functions."""
    for lock in list(_locks):
        # Only RLocks and Conditions know their owner.
        is_owned = getattr(lock, "_is_owned", None)
        if is_owned is None or not is_owned():
            _reset_lock(lock)
    for function in _in_child:
        function()


def _reset_lock(lock: Any) -> None:
    """Make a lock free, as `logging` and `concurrent.futures` do with theirs after a fork."""
    lock._at_fork_reinit()  # noqa: SLF001


# ------------------------------------------------------------------ imports during a fork


def _finish_imports() -> None:
    """Wait until no other thread imports modules for mds, and let none begin until the fork.

    The lock is the one that a thread needs to begin an import. `os.fork` takes it too, but does not
    wait for imports that have begun.
    """
    deadline = time.monotonic() + _IMPORT_SECONDS
    never = threading.Event()
    _imp.acquire_lock()
    while _is_importing() and time.monotonic() < deadline:
        _imp.release_lock()  # an import needs it now and then
        never.wait(_LOOK_SECONDS)
        _imp.acquire_lock()


def _allow_imports() -> None:
    """Release the lock of `_finish_imports` after the fork, in the parent and in the child."""
    with contextlib.suppress(RuntimeError):  # not held: a signal interrupted `_finish_imports`
        _imp.release_lock()


def _is_importing() -> bool:
    """Whether another thread runs or awaits an import that a function of mds has begun."""
    this_thread = threading.get_ident()
    return any(
        _has_begun_import(frame)
        for thread, frame in sys._current_frames().items()  # noqa: SLF001 - public, see its docs
        if thread != this_thread
    )


def _has_begun_import(frame: FrameType | None) -> bool:
    """Whether a function of mds called the import system, in a stack with this innermost frame."""
    is_import = False
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            is_import = True
        elif is_import and str(frame.f_globals.get("__name__")).partition(".")[0] == "mds":
            return True
        frame = frame.f_back
    return False


os.register_at_fork(
    before=_finish_imports, after_in_parent=_allow_imports, after_in_child=_allow_imports
)
os.register_at_fork(after_in_child=_reset_child)


# ------------------------------------------------------------------ objects of one process
#
# SDK clients, connection pools and semaphores are created once per process, at their first use.
# They must not be used after a fork: one process would get the response for another. Neither
# must a child close them, because that could end the connection of the parent. So a child keeps
# them unused.

_objects: dict[Hashable, Any] = {}
_objects_lock = new_rlock()
_inherited: list[object] = []
_owner = os.getpid()


def per_process(key: Hashable, make: Callable[[], T]) -> T:
    """Return the object of this process for ``key``, created by ``make()`` at the first call.

    A forked child creates its own, and keeps the one of its parent unused.
    """
    if _owner != os.getpid():
        # Some engines embed Python and fork without calling its hooks.
        _drop_inherited_objects()
    try:
        value: T = _objects[key]
    except KeyError:
        with _objects_lock:
            if key not in _objects:
                _objects[key] = make()
            value = _objects[key]
    return value


def forget(key: Hashable) -> None:
    """Discard the object of ``key``, so that the next `per_process` creates another."""
    with _objects_lock:
        _objects.pop(key, None)


def abandon(inherited: object) -> None:
    """Keep an object of the parent process for ever, so that it is never closed in this one."""
    _inherited.append(inherited)


def _drop_inherited_objects() -> None:
    """Begin without objects in a forked child, and keep those of the parent."""
    global _objects, _objects_lock, _owner  # noqa: PLW0603 - the state of a process is a global
    _inherited.append(_objects)
    _objects = {}
    # After a fork without hooks, the old lock may be held by a thread that does not exist here.
    _objects_lock = new_rlock()
    _owner = os.getpid()


call_in_child(_drop_inherited_objects)


# ------------------------------------------------------------------ child processes


def end_with_parent() -> None:
    """Exit this process as soon as its parent exits, even by kill -9.

    Does nothing in a process that `multiprocessing` did not start.
    """
    import multiprocessing  # slow to import

    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_after, args=(parent.sentinel,), name="mds-parent", daemon=True
        ).start()


def _end_after(sentinel: int) -> None:
    """Wait for the process of ``sentinel`` to exit, then exit this one.

    ``sentinel`` is the handle that `multiprocessing` has for a process.
    """
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)
