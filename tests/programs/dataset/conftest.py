"""Fixtures of programs that use a dataset: those of the tests of datasets."""

from tests.unit.dataset.conftest import _cache_of_its_own, make

__all__ = ["_cache_of_its_own", "make"]
