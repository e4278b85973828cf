"""Segments of shared memory: used again when they are free, and never a moment earlier."""

import os
import resource
import signal

import numpy as np

from mds._loader.segments import MAX_FREE_SEGMENTS, SegmentPool
from tests.unit.loader import segments_helpers
from tests.unit.loader.segments_helpers import SIZE, taken

# Fixtures of both halves of these tests.
file = segments_helpers.file
pool = segments_helpers.pool
reader = segments_helpers.reader


def memory_of(file):
    return os.fstat(file.descriptor).st_blocks * 512


def test_what_is_written_is_read(pool, reader):
    """Both sides look at the same bytes."""
    place, memory = pool.take(SIZE)
    memory[:5] = b"hello"
    assert reader.borrow(place)[:5].tobytes() == b"hello"


def test_a_segment_serves_one_message_after_the_other(pool, reader, file):
    """A hundred messages, each let go before the next, take the memory of one."""
    places = set()
    for _ in range(100):
        place = taken(pool)
        places.add(place)
        assert reader.borrow(place).shape == (place.size,)
    assert len(places) == 1
    assert memory_of(file) < 3 * SIZE


def test_a_trainer_that_keeps_batches_gets_new_segments_and_gives_the_memory_back(
    pool, reader, file
):
    """All that is held is memory; of what was let go, a few segments keep theirs."""
    held = []
    for number in range(100):
        place, memory = pool.take(SIZE)
        memory[:SIZE] = bytes([number]) * SIZE
        held.append(reader.borrow(place))
    assert [int(m[0]) for m in held] == [int(m[SIZE - 1]) for m in held] == [*range(100)]
    assert memory_of(file) >= 100 * SIZE
    held.clear()
    taken(pool)
    assert memory_of(file) <= (MAX_FREE_SEGMENTS + 2) * place.size


def test_sizes_may_differ(pool, reader):
    """A segment is at least as large as what was asked for, and not much larger."""
    random = np.random.default_rng(1)
    for _ in range(200):
        wanted = int(2 ** random.uniform(4, 24))
        place, memory = pool.take(wanted)
        assert wanted <= len(memory) == place.size <= max(4 * wanted, 1 << 16)
        assert reader.borrow(place).shape == (place.size,)


def test_where_there_is_no_memory_there_is_no_segment(pool, reader):
    """The system's refusal is told before a page is touched; later there may be memory again."""
    kept = reader.borrow(taken(pool))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        assert pool.take(10 << 20) is None
        assert pool.take(10 << 20) is None
        place = taken(pool)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert reader.borrow(place).shape == kept.shape
    assert pool.take(10 << 20) is not None


def test_a_forked_child_gives_nothing_back(pool, reader):
    """What a child drops is its copy of a reference; the trainer has the memory still."""
    held = [reader.borrow(taken(pool))]
    child = os.fork()
    if not child:
        held.clear()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert taken(pool) != held


def test_nothing_is_left_of_a_worker_that_was_killed(file):
    """Its memory is the file's, and goes with the trainer's descriptor."""
    child = os.fork()
    if not child:
        SegmentPool(file).take(SIZE)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    link = os.readlink(f"/proc/self/fd/{file.descriptor}")
    assert "(deleted)" in link
    assert not os.path.exists(link.removesuffix(" (deleted)"))


def test_repr_tells_the_state(pool, reader):
    """Of both sides."""
    held = reader.borrow(taken(pool))
    assert repr(pool) == "<SegmentPool: 1 segments of 131,072 bytes, 1 lent>"
    assert repr(reader) == "<SegmentReader: 1 of 1 segments in use>"
    del held
    assert repr(reader) == "<SegmentReader: 0 of 1 segments in use>"
