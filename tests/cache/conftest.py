"""Fixtures of the tests of the cache."""

from __future__ import annotations

import os
import sys

import pytest

# Test modules are imported by path, so their helpers have to be put where they can be found.
sys.path.insert(0, os.path.dirname(__file__))

from cachetools import write


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
