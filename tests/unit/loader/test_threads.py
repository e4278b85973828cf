"""ThreadedWorkers: batches from threads come in order, with their errors, and no thread is left."""

import gc
import subprocess
import sys
import threading

import pytest

from mds.loader.threads import ThreadedWorkers


@pytest.fixture
def running():
    """A function that lists the worker threads that are alive since the test began."""
    others = {*threading.enumerate()}
    return lambda: [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("mds-loader") and thread not in others
    ]


def test_batches_come_from_the_lanes_in_turn_and_short_lanes_are_passed_over(running):
    """The order is that of a DataLoader's workers."""
    parts = [[0, 3, 6], [1, 4], [2, 5, 7, 8]]
    with ThreadedWorkers([lambda p=p: iter(p) for p in parts], ahead=2) as workers:
        assert list(workers) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert not running()


def test_an_error_is_raised_where_its_batch_would_have_come(running):
    """The batches before it arrive, and it is the very exception object."""
    error = ValueError("sample 3 is bad")

    def fails():
        yield 0
        raise error

    workers = ThreadedWorkers([fails, lambda: iter([1, 2])], ahead=4)
    assert [next(workers), next(workers)] == [0, 1]
    with pytest.raises(ValueError) as caught:
        next(workers)
    assert caught.value is error
    with pytest.raises(StopIteration):
        next(workers)
    assert not running()


def test_no_more_than_asked_for_is_made_ahead():
    """A worker holds its batches ready and one in hand."""
    made = []
    enough = threading.Event()

    def endless():
        for i in range(10**9):
            made.append(i)
            if i == 3:
                enough.set()
            yield i

    with ThreadedWorkers([endless], ahead=3):
        assert enough.wait(60)
        assert len(made) == 4


def test_a_loop_that_is_left_early_stops_the_threads(running):
    """Dropping the iterator is enough, and generators are closed in their own thread."""
    closed = threading.Event()

    def endless():
        try:
            yield from range(10**9)
        finally:
            closed.set()

    workers = ThreadedWorkers([endless], ahead=2)
    assert next(workers) == 0
    threads = workers._threads
    del workers
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert closed.is_set()
    assert not running()


def test_a_program_that_ends_in_the_middle_of_an_epoch_ends_well(make):
    """No thread is killed inside torch: the interpreter waits for the batch in hand."""
    code = f"""
from mds import StreamingDataLoader, StreamingDataset
dataset = StreamingDataset(local={make()!r}, batch_size=2)
loader = iter(StreamingDataLoader(dataset, num_workers=2, workers="threads"))
next(loader)
"""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_what_outlives_its_modules_ends_in_silence(make):
    """A function of the main module that is still subscribed keeps the dataset to the very end."""
    code = f"""
from mds import StreamingDataset, events
dataset = StreamingDataset(local={make()!r}, batch_size=2)
def note(event):
    pass
events.subscribe(note).__enter__()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=600, capture_output=True
    )
    assert done.stderr == b""
