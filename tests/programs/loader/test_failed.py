"""After an error in the middle of an epoch the loader keeps raising, and its state is exact."""

import json

import pytest

from mds import StreamingDataLoader, StreamingDataset
from tests.unit.loader import failed_helpers
from tests.unit.loader.failed_helpers import HOWS, Fault, drain, ids

# Fixtures of both halves of these tests.
_armed = failed_helpers._armed


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
