"""Samples dropped while iterating: reported, never replaced, and ranks stay in step."""

import pytest

from mds import StreamingDataLoader, StreamingDataset
from tests.unit.dataset.sieve_helpers import even, few


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:all 8 batches of this rank are empty")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("remainder", ["repeat", "short", "mask"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_filter_keeps_ranks_in_step(make, workers, remainder, shuffle):
    """Each rank takes the steps of the unfiltered order; kept samples come once over all ranks."""
    kept, data = [], make(samples=96)
    for rank in range(3):
        options = {
            "batch_size": 4,
            "remainder": remainder,
            "topology": (rank, 3),
            "shuffle": shuffle,
        }
        plain = StreamingDataset(local=data, **options)
        filtered = StreamingDataset(local=data, **options).filter(few)
        loader = StreamingDataLoader(filtered, num_workers=workers)
        batches = list(loader)
        assert len(batches) == len(list(StreamingDataLoader(plain, num_workers=workers))) == 8
        for batch in batches:
            assert batch["mask"].shape == batch["id"].shape
            kept += batch["id"][batch["mask"]].tolist()
            assert batch["mask"].all() or batch["mask"].tolist() == [False]
        empty = sum(not batch["mask"].any() for batch in batches)
        assert filtered.stats()["empty_batches"] == empty
        assert (
            filtered.stats()["dropped_samples"]
            == len(filtered.left_out)
            == 32 - sum(int(batch["mask"].sum()) for batch in batches)
        )
    assert sorted(kept) == [17, 60]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("other", [0, 1, 2])
def test_resume_law_of_a_filter(make, workers, other):
    """From the state after any step, head and tail together are the epoch, each sample once."""

    def fresh(count):
        dataset = StreamingDataset(local=make(), batch_size=5, shuffle=True).filter(even)
        return StreamingDataLoader(dataset, num_workers=count)

    def shown(batch):
        return batch["id"][batch["mask"]].tolist()

    loader, seen, states = fresh(workers), [], []
    for batch in loader:
        seen.append(shown(batch))
        states.append(loader.state_dict())
    assert sorted(i for batch in seen for i in batch) == list(range(0, 100, 2))
    assert [state["sample_in_epoch"] for state in states] == list(range(5, 101, 5))
    for step in range(1, 20, 4 if workers or other else 1):
        resumed = fresh(other)
        resumed.load_state_dict(states[step - 1])
        head = [i for batch in seen[:step] for i in batch]
        tail = [i for batch in resumed for i in shown(batch)]
        assert sorted(head + tail) == list(range(0, 100, 2)), step
