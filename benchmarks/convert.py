"""How fast are files converted, beside a copy of the same bytes and beside another commit?

    python -m benchmarks.convert                      a few minutes; --smoke: seconds
    python -m benchmarks.convert --against COMMIT     in pairs with the package of a commit

A conversion runs in one process and writes without syncing. In every round each kind of files is
converted by both sides in turn; the table has the medians, the ratio of each round and its spread.
A copy reads the same files and writes as many bytes as the dataset has, with its digest: the limit
of what a disk and one core allow. The bias: all files are in the page cache, and a conversion pays
for the start of its process, which a copy does not have.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from io import BytesIO

import numpy as np
from PIL import Image

import mds
from benchmarks.suite.runs import ROOT

_PROGRAM = """
import sys, time
import mds, pyarrow.parquet
mds.convert([{"a": 1}], sys.argv[2] + "-first")  # imports are not what is measured
began = time.perf_counter()
mds.convert(sys.argv[1], sys.argv[2], durable=False)
print(time.perf_counter() - began)
"""
_PICTURE_BYTES = 4_000


def write_jsonl(folder: str, size: int) -> None:
    """Write JSON Lines of about ``size`` bytes, with a number, an address and a text."""
    rng = np.random.default_rng(0)
    with open(f"{folder}/a.jsonl", "w", encoding="utf-8") as file:
        while file.tell() < size:
            for _ in range(1000):
                position = int(rng.integers(1 << 40))
                text = "word " * int(rng.integers(20, 300))
                record = {"id": position, "text": text, "url": f"https://example.org/{position}"}
                file.write(json.dumps(record) + "\n")


def write_packed_jsonl(folder: str, size: int) -> None:
    """Write the same, compressed by gzip."""
    write_jsonl(folder, size)
    with (
        open(f"{folder}/a.jsonl", "rb") as plain,
        gzip.open(f"{folder}/a.jsonl.gz", "wb", 6) as out,
    ):
        shutil.copyfileobj(plain, out)
    os.unlink(f"{folder}/a.jsonl")


def write_parquet(folder: str, size: int) -> None:
    """Write Parquet of about ``size`` bytes: a number, a score, an address and a text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    words = [f"w{number:x}" for number in range(5000)]
    rows = max(size // 165, 10)
    picked = rng.integers(0, len(words), (rows, 40))
    table = pa.table(
        {
            "id": np.arange(rows),
            "score": rng.random(rows),
            "url": [f"https://example.org/{number}" for number in range(rows)],
            "text": [" ".join(words[word] for word in row) for row in picked.tolist()],
        }
    )
    pq.write_table(table, f"{folder}/a.parquet", row_group_size=max(rows // 8, 1))


def write_pictures(folder: str, size: int) -> None:
    """Write pictures of about 4 KB in ten classes, ``size`` bytes together."""
    rng = np.random.default_rng(0)
    for number in range(max(size // _PICTURE_BYTES, 20)):
        name = f"{folder}/class{number % 10}"
        os.makedirs(name, exist_ok=True)
        file = BytesIO()
        noise = rng.integers(0, 255, (8, 8, 3), np.uint8)
        Image.fromarray(noise).resize((96, 96)).save(file, "JPEG", quality=90)
        with open(f"{name}/{number:06}.jpg", "wb") as out:
            out.write(file.getvalue())


#: Function that writes the files of each kind, and their bytes.
KINDS: dict[str, tuple[Callable[[str, int], None], int]] = {
    "Parquet, 45 MB": (write_parquet, 45_000_000),
    "JSON Lines, 105 MB": (write_jsonl, 105_000_000),
    "JSON Lines with gzip, 105 MB": (write_packed_jsonl, 105_000_000),
    "10,000 pictures": (write_pictures, 10_000 * _PICTURE_BYTES),
}


def convert_with(tree: str, source: str, out: str) -> float:
    """Return the seconds of a conversion with the package in a folder, in a fresh process."""
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM, source, out],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": tree},
        capture_output=True,
        check=False,
    )
    if process.returncode:
        raise SystemExit(process.stderr.decode()[-2000:])
    return float(process.stdout.split()[-1])


def copy(source: str, out: str, size: int) -> float:
    """Return the seconds of reading all files, and of writing ``size`` bytes with their digest."""
    import xxhash

    began, digest, block = time.perf_counter(), xxhash.xxh3_64(), bytes(1 << 20)
    for folder, _, names in os.walk(source):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                while file.read(1 << 20):
                    pass
    os.makedirs(out)
    with open(f"{out}/copy", "wb") as file:
        for start in range(0, size, len(block)):
            piece = block[: size - start]
            digest.update(piece)
            file.write(piece)
    return time.perf_counter() - began


def tree_of(folder: str, commit: str) -> str:
    """Return a folder with the package of a commit."""
    command = ["git", "-C", ROOT, "archive", "--format=tar", commit, "mds"]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def size_of(folder: str) -> int:
    """Return the bytes of the files of a dataset."""
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())


def main() -> None:
    """Write the files, convert them in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny files, one round")
    parser.add_argument("--against", metavar="COMMIT", help="compare with the package of a commit")
    parser.add_argument("--only", default="", help="kinds of files whose name has this text")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rounds = 1 if options.smoke else options.rounds
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=place) as root:
        other = tree_of(f"{root}/there", options.against) if options.against else None
        against = f"commit {options.against}" if options.against else "copy"
        print(f"mds {mds.__version__}, Python {platform.python_version()}, beside: {against}")
        for name, (write, full_size) in KINDS.items():
            if options.only not in name:
                continue
            source, out = f"{root}/{name}", f"{root}/out"
            os.makedirs(source)
            write(source, full_size // 500 if options.smoke else full_size)
            pairs = []
            for number in range(rounds):
                times = {}
                for which in ("here", "there") if number % 2 else ("there", "here"):
                    if which == "here" or other is not None:
                        tree = ROOT if which == "here" or other is None else other
                        times[which] = convert_with(tree, source, out)
                        size = size_of(out)
                        shutil.rmtree(out)
                        shutil.rmtree(f"{out}-first")
                if other is None:
                    times["there"] = copy(source, out, size)
                    shutil.rmtree(out)
                pairs.append((times["here"], times["there"]))
            here, there = (statistics.median(each) for each in zip(*pairs, strict=True))
            ratios = sorted(one / two for one, two in pairs)
            print(
                f"{name}: {here:.2f} s, {there:.2f} s, ratio {statistics.median(ratios):.2f} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
                flush=True,
            )
            shutil.rmtree(source)


if __name__ == "__main__":
    main()
