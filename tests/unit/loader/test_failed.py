"""After an error in the middle of an epoch the loader keeps raising, and its state is exact."""

import json

import pytest

from mds import Packing, StreamingDataLoader, StreamingDataset
from mds.errors import MdsError

HOWS = {
    "here": {},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
}


class Fault:
    """A function that raises for one sample, in the process where it is armed."""

    armed = True

    def __call__(self, sample):
        if Fault.armed and sample["id"] == 57:
            raise ValueError("sample 57")
        return sample

    def of_columns(self, columns):
        if Fault.armed and 57 in list(columns["id"]):
            raise ValueError("sample 57")
        return columns


@pytest.fixture(autouse=True)
def _armed(monkeypatch):
    monkeypatch.setattr(Fault, "armed", True)


def collate(samples):
    """Collate samples to their ids."""
    return {"id": [Fault()(sample)["id"] for sample in samples]}


KINDS = {
    "map": lambda dataset: (dataset.map(Fault()), None),
    "map_batches": lambda dataset: (dataset.map_batches(Fault().of_columns), None),
    "filter": lambda dataset: (dataset.filter(Fault()), None),
    "collate": lambda dataset: (dataset, collate),
}


def loader_of(make, kind, how):
    """Return a loader of which one sample fails."""
    dataset = StreamingDataset(local=make(), batch_size=4, num_canonical_nodes=1)
    dataset, function = KINDS[kind](dataset)
    options = {} if function is None else {"collate_fn": function}
    return StreamingDataLoader(dataset, **options, **HOWS[how])


def ids(batches):
    """Return the ids of batches."""
    return [int(number) for batch in batches for number in batch["id"]]


def drain(iterator):
    """Return the ids of an iterator, and the first three errors that it raises."""
    seen, errors = [], []
    while len(errors) < 3:
        try:
            seen += ids([next(iterator)])
        except (MdsError, ValueError) as error:
            errors.append(str(error))
    return seen, errors


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_raised_until_the_loader_is_iterated_again(make, monkeypatch, kind, how):
    """The state leads back to the batch that failed, and the next epoch is whole.

    Worker processes are forked here, so they see what is armed when they start.
    """
    loader = loader_of(make, kind, how)
    iterator = iter(loader)
    seen, errors = drain(iterator)
    assert "sample 57" in errors[0]
    assert errors == errors[:1] * 3
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["sample_in_epoch"] == len(seen) == 56

    monkeypatch.setattr(Fault, "armed", False)
    resumed = loader_of(make, kind, how)
    resumed.load_state_dict(state)
    assert sorted(seen + ids(resumed)) == [*range(100)]
    assert sorted(ids(loader)) == [*range(100)]


@pytest.mark.parametrize("how", HOWS)
def test_packs_keep_raising_too(make, how):
    """Packs of a step that failed come after the state was loaded."""

    def made():
        dataset = StreamingDataset(
            local=make(columns={"id": "int", "tokens": "ndarray:int32"}, value=document),
            batch_size=2,
            packing=Packing(16),
        ).map(Fault())
        return StreamingDataLoader(dataset, **HOWS[how])

    loader = made()
    iterator, errors = iter(loader), []
    while len(errors) < 3:
        try:
            next(iterator)
        except MdsError as error:
            errors.append(str(error))
    assert "sample 57" in errors[0]
    assert errors == errors[:1] * 3


def document(number):
    """Return a document of up to eight tokens."""
    import numpy as np

    return {"id": number, "tokens": np.full(number % 8 + 1, number, np.int32)}


def test_a_missing_shard_keeps_raising(make, tmp_path):
    """A failed download is no end of the epoch."""
    remote = tmp_path / "remote"
    remote.symlink_to(make())
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in remote.iterdir():
        if path.name != "shard.00007.mds":
            (copy / path.name).write_bytes(path.read_bytes())
    dataset = StreamingDataset(
        remote=str(copy), local=str(tmp_path / "cache"), batch_size=10, download_retry=0
    )
    loader = StreamingDataLoader(dataset, num_workers=2, workers="threads")
    iterator = iter(loader)
    seen, errors = drain(iterator)
    assert "shard.00007.mds" in errors[0]
    assert errors == errors[:1] * 3
    assert loader.state_dict()["sample_in_epoch"] == len(seen)
