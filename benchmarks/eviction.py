"""Bytes that shuffled epochs cost under a limit, the way people run them: torchrun and a loader.

    python -m benchmarks.eviction [--forms raw,zstd] [--shapes 1x2t,1x2,2x2,4x1] [--blocks 5,15]

A web server in a process of its own counts the bytes that it sends. A training script is started
with ``torchrun`` on so many ranks, each of which makes a ``StreamingDataset`` and a
``StreamingDataLoader`` as in README and goes through three epochs; ranks meet after each step, as
they do when gradients are averaged. Beside what came stand the least that is possible (every byte
once, and in later epochs those that find no room) and Belady's rule for whole shards on the merged
order of all workers of the node, which knows the whole future.
"""

from __future__ import annotations

import argparse
import heapq
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

BATCH = 32
EPOCHS = 3
ROW = 2048


class Run(NamedTuple):
    """Settings of a measurement."""

    form: str  # "raw" or "zstd"
    ranks: int
    workers: int
    kind: str  # "threads" or "processes"
    block: float  # share of the dataset within which samples are shuffled
    limit: float = 0.25  # share of the dataset that may be kept
    seeds: tuple[int, ...] = (9176,)  # of jobs that share the folder, each with its own order


class Found(NamedTuple):
    """Fetched bytes, the optimum and the minimum, over the dataset's bytes; requests and times."""

    came: float
    belady: float
    least: float
    requests: int
    seconds: float
    cpu: float


# ----------------------------------------------------------------- the data and their server


def write(folder: str, form: str, samples: int, shard: int) -> None:
    """Samples of 2 KB that do not compress."""
    import numpy as np

    from mds import MDSWriter

    rng = np.random.default_rng(0)
    packed = "zstd" if form == "zstd" else None
    columns = {"x": "int", "b": "bytes"}
    with MDSWriter(
        out=folder, columns=columns, size_limit=shard, compression=packed, hashes=["xxh3_64"]
    ) as writer:
        for number in range(samples):
            writer.write({"x": number, "b": rng.bytes(ROW)})


def _serve(folder: str, sent_bytes: Any, requests: Any, ready: Any) -> None:
    import socket

    from devtools.httpserver import FolderHandler, QuietServer

    class Counting(FolderHandler):
        root, has_ranges = folder, True

        def do_GET(self) -> None:
            if self.path.endswith((".mds", ".zstd")):
                path = self.locate()
                start, end, _ = self._wanted(os.path.getsize(path))
                with sent_bytes.get_lock():
                    sent_bytes.value += end - start
                    requests.value += 1
            super().do_GET()

    server = QuietServer(("127.0.0.1", 0), Counting)
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    ready.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def counting_server(folder: str) -> Iterator[tuple[str, Any, Any]]:
    """A server of a folder in a process of its own: its URL, bytes and requests of shards."""
    context = multiprocessing.get_context("spawn")
    sent, requests = context.Value("q", 0), context.Value("q", 0)
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(folder, sent, requests, there), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}", sent, requests
    finally:
        process.terminate()
        process.join()


# ----------------------------------------------------------------- the training


def train(settings: dict[str, Any]) -> None:
    """Read the epochs of one rank, and report its counts."""
    import torch.distributed as dist

    from mds import StreamingDataLoader, StreamingDataset

    is_many = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_many:
        dist.init_process_group("gloo")
    dataset = StreamingDataset(
        remote=settings["remote"],
        local=settings["local"],
        shuffle=True,
        batch_size=BATCH,
        shuffle_block_size=settings["block"],
        shuffle_seed=settings["seed"],
        cache_limit=settings["limit"],
    )
    loader = StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=settings["workers"], worker_type=settings["kind"]
    )
    sample_count = 0
    for _ in range(EPOCHS):
        for batch in loader:
            sample_count += len(batch["x"])
            if is_many:
                dist.barrier()
    if sample_count < EPOCHS * settings["samples"] // int(os.environ.get("WORLD_SIZE", "1")):
        raise RuntimeError(f"{sample_count} samples")
    if is_many:
        dist.destroy_process_group()


def measure(folder: str, run: Run, scratch: str) -> Found:
    """Three epochs from a cold folder."""
    import resource

    from mds._index.table import read_index

    index = read_index(os.path.join(folder, "index.json"))
    size = int((index.zip_size if index.zip_size.any() else index.raw_size).sum())
    limit = int(size * run.limit)
    block = max(int(index.total_samples * run.block), 1)
    local = tempfile.mkdtemp(dir=scratch)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(run.ranks), "-m", "benchmarks.eviction", "--train"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with counting_server(folder) as (url, sent, requests):
        settings = {
            "remote": url,
            "local": local,
            "block": block,
            "limit": limit,
            "workers": run.workers,
            "kind": run.kind,
            "samples": index.total_samples,
        }
        started = time.perf_counter()
        jobs = [
            subprocess.Popen(
                [*command, json.dumps({**settings, "seed": seed})],
                env={**os.environ, "OMP_NUM_THREADS": "1", "MDS_CACHE_DIR": f"{local}/o{seed}"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for seed in run.seeds
        ]
        errors = [job.communicate()[1] for job in jobs]
        seconds = time.perf_counter() - started
        came, count = sent.value, requests.value
    shutil.rmtree(local, ignore_errors=True)
    for job, error in zip(jobs, errors, strict=True):
        if job.returncode:
            raise RuntimeError(f"{run}: {error[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    whole, least = bounds(folder, run, limit, block)
    return Found(came / size, whole / size, least / size, count, seconds, cpu)


def sharing(folder: str, run: Run, scratch: str) -> tuple[float, float]:
    """Bytes of jobs that share a folder, and the sum of each alone under its part of the limit."""
    together = measure(folder, run, scratch).came
    part = run._replace(limit=run.limit / len(run.seeds))
    alone = [measure(folder, part._replace(seeds=(seed,)), scratch).came for seed in run.seeds]
    return together, sum(alone)


# ----------------------------------------------------------------- the least that is possible


def bounds(folder: str, run: Run, limit: int, block: int) -> tuple[float, float]:
    """The bytes of Belady's rule for whole shards, and of single samples where they can come."""
    import numpy as np

    from mds._cache.ledger_file import ledger_size
    from mds._index.table import read_index
    from mds.plan import EpochPlan
    from mds.plan._spec import OrderSpec
    from mds.world import World

    index = read_index(os.path.join(folder, "index.json"))
    came = index.zip_size if index.zip_size.any() else index.raw_size
    room = limit - ledger_size(len(index)) - 2 * os.path.getsize(os.path.join(folder, "index.json"))
    world = World(1, run.ranks, run.workers, 0)
    spec = OrderSpec(shuffle=True, batch_size=BATCH, shuffle_block_size=block)
    trace = []
    for epoch in range(EPOCHS):
        plan = EpochPlan([{"shards": index.samples}], world, spec, epoch=epoch)
        for step in range(plan.steps):
            ids = plan.batch(step).reshape(-1)
            trace.append(np.searchsorted(index.offsets, ids[ids >= 0], "right") - 1)
    scale = came.sum() / index.raw_size.sum()
    whole = belady(np.concatenate(trace).tolist(), index.raw_size.tolist(), room) * scale
    return whole, float(EPOCHS * came.sum() - (EPOCHS - 1) * room * scale)


def belady(trace: Sequence[int], sizes: Sequence[int], capacity: int) -> float:
    """The fewest bytes that whole shards cost when the whole future is known."""
    upcoming: dict[int, list[int]] = {}
    for when in range(len(trace) - 1, -1, -1):
        upcoming.setdefault(trace[when], []).append(when)
    resident: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    used = came = 0
    for shard in trace:
        uses = upcoming[shard]
        uses.pop()
        after = uses[-1] if uses else len(trace)
        if shard not in resident:
            came += sizes[shard]
            used += sizes[shard]
        resident[shard] = after
        heapq.heappush(heap, (-after, shard))
        still_resident = []
        while used > capacity:
            when, other = heapq.heappop(heap)
            if other == shard:  # is being used
                still_resident.append((when, other))
            elif resident.get(other) == -when:
                del resident[other]
                used -= sizes[other]
        for entry in still_resident:
            heapq.heappush(heap, entry)
    return came


def main() -> None:
    """Measure each way to start in turns."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--forms", default="raw,zstd")
    parser.add_argument("--shapes", default="1x2t,1x2,2x2,4x1", help="ranks x workers, t: threads")
    parser.add_argument("--blocks", default="5,15", help="percent of the dataset")
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--shard", type=int, default=1 << 20)
    parser.add_argument("--jobs", type=int, default=1, help="with orders of their own, at once")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--smoke", action="store_true", help="small and once, to see that it runs")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        options.samples, options.forms, options.shapes, options.blocks = 4_000, "zstd", "1x2t", "15"
        options.shard = 1 << 18
    if options.train:
        train(json.loads(options.train))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folders = {}
        for form in options.forms.split(","):
            folders[form] = os.path.join(scratch, form)
            write(folders[form], form, options.samples, options.shard)
        for _ in range(options.rounds):
            for form in options.forms.split(","):
                for block in options.blocks.split(","):
                    for shape in options.shapes.split(","):
                        ranks, workers = map(int, shape.rstrip("t").split("x"))
                        kind = "threads" if shape.endswith("t") else "processes"
                        run = Run(form, ranks, workers, kind, int(block) / 100)
                        if options.jobs > 1:
                            seeds = tuple(range(1, options.jobs + 1))
                            came, alone = sharing(folders[form], run._replace(seeds=seeds), scratch)
                            print(
                                f"{form:5} {block:>3} % {shape:5} {options.jobs} jobs {came:5.2f}, "
                                f"alone under their parts {alone:.2f} ({came / alone:.3f} x)",
                                flush=True,
                            )
                            continue
                        f = measure(folders[form], run, scratch)
                        print(
                            f"{form:5} {block:>3} % {shape:5} {f.came:5.2f}  Belady {f.belady:.2f} "
                            f"({f.came / f.belady:.3f} x)  least {f.least:.2f}  {f.requests} "
                            f"requests  {f.seconds:.1f} s  cpu {f.cpu:.1f} s",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
