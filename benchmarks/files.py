"""What do tars, lines and plain files cost that are read as they lie, beside MDS, peers and limits?

    python -m benchmarks.files            five minutes; --smoke: seconds

Each measure runs in turn with what it is compared to, in every round; the table has the medians.
Peers (webdataset, HF datasets, litdata) are measured where they are installed. "Cold" begins with
nothing, against S3 on this machine, which answers 30 ms late for plain files; a plain download has
the index of neither. The bias: all files are in the page cache, and a busy machine slows both
sides.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import shutil
import statistics
import struct
import tarfile
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from benchmarks.questions.cold import KEYS
from devtools.proxy import proxy_process
from devtools.servers import s3_server
from mds import StreamingDataLoader, StreamingDataset
from mds.formats import RawFiles, Tar
from mds.formats._dataset import open_files, write_files_index
from mds.formats._newlines import cut_lines
from mds.formats._tar_members import mapped, members
from mds.writers.convert import convert

Measure = Callable[[], Any]


def write_tars(folder: str, samples: int, count: int) -> None:
    """Tars of photographs of noise, with their classes."""
    rng = np.random.default_rng(0)
    os.makedirs(folder)
    for number in range(count):
        with tarfile.open(f"{folder}/{number:05}.tar", "w") as tar:
            for position in range(samples):
                file = io.BytesIO()
                noise = rng.integers(0, 255, (28, 28, 3), np.uint8)
                Image.fromarray(noise).resize((224, 224)).save(file, "JPEG", quality=90)
                for ending, data in (("jpg", file.getvalue()), ("cls", b"%d" % position)):
                    info = tarfile.TarInfo(f"{number:03}{position:06}.{ending}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def put_file(tar: BinaryIO, name: str, data: bytes) -> None:
    """Append a file to a tar: a twentieth of what the standard library takes for a short one."""
    head = struct.pack("100s8s8s8s12s12s8sc", name.encode(), b"0000644", b"0000000", b"0000000",
                       b"%011o" % len(data), b"00000000000", b" " * 8, b"0")  # fmt: skip
    head = head.ljust(257, b"\0") + b"ustar\x0000"
    tar.write(head[:148] + b"%06o\0 " % sum(head) + head[156:].ljust(512 - 156, b"\0"))
    tar.write(data.ljust(-(-len(data) // 512) * 512, b"\0"))


def write_headers(path: str, files: int) -> None:
    """A tar of files of 100 KB."""
    data = os.urandom(100_000)
    with open(path, "wb") as tar:
        for position in range(files):
            put_file(tar, f"{position:06}.bin", data)
        tar.write(bytes(1024))


def write_samples(folder: str, count: int, samples: int, size: int) -> None:
    """Tars of samples of one file of bytes and a class."""
    os.makedirs(folder)
    data = np.random.default_rng(0).bytes(size)
    for number in range(count):
        with open(f"{folder}/{number:05}.tar", "wb") as tar:
            for position in range(samples):
                put_file(tar, f"{number:03}{position:07}.bin", data)
                put_file(tar, f"{number:03}{position:07}.cls", b"%d" % position)
            tar.write(bytes(1024))


def write_files(folder: str, count: int) -> None:
    """Files of 20 KB, and a manifest of them."""
    os.makedirs(folder)
    data = np.random.default_rng(0).bytes(20_000)
    with open(f"{folder}/labels.csv", "w", encoding="utf-8") as labels:
        labels.write("path,label\n")
        for position in range(count):
            labels.write(f"{position:06}.bin,{position}\n")
            with open(f"{folder}/{position:06}.bin", "wb") as file:
                file.write(data)


def write_lines(folder: str, lines: int) -> None:
    """JSON lines of text with a number and an address."""
    os.makedirs(folder)
    rng = np.random.default_rng(0)
    with open(f"{folder}/a.jsonl", "w", encoding="utf-8") as file:
        for position in range(lines):
            text = "word " * int(rng.integers(20, 300))
            record = {"id": position, "text": text, "url": f"https://example.org/{position}"}
            file.write(json.dumps(record) + "\n")


def epoch(place: dict[str, Any], workers: int = 2) -> None:
    """An epoch of batches of pixels from worker processes."""
    dataset = StreamingDataset(**place, batch_size=32, shuffle=True, images="array")
    for _ in StreamingDataLoader(dataset, batch_size=32, num_workers=workers, collate_fn=len):
        pass


def webdataset_epoch(pattern: str) -> None:
    """The same by webdataset."""
    import webdataset
    from torch.utils.data import DataLoader

    dataset = webdataset.WebDataset(pattern, shardshuffle=100).shuffle(1000).decode("rgb8")
    for _ in DataLoader(dataset.batched(32, collation_fn=len), None, num_workers=2):
        pass


def scan_headers(path: str) -> None:
    """Read the headers of all files of a tar."""
    data = mapped(path)
    for _ in members(lambda start, end: data[start:end], path, len(data)):
        pass


def read_whole(path: str) -> None:
    """Read all bytes into one buffer."""
    buffer = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def scan_lines(path: str) -> None:
    """Stretches of lines."""
    with open(path, "rb", buffering=0) as file:
        cut_lines(iter(lambda: file.read(1 << 20), b""), 64 << 20, skips_blank=True)


def count_newlines(path: str) -> None:
    """The newlines of a file, by Python's own search."""
    with open(path, "rb", buffering=0) as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            chunk.count(b"\n")


def cold_epoch(place: dict[str, Any], *, keep: bool = False) -> None:
    """A shuffled epoch of batches from two workers, of a cache folder that is new unless kept."""
    if not keep:
        shutil.rmtree(place["local"], ignore_errors=True)
    dataset = StreamingDataset(**place, batch_size=32, shuffle=True, num_canonical_nodes=1)
    for _ in StreamingDataLoader(dataset, batch_size=32, num_workers=2, collate_fn=len):
        pass


def download(endpoint: str, bucket: str, names: list[str], out: str, threads: int) -> None:
    """The same objects by threads of boto3, each once, to files."""
    import boto3
    from botocore.config import Config

    config = Config(max_pool_connections=threads)
    client = boto3.client("s3", endpoint_url=endpoint, config=config)
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)

    def fetch(name: str) -> None:
        with open(f"{out}/{name}", "wb") as file:
            file.writelines(client.get_object(Bucket=bucket, Key=name)["Body"].iter_chunks(1 << 20))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fetch, names))


def litdata_epoch(endpoint: str, bucket: str, cache: str) -> None:
    """The same by litdata, which lists the files, to a cache of files of its own."""
    from litdata import StreamingRawDataset
    from litdata.streaming import downloader
    from torch.utils.data import DataLoader

    os.environ |= {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    # A user needs no such option for S3; here it allows a store without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
    shutil.rmtree(cache, ignore_errors=True)
    dataset = StreamingRawDataset(f"s3://{bucket}", cache_dir=cache, cache_files=True)
    for _ in DataLoader(dataset, batch_size=32, num_workers=2, shuffle=True, collate_fn=len):
        pass


def start(place: dict[str, Any]) -> None:
    """A dataset, and its first sample."""
    assert StreamingDataset(**place, batch_size=32)[0]


def rows(place: dict[str, Any]) -> None:
    """Every sample in a loop, in order."""
    for _ in StreamingDataset(**place, batch_size=32):
        pass


def hf_rows(path: str, cache: str) -> Measure:
    """The same by HF datasets, whose own copy of the lines is made before."""
    import datasets

    json_rows = datasets.load_dataset("json", data_files=path, cache_dir=cache, split="train")

    def run() -> None:
        for _ in json_rows:
            pass

    return run


def measure(pairs: dict[str, tuple[Measure, Measure, str]], rounds: int) -> None:
    """Print the medians of each pair, and how many times as fast the first is."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in pairs}
    for _ in range(rounds):
        for name, (left_side, other, _) in pairs.items():
            for act, seconds in zip((left_side, other), times[name], strict=True):
                began = time.perf_counter()
                act()
                seconds.append(time.perf_counter() - began)
    for name, (_, _, beside) in pairs.items():
        ours, theirs = map(statistics.median, times[name])
        print(f"{name:44} {ours:8.3f} s, {beside} {theirs:8.3f} s: {theirs / ours:6.2f} x as fast")


def wires(root: str, stack: ExitStack, *, small: bool) -> dict[str, tuple[Measure, Measure, str]]:
    """Measure remote reads: tars with an index, and plain files with a latency of 30 ms."""
    write_samples(f"{root}/s3/tars", 8, 20 if small else 2500, 100_000)
    write_files(f"{root}/s3/files", 100 if small else 10_000)
    near = stack.enter_context(s3_server(f"{root}/s3", etags=False))
    far = stack.enter_context(proxy_process(near, latency=0.03))
    os.environ.update(KEYS, S3_ENDPOINT_URL=near)
    write_files_index(*open_files("s3://tars", "tar"), f"{root}/tars-index")
    kind = RawFiles(manifest="labels.csv")
    files: dict[str, Any] = {"remote": "s3://files", "format": kind, "local": f"{root}/raw"}
    files["storage_options"] = {"endpoint_url": far}
    tars = {"remote": f"{root}/tars-index", "local": f"{root}/fetched"}
    names = {each: sorted(os.listdir(f"{root}/s3/{each}")) for each in ("tars", "files")}
    peers: dict[str, tuple[Measure, Measure, str]] = {}
    if all(map(importlib.util.find_spec, ("litdata", "obstore", "s3fs", "zstd"))):
        peers["plain files, cold, beside litdata"] = (
            lambda: cold_epoch(files),
            lambda: litdata_epoch(far, "files", f"{root}/litdata"), "litdata",
        )  # fmt: skip
    return {
        **peers,
        "tars, cold": (
            lambda: cold_epoch(tars),
            lambda: download(near, "tars", names["tars"], f"{root}/plain", 8), "a download",
        ),
        "plain files, cold": (
            lambda: cold_epoch(files),
            lambda: download(far, "files", names["files"], f"{root}/plain", 32), "a download",
        ),
        "plain files, the second epoch": (
            lambda: cold_epoch(files, keep=True),
            lambda: cold_epoch({**files, "local": f"{root}/raw2"}), "the first",
        ),
    }  # fmt: skip


def starts(root: str, *, small: bool) -> dict[str, tuple[Measure, Measure, str]]:
    """The start of a dataset of many files in a tar, of which the table is known."""
    count = 1000 if small else 500_000
    write_samples(f"{root}/many", 1, count, 0)
    place = {"remote": f"{root}/many/*.tar", "local": f"{root}/many-cache"}
    index = write_files_index(*open_files(f"{root}/many", "tar"), f"{root}/many-index")
    table = f"{index}/index.files.bin"
    size = os.path.getsize(table)
    print(f"{2 * count:,} files in a tar: a table of {size / 1e6:.1f} MB")
    start(place)
    return {
        f"start, {2 * count:,} files in a tar": (
            lambda: start(place),
            lambda: read_whole(table),
            "a read",
        )
    }


def main() -> None:
    """Make the files, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--smoke", action="store_true", help="tiny files, one round")
    small = parser.parse_args().smoke
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=place) as root, ExitStack() as stack:
        os.environ["MDS_CACHE_DIR"] = f"{root}/cache"
        write_tars(f"{root}/tars", 20 if small else 500, 4)
        write_headers(f"{root}/big.tar", 50 if small else 5000)
        write_lines(f"{root}/lines", 500 if small else 100_000)
        convert(f"{root}/tars", f"{root}/copy", format=Tar(), durable=False, keep_shards=True)
        tars: dict[str, Any] = {"remote": f"{root}/tars/*.tar"}
        copy: dict[str, Any] = {"local": f"{root}/copy"}
        lines, path = {"remote": f"{root}/lines/*.jsonl"}, f"{root}/lines/a.jsonl"
        convert(lines["remote"], f"{root}/lines-copy", durable=False, keep_shards=True)
        pairs: dict[str, tuple[Measure, Measure, str]] = {
            "tars in place, pixels, two workers": (
                lambda: epoch(tars), lambda: epoch(copy), "MDS",
            ),
            "headers of files of 100 KB": (
                lambda: scan_headers(f"{root}/big.tar"),
                lambda: read_whole(f"{root}/big.tar"), "a read of all",
            ),
            "newline scan of JSON lines": (
                lambda: scan_lines(path), lambda: count_newlines(path), "bytes.count",
            ),
            "rows of JSON lines in place": (
                lambda: rows(lines), lambda: rows({"local": f"{root}/lines-copy"}), "MDS",
            ),
            **starts(root, small=small),
            **wires(root, stack, small=small),
        }  # fmt: skip
        if importlib.util.find_spec("webdataset"):
            pattern = f"{root}/tars/{{00000..00003}}.tar"
            pairs["tars in place, pixels, two workers "] = (
                lambda: epoch(tars), lambda: webdataset_epoch(pattern), "webdataset",
            )  # fmt: skip
        if importlib.util.find_spec("datasets"):
            theirs = hf_rows(path, f"{root}/hf")
            pairs["rows of JSON lines in place "] = (lambda: rows(lines), theirs, "HF datasets")
        for place in (f"{root}/big.tar", path):
            print(f"{os.path.basename(place)}: {os.path.getsize(place) / 1e6:,.0f} MB")
        measure(pairs, 1 if small else 3)


if __name__ == "__main__":
    main()
