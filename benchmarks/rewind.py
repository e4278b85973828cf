"""What `mds run step` costs on a large dataset behind S3: seconds, processor time, requests, bytes.

    python -m benchmarks.rewind [--rounds 5] [--smoke]

100 million samples in 5,000 shards, a global batch of 512 on 8 ranks, `seekable`, 30 ms of latency
before every answer, the copy of the index at hand as after any training on the machine. Each round
starts the command as a user does, so imports are part of it, and fetches 3 rows a rank by ranges.
The limit beside it is a Python that starts and imports numpy alone.

Bias: all shards are one file under 5,000 names, which the server reads from memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from devtools.proxy import FaultProxy
from devtools.servers import s3_server
from mds import MDSWriter, World
from mds._dataset.samples import Samples

BUCKET, LATENCY = "data", 0.03
COLUMNS = {"number": "int", "text": "str"}


def write(folder: pathlib.Path, shards: int, samples: int) -> None:
    """A dataset whose shards are one file under many names."""
    with MDSWriter(out=str(folder), columns=COLUMNS, size_limit=None, hashes=[]) as writer:
        for number in range(samples):
            writer.write({"number": number, "text": f"document {number}"})
    index = folder / "index.json"
    output = json.loads(index.read_text())
    (shard,) = output["shards"]
    first = folder / shard["raw_data"]["basename"]
    listed = []
    for number in range(shards):
        name = f"shard.{number:05d}.mds"
        listed.append({**shard, "raw_data": {**shard["raw_data"], "basename": name}})
        with contextlib.suppress(FileExistsError):
            os.link(first, folder / name)
    index.write_text(json.dumps({**output, "shards": listed}))


def spent(command: list[str], environment: dict[str, str]) -> tuple[float, float, str]:
    """Seconds and processor seconds of a command, and what it prints."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    results = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, processor, results.stdout


def main() -> None:
    """Measure and print, as lines and as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    settings = parser.parse_args()
    shards, samples = (50, 200) if settings.smoke else (5000, 20_000)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        write(folder / "served" / BUCKET, shards, samples)
        server = stack.enter_context(s3_server(str(folder / "served")))
        proxy = stack.enter_context(FaultProxy(server, latency=LATENCY))
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
        own = {"S3_ENDPOINT_URL": proxy.url, "MDS_CACHE_DIR": str(folder / "cache"), **keys}
        # Compiled modules are kept, as where a package is installed.
        own |= {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
        os.environ |= own
        dataset = Samples(
            remote=f"s3://{BUCKET}",
            batch_size=64,
            shuffle=True,
            shuffle_algo="seekable",
            topology=World(1, 8, 1, 0),
        )
        state = folder / "checkpoint.json"
        state.write_text(json.dumps(dataset.state_dict()))
        step = str(dataset.num_samples // 512 // 2)
        command = [sys.executable, "-m", "mds", "run", "step", str(state), step, "--show", "3"]
        rounds, floor = [], []
        for number in range(settings.rounds + 1):
            requests_before, bytes_before = len(proxy.seen.requests), proxy.seen.bytes_sent
            seconds, processor, output = spent(command, {**os.environ})
            assert output.count("document") >= 24, output
            requests = len(proxy.seen.requests) - requests_before
            traffic = (requests, (proxy.seen.bytes_sent - bytes_before) / 1e6)
            plain = spent([sys.executable, "-c", "import numpy"], {**os.environ})
            if number:  # the first compiles
                rounds.append((seconds, processor, *traffic))
                floor.append(plain[1])
    names = ("seconds", "processor seconds", "requests", "megabytes")
    results = {
        f"step of {shards * samples:,} samples, {quantity}": statistics.median(column)
        for quantity, column in zip(names, zip(*rounds, strict=True), strict=True)
    }
    results["python with numpy, processor seconds"] = statistics.median(floor)
    for quantity, value in results.items():
        print(f"{quantity:<60} {value:,.3f}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
