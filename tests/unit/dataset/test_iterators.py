"""State belongs to the iteration: a dataset may be iterated several times at once."""

import copy
import gc
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from torch.utils.data import DataLoader

from mds import Stream, StreamingDataLoader, StreamingDataset
from mds.dataset.epoch_iterator import EpochIterator
from mds.dataset.worker_epoch import lent
from mds.plan.state import KEYS

INCUMBENT = KEYS  # the keys that its states have


class OwnItems(StreamingDataset):
    def __getitem__(self, at):
        return {"id": super().__getitem__(at)["id"]}


class OwnGetItem(StreamingDataset):
    def get_item(self, sample_id, retry=7):
        return {"id": super().get_item(sample_id, retry)["id"]}


class OwnIter(StreamingDataset):
    def __iter__(self):
        yield from super().__iter__()


KINDS = [StreamingDataset, OwnItems, OwnGetItem, OwnIter]
SETTINGS = {"batch_size": 4, "shuffle": True}


def ids(samples, count=None):
    return [int(sample["id"]) for sample in itertools.islice(samples, count)]


def form(state, keys):
    """The state of ours, or what the incumbent would have of it."""
    return state if keys is None else {key: state[key] for key in keys}


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


@pytest.mark.parametrize("derive", [lambda ds: ds, lambda ds: ds.map(dict)], ids=["own", "map"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [None, "200kb"])
def test_random_access_is_right_during_and_after_an_iteration(make, tmp_path, kind, limit, derive):
    """An iteration lends its readers to no other access, whether it runs, was left or is over."""
    folder = make(samples=100)
    settings = {"remote": folder, "local": str(tmp_path / "cache"), "cache_limit": limit}
    dataset = derive(kind(**settings, **SETTINGS).filter(lambda sample: True))
    numbers = list(range(0, 100, 7))
    for count in (15, None):
        iterator = iter(dataset)
        assert len(ids(iterator, count)) == (count or 100)
        assert ids(dataset[i] for i in numbers) == numbers
        copied = copy.deepcopy(dataset)
        assert ids(copied[i] for i in numbers) == numbers
        if count:
            iterator.close()
    for _ in StreamingDataLoader(dataset, batch_size=1):
        assert int(dataset[99]["id"]) == 99
    assert ids(dataset[i] for i in numbers) == numbers


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


@pytest.mark.parametrize("keys", [None, INCUMBENT], ids=["ours", "incumbent"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_of_the_iteration_that_gives_samples(make, kind, keys):
    """A second iterator takes the state over with its first sample, and not before."""
    folder = make(samples=100)
    whole = kind(local=folder, **SETTINGS)
    epochs = [ids(whole), ids(whole)]
    dataset = kind(local=folder, **SETTINGS)
    first = iter(dataset)
    ids(first, 10)
    before = form(dataset.state_dict(), keys)
    second = iter(dataset)
    state = form(dataset.state_dict(), keys)
    assert (state["epoch"], state["sample_in_epoch"]) == (0, 10)
    assert state == before
    resumed = kind(local=folder, **SETTINGS)
    resumed.load_state_dict(state)
    assert ids(resumed) == epochs[0][10:]
    ids(second, 7)
    state = form(dataset.state_dict(), keys)
    assert (state["epoch"], state["sample_in_epoch"]) == (1, 7)
    resumed = kind(local=folder, **SETTINGS)
    resumed.load_state_dict(state)
    assert ids(resumed) == epochs[1][7:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_keeps_its_position_while_its_dataset_is_iterated(make, kind, workers):
    """A look at the dataset, or another loop over the loader, moves no state of this loop."""
    folder = make(samples=100)
    whole = StreamingDataLoader(kind(local=folder, **SETTINGS))
    order = [batch["id"].tolist() for batch in whole]
    dataset = kind(local=folder, **SETTINGS)
    loader = StreamingDataLoader(dataset, num_workers=workers)
    batches = iter(loader)
    got = [next(batches)["id"].tolist() for _ in range(3)]
    state = loader.state_dict()
    assert next(iter(dataset))["id"] >= 0
    other = iter(loader)
    assert loader.state_dict() == state
    got.append(next(batches)["id"].tolist())
    state = loader.state_dict()
    assert (state["epoch"], state["sample_in_epoch"]) == (0, 16)
    next(other)
    assert loader.state_dict()["epoch"] == 2
    got.append(next(batches)["id"].tolist())
    assert loader.state_dict()["sample_in_epoch"] == 20
    assert got == order[:5]
    resumed = StreamingDataLoader(kind(local=folder, **SETTINGS), num_workers=workers)
    resumed.load_state_dict(state)
    assert [batch["id"].tolist() for batch in resumed] == order[4:]


@pytest.mark.parametrize("kind", [*KINDS, "filtered"])
def test_asking_for_the_state_changes_nothing(make, kind):
    """However often it is asked, at any point, everything is as it was."""
    folder = make(samples=60)

    def new():
        if kind == "filtered":
            whole = StreamingDataset(local=folder, **SETTINGS)
            return whole.filter(lambda sample: sample["id"] % 3 != 0)
        return kind(local=folder, **SETTINGS)

    asked, silent = new(), new()
    shown = repr(asked)
    for _ in range(3):
        asked.state_dict()
    assert repr(asked) == shown == repr(silent)
    assert (asked.num_canonical_nodes, asked.initial_physical_nodes) == (None, None)
    for _ in range(2):
        found = []
        for sample in asked:
            before, order = dict(vars(asked)), dict(vars(asked._order))
            shown, position = repr(asked), asked._running.position
            states = [asked.state_dict() for _ in range(3)]
            assert states[0] == states[1] == states[2]
            assert all(value is vars(asked)[name] for name, value in before.items())
            assert all(value is vars(asked._order)[name] for name, value in order.items())
            assert (repr(asked), asked._running.position) == (shown, position)
            found.append(int(sample["id"]))
        assert found == ids(silent)


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


def test_an_iterator_that_is_dropped_is_over(make):
    """A loop that was left makes way for the next one before its first sample."""
    dataset = StreamingDataset(local=make(samples=100), **SETTINGS)
    for _ in dataset:
        break
    gc.collect()
    assert dataset.state_dict()["sample_in_epoch"] == 1
    following = iter(dataset)
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["sample_in_epoch"]) == (1, 0)
    del following


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


def test_torchs_own_loader_takes_the_iterator(make):
    """Each worker iterates its own copy, and the samples of all are there once."""
    dataset = StreamingDataset(local=make(samples=100), **SETTINGS)
    for workers in (0, 2):
        found = [int(i) for batch in DataLoader(dataset, num_workers=workers) for i in batch["id"]]
        assert sorted(found) == list(np.arange(100))


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


@pytest.mark.parametrize("settings", [{}, {"on_error": "skip"}, {"exact": "mask"}])
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
