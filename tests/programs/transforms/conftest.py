"""Fixtures of the tests of functions, with worker processes."""

import pytest

from tests.unit.transforms.conftest import _cache_of_its_own, folder, make

__all__ = ["_cache_of_its_own", "folder", "make"]


@pytest.fixture(params=["processes", "spawned"])
def how(request):
    """The kind of worker processes in which functions run."""
    return request.param
