"""What it costs to know the order of an epoch, beside the incumbent where it is installed.

    python benchmarks/plan.py [--incumbent PYTHON] [--samples 1e7,1e8] [--rounds 3] [--smoke]

PYTHON is one that has mosaicml-streaming. Shards are uneven, 4,091 samples on average, as in a
published pretraining mix of 2.0e9 samples in 488,894 shards. Every figure comes from a fresh
process, contenders take turns, and the median of the rounds counts. Three questions:

node    seconds and memory until a node knows its part of the epoch: here the file that its
        processes share, for the last of the nodes, which costs most; there the array that the
        incumbent's generate_work makes in each node's first process
array   the same as one array for everybody: epoch_order beside generate_work
shuffle get_shuffle alone, which both do with numpy's generator: its draws are the floor
worker  nanoseconds for each id that a worker reads, and its memory
resume  milliseconds from nothing to the first id at half of the epoch, with what a run left behind

Bias: the incumbent must compute an epoch anew in every process start and on every node, which
`resume` shows; it also copies the array through named shared memory, which is left out here. Its
samples must fit memory, so it is left out beyond 1e8. Seconds are of the processor, user and
system, so that a busy machine counts less; wall seconds are in the JSON.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

MEAN = 2.0e9 / 488_894
WORLDS = {"1x8x8": (1, 8, 8), "64x8x8": (64, 8, 8)}
BATCH = 8
MOST_OF_INCUMBENT = 10**8


def make_sizes(samples):
    shards = max(1, round(samples / MEAN))
    weight = np.random.default_rng(7).lognormal(0, 0.8, shards)
    sizes = np.maximum(1, (weight / weight.sum() * samples).astype(np.int64))
    sizes[0] += samples - sizes.sum()
    return sizes


def order_of(algo, nodes):
    canonical = nodes * (64 if algo == "py1s" else 1)
    return {
        "batch_size": BATCH,
        "shuffle": True,
        "shuffle_algo": algo,
        "num_canonical_nodes": canonical,
        "shuffle_block_size": max(4_000_000 // canonical, 1 << 18),
    }


class Meter:
    """Processor seconds, wall seconds and memory of a block, the last as the peak it added."""

    def __init__(self):
        self.base = _resident()
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # forget the peak of before
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def read(self, **other_options):
        cpu, wall = time.process_time() - self.cpu, time.perf_counter() - self.wall
        peak = _status("VmHWM") - self.base
        return {"cpu": cpu, "wall": wall, "peak": max(peak, 0), **other_options}


def _status(name):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))


def _resident():
    return _status("VmRSS")


# ---------------------------------------------------------------------------------- contenders


def ours(question, samples, algo, world, folder):
    from mds._cache import order_files as orders
    from mds._cache.order_files import prepare, share_order
    from mds.plan import EpochPlan, epoch_order
    from mds.shuffle import get_shuffle
    from mds.world import World

    orders._ahead.begin = lambda *_: None  # noqa: SLF001 - the next epoch is not asked for
    sizes = make_sizes(samples)
    order = order_of(algo, world[0])
    mine = World(*world, (world[0] - 1) * world[1] * world[2] + 3 * world[2] + 5)
    streams = [{"shards": sizes}]
    meter = Meter()
    if question == "array":
        return meter.read(samples=int((epoch_order(streams, mine, **order) >= 0).sum()))
    if question == "shuffle":
        canonical, block = order["num_canonical_nodes"], order["shuffle_block_size"]
        return meter.read(samples=len(get_shuffle(algo, sizes, canonical, 9176, 0, block)))
    plan = EpochPlan(streams, mine, **order)
    if question == "node":
        prepare(plan, folder)
        return meter.read()
    share_order(plan, folder)
    place = (mine.node, mine.rank_of_node, mine.worker_of_rank)
    if question == "resume":
        first = next(plan.blocks(*place, start=plan.filling.length // 2))
        return meter.read(first=int(first[0]))
    count = 0
    for ids in plan.blocks(*place):
        count += len(ids)
        if count > 20_000_000:
            break
    return meter.read(ids=count)


def incumbent(question, samples, algo, world, folder):
    from streaming import StreamingDataset
    from streaming.base.batching import generate_work
    from streaming.base.shuffle import get_shuffle
    from streaming.base.util import clean_stale_shared_memory
    from streaming.base.world import World

    sizes = make_sizes(samples)
    order = order_of(algo, world[0])
    if question == "shuffle":
        meter = Meter()
        canonical, block = order["num_canonical_nodes"], order["shuffle_block_size"]
        return meter.read(samples=len(get_shuffle(algo, sizes, canonical, 9176, 0, block)))
    clean_stale_shared_memory()
    remote, local = os.path.join(folder, "remote"), tempfile.mkdtemp(dir=folder)
    if not os.path.exists(remote):
        write_index(sizes, remote)
    os.rmdir(local)
    dataset = StreamingDataset(remote=remote, local=local, **order)
    meter = Meter()
    samples_seen = samples // 2 // (BATCH * world[0] * world[1]) * (BATCH * world[0] * world[1])
    work = generate_work(
        "random", dataset, World(*world, 0), 0, samples_seen if question == "resume" else 0
    )
    return meter.read(samples=int((work >= 0).sum()))


def write_index(sizes, folder):
    shards = [
        {
            "column_encodings": ["int"],
            "column_names": ["x"],
            "column_sizes": [8],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "raw_data": {"basename": f"shard.{i:05}.mds", "bytes": 1000, "hashes": {}},
            "samples": size,
            "size_limit": 1 << 26,
            "version": 2,
            "zip_data": None,
        }
        for i, size in enumerate(sizes.tolist())
    ]
    os.makedirs(folder)
    with open(os.path.join(folder, "index.json"), "w", encoding="utf-8") as file:
        json.dump({"shards": shards, "version": 2}, file)


# ------------------------------------------------------------------------------------ questions


def ask(python, job):
    """One measurement in a process of its own; None when it failed."""
    process = subprocess.run(
        [python, os.path.abspath(__file__), "--child", json.dumps(job)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
    )
    if process.returncode:
        print(process.stderr[-2000:], file=sys.stderr)
        return None
    return json.loads(process.stdout.splitlines()[-1])


def child(job):
    make = ours if job["system"] == "mds" else incumbent
    print(json.dumps(make(*(job[k] for k in ("question", "samples", "algo", "world", "folder")))))


def cases(options):
    """Question, algorithm and world of each row."""
    for samples in options.samples:
        for name, world in WORLDS.items():
            for algo in options.algos:
                for question in options.questions:
                    if question in {"array", "shuffle"} and samples > MOST_OF_INCUMBENT:
                        continue
                    if algo == "seekable" and question in {"node", "shuffle"}:
                        continue
                    yield samples, name, world, algo, question


def measure(options):
    rows = []
    for samples, name, world, algo, question in cases(options):
        folder = os.path.join(options.folder, f"{samples}-{name}-{algo}")
        os.makedirs(folder, exist_ok=True)
        job = {"question": question, "samples": samples, "algo": algo, "world": world}
        systems = {"mds": (sys.executable, os.path.join(folder, "orders"))}
        theirs = algo != "seekable" and question != "worker" and samples <= MOST_OF_INCUMBENT
        if options.incumbent and theirs:
            systems["incumbent"] = (options.incumbent, folder)
        measurements = {system: [] for system in systems}
        for _ in range(options.rounds if samples < 10**9 else 1):
            for system, (python, place) in systems.items():
                if question == "node" and system == "mds":
                    shutil.rmtree(place, ignore_errors=True)
                result = ask(python, {**job, "system": system, "folder": place})
                if result is not None:
                    measurements[system].append(result)
        row = {"samples": samples, "world": name, "algo": algo, "question": question}
        for system, results in measurements.items():
            row[system] = {
                key: statistics.median(result[key] for result in results)
                for key in ("cpu", "wall", "peak", *("ids" for r in results[:1] if "ids" in r))
                if results
            }
        rows.append(row)
        print(line(row), flush=True)
        if question == options.questions[-1]:
            shutil.rmtree(folder, ignore_errors=True)
    return rows


def line(row):
    """A row of the table."""

    def figure(system):
        result = row.get(system)
        if not result:
            return f"{'':>18}"
        if row["question"] == "resume":
            value, unit = result["wall"] * 1e3, "ms"
        elif row["question"] == "worker":
            value, unit = result["cpu"] / result["ids"] * 1e9, "ns"
        else:
            value, unit = result["cpu"] / row["samples"] * 1e9, "ns"
        return f"{value:>9,.1f} {unit} {result['peak'] / 1e6:>5,.0f}M"

    times = ""
    if row.get("incumbent") and row.get("mds"):
        key = "wall" if row["question"] == "resume" else "cpu"
        times = f"{row['incumbent'][key] / row['mds'][key]:.1f}x"
    name = f"{row['samples']:>13,} {row['world']:>7} {row['algo']:>8} {row['question']:>8}"
    return f"{name} {figure('mds')} {figure('incumbent')} {times:>8}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--incumbent", metavar="PYTHON")
    parser.add_argument("--samples", default="1e6,1e7,1e8")
    parser.add_argument("--algos", default="py1e,py1s,py1br,seekable")
    parser.add_argument("--questions", default="node,array,shuffle,worker,resume")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "mds-plan"))
    parser.add_argument("--json", help="write the results here")
    parser.add_argument("--smoke", action="store_true", help="does it work? in seconds")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(json.loads(options.child))
        return
    if options.smoke:
        options.samples, options.rounds, options.algos = "1e5", 1, "py1e,seekable"
    options.samples = [int(float(text)) for text in options.samples.split(",")]
    options.algos, options.questions = options.algos.split(","), options.questions.split(",")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}, numpy {np.__version__}; ns: processor time for each sample (worker: own id)")
    print(f"{'samples':>13} {'world':>7} {'algo':>8} {'':>8} {'mds':>18} {'incumbent':>18} {'':>8}")
    rows = measure(options)
    shutil.rmtree(options.folder, ignore_errors=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "numpy": np.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
