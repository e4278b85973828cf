"""mosaicml-streaming in an environment of its own, whose Python MDS_INCUMBENT_PYTHON names."""

import contextlib
import fcntl
import os
import pathlib
import tempfile
from collections.abc import Iterator

import pytest

PYTHON = os.environ.get("MDS_INCUMBENT_PYTHON")
NEEDED = pytest.mark.skipif(
    not PYTHON,
    reason="name a Python in MDS_INCUMBENT_PYTHON: python -m venv other && other/bin/pip install "
    "mosaicml-streaming==0.13.0",
)
_LOCK = pathlib.Path(tempfile.gettempdir()) / f"mds-tests-incumbent-{os.getuid()}.lock"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Run it while no other test does: two of its jobs that start at once take the same names.

    It numbers its shared memory per machine, looks for a free number and takes it afterwards,
    which ends one of two jobs in a FileExistsError.
    """
    with open(_LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
