"""The epoch book: copies of a dataset in workers agree on the epoch, and leave nothing."""

import copy
import multiprocessing
import os
import pickle
import signal

import pytest
import torch.utils.data

from mds.dataset.epoch_counter import SharedEpochCounter
from mds.plan.state import ResumePoint


def test_workers_of_one_iteration_share_a_turn():
    """The same group gives the same epoch to every worker, once each."""
    book = SharedEpochCounter()
    assert [book.begin_epoch(7, worker).epoch for worker in range(3)] == [0, 0, 0]
    assert book.next_epoch == 1


def test_a_worker_that_asks_again_begins_the_next_iteration():
    """Persistent workers keep their group; asking twice means another epoch."""
    book = SharedEpochCounter()
    assert [book.begin_epoch(7, w).epoch for w in (0, 1)] == [0, 0]
    assert [book.begin_epoch(7, w).epoch for w in (1, 0)] == [1, 1]


def test_a_loaded_state_is_the_next_turn_of_every_worker():
    """All workers resume from it, and the epoch after it has no offset."""
    book = SharedEpochCounter()
    book.begin_epoch(1, 0)
    book.load(ResumePoint(5, 64, 1, 0))
    turns = [book.begin_epoch(2, w) for w in (0, 1)]
    assert [t.epoch for t in turns] == [5, 5]
    assert all(t.resume.sample_in_epoch == 64 for t in turns)
    assert book.begin_epoch(3, 0).resume is None
    assert book.next_epoch == 7


def test_a_state_of_an_earlier_epoch_is_honoured():
    """Going back is what the caller asked for."""
    book = SharedEpochCounter()
    for group in range(4):
        book.begin_epoch(group, 0)
    book.load(ResumePoint(1, 0, 1, 0))
    assert book.begin_epoch(9, 0).epoch == 1
    assert book.next_epoch == 2


def test_a_state_from_before_the_first_epoch_begins_epoch_0():
    """The state of a run that never began has epoch -1."""
    book = SharedEpochCounter()
    book.load(ResumePoint(-1, 0, 1, 0))
    assert book.begin_epoch(1, 0).epoch == 0


def test_copies_by_pickle_count_for_themselves():
    """A pickled copy starts from the same epoch and then goes its own way."""
    book = SharedEpochCounter()
    book.begin_epoch(1, 0)
    twin = pickle.loads(pickle.dumps(book))
    assert twin.next_epoch == 1
    twin.begin_epoch(2, 0)
    assert (book.next_epoch, twin.next_epoch) == (1, 2)
    assert copy.deepcopy(book).next_epoch == 1


class Epochs(torch.utils.data.IterableDataset):
    """Yields the epoch that its worker took."""

    def __init__(self):
        self.book = SharedEpochCounter()

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        turn = self.book.begin_epoch(info.seed - info.id, info.id)
        return iter([(turn.epoch, info.id)])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method_write_into_the_parents_book(method):
    """The main process sees the epochs that began in workers."""
    dataset = Epochs()
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context=method
    )
    seen = [sorted(map(tuple, loader)) for _ in range(2)]
    assert seen == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
    assert dataset.book.next_epoch == 2


def test_ranks_forked_from_one_parent_count_for_themselves():
    """Two ranks made by fork from a process that built the dataset both begin with epoch 0."""
    book = SharedEpochCounter()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def rank():
        queue.put([book.begin_epoch(-1, 0).epoch for _ in range(2)])

    for _ in range(2):
        process = context.Process(target=rank)
        process.start()
        process.join()
        assert queue.get() == [0, 1]
    assert book.next_epoch == 0


def test_a_process_killed_while_it_holds_the_lock_blocks_nobody():
    """The kernel drops the lock with its owner."""
    book = SharedEpochCounter()
    pid = os.fork()
    if pid == 0:
        with book._record():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert book.begin_epoch(1, 0).epoch == 0
