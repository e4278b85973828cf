"""Iterations that fail in the middle: what `next` gives afterwards, and what of them stays."""

import copy
import os
import signal

import pytest
from torch.utils.data import DataLoader

import mds
from mds import StreamingDataLoader, StreamingDataset
from mds._cache.shard_cache import live_caches
from mds.errors import ConfigError, IterationError, MdsError
from tests.unit.loader import failed_iterations_helpers
from tests.unit.loader.failed_iterations_helpers import (
    WORKERS,
    Bad,
    checked,
    collate,
    numbers,
    take_until_error,
)

# Fixtures of both halves of these tests.
fails = failed_iterations_helpers.fails


@pytest.mark.parametrize("link", ["map", "filter", "own"])
def test_a_failed_iteration_of_a_dataset_keeps_raising(make, fails, link):
    """The position is behind the last sample that came, and the next iteration is whole."""
    look = checked(fails)

    class Own(StreamingDataset):
        def __getitem__(self, at):
            return look(super().__getitem__(at))

    dataset = (Own if link == "own" else StreamingDataset)(local=make(), batch_size=4)
    if link == "map":
        dataset = dataset.map(look)
    elif link == "filter":
        dataset = dataset.filter(lambda sample: bool(look(sample)))
    iterator = iter(dataset)
    before, error = take_until_error(iterator)
    state = dataset.state_dict()
    for _ in range(3):
        with pytest.raises(type(error), match=str(error).partition("(")[0]):
            next(iterator)
    assert dataset.state_dict() == state
    fails(0, repair=True)
    dataset.load_state_dict(state)
    assert [int(s["id"]) for s in [*before, *dataset]] == list(range(100))
    assert len([*dataset]) == 100


def test_a_text_that_does_not_decode_is_not_passed_over(make):
    """An error of the decoder counts its sample as one that did not come."""
    columns = {"id": "int", "text": "str"}
    data = make(40, columns=columns, value=lambda i: {"id": i, "text": f"sample {i:03}"})
    name = os.path.join(data, "shard.00001.mds")
    with open(name, "r+b") as file:
        at = file.read().index(b"sample 015")
        file.seek(at)
        file.write(b"\xff")
    dataset = StreamingDataset(local=data, batch_size=4)
    iterator = iter(dataset)
    before, error = take_until_error(iterator)
    with pytest.raises(type(error)):
        next(iterator)
    assert len(before) == 15
    assert dataset.state_dict()["sample_in_epoch"] == 15


def test_an_interrupted_iteration_says_so_and_its_remedy_works(make):
    """KeyboardInterrupt is not raised twice; the state that the message names goes on."""

    def interrupt(sample):
        if is_armed and sample["id"] == 57:
            raise KeyboardInterrupt
        return sample

    is_armed = True
    dataset = StreamingDataset(local=make(), batch_size=4).map(interrupt)
    loader = StreamingDataLoader(dataset, collate_fn=collate)
    iterator, before = iter(loader), []
    with pytest.raises(KeyboardInterrupt):
        before.extend(iterator)
    is_armed = False
    with pytest.raises(IterationError, match=r"loader\.load_state_dict\(loader\.state_dict\(\)\)"):
        next(iterator)
    loader.load_state_dict(loader.state_dict())
    assert numbers([*before, *loader]) == list(range(100))


def test_a_signal_between_two_batches_ends_nothing(make):
    """An interrupt in the program's own code leaves the iteration as it is."""
    loader = StreamingDataLoader(StreamingDataset(local=make(), batch_size=4))
    iterator = iter(loader)
    before = [next(iterator)]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert numbers([*before, *iterator]) == list(range(100))


@pytest.mark.parametrize("how", ["no workers", "threads"])
def test_a_kept_error_keeps_no_shard(make, fails, how):
    """An error has the frames that it passed through; shards are given back all the same."""
    dataset = StreamingDataset(local=make(), batch_size=4).map(checked(fails))
    iterator = iter(StreamingDataLoader(dataset, collate_fn=collate, **WORKERS[how]))
    _, error = take_until_error(iterator)
    assert isinstance(error.__cause__, Bad)
    held = [cache.stats()["held_shards"] for cache in live_caches()]
    assert not any(held)


def test_an_error_in_a_worker_of_torchs_loader_is_read_line_by_line(make):
    """Line ends of the traceback are line ends."""
    loader = DataLoader(StreamingDataset(local=make()), batch_size=4, num_workers=2)
    with pytest.raises(ConfigError) as caught:
        list(loader)
    # Frames of the traceback refer to the iterator. If a garbage collection found it, torch would
    # wait ten seconds for its worker processes; released here, it ends them at once.
    text = str(caught.value.with_traceback(None))
    del caught
    lines = text.split("\n")
    assert len(lines) > 10
    assert "batch_size" in lines[-2]
    assert "\\n" not in text


def test_text_of_others_in_an_error_stays_on_one_line():
    """Only what begins as torch begins keeps its lines."""
    assert "\n" not in str(ConfigError("a file called Caught X in worker process 0.\nOriginal"))


def test_errors_can_be_made_of_their_text_alone():
    """So torch raises the class in the trainer that was raised in a worker process."""
    classes = [
        c for c in vars(mds.errors).values() if isinstance(c, type) and issubclass(c, MdsError)
    ]
    for kind in classes:
        assert isinstance(kind("text"), kind)
        assert type(copy.copy(kind("text"))) is kind
