"""Fixtures of the tests of the cache."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile

import pytest

# Test modules are imported by path, so their helpers have to be put where they can be found.
sys.path.insert(0, os.path.dirname(__file__))

from cache_tools import write
from users import GROUP, can_become


@pytest.fixture
def remote(tmp_path):
    """A dataset of 200 samples in about 20 shards of 10 KB."""
    return write(tmp_path / "remote")


@pytest.fixture
def packed(tmp_path):
    """The same, compressed."""
    return write(tmp_path / "packed", compression="zstd")


@pytest.fixture
def folder(tmp_path):
    """A cache folder that is not there yet."""
    return str(tmp_path / "cache")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The user's own cache is the test's."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "home"))


@pytest.fixture
def shared(monkeypatch):
    """A folder that all users can reach, with one of their group in it, of mode 2770."""
    if not can_become():
        pytest.skip("only root can become other users")
    root = tempfile.mkdtemp(prefix="mds-users-")
    os.chmod(root, 0o755)
    monkeypatch.setenv("MDS_CACHE_DIR", os.path.join(root, "home"))
    folder = os.path.join(root, "cache")
    os.mkdir(folder)
    os.chown(folder, -1, GROUP)
    os.chmod(folder, 0o2770)
    yield folder
    shutil.rmtree(root)
