"""Fixtures that programs about a process's place share with its unit tests."""

from tests.unit.dataset.conftest import _cache_of_its_own, make
from tests.unit.plan.conftest import _quiet

__all__ = ["_cache_of_its_own", "_quiet", "make"]
