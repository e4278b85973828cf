"""Is a slow run told why it is slow? Six causes are put into short trainings, ten times each.

    python -m benchmarks.causes [--rounds 10] [--causes latency,collate] [--smoke]

A web server in a process of its own has the shards, and a proxy holds requests back (latency) or
lets few bytes through (bandwidth). Decoding and collating burn the processor, the trainer sleeps,
and a cache has room for a fifth of the data. The ten rounds differ in the number and the kind of
workers and in the size of batches. What `loader.report()` names is counted when it is the cause.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from benchmarks.eviction import counting_server

CAUSES = ("latency", "bandwidth", "decoding", "collate", "trainer", "cache_limit")
ROUNDS = 10
_SHARD, _ROW = 64 << 10, 2048
_LATENCY, _NEAR = 0.15, 0.03  # seconds
_RATE = 400_000  # bytes a second of each connection
_STEP = 0.001  # seconds of the trainer
#: Workers, their kind and the size of a batch, round by round.
_SHAPES = (
    (0, "processes", 16),
    (1, "processes", 16),
    (2, "processes", 16),
    (2, "threads", 16),
    (1, "threads", 32),
    (2, "processes", 32),
    (0, "processes", 32),
    (2, "threads", 32),
    (1, "processes", 32),
    (3, "threads", 16),
)


class Answer(NamedTuple):
    """What was put in, what was named, and the paragraph."""

    cause: str
    named: str
    text: str


def ask(cause: str, number: int, samples: int = 6_000) -> Answer:
    """One short training with a cause in it, and what its loader says."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.path.isdir("/dev/shm") else None,
        ignore_cleanup_errors=True,  # a shard may arrive meanwhile
    ) as scratch:
        folder = os.path.join(scratch, "data")
        packed = "zstd" if cause == "cache_limit" and number % 2 else None
        _write(folder, samples, packed, is_slow=cause == "decoding")
        with ExitStack() as stack:
            remote = stack.enter_context(_remote(cause, folder))
            loader = _loader(cause, number, remote, folder, scratch)
            _train(loader, cause)
            found = loader.report()
            return Answer(cause, found.cause, found.text)


def _write(folder: str, samples: int, packed: str | None, *, is_slow: bool) -> None:
    import numpy as np

    from mds import MDSWriter

    _register()
    rng = np.random.default_rng(0)
    columns = {"x": "int", "b": "burning" if is_slow else "bytes"}
    with MDSWriter(out=folder, columns=columns, size_limit=_SHARD, compression=packed) as writer:
        for number in range(samples):
            writer.write({"x": number, "b": rng.bytes(_ROW)})


def _register() -> None:
    """An encoding that takes a third of a millisecond to decode."""
    from mds.encodings import Encoding, encoding_names, register_encoding

    class Burning(Encoding):
        """Bytes."""

        def encode(self, value: Any) -> bytes:
            """As they are."""
            return bytes(value)

        def decode(self, data: Any) -> bytes:
            """As they are, after a while."""
            _burn(0.0003)
            return bytes(data)

    if "burning" not in encoding_names():
        register_encoding("burning", Burning)


def _burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        continue


@contextmanager
def _remote(cause: str, folder: str) -> Iterator[str | None]:
    """The URL of the data, None where they are read in place."""
    from devtools.proxy import proxy_process

    if cause not in ("latency", "bandwidth", "cache_limit"):
        yield None
        return
    latency = {"latency": _LATENCY, "cache_limit": _NEAR}.get(cause, 0.0)
    rate = _RATE if cause == "bandwidth" else 0.0
    with (
        counting_server(folder) as (url, _, _),
        proxy_process(url, latency=latency, rate=rate) as far,
    ):
        yield far


def _loader(cause: str, number: int, remote: str | None, folder: str, scratch: str) -> Any:
    from mds import StreamingDataLoader, StreamingDataset

    workers, kind, size = _SHAPES[number % len(_SHAPES)]
    limit = None
    if cause == "cache_limit":
        limit = sum(each.stat().st_size for each in os.scandir(folder)) // 5
    dataset = StreamingDataset(
        remote=remote,
        local=folder if remote is None else os.path.join(scratch, "cache"),
        shuffle=True,
        batch_size=size,
        cache_limit=limit,
        download_retry=0,  # the server ends while shards are on their way
    )
    return StreamingDataLoader(
        dataset,
        batch_size=size,
        num_workers=workers,
        workers=kind if workers else "auto",
        collate_fn=_slow_collate if cause == "collate" else _collate,
    )


def _collate(samples: Sequence[Any]) -> Any:
    import torch

    return torch.tensor([sample["x"] for sample in samples])


def _slow_collate(samples: Sequence[Any]) -> Any:
    _burn(0.01)
    return _collate(samples)


def _train(loader: Any, cause: str) -> None:
    step = 0.02 if cause == "trainer" else _STEP
    for epoch in range(2 if cause == "cache_limit" else 1):
        end = time.perf_counter() + 2.0
        for _ in loader:
            threading.Event().wait(step)
            if epoch == 0 and cause != "cache_limit" and time.perf_counter() > end:
                return


def main() -> None:
    """Put in each cause in turns, and print what was named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--causes", default=",".join(CAUSES))
    parser.add_argument("--verbose", action="store_true", help="print the paragraphs")
    parser.add_argument("--smoke", action="store_true", help="one round, to see that it runs")
    options = parser.parse_args()
    if options.smoke:
        options.rounds = 1
    right = asked = 0
    for number in range(options.rounds):
        for cause in options.causes.split(","):
            found = ask(cause, number)
            right, asked = right + (found.named == cause), asked + 1
            if options.verbose or found.named != cause:
                print(f"{cause}, {_SHAPES[number % len(_SHAPES)]}: {found.named}\n  {found.text}")
    print(f"{right} of {asked} named rightly")


if __name__ == "__main__":
    main()
