"""Fixtures and helpers of programs that share a cache: those of the cache's tests."""

import pathlib
import sys

from tests.unit.cache.conftest import folder, home, packed, remote, shared

# Test modules are imported by path, so their helpers have to be put where they can be found.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

__all__ = ["folder", "home", "packed", "remote", "shared"]
