"""What happens inside, for people and for the tools that watch machines.

Counts of one process come from `dataset.stats()`; here are the ways out of the process: a
Prometheus exporter (through `prometheus_client`), a trace for chrome://tracing and Perfetto, and a
dump of the whole state on a signal. All of them listen to `mds.events`, which come once for a shard
or a retry and never for a sample, so watching costs nothing that can be measured.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol

from mds.cache.counters import SUMMED
from mds.cache.shard_cache import live_caches
from mds.errors import need
from mds.events import Event, Evicted, Fetched, Replaced, Retried, Uploaded, Waited, subscribe
from mds.process.fork_safe import new_lock

if TYPE_CHECKING:
    from types import FrameType

_SECONDS = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


class Counted(Protocol):
    """What has counters: a StreamingDataset or a LocalDataset."""

    def stats(self) -> dict[str, Any]:
        """Return the counts by name."""


class Tally:
    """Counts, bytes and seconds of events by kind, as they come.

    >>> from mds.events import emit
    >>> tally = Tally()
    >>> with subscribe(tally):
    ...     emit(Fetched("s3://bucket/shard.00000.mds", 1000, 0.5))
    >>> tally.as_dict()
    {'fetched': 1, 'fetched_bytes': 1000, 'fetched_seconds': 0.5}
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = new_lock()

    def __call__(self, event: Event) -> None:
        """Count one event."""
        kind = type(event).__name__.lower()
        with self._lock:
            self._counts[kind] += 1
            for field in ("size", "seconds"):
                amount = getattr(event, field, None)
                if amount is not None:
                    name = "bytes" if field == "size" else field
                    self._counts[f"{kind}_{name}"] += amount

    def as_dict(self) -> dict[str, float]:
        """All counts by name, such as ``fetched``, ``fetched_bytes`` and ``waited_seconds``."""
        with self._lock:
            return dict(self._counts)


@contextmanager
def prometheus(
    registry: Any = None, prefix: str = "mds", dataset: Counted | None = None
) -> Iterator[None]:
    """Feed counters of a Prometheus registry while the block runs.

    - ``registry`` (prometheus_client.CollectorRegistry | None, default None): Where they are; None
      is the package's own.
    - ``prefix`` (str, default 'mds'): What their names begin with.
    - ``dataset`` (StreamingDataset | LocalDataset | None, default None): Also export all that its
      ``stats()`` counts, each as ``PREFIX_rank_NAME``: of the whole rank, where the others are of
      this process.

    How it is served is the caller's choice, for example ``prometheus_client.start_http_server``.
    Raises MissingDependencyError without the package.
    """
    try:
        import prometheus_client as client
    except ImportError:
        raise need("prometheus_client", "metrics", "Prometheus metrics") from None
    where = registry if registry is not None else client.REGISTRY
    made: list[Any] = []

    def counter(name: str, text: str) -> Any:
        made.append(client.Counter(f"{prefix}_{name}", text, registry=where))
        return made[-1]

    def histogram(name: str, text: str) -> Any:
        made.append(client.Histogram(f"{prefix}_{name}", text, registry=where, buckets=_SECONDS))
        return made[-1]

    fetched = counter("fetched_bytes", "Bytes that came from remotes")
    evicted = counter("evicted_bytes", "Bytes that left the cache to make room")
    uploaded = counter("uploaded_bytes", "Bytes that writers uploaded")
    retried = counter("retries", "Requests that were tried again")
    replaced = counter("replaced_files", "Damaged files of the cache that were fetched anew")
    transfers = histogram("transfer_seconds", "Seconds of each transfer of a shard or a range")
    waits = histogram("wait_seconds", "Seconds of each wait of a reader for a shard")

    def take(event: Event) -> None:
        if isinstance(event, Fetched):
            fetched.inc(event.size)
            transfers.observe(event.seconds)
        elif isinstance(event, Waited):
            waits.observe(event.seconds)
        elif isinstance(event, (Evicted, Uploaded)):
            (evicted if isinstance(event, Evicted) else uploaded).inc(event.size)
        elif isinstance(event, (Retried, Replaced)):
            (retried if isinstance(event, Retried) else replaced).inc()

    if dataset is not None:
        made.append(_RankCollector(dataset, f"{prefix}_rank"))
        where.register(made[-1])
    try:
        with subscribe(take):
            yield
    finally:
        for metric in made:
            where.unregister(metric)


class _RankCollector:
    """Collector of ``dataset.stats()``, which asks whenever it is scraped."""

    def __init__(self, dataset: Counted, prefix: str) -> None:
        self._dataset, self._prefix = dataset, prefix

    def describe(self) -> list[Any]:
        """Return the metrics that `collect` gives, which is cheap."""
        return [*self.collect()]

    def collect(self) -> Iterator[Any]:
        """Yield a metric for every number: a counter if it only grows, else a gauge."""
        from prometheus_client import metrics_core

        for name, value in self._dataset.stats().items():
            if isinstance(value, (int, float)):
                kind = (
                    metrics_core.CounterMetricFamily
                    if name in SUMMED
                    else metrics_core.GaugeMetricFamily
                )
                yield kind(f"{self._prefix}_{name}", f"{name} of the rank", value)


@contextmanager
def chrome_trace(path: str) -> Iterator[None]:
    """Write what happens in the block to a JSON file for chrome://tracing and ui.perfetto.dev.

    One row a thread; transfers and waits are bars, the rest are marks. The file is whole when the
    block ends, also by an exception; a worker process writes one of its own.
    """
    started = time.monotonic()
    lock = new_lock()
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n")
        separator = ""

        def take(event: Event) -> None:
            nonlocal separator
            entry = json.dumps(_trace_entry(event, time.monotonic() - started))
            with lock:
                file.write(separator + entry)
                separator = ",\n"

        try:
            with subscribe(take):
                yield
        finally:
            with lock:
                file.write("\n]\n")


def _trace_entry(event: Event, now: float) -> dict[str, Any]:
    seconds = getattr(event, "seconds", None)
    entry: dict[str, Any] = {
        "name": type(event).__name__,
        "cat": "mds",
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "args": event._asdict(),
    }
    if seconds is None:
        return {**entry, "ph": "i", "s": "t", "ts": round(now * 1e6)}
    # An event tells of something that has just ended.
    return {**entry, "ph": "X", "ts": round((now - seconds) * 1e6), "dur": round(seconds * 1e6)}


def dump_state(file: IO[str] | None = None) -> None:
    """Write the stack of every thread, and what every cache of this process is doing."""
    out = file if file is not None else sys.stderr
    print(f"--- state of process {os.getpid()} ---", file=out, flush=True)
    faulthandler.dump_traceback(out, all_threads=True)
    for cache in live_caches():
        print(repr(cache), file=out)
        for name, value in cache.stats().items():
            print(f"    {name}: {value}", file=out)
    out.flush()


def dump_state_on(number: int = signal.SIGUSR1, file: IO[str] | None = None) -> Callable[[], None]:
    """Have `dump_state` called when this process gets a signal; returns what undoes it.

    Call it in the main thread. Worker processes that are forked afterwards do the same.
    """

    def handle(_: int, __: FrameType | None) -> None:
        # In a thread of its own: the one that was interrupted may hold a lock that this needs.
        threading.Thread(target=dump_state, args=(file,), name="mds-dump", daemon=True).start()

    before = signal.signal(number, handle)

    def undo() -> None:
        signal.signal(number, before)

    return undo
