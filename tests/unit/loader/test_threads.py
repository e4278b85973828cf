"""ThreadedWorkers: batches from threads come in order, with their errors, and no thread is left."""

import threading

import pytest

from mds._loader.threads import ThreadedWorkers
from tests.unit.loader import threads_helpers

# Fixtures of both halves of these tests.
running = threads_helpers.running


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
