"""Files of every kind, each with the same samples: counted from 0 on, in files of odd sizes."""

import gzip
import json

import tars

from mds.formats import JsonLines, RawFiles, Tar, TextLines

COUNTS = (17, 5, 40, 1, 33)


def write_tars(folder):
    first = 0
    for number, count in enumerate(COUNTS):
        samples = [tars.sample(first + i) for i in range(count)]
        files = tars.members(samples, f"{number}-{{:06}}")
        tars.by_python(folder / f"{number:05}.tar", files)
        first += count
    return Tar()


def write_lines(folder, ending=".jsonl", pack=bytes):
    first = 0
    for number, count in enumerate(COUNTS):
        lines = [
            json.dumps({"cls": first + i, "txt": "é" * (i % 9), "x": i / 3, "more": [i]}) + "\n"
            for i in range(count)
        ]
        (folder / f"{number}{ending}").write_bytes(pack("".join(lines).encode()))
        first += count
    return JsonLines(shard_size=500)


def write_packed_lines(folder):
    return write_lines(folder, ".jsonl.gz", gzip.compress)


def write_text(folder):
    (folder / "a.txt").write_text("".join(f"{i}\n" for i in range(sum(COUNTS))))
    return TextLines(shard_size=30)


def write_files(folder):
    rows = ["path,cls\n"]
    for i in range(sum(COUNTS)):
        (folder / f"{i}.bin").write_bytes(bytes([i]) * i)
        rows.append(f"{i}.bin,{i}\n")
    (folder / "m.csv").write_text("".join(rows))
    return RawFiles(manifest="m.csv", samples_per_shard=9)


KINDS = (write_tars, write_lines, write_packed_lines, write_text, write_files)


def name_of(sample):
    """What tells a sample from others."""
    return int(sample["cls"]) if "cls" in sample else int(sample["text"])
