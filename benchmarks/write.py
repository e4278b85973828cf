"""What writing costs: this library beside a plain file, and beside others where they are installed.

    python benchmarks/write.py [--smoke] [--other PYTHON] [--folder /dev/shm] [--rounds 5]
                               [--megabytes 256] [--disk /tmp]

PYTHON is one that has mosaicml-streaming or array_record. Every contender is a process of its own
that writes the same samples again and again, in turns, so that whatever slows the machine slows
all. Times are microseconds a sample: the median of the rounds, and the fastest and slowest in
brackets; CPU counts all threads. `x` is how often a contender's time holds ours. Memory is the most
that a round took, in shards of 64 MB.

Bias: the folder should be a memory file system, on which a disk cannot hide what a library costs;
all samples are made beforehand and are warm in the processor's cache; a plain file has no offsets,
no index and no names of columns. Ours alone stores digests in the first two cases, as it does by
default. ArrayRecord writes no compression, one record a group. What
waiting for a disk costs is shown apart, in a folder on one: `durable=True`, which is the default,
syncs every shard before the index appears.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

TOKENS = "8 KB token arrays (ndarray:int32:2048)"
TEXT = "text and json (0.2 to 4 KB)"
ZSTD = "token arrays of text, zstd:3, hash xxh3_64"
COLUMNS = {
    TOKENS: {"tokens": "ndarray:int32:2048"},
    TEXT: {"text": "str", "meta": "json"},
    ZSTD: {"tokens": "ndarray:int32:2048"},
}
DISTRIBUTIONS = {
    "mds": "mds-streaming",
    "streaming": "mosaicml-streaming",
    "array_record": "array_record",
}


def make_samples(case):
    rng = np.random.default_rng(0)
    if case == TOKENS:
        return [{"tokens": rng.integers(0, 50_000, 2048, np.int32)} for _ in range(64)]
    if case == ZSTD:  # 32 MB of words as rare as words are, beyond what a compressor remembers
        words = (rng.zipf(1.3, (4096, 2048)) % 50_000).astype(np.int32)
        return [{"tokens": row} for row in words]
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "so"]
    return [
        {
            "text": " ".join(rng.choice(words, rng.integers(50, 900))),
            "meta": {
                "url": f"http://host/{i}",
                "score": rng.random(),
                "tags": ["a", i],
                "ok": True,
            },
        }
        for i in range(500)
    ]


def raw_bytes(sample):
    parts = [json.dumps(v) if isinstance(v, dict) else v for v in sample.values()]
    return b"".join(p.encode() if isinstance(p, str) else p.tobytes() for p in parts)


# ------------------------------------------------------------------------------------- contenders


def write_plain(case, samples, count, folder, threads):
    os.makedirs(folder)
    with open(os.path.join(folder, "file"), "wb", buffering=1 << 20) as file:
        file.writelines(raw_bytes(samples[i % len(samples)]) for i in range(count))


def write_array_record(case, samples, count, folder, threads):
    from array_record.python.array_record_module import ArrayRecordWriter

    os.makedirs(folder)
    writer = ArrayRecordWriter(os.path.join(folder, "file"), "group_size:1,uncompressed")
    for i in range(count):
        writer.write(raw_bytes(samples[i % len(samples)]))
    writer.close()


def write_shards(case, samples, count, folder, threads, library, digests):
    options = {"compression": "zstd:3", "hashes": ["xxh3_64"]} if case == ZSTD else {}
    options |= digests
    if threads:
        options["max_workers"] = threads
    writer = importlib.import_module(library).MDSWriter
    with writer(columns=COLUMNS[case], out=folder, **options) as out:
        for i in range(count):
            out.write(samples[i % len(samples)])


def peak_memory(stop, peak):
    """The largest resident size of this process until `stop`, in bytes above the first."""
    page = os.sysconf("SC_PAGE_SIZE")
    first = None
    while not stop.wait(0.005):
        with open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[1]) * page
        first = size if first is None else first
        peak[0] = max(peak[0], size - first)


def serve(contender):
    """Run the contender for every line of JSON that comes in; tell times for each."""
    samples_by_case = {}
    for line in sys.stdin:
        case, count, folder, threads, digests = json.loads(line)
        samples = samples_by_case.setdefault(case, None) or make_samples(case)
        samples_by_case[case] = samples
        stop, peak = threading.Event(), [0]
        watch = threading.Thread(target=peak_memory, args=(stop, peak), daemon=True)
        if os.path.exists("/proc/self/statm"):
            watch.start()
        wall, cpu = time.perf_counter(), time.process_time()
        if contender in {"mds", "streaming"}:
            write_shards(case, samples, count, folder, threads, contender, digests)
        else:
            {"plain": write_plain, "array_record": write_array_record}[contender](
                case, samples, count, folder, threads
            )
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        stop.set()
        shutil.rmtree(folder)
        print(json.dumps([wall / count * 1e6, cpu / count * 1e6, peak[0]]), flush=True)


class Contender:
    """A process that writes when it is told to."""

    def __init__(self, name, python):
        self.name = name
        command = [python, os.path.abspath(__file__), "--serve", name]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def write(self, *order):
        print(json.dumps(order), file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("["):
                return json.loads(line)
        raise SystemExit(f"{self.name} ended early")


def versions(python):
    """Return the versions of other libraries in an environment."""
    program = (
        "import importlib.metadata as m, json\n"
        f"names = {DISTRIBUTIONS!r}\n"
        "found = {}\n"
        "for k, v in names.items():\n"
        "    try: found[k] = m.version(v)\n"
        "    except m.PackageNotFoundError: continue\n"
        "print(json.dumps(found))"
    )
    completed = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    return json.loads(completed.stdout)


def file_system(folder):
    """The kind of file system that a folder is on, where the system tells."""
    best = ("", "unknown")
    if os.path.exists("/proc/mounts"):
        with open("/proc/mounts", encoding="utf-8") as file:
            mounts = [line.split()[1:3] for line in file]
        inside = os.path.join(os.path.realpath(folder), "")
        fitting = [
            (mount, kind) for mount, kind in mounts if inside.startswith(os.path.join(mount, ""))
        ]
        best = max(fitting, key=lambda pair: len(pair[0]), default=best)
    return best[1]


# ------------------------------------------------------------------------------------------ report


def measure(contenders, case, count, folder, rounds, threads=None, digests=None):
    """Contender -> list of (wall, cpu, memory), one a round, the first round thrown away."""
    results = {contender: [] for contender in contenders}
    for number in range(rounds + 1):
        for contender in contenders:
            place = os.path.join(folder, f"mds-benchmark-{os.getpid()}")
            result = contender.write(case, count, place, threads, digests or {})
            if number:
                results[contender].append(result)
    return results


def measure_disk(ours, count, folder, rounds):
    """Measure the cost of waiting for a disk and that of digests, in turns."""
    kinds = {
        "durable": {"durable": True},
        "not durable": {"durable": False},
        "durable, no digests": {"durable": True, "hashes": []},
    }
    results = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, digests in kinds.items():
            results[name] += measure([ours], TOKENS, count, folder, 1, digests=digests)[ours]
    return results


def show(label, results, ours):
    """A line of the report; `ours` are the results to compare with."""
    wall, cpu, memory = zip(*results, strict=True)
    slower, dearer = (
        statistics.median(column) / statistics.median(base[i] for base in ours)
        for i, column in enumerate((wall, cpu))
    )
    spread = f"[{min(wall):.1f} .. {max(wall):.1f}]"
    shards = max(memory) / (1 << 26)
    print(
        f"  {label:<19} {statistics.median(wall):8.2f} us {slower:6.2f} x  {spread:<20} "
        f"CPU {statistics.median(cpu):8.2f} us {dearer:6.2f} x   memory {shards:.2f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--other", help="a Python with mosaicml-streaming or array_record")
    parser.add_argument("--folder", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    parser.add_argument("--disk", default=tempfile.gettempdir(), help="a folder on a disk")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=256, help="written in a round")
    parser.add_argument("--smoke", action="store_true", help="does it work? one small round")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.megabytes = 1, 8
    if options.serve:
        return serve(options.serve)
    peer_versions = versions(options.other) if options.other else {}
    peer_versions.pop("mds", None)
    folder = options.folder or "."
    print(
        f"{platform.platform()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"mds {importlib.metadata.version('mds-streaming')}, numpy {np.__version__}, in {folder}\n"
        "others: "
        + (", ".join(" ".join(peer) for peer in peer_versions.items()) or "none; see --other")
    )
    ours = Contender("mds", sys.executable)
    peers = [Contender("plain", sys.executable)]
    peers += [Contender(name, options.other) for name in peer_versions]
    size = options.megabytes << 20
    for case, count in ((TOKENS, size // 8192), (TEXT, size // 3000)):
        print(f"\n{case}, {count} samples a round")
        results = measure([ours, *peers], case, count, folder, options.rounds)
        for contender, measured in results.items():
            show(contender.name, measured, results[ours])
    count = size // 8192
    print(f"\n{TOKENS}, {count} samples a round, in {options.disk} ({file_system(options.disk)})")
    disk = measure_disk(ours, count, options.disk, options.rounds)
    for name, results in disk.items():
        show(name, results, disk["durable"])
    print(f"\n{ZSTD}, {count} samples a round")
    two = measure([ours], ZSTD, count, folder, options.rounds, 2)[ours]
    show("mds, 2 threads", two, two)
    single_thread = measure([ours], ZSTD, count, folder, options.rounds, 1)[ours]
    show("mds, 1 thread", single_thread, two)
    for contender in peers:
        if contender.name == "streaming":
            slow = measure([contender], ZSTD, count, folder, min(2, options.rounds))
            show(contender.name, slow[contender], two)
    return None


if __name__ == "__main__":
    main()
