"""Zero means zero: a dataset of nothing iterates to nothing, and is never everything."""

import json

import pytest
from torch.utils.data import DataLoader

from mds import Stream, StreamingDataLoader, StreamingDataset

NOTHING = {
    "limit(0)": lambda d: d().limit(0),
    "limit('0')": lambda d: d().limit("0"),
    "select([])": lambda d: d().select([]),
    "select(mask)": lambda d: d().select([False] * 100),
    "epoch_size=0": lambda d: d(epoch_size=0),
    "epoch_size='0k'": lambda d: d(epoch_size="0k"),
    "a share of zero": lambda d: d().split({"train": 1.0, "val": 0.0})["val"],
    "nothing of nothing": lambda d: d().limit(0).limit(5).filter(bool),
    "choose=0": lambda d: d(choose=0),
    "repeat=0": lambda d: d(repeat=0),
}


@pytest.mark.parametrize("batching", ["random", "stratified", "per_stream", "device_per_stream"])
@pytest.mark.parametrize("kind", NOTHING)
def test_a_dataset_of_nothing_iterates_to_nothing(make, kind, batching):
    """With a loader and without, its length is 0, and its states go round."""

    def direct(**more):
        shares = {name: more.pop(name) for name in ("choose", "repeat") if name in more}
        return StreamingDataset(
            streams=[Stream(local=make(), **shares)],
            batch_size=4,
            shuffle=True,
            batching_method=batching,
            **more,
        )

    dataset = NOTHING[kind](direct)
    assert (len(dataset), list(dataset)) == (0, [])
    loader = StreamingDataLoader(dataset)
    assert (len(loader), list(loader), list(DataLoader(dataset, batch_size=4))) == (0, [], [])
    state = loader.state_dict()
    assert state["sample_in_epoch"] == 0
    again = NOTHING[kind](direct)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert list(again) == []
    assert "epoch_size" in dataset.explain()


@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_nothing_through_workers_is_nothing(make, workers):
    """No worker falls over an empty part."""
    dataset = StreamingDataset(local=make(), batch_size=4).limit(0)
    loader = StreamingDataLoader(dataset, num_workers=2, worker_type=workers)
    assert list(loader) == list(loader) == []
