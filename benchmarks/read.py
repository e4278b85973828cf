"""What does reading cost beside the bytes themselves? One process, no peers, medians of rounds.

    python benchmarks/read.py            a minute; --smoke: seconds; --json: for machines

Every measure stands beside its limit, the same bytes taken in the barest way that Python has, and
both are timed in turn in each round, so that a busy machine slows both. The bias: everything is in
the page cache, there is one process, and the limits check nothing, whereas readers check all
offsets and every length. The limit of `to_arrow_reader` is not bare: it is our loader, without
workers, whose rate Arrow batches should reach to 70 %.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

import mds
from mds._index.table import read_index
from mds._readers import open_reader
from mds._readers.gather import gather

ROWS = 256


def make(root, count):
    """Datasets of ``count`` samples: tokens in shards of 2 and 64 MB, text, and small numbers."""
    rng, words = np.random.default_rng(0), random.Random(0)
    vocabulary = ["".join(words.choices("abcdefghij", k=words.randrange(2, 9))) for _ in range(500)]

    def text(i):
        meta = {"id": i, "url": f"https://example.org/{i}", "score": words.random()}
        return {
            "meta": meta,
            "text": " ".join(words.choices(vocabulary, k=words.randrange(30, 600))),
        }

    def tokens(_):
        return {"tokens": rng.integers(0, 50_000, 2048, dtype=np.int32)}

    kinds = {
        "tokens": ({"tokens": "ndarray:int32:2048"}, tokens, 1 << 21),
        "tokens in 64 MB": ({"tokens": "ndarray:int32:2048"}, tokens, 1 << 26),
        "text": ({"meta": "json", "text": "str"}, text, None),
        "small": (
            {"a": "int", "b": "float64", "c": "int"},
            lambda i: {"a": i, "b": np.float64(i / 3), "c": -i},
            None,
        ),
    }
    for name, (columns, sample, limit) in kinds.items():
        out = os.path.join(root, name)
        with mds.MDSWriter(columns=columns, out=out, size_limit=limit) as writer:
            for i in range(count):
                writer.write(sample(i))


def open_all(root, name):
    folder = os.path.join(root, name)
    index = read_index(os.path.join(folder, "index.json"))
    readers = {i: open_reader(folder, index.shard(i)) for i in range(len(index))}
    return index, readers


def timed(function, count):
    """Microseconds for each of ``count``."""
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) / count * 1e6


def each(function, numbers):
    def run():
        for number in numbers:
            function(number)

    return run


def samples(root, name, limit):
    """reader[i] and dataset[i] in random order, beside ``limit(data, begin, end)``."""
    index, readers = open_all(root, name)
    reader = readers[0]
    rows = list(range(len(reader)))
    random.Random(1).shuffle(rows)
    numbers = list(range(index.total_samples))
    random.Random(2).shuffle(numbers)
    dataset = mds.LocalDataset(os.path.join(root, name))
    offsets = reader.offsets().tolist()
    with open(os.path.join(root, name, index.shard(0).raw.basename), "rb") as file:
        import mmap

        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def bare():
        for row in rows:
            limit(data, offsets[row], offsets[row + 1])

    return {
        f"{name}: reader[i]": (each(reader.__getitem__, rows), len(rows), bare, len(rows)),
        f"{name}: LocalDataset[i]": (
            each(dataset.__getitem__, numbers),
            len(numbers),
            bare,
            len(rows),
        ),
    }


def bare_tokens(data, begin, end):
    return {"tokens": np.frombuffer(data[begin:end], np.int32)}


def bare_text(data, begin, end):
    part = data[begin:end]
    meta, _ = struct.unpack_from("<2I", part)
    return {"meta": json.loads(part[8 : 8 + meta]), "text": part[8 + meta :].decode()}


_SMALL = struct.Struct("<qdq")


def bare_small(data, begin, end):
    a, b, c = _SMALL.unpack(data[begin:end])
    return {"a": a, "b": np.float64(b), "c": c}


def batches(root):
    """Columns of 256 random rows, beside numpy's own gather of an aligned copy in memory."""
    index, readers = open_all(root, "tokens")
    counts = index.samples.tolist()
    tokens = np.concatenate([readers[i].rows(range(n))["tokens"] for i, n in enumerate(counts)])
    rng = np.random.default_rng(3)
    rows = rng.integers(0, counts[0], ROWS)
    shards = rng.integers(0, len(counts) - 1, ROWS)
    apart = rng.integers(0, counts[0], ROWS)
    numbers = index.offsets[shards] + apart
    out = {"tokens": np.empty((ROWS, 2048), np.int32)}
    return {
        "rows(256), one shard": (lambda: readers[0].rows(rows), ROWS, lambda: tokens[rows], ROWS),
        f"gather of 256 from {len(counts) - 1} shards": (
            *(lambda: gather(readers, shards, apart, None, out), ROWS),
            *(lambda: tokens[numbers], ROWS),
        ),
    }


def arrow(root, name):
    """All rows as Arrow batches, beside batches of columns from the loader, in stored order."""
    dataset = mds.StreamingDataset(local=os.path.join(root, name), batch_size=ROWS)
    loader = mds.StreamingDataLoader(dataset)
    count = dataset.num_samples

    def read_all(batches):
        for _ in batches:
            pass

    return {
        f"{name}: to_arrow_reader": (
            *(lambda: read_all(dataset.to_arrow_reader()), count),
            *(lambda: read_all(loader), count),
        )
    }


def measure(cases, rounds):
    """Median and spread of the measure, its limit, and the median of their ratio."""
    results = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (ours, count, limit, limit_count) in cases.items():
            results[name].append((timed(ours, count), timed(limit, limit_count)))
    table = []
    for name, pairs in results.items():
        ours, limits = [a for a, _ in pairs], [b for _, b in pairs]
        table.append(
            {
                "what": name,
                "us": statistics.median(ours),
                "us_spread": [min(ours), max(ours)],
                "limit_us": statistics.median(limits),
                "of_limit": statistics.median(b / a for a, b in pairs),
            }
        )
    return table


def write_index(path, shards):
    """An index.json as a writer makes it: one shard after the other, other numbers and digests."""
    draw = random.Random(0)
    with open(path, "w", encoding="ascii") as file:
        file.write('{"shards": [')
        for i in range(shards):
            entry = {
                "column_encodings": ["ndarray:int32:2048"],
                "column_names": ["tokens"],
                "column_sizes": [8192],
                "compression": "zstd",
                "format": "mds",
                "hashes": ["xxh64"],
                "raw_data": _file(f"shard.{i:05}.mds", 67_000_000 + draw.randrange(9999), draw),
                "samples": 8170 + draw.randrange(10),
                "size_limit": 67108864,
                "version": 2,
                "zip_data": _file(
                    f"shard.{i:05}.mds.zstd", 31_000_000 + draw.randrange(9999), draw
                ),
            }
            file.write(", " * (i > 0) + json.dumps(entry))
        file.write('], "version": 2}')


def _file(name, size, draw):
    return {"basename": name, "bytes": size, "hashes": {"xxh64": f"{draw.getrandbits(64):016x}"}}


def open_index(path, sidecar):
    """In a process of its own: seconds and memory of reading an index."""
    with open("/proc/self/statm", encoding="ascii") as file:
        before = int(file.read().split()[1])
    start = time.perf_counter()
    index = read_index(path, sidecar)
    seconds = time.perf_counter() - start
    with open("/proc/self/statm", encoding="ascii") as file:
        after = int(file.read().split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    growth = (after - before) * resource.getpagesize()
    result = {"seconds": seconds, "growth_mb": growth / 2**20, "peak_mb": peak / 1024}
    print(json.dumps({**result, "shards": len(index)}))


def indexes(root, shards, rounds):
    """Parse the text, then open the sidecar, each in fresh processes."""
    path, sidecar = os.path.join(root, "index.json"), os.path.join(root, "index.bin")
    write_index(path, shards)
    table = []
    for step in ("parse", "open the sidecar"):
        runs = []
        for _ in range(rounds):
            if step == "parse" and os.path.exists(sidecar):
                os.unlink(sidecar)
            command = [sys.executable, __file__, "--index", path, sidecar]
            runs.append(json.loads(subprocess.check_output(command)))
        seconds = [run["seconds"] for run in runs]
        table.append(
            {
                "what": f"{step}: {shards:,} shards, {os.path.getsize(path) >> 20} MB",
                "seconds": statistics.median(seconds),
                "seconds_spread": [min(seconds), max(seconds)],
                "growth_mb": statistics.median(run["growth_mb"] for run in runs),
                "peak_mb": statistics.median(run["peak_mb"] for run in runs),
            }
        )
    return table


def machine():
    """Everything that a number depends on."""
    return {
        "mds": mds.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cores": os.cpu_count(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small and quick: does it run?")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--index", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.index:
        return open_index(*options.index)
    count, rounds, shards = (600, 2, 2_000) if options.smoke else (8_000, 7, 500_000)
    with tempfile.TemporaryDirectory() as root:
        make(root, count)
        cases = {
            **samples(root, "tokens", bare_tokens),
            **samples(root, "text", bare_text),
            **samples(root, "small", bare_small),
            **batches(root),
        }
        if importlib.util.find_spec("pyarrow"):
            for name in ("tokens", "tokens in 64 MB", "text", "small"):
                cases |= arrow(root, name)
        else:
            print("to_arrow_reader: not measured. pip install pyarrow")
        measure(cases, 1)  # offsets are decoded, pages are mapped
        table = measure(cases, rounds)
        table += indexes(root, shards, min(rounds, 3))
    if options.json:
        print(json.dumps({"machine": machine(), "results": table}, indent=1))
        return None
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    for row in table:
        if "us" in row:
            low, high = row["us_spread"]
            print(
                f"{row['what']:36} {row['us']:7.2f} us ({low:.2f} to {high:.2f})   "
                f"limit {row['limit_us']:6.2f} us   {row['of_limit']:5.0%} of the limit's rate"
            )
        else:
            low, high = row["seconds_spread"]
            print(
                f"{row['what']:36} {row['seconds']:7.3f} s ({low:.3f} to {high:.3f})   "
                f"{row['growth_mb']:.0f} MB kept, {row['peak_mb']:.0f} MB peak"
            )
    return None


if __name__ == "__main__":
    main()
