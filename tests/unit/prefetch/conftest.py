"""Fixtures of the tests of prefetching: those of the cache that it fills."""

from tests.unit.cache.conftest import folder, home, packed, remote

__all__ = ["folder", "home", "packed", "remote"]
