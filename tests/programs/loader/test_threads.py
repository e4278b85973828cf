"""ThreadedWorkers: batches from threads come in order, with their errors, and no thread is left."""

import gc
import subprocess
import sys
import threading

import pytest

from mds._loader.threads import ThreadedWorkers
from tests.unit.loader import threads_helpers

# Fixtures of both halves of these tests.
running = threads_helpers.running


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


@pytest.mark.slow
def test_a_program_that_ends_in_the_middle_of_an_epoch_ends_well(make):
    """No thread is killed inside torch: the interpreter waits for the batch in hand."""
    code = f"""
from mds import StreamingDataLoader, StreamingDataset
dataset = StreamingDataset(local={make()!r}, batch_size=2)
loader = iter(StreamingDataLoader(dataset, num_workers=2, worker_type="threads"))
next(loader)
"""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


@pytest.mark.slow
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
