"""Samples that are larger than offsets can address, and writers in several threads or processes."""

import os
import subprocess
import sys
import threading

import pytest

from mds import LocalDataset, MDSWriter
from mds.errors import WriterError
from tests.unit.writers.test_whole import INTS, look

LARGE = """
import re, resource, sys
import numpy as np
from mds import MDSWriter
from mds.errors import MdsError
# Over what the libraries have mapped, which depends on their versions and on the cores.
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (6 << 30), mapped + (6 << 30)))
size = (4 << 30) + 1
columns = {"value": sys.argv[1]}
values = {
    "bytes": lambda: bytes(size),
    "ndarray": lambda: np.zeros(size, np.uint8),
    "tensor": lambda: np.zeros(size, np.uint8),
    "json": lambda: np.zeros(size, np.uint8),
}
with MDSWriter(out=sys.argv[2], columns=columns) as writer:
    try:
        writer.write({"value": values[sys.argv[1]]()})
    except MdsError as error:
        print(type(error).__name__, error)
    small = np.zeros(3, np.uint8)
    writer.write({"value": small.tobytes() if sys.argv[1] == "bytes" else small})
# Not ru_maxrss, which begins at what the process that started this one had.
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


@pytest.mark.parametrize("encoding", ["bytes", "ndarray", "tensor", "json"])
def test_samples_over_four_gigabytes_are_refused(tmp_path, encoding):
    """With the column and the way out, without memory for them once more; the writer goes on."""
    out = str(tmp_path / "out")
    command = [sys.executable, "-c", LARGE, encoding, out]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said, resident = done.stdout.splitlines()
    assert "sample 0" in said
    assert "Split the sample" in said
    assert int(resident) < 512 << 10  # zeros that nothing touches take none
    assert len(LocalDataset(out)) == 1


def test_threads_at_once_are_refused(tmp_path):
    """Four threads in one writer: what is written is whole, and is what the calls wrote."""
    out = str(tmp_path / "out")
    writer = MDSWriter(out=out, columns=INTS, size_limit=400, hashes=["md5"])
    done, refused = [], []

    def work(number):
        for i in range(3000):
            try:
                writer.write({"x": 10_000 * number + i})
            except WriterError as error:
                refused.append(str(error))
            else:
                done.append(10_000 * number + i)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.finish()
    assert all("two threads" in each for each in refused)
    found = LocalDataset(out)
    assert look(out) == len(done)
    assert sorted(found[i]["x"] for i in range(len(found))) == sorted(done)


class Meeting(MDSWriter):
    """A writer that waits in the middle of a sample until another thread has tried."""

    def encode_sample(self, sample):
        if sample["x"] == 0:
            self.inside.set()
            assert self.tried.wait(600)
        return super().encode_sample(sample)


def test_a_thread_that_meets_another_is_refused(tmp_path):
    """At once, with the way out; taking turns is fine, and the dataset is whole."""
    out = str(tmp_path / "out")
    writer = Meeting(out=out, columns=INTS)
    writer.inside, writer.tried = threading.Event(), threading.Event()
    thread = threading.Thread(target=writer.write, args=({"x": 0},))
    thread.start()
    assert writer.inside.wait(600)
    for act in (lambda: writer.write({"x": 1}), writer.finish):
        with pytest.raises(WriterError, match="two threads use this writer"):
            act()
    writer.tried.set()
    thread.join()
    writer.write({"x": 2})
    writer.finish()
    found = LocalDataset(out)
    assert [found[i]["x"] for i in range(len(found))] == [0, 2]


@pytest.mark.parametrize("where", ["folder", "pair", "url"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_touches_nothing(tmp_path, where, monkeypatch):
    """It may not write; its finish, abort, exit and end do nothing, and the parent goes on."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    local, remote = str(tmp_path / "local"), str(tmp_path / "remote")
    out = {"folder": remote, "pair": (local, remote), "url": f"memory://{remote}"}[where]
    writer = MDSWriter(out=out, columns=INTS, size_limit=400, hashes=["md5"])
    for i in range(100):
        writer.write({"x": i})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            try:
                writer.write({"x": -1})
            except WriterError as error:
                status = 0 if "forked child" in str(error) else 2
            writer.finish()
            writer.abort()
            writer.__exit__(None, None, None)
            del writer
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for i in range(100, 200):
        writer.write({"x": i})
    writer.finish()
    if where != "url":
        assert look(remote) == 200


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_does_not_hold_the_lock(tmp_path):
    """The lock ends with the writer, although a forked child lives on."""
    out = str(tmp_path / "out")
    writer = MDSWriter(out=out, columns=INTS)
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(ready[1], b"1")
            os.read(go_on[0], 1)
        finally:
            os._exit(0)
    try:
        os.read(ready[0], 1)
        writer.abort()
        with MDSWriter(out=out, columns=INTS, exist_ok=True, hashes=["md5"]) as later:
            later.write({"x": 1})
    finally:
        os.write(go_on[1], b"1")
        os.waitpid(child, 0)
    assert look(out) == 1
