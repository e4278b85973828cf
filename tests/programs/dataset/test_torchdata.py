"""torchdata's StatefulDataLoader: each worker goes on exactly where it was."""

import warnings

import pytest

from mds import StreamingDataset
from mds.errors import StateError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    stateful = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="needs torchdata: pip install torchdata"
    )


def loader(data, workers):
    """A stateful loader over a fresh dataset."""
    dataset = StreamingDataset(local=data, batch_size=4, shuffle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return stateful.StatefulDataLoader(
            dataset, batch_size=4, num_workers=workers, collate_fn=list
        )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("after", [1, 7, 20])
def test_resume_law_with_torchdata(make, workers, after):
    """From the state after any batch of the second epoch, the tail is the tail, and so on."""
    first = loader(make(), workers)
    epochs = [[s["id"] for batch in first for s in batch] for _ in range(3)]
    run = loader(make(), workers)
    assert [s["id"] for batch in run for s in batch] == epochs[0]
    iterator = iter(run)
    for _ in range(after):
        next(iterator)
    state = run.state_dict()
    resumed = loader(make(), workers)
    resumed.load_state_dict(state)
    tail = [s["id"] for batch in resumed for s in batch]
    assert tail == epochs[1][4 * after :]
    assert [s["id"] for batch in resumed for s in batch] == epochs[2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"topology": (0, 1)}, "ranks 2 then and 1 now"),
        ({"topology": (0, 4)}, "ranks 2 then and 4 now"),
        ({"batch_size": 8}, "batch_size 4 then and 8 now"),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_another_world_is_refused_with_torchdata(make, workers, change, says):
    """A worker's state counts its own samples, which are others in another world."""

    def load(**options):
        given = {"topology": (0, 2), "batch_size": 4, **options}
        dataset = StreamingDataset(local=make(), shuffle=True, **given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return stateful.StatefulDataLoader(
                dataset, batch_size=given["batch_size"], num_workers=workers, collate_fn=list
            )

    run = load()
    batches = iter(run)
    next(batches)
    state = run.state_dict()
    rest = [[s["id"] for s in batch] for batch in batches]
    same = load()
    same.load_state_dict(state)
    assert [[s["id"] for s in batch] for batch in same] == rest
    other = load(**change)
    other.load_state_dict(state)
    with pytest.raises(StateError, match=says):
        list(other)
