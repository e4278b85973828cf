"""torchdata's StatefulDataLoader: each worker goes on exactly where it was."""

import warnings

import pytest

from mds import StreamingDataset

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
