"""Threads and memory: any number of threads makes the same files, in memory of a few shards."""

import os
import subprocess
import sys
import threading

import pytest

from mds import CSVWriter, MDSWriter

COLUMNS = {"i": "int", "b": "bytes", "t": "str"}


def fill(out, kind=MDSWriter, columns=COLUMNS, **kwargs):
    with kind(out=out, columns=columns, **kwargs) as writer:
        for i in range(400):
            values = {"i": i, "b": bytes([i % 256]) * (i % 300), "t": "é" * (i % 50)}
            writer.write({name: values[name] for name in columns})


@pytest.mark.parametrize("compression", [None, "zstd:3", "gz", "bz2:1", "br:2", "snappy"])
def test_threads_change_nothing(out, written, compression):
    """One thread or eight: every file is the same, byte for byte, compressed ones too."""
    options = {"compression": compression, "hashes": ["sha1", "xxh3_64"], "size_limit": 3000}
    for threads in (1, 2, 8):
        fill(f"{out}{threads}", max_workers=threads, **options)
    assert written(f"{out}1").bytes() == written(f"{out}2").bytes() == written(f"{out}8").bytes()


def test_threads_change_nothing_of_text(out, written):
    """The same for formats with two files a shard."""
    columns = {"i": "int", "t": "str"}
    for threads in (1, 4):
        fill(f"{out}{threads}", CSVWriter, columns, max_workers=threads, size_limit=500)
    assert written(f"{out}1").bytes() == written(f"{out}4").bytes()


def test_no_thread_stays(out):
    """After the end of a writer its threads are gone."""
    before = set(threading.enumerate())
    fill(out, size_limit=3000, max_workers=4)
    assert set(threading.enumerate()) <= before


def test_progress_is_shown(out, capsys):
    """`progress_bar=True` is for people and changes nothing else."""
    fill(out, size_limit=3000, progress_bar=True)
    assert os.path.exists(os.path.join(out, "index.json"))


PROGRAM = """
import os, re, sys
import numpy as np
from mds import MDSWriter

kind, out = sys.argv[1:]
columns = {"b": "bytes"} if kind == "large" else {"n": "int16"}
sample = {"b": os.urandom(1 << 16)} if kind == "large" else {"n": np.int16(5)}
# Shards of 16 MB that cannot be compressed, or of 3 MB of samples of two bytes.
limit = 1 << 24 if kind == "large" else 3 << 20
count = (6 if kind == "large" else 4) * limit // (65544 if kind == "large" else 6)
with MDSWriter(out=out + "/warm", columns=columns, compression="zstd:1") as writer:
    writer.write(sample)
def peak():  # not ru_maxrss, which begins at what the process that started this one had
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10
before = peak()
options = {"columns": columns, "compression": "zstd:1", "size_limit": limit}
with MDSWriter(out=out + "/real", **options) as writer:
    for _ in range(count):
        writer.write(sample)
# Threads and zstd have memory of their own, of whatever size shards are.
print((peak() - before - (8 << 20)) / limit)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
@pytest.mark.parametrize("kind", ["large", "tiny"])
def test_memory_is_a_few_shards(kind, tmp_path):
    """Writing needs memory for less than four shards, also when samples are of two bytes."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 4
