"""Samples that are larger than offsets can address."""

import subprocess
import sys

import pytest

from mds import LocalDataset

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
