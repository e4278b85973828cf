"""What does Parquet cost that is read as it lies, beside the same in MDS, a peer and the limit?

    python -m benchmarks.parquet          two minutes; --smoke: seconds

Each measure runs in turn with what it is compared to, in every round; the table has the medians.
HF datasets and litdata (with polars) are measured where they are installed. "Decoded" is a second
epoch, from the cache folder; "cold" begins with nothing, against S3 on this machine that answers
30 ms late. Arrow is imported where it is used: a worker has it imported by what it reads. The
bias: all files are in the page cache, and a busy machine slows both sides.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import io
import multiprocessing
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.files import Measure, measure, rows
from benchmarks.questions.cold import KEYS
from devtools.proxy import proxy_process
from devtools.servers import s3_server
from mds import StreamingDataLoader, StreamingDataset
from mds.writers.convert import convert

FILES = 4
#: Rows of a row group of numbers, and of a batch of them.
GROUP, COLD = 100_000, 4096


def write_tables(folder: str, samples: int, columns: str, group: int) -> None:
    """Files of tokens (8 KB a row), of text and id, or of four columns of numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    os.makedirs(folder)
    rng = np.random.default_rng(0)
    for number in range(FILES):
        ids = np.arange(samples // FILES) + number * (samples // FILES)
        if columns == "tokens":
            tokens = rng.integers(0, 50_000, (len(ids), 2048), dtype=np.int32)
            table = pa.table({"tokens": pa.array(list(tokens), pa.list_(pa.int32()))})
        elif columns == "text":
            table = pa.table({"id": ids, "text": [f"row {n} " * 12 for n in ids]})
        else:
            table = pa.table({name: rng.random(len(ids)) for name in "abcd"})
        pq.write_table(table, f"{folder}/{number}.parquet", row_group_size=group)


def write_many(folder: str, files: int) -> None:
    """Many small files of ten row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    os.makedirs(folder)
    for number in range(files):
        ids = np.arange(1000) + 1000 * number
        table = pa.table({"id": ids, "score": ids / 7, "text": [f"row {n}" for n in ids]})
        pq.write_table(table, f"{folder}/{number:04}.parquet", row_group_size=100)


def epoch(place: dict[str, Any], workers: int) -> None:
    """A shuffled epoch of batches of 32."""
    dataset = StreamingDataset(**place, batch_size=32, shuffle=True, num_canonical_nodes=1)
    for _ in StreamingDataLoader(dataset, batch_size=32, num_workers=workers):
        pass


def hf_epoch(folder: str, cache: str, form: str | None) -> Measure:
    """The same by HF datasets, as its rows come or in a form, from its own copy of the tables."""
    import datasets
    from torch.utils.data import DataLoader

    found = datasets.load_dataset("parquet", data_dir=folder, cache_dir=cache, split="train")
    loader = DataLoader(found.with_format(form), batch_size=32, shuffle=True)

    def run() -> None:
        for _ in loader:
            pass

    return run


def litdata_epoch(folder: str) -> Measure:
    """The same by litdata's loader of Parquet files, whose index of them is made before."""
    import litdata
    from litdata.streaming.item_loader import ParquetLoader

    litdata.index_parquet_dataset(folder)

    def run() -> None:
        dataset = litdata.StreamingDataset(folder, item_loader=ParquetLoader(), shuffle=True)
        for _ in litdata.StreamingDataLoader(dataset, batch_size=32, collate_fn=_stacked):
            pass

    return run


def _stacked(rows: list[Any]) -> Any:
    """A batch of rows, which litdata gives as dicts or tuples of their values."""
    import torch

    values = [row["tokens"] if isinstance(row, dict) else row[0] for row in rows]
    return torch.stack([torch.as_tensor(np.asarray(value)) for value in values])


def start(url: str, endpoint: str, cache: str, *, is_first: bool) -> None:
    """A dataset of many files, of which this machine knows nothing yet, or all."""
    os.environ["S3_ENDPOINT_URL"] = endpoint
    if is_first:
        shutil.rmtree(cache, ignore_errors=True)
    assert StreamingDataset(remote=url, local=cache, batch_size=32).num_shards


def plain_start(endpoint: str, bucket: str, *, is_first: bool) -> None:
    """A listing, and the last 64 KB of each file, by 32 threads of boto3."""
    import boto3
    from botocore.config import Config

    config = Config(max_pool_connections=32)
    client = boto3.client("s3", endpoint_url=endpoint, config=config)
    found = client.list_objects_v2(Bucket=bucket)["Contents"]

    def tail(each: Any) -> bytes:
        first = max(0, each["Size"] - (64 << 10))
        answer = client.get_object(Bucket=bucket, Key=each["Key"], Range=f"bytes={first}-")
        data: bytes = answer["Body"].read()
        return data

    if is_first:
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(tail, found))


def worker_memory(folder: str, cache: str, results: Any) -> None:
    """Private memory of a process that shuffles all rows, above what it has after its imports."""
    import torch  # noqa: F401 - what a worker has imported

    dataset = StreamingDataset(
        remote=folder, local=cache, batch_size=32, shuffle=True, shuffle_block_size=1 << 18
    )
    before = most = _private()
    for number, _ in enumerate(StreamingDataLoader(dataset, batch_size=32)):
        if number % 256 == 0:
            most = max(most, _private())
    results.put((max(most, _private()) - before, before))


def _private() -> int:
    """Bytes that this process has written itself; pages of files in the cache cost nothing."""
    with open("/proc/self/smaps_rollup") as file:
        dirty_pages = [int(line.split()[1]) for line in file if line.startswith("Private_Dirty:")]
    return 1024 * sum(dirty_pages)


def measure_memory(folder: str, cache: str) -> None:
    """Print it: of a first epoch, which decodes, and of a second one."""
    context = multiprocessing.get_context("spawn")
    for name in ("cold", "decoded"):
        results = context.Queue()
        job = context.Process(target=worker_memory, args=(folder, cache, results))
        job.start()
        taken, before = results.get()
        job.join()
        print(f"memory of a worker, {name}: {taken / 1e6:.0f} MB above {before / 1e6:.0f} MB")


def cold(url: str, endpoint: str, cache: str) -> None:
    """One column of four, from nothing to the end of an epoch."""
    os.environ["S3_ENDPOINT_URL"] = endpoint
    shutil.rmtree(cache, ignore_errors=True)
    dataset = StreamingDataset(
        remote=url,
        local=cache,
        columns=["b"],
        batch_size=COLD,
        num_canonical_nodes=1,
    )
    for _ in StreamingDataLoader(dataset, batch_size=COLD):
        pass


def plain(endpoint: str, folder: str) -> None:
    """The same ranges by eight threads of boto3, decoded by pyarrow; it makes no samples."""
    import boto3
    import pyarrow.parquet as pq

    client = boto3.client("s3", endpoint_url=endpoint)

    def fetch(name: str, start: int, end: int) -> bytes:
        span = f"bytes={start}-{end - 1}"
        data: bytes = client.get_object(Bucket="numbers", Key=name, Range=span)["Body"].read()
        return data

    def column(place: tuple[str, Any, int]) -> None:
        name, found, group = place
        chunk = found.row_group(group).column(1)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        whole = bytearray(os.path.getsize(f"{folder}/{name}"))
        end = start + chunk.total_compressed_size
        whole[start:end] = fetch(name, start, end)
        table = pq.ParquetFile(io.BytesIO(whole), metadata=found)
        table.read_row_group(group, columns=["b"], use_threads=False)

    with ThreadPoolExecutor(8) as pool:
        names = sorted(os.listdir(folder))
        sizes = {name: os.path.getsize(f"{folder}/{name}") for name in names}
        list(pool.map(lambda n: fetch(n, max(0, sizes[n] - (64 << 10)), sizes[n]), names))
        places = []
        for name in names:
            found = pq.read_metadata(f"{folder}/{name}")
            places += [(name, found, group) for group in range(found.num_row_groups)]
        list(pool.map(column, places))


def main() -> None:
    """Make the files, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--smoke", action="store_true", help="tiny files, one round")
    small = parser.parse_args().smoke
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=place) as root, ExitStack() as stack:
        os.environ.update(KEYS, MDS_CACHE_DIR=f"{root}/mine")
        write_tables(f"{root}/tokens", 400 if small else 20_000, "tokens", 1024)
        write_tables(f"{root}/text", 2000 if small else 200_000, "text", 10_000)
        write_tables(f"{root}/s3/numbers", 8000 if small else 4_000_000, "numbers", GROUP)
        pairs: dict[str, tuple[Measure, Measure, str]] = {}
        for kind in ("tokens", "text"):
            convert(f"{root}/{kind}", f"{root}/{kind}-mds", durable=False, keep_shards=True)
            ours = {"remote": f"{root}/{kind}", "local": f"{root}/{kind}-cache"}
            copy = {"local": f"{root}/{kind}-mds"}
            epoch(ours, 0)
            if kind == "text":
                pairs["text and id in a loop, decoded"] = (
                    functools.partial(rows, ours), functools.partial(rows, copy), "MDS",
                )  # fmt: skip
                continue
            for workers, name in ((0, "one process"), (2, "two workers")):
                pairs[f"tokens in batches, decoded, {name}"] = (
                    functools.partial(epoch, ours, workers),
                    functools.partial(epoch, copy, workers),
                    "MDS",
                )
            if importlib.util.find_spec("datasets"):
                for form, said in (("torch", ", with_format('torch')"), (None, "")):
                    pairs[f"tokens in batches, decoded, beside HF datasets{said}"] = (
                        functools.partial(epoch, ours, 0),
                        hf_epoch(f"{root}/tokens", f"{root}/hf", form),
                        "HF datasets",
                    )
            if importlib.util.find_spec("litdata"):
                shutil.copytree(f"{root}/tokens", f"{root}/tokens-litdata")
                pairs["tokens in batches, decoded, beside litdata"] = (
                    functools.partial(epoch, ours, 0),
                    litdata_epoch(f"{root}/tokens-litdata"),
                    "litdata",
                )
        write_many(f"{root}/s3/many", 20 if small else 1000)
        # Without etags a range costs the server a range; with them a file is known again.
        server = stack.enter_context(s3_server(f"{root}/s3", etags=False))
        url = stack.enter_context(proxy_process(server, latency=0.03))
        listed = stack.enter_context(
            proxy_process(stack.enter_context(s3_server(f"{root}/s3")), latency=0.03)
        )
        pairs["cold, one column of four, 30 ms"] = (
            lambda: cold("s3://numbers/*.parquet", url, f"{root}/cold"),
            lambda: plain(url, f"{root}/s3/numbers"),
            "plain ranges",
        )
        for name, is_first in (("first", True), ("second", False)):
            pairs[f"{name} start, 10,000 row groups in 1,000 files, 30 ms"] = (
                functools.partial(
                    start, "s3://many/*.parquet", listed, f"{root}/many-{name}", is_first=is_first
                ),
                functools.partial(plain_start, listed, "many", is_first=is_first),
                "plain requests",
            )
        start("s3://many/*.parquet", listed, f"{root}/many-second", is_first=True)
        measure(pairs, 1 if small else 3)
        rows_of_memory = 4096 if small else 262_144
        write_tables(f"{root}/rows", rows_of_memory, "text", 4096)
        measure_memory(f"{root}/rows", f"{root}/rows-cache")


if __name__ == "__main__":
    main()
