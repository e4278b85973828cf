"""Processes that read formats: workers, their memory, and the modules that they import."""

import multiprocessing
import os
import subprocess
import sys

import pytest
import zstandard
from numbers_format import Numbers

pa = pytest.importorskip("pyarrow")

from tables import table, write_files  # noqa: E402

from mds import StreamingDataLoader, StreamingDataset  # noqa: E402

pytestmark = pytest.mark.slow

ALLOCATOR = "ARROW_DEFAULT_MEMORY_POOL"


def of_numbers(folder, cache):
    return StreamingDataset(remote=str(folder), local=str(cache), batch_size=2, format=Numbers.name)


def test_worker_processes_read_it(numbers, tmp_path):
    """Two worker processes, forked or spawned, give what one process gives."""
    whole = [
        n
        for b in StreamingDataLoader(of_numbers(numbers, tmp_path / "c"), batch_size=2)
        for n in b["number"].tolist()
    ]
    for method in ("fork", "spawn"):
        loader = StreamingDataLoader(
            of_numbers(numbers, tmp_path / method),
            batch_size=2,
            num_workers=2,
            multiprocessing_context=multiprocessing.get_context(method),
        )
        found = [n for batch in loader for n in batch["number"].tolist()]
        assert sorted(found) == sorted(whole)


@pytest.mark.parametrize(
    ("before", "chosen", "found"),
    [
        ("import os", "", ["system"]),
        ("import os", "mimalloc", ["mimalloc"]),
        ("import pyarrow", "", ["mimalloc", "jemalloc"]),
    ],
)
def test_arrow_allocates_as_the_system_does(tmp_path, before, chosen, found):
    """Its own heaps, one for each thread, take 40 MB of a worker; who chose is left alone."""
    write_files(tmp_path / "files")
    code = f"""
{before}
import os, sys
from mds import StreamingDataset
dataset = StreamingDataset(remote=sys.argv[1], local=sys.argv[1] + "-cache", batch_size=4)
assert len(dataset[3]["tokens"]) == 16
import pyarrow
print(pyarrow.default_memory_pool().backend_name, os.environ.get("{ALLOCATOR}", ""))
"""
    others = {name: value for name, value in os.environ.items() if name != ALLOCATOR}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "files")],
        check=True,
        capture_output=True,
        text=True,
        env=others | ({ALLOCATOR: chosen} if chosen else {}),
    )
    allocator, *told = done.stdout.split()
    assert allocator in found
    assert told == ([chosen] if chosen else [])


def test_rows_are_read_without_pandas(tmp_path):
    """Pyarrow imports it, where it is installed, for many a small thing: 45 MB in every worker."""
    write_files(tmp_path / "files")
    with pa.ipc.new_file(tmp_path / "rows.arrow", table(0, 9).schema) as file:
        file.write_table(table(0, 9))
    code = """
import sys
from mds import StreamingDataLoader, StreamingDataset
for place in ("files", "rows.arrow"):
    url, cache = f"{sys.argv[1]}/{place}", f"{sys.argv[1]}/cache-{place}"
    dataset = StreamingDataset(remote=url, local=cache, batch_size=4)
    assert len(dataset[3]["tokens"]) == 16
    for batch in StreamingDataLoader(dataset, batch_size=4):
        batch["id"]
print("pandas" in sys.modules)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


BOMB = """
import re, resource, sys
from mds import StreamingDataset
from mds.errors import FormatError
# Over what the libraries have mapped, which depends on their versions and on the cores.
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (3 << 30), mapped + (3 << 30)))
try:
    remote, local, kind = sys.argv[1:]
    next(iter(StreamingDataset(remote=remote, local=local, batch_size=2, format=kind)))
except FormatError as error:
    print(error)
# Not ru_maxrss, which begins at what the process that started this one had.
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) >> 10, "MB")
"""


def read_bomb(path, unit, count, kind):
    """Read a compressed file of many units with 3 GB of memory; return the error and the MB."""
    packer = zstandard.ZstdCompressor().compressobj()
    unit *= (1 << 24) // len(unit)
    packed = [*(packer.compress(unit) for _ in range(count)), packer.flush()]
    path.write_bytes(b"".join(packed))
    done = subprocess.run(
        [sys.executable, "-c", BOMB, path, path.parent / "cache", kind],
        capture_output=True,
        text=True,
        check=True,
    )
    error, used = done.stdout.splitlines()
    return error, int(used.removesuffix(" MB"))


@pytest.mark.parametrize(
    ("name", "unit", "kind"), [("a.txt.zst", b"\n", "lines"), ("a.jsonl.zst", b"{}\n", "jsonl")]
)
def test_a_few_bytes_that_become_many_lines_are_refused(tmp_path, name, unit, kind):
    """Half a gigabyte of lines in a file of some kilobytes costs an error and little memory."""
    count = 42 if b"{" in unit else 15
    error, used = read_bomb(tmp_path / name, unit, count, kind)
    assert "this one has more than 134,217,728 lines" in error
    assert used < 1200


def test_a_few_bytes_that_become_a_long_document_are_refused(tmp_path):
    """The file is named, where a document needs more memory than the process may take."""
    error, _ = read_bomb(tmp_path / "a.txt.zst", b"a", 256, "text")
    assert error.startswith(f"{tmp_path}/a.txt.zst: this process may not take as much memory")
