"""Wrappers around a dataset: under our loader they behave as under torch's, or are refused."""

import pytest
from torch.utils.data import (
    ConcatDataset,
    IterableDataset,
)

from mds import StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, StateError
from tests.unit.loader.wrapping_helpers import Piped, Transformed


def test_a_map_style_wrapper_has_no_position(make):
    """Asking for one warns and says what to do; loading one is refused."""
    loader = StreamingDataLoader(
        Transformed(StreamingDataset(local=make(), batch_size=4)), batch_size=4
    )
    next(iter(loader))
    with pytest.warns(UserWarning, match=r"Transformed has no position.*dataset\.map"):
        assert loader.state_dict() is None
    loader.load_state_dict(None)
    state = StreamingDataset(local=make(), batch_size=4).state_dict(8)
    with pytest.raises(StateError, match="Transformed has no position"):
        loader.load_state_dict(state)


def test_an_iterable_that_reads_a_map_style_wrapper_has_no_position(make):
    """It reads by number, whatever order that is."""
    inner = Transformed(StreamingDataset(local=make(), batch_size=4))
    loader = StreamingDataLoader(Piped(inner), batch_size=4)
    with pytest.warns(UserWarning, match="Piped has no position"):
        assert loader.state_dict() is None


class Zipped(IterableDataset):
    """Pairs of samples of two datasets, under names of its own."""

    def __init__(self, left, right):
        self.left, self.right = left, right

    def __iter__(self):
        return zip(self.left, self.right, strict=True)


def test_an_iterable_with_its_datasets_elsewhere_has_no_position(make):
    """Two datasets in attributes or in a chain: the warning says how to keep one."""
    first, second = (StreamingDataset(local=make(), batch_size=4) for _ in range(2))
    for dataset in (Zipped(first, second), Piped(Zipped(first, second)), first + second):
        loader = StreamingDataLoader(dataset, batch_size=4)
        with pytest.warns(UserWarning, match=r"has no position, .* self\.dataset"):
            assert loader.state_dict() is None
        with pytest.raises(
            StateError, match=r"To resume, store the StreamingDataset as self\.dataset"
        ):
            loader.load_state_dict(first.state_dict(8))


def test_a_concatenation_names_streams(make):
    """It cannot work; torch's own check is an assertion, which ``python -O`` leaves out."""
    both = ConcatDataset.__new__(ConcatDataset)
    both.datasets = [StreamingDataset(local=make(), batch_size=4) for _ in range(2)]
    with pytest.raises(ConfigError, match="streams="):
        StreamingDataLoader(Transformed(both, 200), batch_size=4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shuffle": True}, "shuffle=True, shuffle_seed="),
        ({"sampler": [1, 2, 3]}, "topology="),
        ({"batch_sampler": [[1, 2], [3]]}, "batching_method="),
    ],
)
def test_a_loader_does_not_order_a_streaming_dataset(make, options, says):
    """The message names the arguments of the dataset."""
    dataset = StreamingDataset(local=make(), batch_size=4)
    with pytest.raises(ConfigError, match=says):
        StreamingDataLoader(dataset, **options)
    with pytest.raises(ConfigError, match="shuffle="):
        StreamingDataLoader(Piped(dataset), 4, True)
    assert len(list(StreamingDataLoader(dataset, 4, False, None, num_workers=0))) == 25


def test_a_wrapper_as_long_as_one_rank_is_told(make):
    """len() of a dataset is what one rank sees, so such a wrapper hides the rest of it."""
    dataset = StreamingDataset(local=make(), batch_size=4, topology=(0, 4))
    with pytest.warns(UserWarning, match="25 of 100 samples.*dataset.num_samples"):
        StreamingDataLoader(Transformed(dataset), batch_size=4)
    StreamingDataLoader(Transformed(dataset, dataset.num_samples), batch_size=4)


def test_another_batch_size_of_the_loader_is_told(make):
    """With several workers its positions would not be exact."""
    dataset = StreamingDataset(local=make(), batch_size=8)
    StreamingDataLoader(dataset, batch_size=5, num_workers=1)
    with pytest.warns(UserWarning, match="batch_size 5 but the dataset has 8"):
        StreamingDataLoader(dataset, batch_size=5, num_workers=2)


@pytest.mark.parametrize("batch_size", [5, 8])
def test_ranks_that_are_made_after_the_loader_are_found(make, monkeypatch, batch_size):
    """Trainers start their ranks when they fit; what was looked up before would be one rank."""
    dataset = StreamingDataset(local=make(), batch_size=8)
    loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=1)
    for name, value in (("RANK", 1), ("WORLD_SIZE", 2), ("LOCAL_RANK", 1), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    assert sum(len(batch["id"]) for batch in loader) == 50
