"""Helpers of the tests of segments, in this folder and in tests/programs/loader."""

import pytest

from mds._loader.segments import SegmentFile, SegmentPool, SegmentReader

SIZE = 100_000


@pytest.fixture
def file():
    """A file of segments, which is closed in the end."""
    with SegmentFile() as made:
        yield made


@pytest.fixture
def pool(file):
    """The worker's side of it."""
    return SegmentPool(file)


@pytest.fixture
def reader(file):
    """The trainer's side of it."""
    return SegmentReader(file)


def taken(pool, size=SIZE):
    place, memory = pool.take(size)
    assert len(memory) >= size
    return place
