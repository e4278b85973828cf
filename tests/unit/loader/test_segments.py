"""Segments of shared memory: used again when they are free, and never a moment earlier."""

import gc
import multiprocessing
import os
import resource
import signal

import numpy as np
import pytest
import torch

from mds.loader.segments import MAX_FREE_SEGMENTS, SegmentFile, SegmentPool, SegmentReader

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


def test_places_are_used_again_after_their_memory_was_given_back(pool, reader, file):
    """The file does not become longer for what comes and goes."""
    for _ in range(5):
        held = [reader.borrow(taken(pool)) for _ in range(40)]
        size = os.fstat(file.descriptor).st_size
        assert size <= 42 * held[0].size
        del held
        gc.collect()


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


def _fill(file):
    place, memory = SegmentPool(file).take(SIZE)
    memory[:3] = b"abc"
    assert place.number == 0


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
