"""Fixtures of the loader's tests: those of the datasets that it loads."""

from tests.unit.dataset.conftest import _cache_of_its_own, make

__all__ = ["_cache_of_its_own", "make"]
