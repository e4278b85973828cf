"""Things that belong to one process: SDK clients, connection pools, semaphores.

They are made once per process, on first use, and never cross a fork: a connection that two
processes use answers one with the bytes of the other. What a child inherits it neither uses nor
closes (closing could say goodbye on the parent's connection); it is kept, unreachable, instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from mds.process.fork_safe import call_in_child, new_rlock

T = TypeVar("T")

_objects: dict[Hashable, Any] = {}
_lock = new_rlock()
_inherited: list[object] = []
_owner = os.getpid()


def per_process(key: Hashable, make: Callable[[], T]) -> T:
    """Return the object of this process for ``key``, made by ``make`` at the first call."""
    if _owner != os.getpid():
        # A fork that ran no Python hooks (some engines embed Python); better late than never.
        _start_anew()
    try:
        value: T = _objects[key]
    except KeyError:
        with _lock:
            if key not in _objects:
                _objects[key] = make()
            value = _objects[key]
    return value


def forget(key: Hashable) -> None:
    """Discard the object of ``key``, whose credentials or connection failed."""
    with _lock:
        _objects.pop(key, None)


def abandon(inherited: object) -> None:
    """Keep something of the parent's without ever touching it, not even to end it."""
    _inherited.append(inherited)


def _start_anew() -> None:
    global _objects, _lock, _owner  # noqa: PLW0603 - the state of a process is a global
    _inherited.append(_objects)
    _objects = {}
    # The same after a fork without hooks, where the old lock may be held by a thread that is gone.
    _lock = new_rlock()
    _owner = os.getpid()


call_in_child(_start_anew)
