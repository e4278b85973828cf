"""A cold epoch from a loopback S3, beside a plain parallel download of the same objects.

    python benchmarks/remote.py [--smoke] [--other PYTHON] [--folder /dev/shm/mds] [--rounds 5]

The server is `rclone serve s3`, once as it is and once behind a proxy that holds every request
back by 30 ms. PYTHON is one that has mosaicml-streaming. Every contender runs in processes of its
own, in turns; figures are the median of the rounds, with the fastest and the slowest.

    plain     boto3 in two processes of eight threads each, every object once, written to files
    parts     the same with boto3's own download_file, which brings large objects in parts
    obstore   as plain, through the client in Rust; left out where it is not installed
    cache     our cache and prefetcher in two forked workers, shuffled, every sample read
    mds       our dataset in our loader with two workers, which are threads
    processes the same with two worker processes
    streaming the incumbent's dataset and loader with two worker processes

Shards are of 64 MB, which is what writers make by default, and of 4 MB, where every request counts.

What a limit costs is measured by benchmarks/eviction.py.

Bias: server, proxy and clients share the processors of one machine, and a proxy in Python takes
some; a plain download neither checks digests nor makes samples. The page cache is warm. This
server spends more on a whole object than on its parts, whose digest it does not compute.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time

import numpy as np

WORKERS = 2
BUCKET = "data"
BATCH = 32
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


# ----------------------------------------------------------------- the data


def write(folder, megabytes, shard=4 << 20, row=64 << 10):
    """Samples of 64 KB that do not compress, about 60 to a shard."""
    from mds.writers import MDSWriter

    rng = np.random.default_rng(0)
    columns = {"x": "int", "b": "bytes"}
    with MDSWriter(out=folder, columns=columns, size_limit=shard, hashes=["xxh3_64"]) as writer:
        for number in range((megabytes << 20) // row):
            writer.write({"x": number, "b": rng.bytes(row)})


def order(samples, epoch, block):
    """Blocks in another order each epoch, and the samples of a block shuffled."""
    rng = np.random.default_rng(epoch)
    starts = np.arange(0, samples, block)
    rng.shuffle(starts)
    return np.concatenate(
        [start + rng.permutation(min(block, samples - start)) for start in starts]
    )


# ----------------------------------------------------------------- contenders, each a process


def forked(act, workers=WORKERS):
    """Run act(worker) in forked workers, and return what each returns, by way of JSON."""
    readers = []
    for worker in range(workers):
        reader, writer = os.pipe()
        if not os.fork():
            os.write(writer, json.dumps(act(worker)).encode())
            os._exit(0)
        os.close(writer)
        readers.append(reader)
    reports = []
    for reader in readers:
        with os.fdopen(reader, "rb") as file:
            reports.append(json.loads(file.read()))
    for _ in readers:
        os.wait()
    return reports


def plain(url, folder, in_parts=False):
    """Every object once, by a good many threads, into files; large ones in parts as boto3 does."""
    from concurrent.futures import ThreadPoolExecutor

    import boto3
    from botocore.config import Config

    def client():
        settings = Config(max_pool_connections=16, s3={"addressing_style": "path"})
        return boto3.client("s3", endpoint_url=url, config=settings)

    started = time.perf_counter()
    index = json.loads(client().get_object(Bucket=BUCKET, Key="index.json")["Body"].read())
    names = [(s["zip_data"] or s["raw_data"])["basename"] for s in index["shards"]]
    os.makedirs(folder, exist_ok=True)

    def download(worker):
        s3 = client()

        def fetch(name):
            if in_parts:
                s3.download_file(BUCKET, name, os.path.join(folder, name))
                return
            body = s3.get_object(Bucket=BUCKET, Key=name)["Body"]
            with open(os.path.join(folder, name), "wb") as file:
                file.writelines(body.iter_chunks(1 << 20))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fetch, names[worker::WORKERS]))

    forked(download)
    return {"seconds": time.perf_counter() - started}


def obstore(url, folder):
    """The download of `plain` by obstore, whose clients are made after the fork."""
    from concurrent.futures import ThreadPoolExecutor

    from obstore.store import S3Store

    def client():
        options = {"allow_http": True, "timeout": "60s"}
        return S3Store(BUCKET, endpoint=url, client_options=options)

    started = time.perf_counter()
    # A child that is forked after a request of its parent gets no answer.
    [names] = forked(
        lambda _: [
            (shard["zip_data"] or shard["raw_data"])["basename"]
            for shard in json.loads(bytes(client().get("index.json").bytes()))["shards"]
        ],
        workers=1,
    )
    os.makedirs(folder, exist_ok=True)

    def download(worker):
        s3 = client()

        def fetch(name):
            with open(os.path.join(folder, name), "wb") as file:
                file.writelines(s3.get(name).stream(1 << 20))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fetch, names[worker::WORKERS]))

    forked(download)
    return {"seconds": time.perf_counter() - started}


def cache(url, folder):
    """Our cache and prefetcher, without torch."""
    import boto3  # as in the plain download, imports are not counted

    from mds._cache.index_copy import fetch_index
    from mds._cache.shard_cache import ShardCache
    from mds._cache.source import Source
    from mds._prefetch.prefetcher import Prefetcher

    assert boto3
    os.environ["S3_ENDPOINT_URL"] = url
    started = time.perf_counter()
    remote = f"s3://{BUCKET}"
    index = fetch_index(remote, folder)
    shards = ShardCache([Source(index, remote, folder)])
    ids = order(index.total_samples, 0, 1 << 12)

    def work(worker):
        first, sample_count = None, 0
        mine = [ids[worker::WORKERS]]
        with Prefetcher(shards, mine, index.offsets, predownload=8 * BATCH) as ahead:
            for window in ahead.windows():
                for shard, row in zip(window.shards.tolist(), window.rows.tolist(), strict=True):
                    sample_count += len(window.readers[shard][row]["b"])
                    first = first or time.perf_counter() - started
        return {**shards.stats(), "first": first, "seen": sample_count}

    reports = forked(work)
    size = int((index.zip_size if index.zip_size.any() else index.raw_size).sum())
    fetched_bytes = sum(report["fetched_bytes"] + report["ranged_bytes"] for report in reports)
    return {
        "seconds": time.perf_counter() - started,
        "first": min(report["first"] for report in reports),
        "bytes": fetched_bytes / size,
    }


def loader(module, url, folder, **options):
    """A StreamingDataset in its loader, from when it is made."""
    import importlib

    import boto3  # as in the plain download, its import is not counted

    assert boto3
    os.environ["S3_ENDPOINT_URL"] = url
    library = importlib.import_module(module)
    dataset, batches_of = library.StreamingDataset, library.StreamingDataLoader
    started, first, sample_count = time.perf_counter(), None, 0
    data = dataset(
        remote=f"s3://{BUCKET}",
        local=folder,
        shuffle=True,
        batch_size=BATCH,
        shuffle_block_size=1 << 12,
    )
    batches = batches_of(data, batch_size=BATCH, num_workers=WORKERS, **options)
    for batch in batches:
        first = first or time.perf_counter() - started
        sample_count += len(batch["x"])
    return {"seconds": time.perf_counter() - started, "first": first, "seen": sample_count}


ROLES = {
    "plain": plain,
    "parts": lambda url, folder: plain(url, folder, in_parts=True),
    "obstore": obstore,
    "cache": cache,
    "mds": lambda url, folder: loader("mds", url, folder),
    "processes": lambda url, folder: loader("mds", url, folder, worker_type="processes"),
    "streaming": lambda url, folder: loader("streaming", url, folder),
}


# ----------------------------------------------------------------- running them


def run(python, role, folder, *arguments):
    """One contender in a process and a cold folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    process = subprocess.run(
        [
            python,
            os.path.abspath(__file__),
            "--role",
            role,
            "--arguments",
            json.dumps([*arguments[:1], folder, *arguments[1:]]),
        ],
        env={**os.environ, **KEYS},
        capture_output=True,
        text=True,
        check=False,
    )
    shutil.rmtree(folder, ignore_errors=True)
    if (
        process.returncode and role == "streaming"
    ):  # it has been seen to read shards that are not whole
        print(f"streaming failed: {process.stderr.strip().splitlines()[-1]}")
        return None
    if process.returncode:
        sys.exit(f"{role}: {process.stderr[-2000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def spread(values):
    return f"{statistics.median(values):7.2f} [{min(values):.2f}, {max(values):.2f}]"


def cold(options, url, latency, shard):
    """Cold epochs of all contenders, in turns."""
    from mds._units import format_bytes

    roles = [(role, sys.executable) for role in ("plain", "parts", "cache", "mds", "processes")]
    if importlib.util.find_spec("obstore"):
        roles.insert(2, ("obstore", sys.executable))
    else:
        print("obstore is left out: pip install obstore")
    if options.other:
        roles.append(("streaming", options.other))
    results = {role: [] for role, _ in roles}
    for _ in range(options.rounds):
        for role, python in roles:
            reports = run(python, role, os.path.join(options.folder, role), url)
            results[role] += [reports] if reports else []
    base = statistics.median(report["seconds"] for report in results["plain"])
    print(
        f"\ncold epoch, {options.megabytes} MB in shards of {format_bytes(shard)}, "
        f"{latency * 1000:.0f} ms of latency"
    )
    print(f"{'':10} {'seconds':24} {'x plain':>8} {'first sample':>24} {'bytes / dataset':>16}")
    for role, runs in results.items():
        if not runs:
            continue
        seconds = [report["seconds"] for report in runs]
        first = spread([report["first"] for report in runs]) if "first" in runs[0] else ""
        sent_gigabytes = f"{runs[-1]['bytes']:.3f}" if "bytes" in runs[0] else ""
        ratio = statistics.median(seconds) / base
        print(f"{role:10} {spread(seconds):24} {ratio:8.2f} {first:>24} {sent_gigabytes:>16}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that it works")
    parser.add_argument("--other", help="a Python that has mosaicml-streaming")
    parser.add_argument("--folder", default="/dev/shm/mds-remote", help="scratch space")
    parser.add_argument("--megabytes", type=int, default=2048, help="of the cold epochs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--arguments", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        print(json.dumps(ROLES[options.role](*json.loads(options.arguments))))
        return
    sizes = (64 << 20, 4 << 20)
    if options.smoke:
        options.megabytes = 16
        options.rounds, sizes = 1, (1 << 18,)
    from devtools.proxy import proxy_process
    from devtools.servers import s3_server

    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors")
    installed = [name for name in ("boto3", "obstore") if importlib.util.find_spec(name)]
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in installed))
    served = os.path.join(options.folder, "served")
    shutil.rmtree(options.folder, ignore_errors=True)
    try:
        for shard in sizes:
            write(os.path.join(served, BUCKET), options.megabytes, shard=shard)
            with s3_server(served, etags=False) as url:
                cold(options, url, 0.0, shard)
                with proxy_process(url, latency=0.03) as slow:
                    cold(options, slow, 0.03, shard)
            shutil.rmtree(served)
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
