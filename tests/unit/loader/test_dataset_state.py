"""dataset.state_dict() without a number: the position of what iterates, or iterated last."""

import gc
import itertools
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from mds import StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError

WORKERS = {
    "here": {},
    "threads": {"num_workers": 2, "worker_type": "threads"},
    "processes": {"num_workers": 2, "worker_type": "processes"},
}


def dataset_of(make, **arguments):
    """A shuffled dataset of 100 samples in batches of 8."""
    return StreamingDataset(local=make(), batch_size=8, shuffle=True, **arguments)


def without_hash(state):
    """The state of a loader as its dataset has it."""
    return {**state, "order_hash": ""}


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_it_is_the_position_of_the_loader(make, workers):
    """After every batch, after the loop, in the next epoch and when the loader is gone."""
    dataset = dataset_of(make, remainder="short", topology=(0, 2))
    loader = StreamingDataLoader(dataset, **workers)
    assert dataset.state_dict()["epoch"] == -1
    for _ in range(2):
        for _ in loader:
            assert dataset.state_dict() == without_hash(loader.state_dict())
        assert dataset.state_dict() == without_hash(loader.state_dict())
    next(batches := iter(loader))
    state = dataset.state_dict()
    assert (state["epoch"], state["sample_in_epoch"]) == (2, 16)
    del batches, loader
    gc.collect()
    assert dataset.state_dict() == state


def test_a_run_resumes_from_it(make):
    """Another loader goes on with the next batch."""
    dataset = dataset_of(make)
    batches = iter(StreamingDataLoader(dataset))
    seen = [next(batches)["id"].tolist() for _ in range(4)]
    other = dataset_of(make)
    other.load_state_dict(dataset.state_dict())
    assert other.state_dict()["sample_in_epoch"] == 32
    seen += [batch["id"].tolist() for batch in StreamingDataLoader(other)]
    assert seen == [batch["id"].tolist() for batch in StreamingDataLoader(dataset_of(make))]


def test_what_gave_something_last_counts(make):
    """A loop over the dataset itself, and a loader that goes on after it."""
    dataset = dataset_of(make)
    loader = StreamingDataLoader(dataset)
    batches = iter(loader)
    next(batches)
    samples = iter(dataset)
    assert dataset.state_dict()["sample_in_epoch"] == 8
    next(samples)
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["sample_in_epoch"]) == (1, 1)
    next(batches)
    assert dataset.state_dict() == without_hash(loader.state_dict())
    assert len(list(samples)) == 99
    assert dataset.state_dict()["epoch"] in (0, 1)


class Own(StreamingDataset):
    """A class of the user that iterates, so that its epoch begins with the first batch."""

    def __iter__(self):
        yield from super().__iter__()


@pytest.mark.parametrize("first", ["samples", "some samples", "batches", "some batches"])
@pytest.mark.parametrize(("kind", "workers"), [(Own, "here"), *((None, each) for each in WORKERS)])
def test_before_its_first_batch_an_epoch_is_at_its_beginning(make, kind, workers, first):
    """Whichever workers begin it, and however late they do."""
    dataset = (kind or StreamingDataset)(local=make(), batch_size=8, shuffle=True)
    loader = StreamingDataLoader(dataset, **WORKERS[workers])
    previous = iter(dataset) if "samples" in first else iter(StreamingDataLoader(dataset))
    list(itertools.islice(previous, 3 if "some" in first else None))
    del previous
    batches = iter(loader)
    states = dataset.state_dict(), loader.state_dict(), dataset.state_dict(0, True)
    for state in (*states, dataset.state_dict(0)):
        assert (state["epoch"], state["sample_in_epoch"], state["finished"]) == (1, 0, False)
    next(batches)
    assert dataset.state_dict() == without_hash(loader.state_dict())
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["sample_in_epoch"]) == (1, 8)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_loaded_state_stays_until_the_first_batch(make, workers):
    """Also if its epoch is an earlier one."""
    dataset = dataset_of(make)
    loader = StreamingDataLoader(dataset, **WORKERS[workers])
    next(iter(loader))
    state = loader.state_dict()
    list(loader)
    loader.load_state_dict(state)
    batches = iter(loader)
    for each in (dataset.state_dict(), loader.state_dict()):
        assert (each["epoch"], each["sample_in_epoch"]) == (0, 8)
    next(batches)
    assert (loader.state_dict()["epoch"], loader.state_dict()["sample_in_epoch"]) == (0, 16)


@pytest.mark.filterwarnings("ignore:another loader has iterated")
def test_a_second_loader_takes_over_with_its_first_batch(make):
    """Until then, states are about the loader that is under way."""
    dataset = dataset_of(make)
    first = StreamingDataLoader(dataset)
    batches = iter(first)
    next(batches)
    others = iter(StreamingDataLoader(dataset))
    assert dataset.state_dict() == without_hash(first.state_dict())
    # More rows than samples can only be the position of that loader.
    assert dataset.state_dict(16, True) == without_hash(first.state_dict())
    next(others)
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["sample_in_epoch"]) == (1, 8)


@pytest.mark.parametrize("collate", [None, list])
@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_a_number_says_after_the_loop_that_the_epoch_has_ended(make, workers, collate):
    """With every kind of workers and batches; a smaller number does not."""
    dataset = dataset_of(make)
    options = {} if collate is None else {"collate_fn": collate}
    list(StreamingDataLoader(dataset, **workers, **options))
    assert dataset.state_dict(100)["finished"]
    assert not dataset.state_dict(96)["finished"]


@pytest.mark.parametrize("batches", [3, None], ids=["within", "between"])
def test_loaders_that_iterate_one_dataset_in_turn_are_warned_of(make, batches):
    """Such as one for training and one for evaluation, which would change the order."""
    dataset = dataset_of(make)
    training, evaluation = StreamingDataLoader(dataset), StreamingDataLoader(dataset)
    iterator = iter(training)
    list(itertools.islice(iterator, batches))
    list(evaluation)
    with pytest.warns(UserWarning, match="Create a StreamingDataset for each loader"):
        next(iterator, None) if batches else next(iter(training))


def test_a_loader_may_go_on_after_another_at_a_state(make):
    """Or replace another loader."""
    dataset = dataset_of(make)
    training = StreamingDataLoader(dataset)
    order = [batch["id"].tolist() for batch in training]
    list(StreamingDataLoader(dataset))
    training.load_state_dict({**training.state_dict(), "finished": False, "sample_in_epoch": 0})
    assert [batch["id"].tolist() for batch in training] == order


def test_a_number_counts_as_ever(make):
    """From the beginning of the epoch that began last."""
    dataset = dataset_of(make)
    batches = iter(StreamingDataLoader(dataset))
    next(batches)
    assert dataset.state_dict(0)["sample_in_epoch"] == 0
    assert dataset.state_dict(24)["sample_in_epoch"] == 24


def batches_of_epoch(loader):
    """The samples of as many batches as the loader has, which is how Composer ends an epoch."""
    batches = iter(loader)
    return [next(batches)["id"].tolist() for _ in range(len(loader))]


@pytest.mark.parametrize("workers", [0, 1])
def test_composer_does_not_repeat_the_epoch_that_it_ended(make, workers):
    """It then says that it has seen 0 samples of the epoch."""

    def make_loader():
        return StreamingDataLoader(dataset_of(make), num_workers=workers)

    loader, epochs, states = make_loader(), [], []
    for _ in range(3):
        epochs.append(batches_of_epoch(loader))
        states.append(loader.dataset.state_dict(0, True))
    for epoch in (1, 2):
        resumed = make_loader()
        resumed.load_state_dict(states[epoch - 1])
        assert resumed.dataset.state_dict(0, True)["epoch"] == epoch
        assert batches_of_epoch(resumed) == epochs[epoch]
        assert resumed.dataset.state_dict(0, True) == states[epoch]


def join(samples):
    """One row, as a collate function that packs samples makes it."""
    return {"id": torch.tensor([[sample["id"] for sample in samples]])}


CHANGES = {
    "filter": (lambda dataset: dataset.filter(lambda sample: sample["id"] % 3 > 0), {}, 1),
    "collate_fn": (lambda dataset: dataset, {"collate_fn": join}, 1),
    "map_batches": (lambda dataset: dataset.map_batches(lambda batch: batch), {}, 0.5),
    "rows on two ranks": (lambda dataset: dataset, {}, 2),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("change", "options", "factor"), CHANGES.values(), ids=CHANGES)
def test_rows_of_composer_that_are_not_samples(make, workers, change, options, factor):
    """They do not tell the position, which the loader knows; also before the next batch."""

    def make_loader():
        return StreamingDataLoader(change(dataset_of(make)), num_workers=workers, **options)

    loader, rows, states, batches = make_loader(), 0, [], []
    for batch in loader:
        rows += int(len(batch["id"]) * factor)
        states.append(loader.dataset.state_dict(rows, True))
        batches.append(batch["id"].tolist())
        assert states[-1] == without_hash(loader.state_dict())
    resumed = make_loader()
    resumed.dataset.load_state_dict(states[3])
    assert resumed.dataset.state_dict(32 * factor, True) == states[3]
    assert [batch["id"].tolist() for batch in resumed] == batches[4:]


def test_fewer_rows_are_samples_that_were_trained_on(make):
    """A loop may fetch batches ahead of those that it trains on."""
    dataset = dataset_of(make)
    batches = iter(StreamingDataLoader(dataset))
    for _ in range(3):
        next(batches)
    assert dataset.state_dict(16, True)["sample_in_epoch"] == 16
    assert dataset.state_dict(25, True)["sample_in_epoch"] == 24


def test_0_samples_are_the_beginning_of_an_epoch_that_goes_on(make):
    """Also of an epoch after one that has ended."""
    loader = StreamingDataLoader(dataset_of(make))
    assert loader.dataset.state_dict(0, True)["epoch"] == -1
    batches_of_epoch(loader)
    next(batches := iter(loader))
    state = loader.dataset.state_dict(0, True)
    assert (state["epoch"], state["sample_in_epoch"], state["finished"]) == (1, 0, False)
    del batches


@pytest.mark.parametrize("workers", [0, 1])
def test_processes_of_torch_keep_their_position(make, workers):
    """Without workers torch iterates here; with workers the error says what to write."""
    dataset = dataset_of(make)
    next(iter(StreamingDataLoader(dataset)))
    batches = iter(DataLoader(dataset, batch_size=8, num_workers=workers))
    next(batches)
    if not workers:
        assert dataset.state_dict()["sample_in_epoch"] == 8
        return
    with pytest.raises(
        ConfigError, match=r"Use mds\.StreamingDataLoader\(.*state_dict\(num_samples"
    ):
        dataset.state_dict()
    assert dataset.state_dict(8)["sample_in_epoch"] == 8
    next(iter(StreamingDataLoader(dataset)))
    assert dataset.state_dict()["sample_in_epoch"] == 8


def test_neither_keeps_the_other_alive(make):
    """A dataset has the count of its loader, and not the loader."""
    dataset = dataset_of(make)
    loader = StreamingDataLoader(dataset)
    next(iter(loader))
    gc.collect()
    gc.disable()  # so that a cycle would show
    try:
        loader_alive, dataset_alive = weakref.ref(loader), weakref.ref(dataset)
        del loader
        assert loader_alive() is None
        del dataset
        assert dataset_alive() is None
    finally:
        gc.enable()


class Buckets(IterableDataset):
    """A wrapper that holds ten samples back."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        held = []
        for sample in self.dataset:
            held.append(sample)
            if len(held) > 10:
                yield held.pop(0)
        yield from held


def test_a_wrapper_that_holds_samples_back_is_warned_of(make):
    """As the loader warns in its own state_dict()."""
    dataset = dataset_of(make)
    batches = iter(StreamingDataLoader(Buckets(dataset)))
    next(batches)
    with pytest.warns(UserWarning, match="Buckets has read"):
        dataset.state_dict()
