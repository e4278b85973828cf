"""State belongs to the iteration: a dataset may be iterated several times at once."""

import copy
import gc

import numpy as np
import pytest
from torch.utils.data import DataLoader

from mds import StreamingDataLoader, StreamingDataset
from mds.plan._state import KEYS
from tests.unit.dataset.iterators_helpers import KINDS, SETTINGS, ids

INCUMBENT = KEYS  # the keys that its states have


def form(state, keys):
    """The state of ours, or what the incumbent would have of it."""
    return state if keys is None else {key: state[key] for key in keys}


@pytest.mark.parametrize("derive", [lambda ds: ds, lambda ds: ds.map(dict)], ids=["own", "map"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [None, "200kb"])
def test_random_access_is_right_during_and_after_an_iteration(make, tmp_path, kind, limit, derive):
    """An iteration lends its readers to no other access, whether it runs, was left or is over."""
    folder = make(samples=100)
    settings = {"remote": folder, "local": str(tmp_path / "cache"), "cache_limit": limit}
    # The filter makes the iteration judge samples one by one; select() gives them numbers.
    filtered = kind(**settings, **SETTINGS).filter(lambda sample: True)
    dataset = derive(filtered.select(where=lambda sample: True))
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
            before, order = dict(vars(asked)), dict(vars(asked._dataset_run.order))
            shown, position = repr(asked), asked._dataset_run.iteration.index
            states = [asked.state_dict() for _ in range(3)]
            assert states[0] == states[1] == states[2]
            assert all(value is vars(asked)[name] for name, value in before.items())
            assert all(
                value is vars(asked._dataset_run.order)[name] for name, value in order.items()
            )
            assert (repr(asked), asked._dataset_run.iteration.index) == (shown, position)
            found.append(int(sample["id"]))
        assert found == ids(silent)


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


def test_torchs_own_loader_takes_the_iterator(make):
    """Each worker iterates its own copy, and the samples of all are there once."""
    dataset = StreamingDataset(local=make(samples=100), **SETTINGS)
    for workers in (0, 2):
        found = [int(i) for batch in DataLoader(dataset, num_workers=workers) for i in batch["id"]]
        assert sorted(found) == list(np.arange(100))
