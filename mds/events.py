"""Events of the library: `emit` publishes one, `subscribe` receives all of them.

Emitting without a subscriber costs one truth test. Events are emitted for a shard, a retry or a
wait, never for a single sample. Subscribers run in the thread that emits, so they must be quick.
They belong to one process; a forked child starts with those of its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mds._process.fork_safe import new_lock

__all__ = [
    "Evicted",
    "Fetched",
    "Listed",
    "Replaced",
    "Retried",
    "Uploaded",
    "Waited",
    "emit",
    "subscribe",
]


class Fetched(NamedTuple):
    """A shard, or a range of it, was fetched from its remote.

    >>> events = []
    >>> with subscribe(events.append):
    ...     sample = mds.StreamingDataset(remote="data/train", local="cache")[0]
    >>> os.path.basename(events[0].url), events[0].size, events[0].ranged
    ('shard.00000.mds', 298, False)
    """

    url: str
    size: int  # bytes transferred
    seconds: float
    ranged: bool = False  # whether it is a range and not the whole file


class Evicted(NamedTuple):
    """A shard was evicted from the cache folder.

    >>> Evicted("cache/shard.00000.mds", size=67108864)
    Evicted(path='cache/shard.00000.mds', size=67108864)
    """

    path: str
    size: int  # bytes


class Retried(NamedTuple):
    """A request failed and is repeated.

    >>> def log(event):
    ...     if isinstance(event, Retried):
    ...         print(f"{event.url}: attempt {event.attempt} failed: {event.error}")
    >>> with subscribe(log):
    ...     emit(Retried("s3://bucket/shard.00000.mds", attempt=1, error="503 Slow Down"))
    s3://bucket/shard.00000.mds: attempt 1 failed: 503 Slow Down
    """

    url: str
    attempt: int  # number of the attempt that failed, from 1
    error: str


class Waited(NamedTuple):
    """The reader waited for a shard that had not arrived.

    >>> waits = []
    >>> def record_wait(event):
    ...     if isinstance(event, Waited):
    ...         waits.append(event.seconds)
    >>> with subscribe(record_wait):
    ...     emit(Waited(shard=7, seconds=0.25))
    >>> sum(waits)
    0.25
    """

    shard: int  # number of the shard in its dataset
    seconds: float


class Replaced(NamedTuple):
    """A damaged file of the cache was deleted and is fetched again.

    >>> def warn(event):
    ...     if isinstance(event, Replaced):
    ...         print(f"fetch {event.path} again: {event.reason}")
    >>> with subscribe(warn):
    ...     emit(Replaced("cache/shard.00000.mds", reason="its digest differs"))
    fetch cache/shard.00000.mds again: its digest differs
    """

    path: str
    reason: str


class Uploaded(NamedTuple):
    """A file of a writer was uploaded.

    >>> events = []
    >>> with subscribe(events.append), mds.MDSWriter("memory://out", {"id": "int"}) as writer:
    ...     writer.write({"id": 1})
    >>> events[0].url, events[0].size
    ('memory://out/shard.00000.mds', 193)
    """

    url: str
    size: int  # bytes
    seconds: float


class Listed(NamedTuple):
    """Files of a source to convert were found; more may follow.

    >>> def show(event):
    ...     if isinstance(event, Listed):
    ...         print(f"{event.files} files found in {event.root}")
    >>> with subscribe(show):
    ...     emit(Listed("photos", files=1000))
    1000 files found in photos
    """

    root: str  # folder or URL of the source
    files: int  # number of files found so far


#: Any event.
Event = Fetched | Evicted | Retried | Waited | Replaced | Uploaded | Listed
Subscriber = Callable[[Event], None]
_subscribers: tuple[Subscriber, ...] = ()
_lock = new_lock()


def emit(event: Event) -> None:
    """Call every subscriber of this process with an event.

    Args:
        event: The event, such as `Evicted`.

    >>> emit(Evicted("shard.00000.mds", size=10))
    """
    for subscriber in _subscribers:
        subscriber(event)


@contextmanager
def subscribe(subscriber: Subscriber) -> Iterator[None]:
    """Call ``subscriber`` with every event of this process inside the ``with`` block.

    >>> seen = []
    >>> with subscribe(seen.append):
    ...     emit(Evicted("shard.00000.mds", 10))
    >>> seen
    [Evicted(path='shard.00000.mds', size=10)]
    """
    global _subscribers  # noqa: PLW0603 - replaced as a whole, so that emit needs no lock
    with _lock:
        _subscribers = (*_subscribers, subscriber)
    try:
        yield
    finally:
        with _lock:
            remaining = list(_subscribers)
            remaining.remove(subscriber)
            _subscribers = tuple(remaining)
