"""Fixtures of the tests of readers, for programs with many shards."""

from tests.unit.readers.conftest import kit, no_garbage

__all__ = ["kit", "no_garbage"]
