"""Tests that run an installed mosaicml-streaming.

It needs a virtual environment of its own, whose Python MDS_INCUMBENT_PYTHON names.
"""

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
    """Keep other tests from running mosaicml-streaming on this machine during a ``with`` block.

    Two of its jobs that start at once may choose the same number for their shared memory, and then
    one of them raises FileExistsError.
    """
    with open(_LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
