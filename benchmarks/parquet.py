"""What does Parquet cost that is read as it lies, beside the same in MDS, a peer and the limit?

    python -m benchmarks.parquet          two minutes; --smoke: seconds

Each measure runs in turn with what it is compared to, in every round; the table has the medians.
HF datasets are measured where they are installed. "Decoded" is a second epoch, from the cache
folder; "cold" begins with nothing, against S3 on this machine that answers 30 ms late. The bias:
all files are in the page cache, and a busy machine slows both sides.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import io
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.files import Measure, measure, rows
from benchmarks.questions.cold import KEYS
from devtools.proxy import proxy_process
from devtools.servers import s3_server
from mds import StreamingDataLoader, StreamingDataset
from mds.writers.convert.keep_shards import keep_shards

FILES = 4
#: Rows of a row group of numbers, and of a batch of them.
GROUP, COLD = 100_000, 4096


def write_tables(folder: str, samples: int, columns: str, group: int) -> None:
    """Files of tokens (8 KB a row), of text and id, or of four columns of numbers."""
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


def epoch(place: dict[str, Any], workers: int) -> None:
    """A shuffled epoch of batches of 32."""
    dataset = StreamingDataset(**place, batch_size=32, shuffle=True, num_canonical_nodes=1)
    for _ in StreamingDataLoader(dataset, batch_size=32, num_workers=workers):
        pass


def hf_epoch(folder: str, cache: str) -> Measure:
    """The same by HF datasets, whose own copy of the tables is made before."""
    import datasets
    from torch.utils.data import DataLoader

    found = datasets.load_dataset("parquet", data_dir=folder, cache_dir=cache, split="train")
    loader = DataLoader(found.with_format("torch"), batch_size=32, shuffle=True)

    def run() -> None:
        for _ in loader:
            pass

    return run


def cold(url: str, cache: str) -> None:
    """One column of four, from nothing to the end of an epoch."""
    shutil.rmtree(cache, ignore_errors=True)
    dataset = StreamingDataset(
        remote=url,
        local=cache,
        columns=["b"],
        batch_size=COLD,
        num_canonical_nodes=1,
        predownload=8 * GROUP,
    )
    for _ in StreamingDataLoader(dataset, batch_size=COLD):
        pass


def plain(endpoint: str, folder: str) -> None:
    """The same ranges by eight threads of boto3, decoded by pyarrow; it makes no samples."""
    import boto3

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
            keep_shards(f"{root}/{kind}", f"{root}/{kind}-mds", durable=False)
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
                theirs = hf_epoch(f"{root}/tokens", f"{root}/hf")
                pairs["tokens in batches, decoded"] = (
                    functools.partial(epoch, ours, 0), theirs, "HF datasets",
                )  # fmt: skip
        server = stack.enter_context(s3_server(f"{root}/s3", etags=False))
        url = stack.enter_context(proxy_process(server, latency=0.03))
        os.environ["S3_ENDPOINT_URL"] = url
        pairs["cold, one column of four, 30 ms"] = (
            lambda: cold("s3://numbers/*.parquet", f"{root}/cold"),
            lambda: plain(url, f"{root}/s3/numbers"),
            "plain ranges",
        )
        measure(pairs, 1 if small else 3)


if __name__ == "__main__":
    main()
