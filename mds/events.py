"""Events of the library (publish and subscribe): frozen dataclasses, ``emit``, ``subscribe``.

Emitting without a subscriber costs one truth test, so events may sit on warm paths (a shard, a
retry, a stall), though never on the path of a single sample. Subscribers run in the thread that
emits and must be quick; they are of one process, and a forked child starts with its parent's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mds.process.fork_safe import new_lock


class Fetched(NamedTuple):
    """A shard, or some bytes of it, arrived from its remote."""

    url: str
    size: int
    seconds: float
    ranged: bool = False


class Evicted(NamedTuple):
    """A shard left the cache folder to make room."""

    path: str
    size: int


class Retried(NamedTuple):
    """A store failed in a way that another try may mend."""

    url: str
    attempt: int
    error: str


class Waited(NamedTuple):
    """The consumer waited for a shard that was not there yet."""

    shard: int
    seconds: float


class Replaced(NamedTuple):
    """A damaged file of the cache was thrown away and is fetched anew."""

    path: str
    reason: str


class Uploaded(NamedTuple):
    """A file of a writer reached its destination."""

    url: str
    size: int
    seconds: float


class Listed(NamedTuple):
    """So many files of a source to convert were found, and more may come."""

    root: str
    files: int


#: Something that happened.
Event = Fetched | Evicted | Retried | Waited | Replaced | Uploaded | Listed
Subscriber = Callable[[Event], None]
_subscribers: tuple[Subscriber, ...] = ()
_lock = new_lock()


def emit(event: Event) -> None:
    """Tell every subscriber."""
    for subscriber in _subscribers:
        subscriber(event)


@contextmanager
def subscribe(subscriber: Subscriber) -> Iterator[None]:
    """Have ``subscriber`` called with every event inside the ``with`` block.

    >>> seen = []
    >>> with subscribe(seen.append):
    ...     emit(Evicted("shard.00000.mds", 10))
    >>> seen
    [Evicted(path='shard.00000.mds', size=10)]
    """
    global _subscribers  # noqa: PLW0603 - one list a process, replaced whole so that emit needs no lock
    with _lock:
        _subscribers = (*_subscribers, subscriber)
    try:
        yield
    finally:
        with _lock:
            left = list(_subscribers)
            left.remove(subscriber)
            _subscribers = tuple(left)
