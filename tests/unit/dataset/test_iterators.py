"""State belongs to the iteration: a dataset may be iterated several times at once."""

import copy
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mds import Stream, StreamingDataLoader, StreamingDataset
from mds._dataset.epoch_iterator import EpochIterator
from mds._iteration.worker_epoch import lent
from tests.unit.dataset.iterators_helpers import KINDS, SETTINGS, ids


@pytest.mark.parametrize("kind", KINDS)
def test_two_iterations_at_a_time_give_what_each_gives_alone(make, kind):
    """Interleaved, they are the epochs 0 and 1, sample by sample."""
    folder = make(samples=100)
    alone = kind(local=folder, **SETTINGS)
    epochs = [ids(alone), ids(alone)]
    dataset = kind(local=folder, **SETTINGS)
    first, second = iter(dataset), iter(dataset)
    found = [[], []]
    for turn in itertools.cycle([0, 1]):
        samples = ids((first, second)[turn], 3 + turn)
        found[turn] += samples
        if not samples and len(found[0]) == len(found[1]) == 100:
            break
    assert found == epochs


@pytest.mark.parametrize("limit", [None, "200kb"])
def test_a_function_may_ask_for_any_sample_of_its_dataset(make, tmp_path, limit):
    """Threads of a function do not share the readers of the iteration that calls it."""
    folder = make(samples=100)

    class Neighbours(StreamingDataset):
        def get_item(self, sample_id, retry=7):
            get = super().get_item
            with ThreadPoolExecutor(2) as pool:
                others = [*pool.map(get, [(sample_id + 1) % 100, (sample_id + 50) % 100])]
            return {"id": [sample["id"] for sample in [get(sample_id), *others]]}

    dataset = Neighbours(remote=folder, local=str(tmp_path / "c"), cache_limit=limit, **SETTINGS)
    found = [[int(number) for number in sample["id"]] for sample in dataset]
    assert sorted(found) == [[i, (i + 1) % 100, (i + 50) % 100] for i in range(100)]


@pytest.mark.parametrize("limit", [None, "200kb"])
def test_readers_belong_to_the_thread_of_the_iteration(make, tmp_path, limit):
    """While a sample is made, another thread gets samples without the window of the iteration."""
    folder = make(samples=100)
    made, asked = threading.Event(), threading.Event()

    class Waiting(StreamingDataset):
        def get_item(self, sample_id, retry=7):
            if threading.current_thread() is threading.main_thread():
                made.set()
                assert asked.wait(60)
            return super().get_item(sample_id, retry)

    settings = {"remote": folder, "local": str(tmp_path / "c"), "cache_limit": limit}
    dataset = Waiting(**settings, **SETTINGS)

    def ask():
        assert made.wait(60)
        assert lent.readers is None
        try:
            return ids(dataset[i] for i in range(100))
        finally:
            asked.set()

    with ThreadPoolExecutor(1) as pool:
        numbers = pool.submit(ask)
        assert len(ids(dataset)) == 100
        assert numbers.result() == list(range(100))
    assert lent.readers is None


def test_an_iterator_has_a_state_of_its_own(make):
    """It is saved and loaded by the iterator, whatever other iterations do."""
    dataset = StreamingDataset(local=make(samples=100), **SETTINGS)
    first, second = iter(dataset), iter(dataset)
    assert isinstance(first, EpochIterator)
    ids(first, 10)
    ids(second, 20)
    rest = ids(copy_of(dataset, first.state_dict()))
    assert rest == ids(first)
    assert ids(copy_of(dataset, second.state_dict())) == ids(second)


def copy_of(dataset, state):
    iterator = iter(dataset)
    ids(iterator, 3)
    iterator.load_state_dict(state)
    return iterator


def test_a_closed_iterator_gives_nothing_more(make):
    """What is left of its window does not come either, and its position stays."""
    dataset = StreamingDataset(local=make(samples=100), **SETTINGS)
    iterator = iter(dataset)
    ids(iterator, 10)
    iterator.close()
    iterator.close()
    assert ids(iterator) == []
    assert dataset.state_dict()["sample_in_epoch"] == 10


def test_drops_are_told_by_the_batch_that_met_them(make):
    """Another iteration's drops are counted by the dataset, and by no batch of this loader."""

    class Peeking(StreamingDataset):
        def __iter__(self):
            yield from super().__iter__()

    whole = Peeking(local=make(samples=60), batch_size=6)
    dataset = whole.filter(lambda sample: sample["id"] % 2 == 0)
    loader = StreamingDataLoader(dataset)
    batches = iter(loader._make_batches())
    info, _ = next(batches)
    assert (info.dropped, len(info.skipped)) == (5, 5)  # of six that are kept
    assert len(list(dataset)) == 30
    assert len(dataset.skipped) == 5 + 30
    info, _ = next(batches)
    assert (info.dropped, [s.sample for s in info.skipped]) == (6, [11, 13, 15, 17, 19, 21])


def test_streams_are_not_shared_between_datasets(make):
    """A setting of a copy is not one of the dataset that it was copied from."""
    dataset = StreamingDataset(streams=[Stream(local=make(samples=100))], **SETTINGS)
    view = copy.copy(dataset)
    view.shuffle = False
    assert (dataset.shuffle, view.shuffle) == (True, False)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_description_in_a_loop_names_the_running_epoch(make, workers):
    """The text of a dataset says how far the loader over it is, whatever makes its batches."""
    dataset = StreamingDataset(local=make(samples=100), batch_size=4)
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=workers)
    for number, _ in enumerate(loader, 1):
        assert repr(dataset).endswith(f"epoch 0 at sample {4 * number}>")
        if number == 3:
            break


@pytest.mark.parametrize("settings", [{}, {"on_error": "skip"}, {"remainder": "mask"}])
def test_a_filter_leaves_no_epoch_running_behind_a_loop(make, settings):
    """After the loop of a loader a dataset with a filter has the position of that epoch's end."""
    whole = StreamingDataset(local=make(samples=100), batch_size=4, **settings)
    dataset = whole.filter(lambda sample: sample["id"] % 2 == 0)
    loader = StreamingDataLoader(dataset)
    for epoch in range(2):
        for number, _ in enumerate(loader, 1):
            assert dataset.state_dict()["sample_in_epoch"] == 4 * number
        state = dataset.state_dict()
        assert (state["epoch"], state["sample_in_epoch"]) == (epoch, 100)
        assert repr(dataset).endswith(f"epoch {epoch + 1} next>")
