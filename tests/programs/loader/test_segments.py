"""Segments of shared memory: used again when they are free, and never a moment earlier."""

import gc
import multiprocessing
import os

import numpy as np
import pytest
import torch

from mds._loader.segments import SegmentPool
from tests.unit.loader import segments_helpers
from tests.unit.loader.segments_helpers import SIZE, taken

# Fixtures of both halves of these tests.
file = segments_helpers.file
pool = segments_helpers.pool
reader = segments_helpers.reader


@pytest.mark.parametrize(
    "view",
    [
        lambda memory: memory[10:20],
        lambda memory: torch.frombuffer(memory[:80], dtype=torch.int64).view(2, 5)[1],
        lambda memory: torch.from_dlpack(torch.frombuffer(memory, dtype=torch.uint8)[7:]),
        lambda memory: np.ndarray((3, 5), "f4", memory[64:])[1:],
        lambda memory: memoryview(memory)[3:],
        lambda memory: torch.frombuffer(memory, dtype=torch.uint8).untyped_storage(),
    ],
)
def test_whatever_looks_at_the_memory_keeps_it(pool, reader, view):
    """Views, tensors, storages and buffers are owners as the array is."""
    place = taken(pool)
    kept = view(reader.borrow(place))
    gc.collect()
    others = [taken(pool) for _ in range(3)]
    assert place not in others
    del kept
    gc.collect()
    assert taken(pool) == place


def test_places_are_used_again_after_their_memory_was_given_back(pool, reader, file):
    """The file does not become longer for what comes and goes."""
    for _ in range(5):
        held = [reader.borrow(taken(pool)) for _ in range(40)]
        size = os.fstat(file.descriptor).st_size
        assert size <= 42 * held[0].size
        del held
        gc.collect()


def _fill(file):
    place, memory = SegmentPool(file).take(SIZE)
    memory[:3] = b"abc"
    assert place.number == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_file_goes_to_a_process_however_it_is_started(file, method):
    """As a descriptor, which has no name in any folder."""
    process = multiprocessing.get_context(method).Process(target=_fill, args=(file,))
    process.start()
    process.join()
    assert process.exitcode == 0
    place = taken(SegmentPool(file))
    assert place.number == 0 or place.start > 0
    assert bytes(file.map(place._replace(number=0, start=1 << 14))[:3]) == b"abc"
