"""Locks that a forked child finds free, whichever thread of its parent held them.

A fork copies every lock as it is, but of the threads only the one that forked. A lock that another
thread held would stay held in the child for ever: a deadlock. So every lock of the package is made
here and remembered by a weak reference, and in a forked child all of them are made anew before
other code of the package runs. That costs about two microseconds when a lock is made and nothing
when it is used, since what is returned is the standard library's own object.

What a lock guards may be half changed in the child, for the thread that was changing it is gone.
Code that uses a lock takes one of three ways:

- The state belongs to one process (threads, connections, mapped files): the child drops it. See
  `per_process`, and `mds.cache.shard_cache` for the runtime of a cache.
- Every change is one store of a finished value, or a count: the child goes on with what it finds.
- `call_in_child`: a function that brings the state into a known form, called once in each child.

A thread may fork while it holds an RLock or a Condition itself: they stay its own in the child. It
must not fork while it holds a plain lock, for that is free in the child and cannot be released.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_in_child: list[Callable[[], None]] = []


def new_lock() -> threading.Lock:
    """Return a lock that is free in a forked child."""
    return _remember(threading.Lock())


def new_rlock() -> threading.RLock:
    """Return a reentrant lock that a forked child holds only if the forking thread did."""
    return _remember(threading.RLock())


def new_condition() -> threading.Condition:
    """Return a condition on a reentrant lock; in a forked child no thread holds it or waits."""
    return _remember(threading.Condition(threading.RLock()))


def new_event() -> threading.Event:
    """Return an event that keeps its flag in a forked child, where no thread waits for it."""
    return _remember(threading.Event())


def new_semaphore(count: int) -> threading.Semaphore:
    """Return a semaphore that has all of its ``count`` places free in a forked child."""
    return _remember(_Semaphore(count))


def call_in_child(function: Callable[[], None]) -> None:
    """Call ``function()`` in every forked child, after the locks were renewed.

    Functions are called in the order in which they were given; a module gives its own when it is
    imported, so what a module uses is ready before it.
    """
    _in_child.append(function)


class cached_property(Generic[T]):  # noqa: N801 - it stands where functools' stands
    """``functools.cached_property`` without a lock.

    Before Python 3.12 that of functools holds one lock a class while it computes, which a forked
    child would find held. Here two threads may compute the same value; the last one is kept.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, owner: Any, _: Any = None) -> T:
        if owner is None:
            return self  # type: ignore[return-value]
        value = self._compute(owner)
        # Found there by the next look-up, which does not come here.
        owner.__dict__[self._name] = value
        return value


class _Semaphore(threading.Semaphore):
    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._count = count

    def _at_fork_reinit(self) -> None:
        _make_anew(self._cond)  # type: ignore[attr-defined]
        self._value = self._count


def _remember(lock: T) -> T:
    _locks.add(lock)
    return lock


def _start_anew() -> None:
    for lock in list(_locks):
        is_owned = getattr(lock, "_is_owned", None)
        if is_owned is None or not is_owned():
            _make_anew(lock)
    for function in _in_child:
        function()


def _make_anew(lock: Any) -> None:
    # What the standard library calls for its own locks, in `logging` and `concurrent.futures`.
    lock._at_fork_reinit()  # noqa: SLF001


os.register_at_fork(after_in_child=_start_anew)


# ------------------------------------------------------------------ objects of one process
#
# SDK clients, connection pools and semaphores are made once per process, at their first use, and
# never cross a fork: a connection that two processes use answers one with the bytes of the other. A
# child neither uses nor closes what it inherits, because closing could end the connection of the
# parent; inherited objects are kept, unreachable, instead.

_objects: dict[Hashable, Any] = {}
_objects_lock = new_rlock()
_inherited: list[object] = []
_owner = os.getpid()


def per_process(key: Hashable, make: Callable[[], T]) -> T:
    """Return the object of this process for ``key``, made by ``make`` at the first call."""
    if _owner != os.getpid():
        # A fork that ran no Python hooks: some engines embed Python.
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
    """Discard the object of ``key``, whose credentials or connection failed."""
    with _objects_lock:
        _objects.pop(key, None)


def abandon(inherited: object) -> None:
    """Keep something of the parent's without ever touching it, not even to end it."""
    _inherited.append(inherited)


def _drop_inherited_objects() -> None:
    global _objects, _objects_lock, _owner  # noqa: PLW0603 - the state of a process is a global
    _inherited.append(_objects)
    _objects = {}
    # The same after a fork without hooks, where the old lock may be held by a thread that is gone.
    _objects_lock = new_rlock()
    _owner = os.getpid()


call_in_child(_drop_inherited_objects)


# ------------------------------------------------------------------ child processes


def end_with_parent() -> None:
    """End this process as soon as its parent is gone, even by kill -9.

    A process that was started by no other is left alone.
    """
    import multiprocessing  # takes long to import

    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_after, args=(parent.sentinel,), name="mds-parent", daemon=True
        ).start()


def _end_after(sentinel: int) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)
