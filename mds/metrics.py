"""Metrics of the library for people and for monitoring tools.

`dataset.stats()` returns the counters of a process. This module exports them: to Prometheus
(through `prometheus_client`), to a trace for chrome://tracing and Perfetto, and as a dump of the
state of the process on a signal. All of it subscribes to `mds.events`, which are emitted for a
shard or a retry and never for a sample, so the cost cannot be measured.
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

from mds._cache.counters import SUMMED
from mds._cache.shard_cache import live_caches
from mds._process.fork_safe import new_lock
from mds.errors import need
from mds.events import Event, Evicted, Fetched, Replaced, Retried, Uploaded, Waited, subscribe

if TYPE_CHECKING:
    from types import FrameType

__all__ = [
    "Tally",
    "chrome_trace",
    "dump_state",
    "dump_state_on",
    "prometheus",
]

_SECONDS = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


class Counted(Protocol):
    """An object with counters: a StreamingDataset or a LocalDataset."""

    def stats(self) -> dict[str, Any]:
        """Return the counts by name: numbers, and a few texts and lists."""


class Tally:
    """Subscriber that counts events, and sums their bytes and seconds, by kind.

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
        """Count one event, and add its bytes and seconds if it has any."""
        kind = type(event).__name__.lower()  # such as "fetched"
        with self._lock:
            self._counts[kind] += 1
            for field in ("size", "seconds"):
                amount = getattr(event, field, None)
                if amount is not None:
                    name = "bytes" if field == "size" else field
                    self._counts[f"{kind}_{name}"] += amount

    def as_dict(self) -> dict[str, float]:
        """Return all counts by name, such as ``fetched``, ``fetched_bytes``, ``waited_seconds``."""
        with self._lock:
            return dict(self._counts)


@contextmanager
def prometheus(
    registry: Any = None, prefix: str = "mds", dataset: Counted | None = None
) -> Iterator[None]:
    """Update metrics of a Prometheus registry while the block runs.

    - ``registry`` (prometheus_client.CollectorRegistry | None, default None): The registry; None:
      the default registry of ``prometheus_client``.
    - ``prefix`` (str, default 'mds'): Prefix of the names of the metrics.
    - ``dataset`` (StreamingDataset | LocalDataset | None, default None): Also export the numbers of
      its ``stats()``, each as ``PREFIX_rank_NAME``. They are of the whole rank; the other metrics
      are of this process.

    Serve the registry yourself, for example with ``prometheus_client.start_http_server``. Raises
    MissingDependencyError if the package is not installed.

    >>> import prometheus_client
    >>> registry = prometheus_client.CollectorRegistry()
    >>> with prometheus(registry):
    ...     sample = mds.StreamingDataset(remote="data/train", local="cache")[0]
    ...     registry.get_sample_value("mds_fetched_bytes_total")
    298.0
    """
    try:
        import prometheus_client as client
    except ImportError:
        raise need("prometheus_client", "metrics", "Prometheus metrics") from None
    target = registry if registry is not None else client.REGISTRY
    metrics: list[Any] = []  # all that are registered, to unregister them after the block

    def counter(name: str, text: str) -> Any:
        """Register a counter with a help text, and return it."""
        metrics.append(client.Counter(f"{prefix}_{name}", text, registry=target))
        return metrics[-1]

    def histogram(name: str, text: str) -> Any:
        """Register a histogram of seconds with a help text, and return it."""
        metrics.append(
            client.Histogram(f"{prefix}_{name}", text, registry=target, buckets=_SECONDS)
        )
        return metrics[-1]

    fetched = counter("fetched_bytes", "Bytes fetched from remotes")
    evicted = counter("evicted_bytes", "Bytes evicted from the cache")
    uploaded = counter("uploaded_bytes", "Bytes uploaded by writers")
    retried = counter("retries", "Requests that were repeated")
    replaced = counter("replaced_files", "Damaged files of the cache that were fetched again")
    transfers = histogram("transfer_seconds", "Seconds of each transfer of a shard or a range")
    waits = histogram("wait_seconds", "Seconds of each wait of a reader for a shard")

    def update(event: Event) -> None:
        """Add an event to the metrics of its kind; the subscriber."""
        if isinstance(event, Fetched):
            fetched.inc(event.size)
            transfers.observe(event.seconds)
        elif isinstance(event, Waited):
            waits.observe(event.seconds)
        elif isinstance(event, Evicted):
            evicted.inc(event.size)
        elif isinstance(event, Uploaded):
            uploaded.inc(event.size)
        elif isinstance(event, Retried):
            retried.inc()
        elif isinstance(event, Replaced):
            replaced.inc()

    if dataset is not None:
        metrics.append(_RankCollector(dataset, f"{prefix}_rank"))
        target.register(metrics[-1])
    try:
        with subscribe(update):
            yield
    finally:
        for metric in metrics:
            target.unregister(metric)


class _RankCollector:
    """Prometheus collector that reads ``dataset.stats()`` at every scrape.

    ``prefix`` is put before the name of each number, joined by "_".
    """

    def __init__(self, dataset: Counted, prefix: str) -> None:
        self._dataset, self._prefix = dataset, prefix

    def describe(self) -> list[Any]:
        """Return the metrics of `collect`."""
        return [*self.collect()]

    def collect(self) -> Iterator[Any]:
        """Yield a metric for every number: a counter if it never decreases, else a gauge."""
        from prometheus_client import metrics_core

        for name, value in self._dataset.stats().items():
            if isinstance(value, (int, float)):  # names and lists cannot be exported
                kind = (
                    metrics_core.CounterMetricFamily
                    if name in SUMMED  # names of the counts, which only grow
                    else metrics_core.GaugeMetricFamily
                )
                yield kind(f"{self._prefix}_{name}", f"{name} of the rank", value)


@contextmanager
def chrome_trace(path: str) -> Iterator[None]:
    """Write the events of the block to a JSON file for chrome://tracing and ui.perfetto.dev.

    Each thread has a row. Transfers and waits are bars, other events are marks. The file is
    complete when the block ends, also by an exception. A worker process must write its own file.

    >>> with chrome_trace("trace.json"):
    ...     sample = mds.StreamingDataset(remote="data/train", local="cache")[0]
    >>> json.loads(pathlib.Path("trace.json").read_text())[0]["name"]
    'Fetched'
    """
    started = time.monotonic()
    lock = new_lock()
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n")
        separator = ""  # before the next entry: none before the first one

        def write(event: Event) -> None:
            """Append an event to the file; the subscriber, called in any thread."""
            nonlocal separator
            entry = json.dumps(_trace_entry(event, time.monotonic() - started))
            with lock:
                file.write(separator + entry)
                separator = ",\n"

        try:
            with subscribe(write):
                yield
        finally:
            with lock:
                file.write("\n]\n")


def _trace_entry(event: Event, now: float) -> dict[str, Any]:
    """Return the entry of an event in a Chrome trace.

    ``now`` is the time of the event in seconds since the trace began; entries have microseconds.
    An event with a duration becomes a bar (phase "X"), any other one a mark (phase "i").
    """
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
    # An event is emitted when the transfer or wait that it describes ends.
    return {**entry, "ph": "X", "ts": round((now - seconds) * 1e6), "dur": round(seconds * 1e6)}


def dump_state(file: IO[str] | None = None) -> None:
    """Write the stack of every thread, and the state of every cache of this process.

    Args:
        file: Text file with a descriptor, such as an open file; None (default): standard error.

    >>> with open("state.txt", "w") as file:
    ...     dump_state(file)
    >>> pathlib.Path("state.txt").read_text().splitlines()[0]
    '--- state of process ...'
    """
    out = file if file is not None else sys.stderr
    print(f"--- state of process {os.getpid()} ---", file=out, flush=True)
    faulthandler.dump_traceback(out, all_threads=True)
    for cache in live_caches():
        print(repr(cache), file=out)
        for name, value in cache.stats().items():
            print(f"    {name}: {value}", file=out)
    out.flush()


def dump_state_on(number: int = signal.SIGUSR1, file: IO[str] | None = None) -> Callable[[], None]:
    """Call `dump_state` whenever this process receives a signal; return a function that undoes it.

    Call it in the main thread. It also holds for worker processes that are forked afterwards.

    Args:
        number: Number of the signal (default SIGUSR1).
        file: Text file for the dump; None (default): standard error.

    >>> undo = dump_state_on()  # then `kill -USR1 PID` in a shell
    >>> undo()
    """

    def handle(_: int, __: FrameType | None) -> None:
        # In a new thread: the interrupted one may hold a lock that the dump needs.
        threading.Thread(target=dump_state, args=(file,), name="mds-dump", daemon=True).start()

    earlier_handler = signal.signal(number, handle)

    def undo() -> None:
        signal.signal(number, earlier_handler)

    return undo
