"""Does `loader.report()` name why a run is slow? Twelve short trainings, five times each.

    python -m benchmarks.causes [--repeat 5] [--situations latency,collate] [--busy] [--smoke]

A web server in a process of its own has the shards. A proxy holds requests back (latency) or lets
few bytes through (bandwidth). Decoding, functions and collating burn the processor, a function
sleeps, batches are large, shards are compressed, the trainer sleeps, and a cache has room for a
fifth of the data. The rounds differ in the number and the kind of workers and in the size of
batches. With ``--busy`` two other processes compute all the while.

The bars: of 60 answers on an idle machine at least 57 name the cause. On a busy one an answer names
the cause or is "uncertain". The exit code is 1 below the bar. ``--smoke`` runs each situation once
and checks nothing. A slow disk is not among the situations: it takes a file system of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from benchmarks.eviction import counting_server

#: The cause that is to be named in each situation.
SITUATIONS = {
    "latency": "latency",
    "latency in order": "latency",
    "bandwidth": "bandwidth",
    "bandwidth in order": "bandwidth",
    "decompression": "decompression",
    "decoding": "decoding",
    "functions": "functions",
    "sleeping functions": "functions",
    "collate": "collate",
    "crossing": "crossing",
    "trainer": "trainer",
    "cache_limit": "cache_limit",
}
ROUNDS = 5
MOST_WRONG = 0.05  # of the answers on an idle machine
_SHARD, _ROW = 64 << 10, 2048
_LARGE_SHARD, _LARGE_ROW = 512 << 10, 32 << 10  # compressed shards
_LARGE = 1 << 18  # bytes of a sample in a large batch
_LATENCY, _NEAR = 0.15, 0.03  # seconds
_RATE = 150_000  # bytes a second of each connection
#: Seconds of the trainer's step. To copy a large batch may take less than a millisecond.
_STEPS = {"trainer": 0.02, "crossing": 0.0}
_STEP = 0.001  # in the other situations
_FEWEST = 20  # batches that a training has at least
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
    """The cause that was created, the one that was named, and the paragraph."""

    cause: str
    named: str
    text: str


def ask(situation: str, number: int, seconds: float = 2.0) -> Answer:
    """Run one short training in a situation, and return the report of its loader."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.path.isdir("/dev/shm") else None,
        ignore_cleanup_errors=True,  # a shard may arrive meanwhile
    ) as scratch:
        folder = os.path.join(scratch, "data")
        _write(folder, situation, number)
        with ExitStack() as stack:
            remote = stack.enter_context(_remote(situation, folder))
            loader = _loader(situation, number, remote, folder, scratch)
            _train(loader, situation, seconds)
            report = loader.report()
            return Answer(SITUATIONS[situation], report.cause, report.text)


def _write(folder: str, situation: str, number: int) -> None:
    import numpy as np

    from mds import MDSWriter

    _register()
    rng = np.random.default_rng(0)
    columns = {"x": "int", "b": "burning" if situation == "decoding" else "bytes"}
    size, row, samples = _SHARD, _ROW, 6_000
    compression = "zstd" if situation == "cache_limit" and number % 2 else None
    if situation == "decompression":
        compression, size, row, samples = "bz2", _LARGE_SHARD, _LARGE_ROW, 1_500
    with MDSWriter(out=folder, columns=columns, size_limit=size, compression=compression) as writer:
        for i in range(samples):
            writer.write({"x": i, "b": rng.bytes(row)})


def _register() -> None:
    """Register an encoding that takes a third of a millisecond to decode."""
    from mds.encodings import Encoding, encoding_names, register_encoding

    class Burning(Encoding):
        """Bytes that take long to decode."""

        def encode(self, value: Any) -> bytes:
            """Return the bytes."""
            return bytes(value)

        def decode(self, data: Any) -> bytes:
            """Compute, then return the bytes."""
            _burn(0.0003)
            return bytes(data)

    if "burning" not in encoding_names():
        register_encoding("burning", Burning)


def _burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        continue


@contextmanager
def _remote(situation: str, folder: str) -> Iterator[str | None]:
    """Serve the data and yield their URL, or None where they are read in place."""
    from devtools.proxy import proxy_process

    cause = SITUATIONS[situation]
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


def _loader(situation: str, number: int, remote: str | None, folder: str, scratch: str) -> Any:
    from mds import StreamingDataLoader, StreamingDataset

    workers, kind, size = _SHAPES[number % len(_SHAPES)]
    if situation == "crossing":
        workers, kind = max(workers, 1), "processes"
    limit = None
    if situation == "cache_limit":
        limit = sum(each.stat().st_size for each in os.scandir(folder)) // 5
    dataset = StreamingDataset(
        remote=remote,
        local=folder if remote is None else os.path.join(scratch, "cache"),
        # In order, or the first batch would decompress every shard.
        shuffle=not situation.endswith("in order") and situation != "decompression",
        batch_size=size,
        cache_limit=limit,
        download_retry=0,  # the server ends while shards are on their way
    )
    if situation in _FUNCTIONS:
        dataset = dataset.map(_FUNCTIONS[situation])
    if situation == "crossing":
        return StreamingDataLoader(
            dataset.map_batches(_enlarge), batch_size=size, num_workers=workers, worker_type=kind
        )
    return StreamingDataLoader(
        dataset,
        batch_size=size,
        num_workers=workers,
        worker_type=kind if workers else "auto",
        collate_fn=_slow_collate if situation == "collate" else _collate,
    )


def _compute(sample: Any) -> Any:
    _burn(0.0005)
    return sample


def _sleep(sample: Any) -> Any:
    threading.Event().wait(0.001)
    return sample


_FUNCTIONS = {"functions": _compute, "sleeping functions": _sleep}


def _enlarge(batch: Any) -> Any:
    import numpy as np

    # Its memory is first touched by the copy for the trainer.
    return {"x": batch["x"], "large": np.empty((len(batch["x"]), _LARGE), np.uint8)}


def _collate(samples: Sequence[Any]) -> Any:
    import torch

    return torch.tensor([sample["x"] for sample in samples])


def _slow_collate(samples: Sequence[Any]) -> Any:
    _burn(0.01)
    return _collate(samples)


def _train(loader: Any, situation: str, seconds: float) -> None:
    """Train for some seconds; under a cache limit two epochs, as the first fetches all."""
    step = _STEPS.get(situation, _STEP)
    if situation == "cache_limit":
        for _ in range(2):
            for _ in loader:
                threading.Event().wait(step)
        return
    batches = iter(loader)
    next(batches)  # the report leaves it out
    end = time.perf_counter() + seconds
    for number, _ in enumerate(batches):
        threading.Event().wait(step)
        if time.perf_counter() > end and number >= _FEWEST:
            return


@contextmanager
def _other_programs(count: int) -> Iterator[None]:
    """Keep processes computing beside the trainings."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main() -> int:
    """Create each situation in turns, print which causes were named, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--repeat", type=int, default=ROUNDS)
    parser.add_argument("--situations", default=",".join(SITUATIONS))
    parser.add_argument("--busy", action="store_true", help="with two other computing processes")
    parser.add_argument("--verbose", action="store_true", help="print every paragraph")
    parser.add_argument("--smoke", action="store_true", help="one short round without a bar")
    options = parser.parse_args()
    rounds, seconds = (1, 0.3) if options.smoke else (options.repeat, 2.0)
    counts = {name: [0, 0, 0] for name in options.situations.split(",")}
    with _other_programs(2 if options.busy else 0):
        for number in range(rounds):
            for situation, count in counts.items():
                answer = ask(situation, number, seconds)
                kinds = (answer.named == answer.cause, answer.named == "uncertain", True)
                count[kinds.index(True)] += 1
                if options.verbose or not kinds[0]:
                    shape = _SHAPES[number % len(_SHAPES)]
                    print(f"{situation}, {shape}: {answer.named}\n  {answer.text}", flush=True)
    for situation, (right, unsure, wrong) in counts.items():
        print(f"{situation:20} {right} correct, {unsure} uncertain, {wrong} wrong")
    right, unsure, wrong = (sum(column) for column in zip(*counts.values(), strict=True))
    print(
        f"{right} of {right + unsure + wrong} named correctly, {unsure} uncertain, {wrong} wrong; "
        f"load average {os.getloadavg()[0]:.1f}"
    )
    if options.smoke:
        return 0
    if options.busy:
        return int(wrong > 0)
    return int(unsure + wrong > MOST_WRONG * (right + unsure + wrong))


if __name__ == "__main__":
    sys.exit(main())
