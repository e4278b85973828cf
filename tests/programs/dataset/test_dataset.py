"""StreamingDataset as people use it: one process, many samples, subclasses, parts."""

import tracemalloc

import pyarrow.parquet
import pytest

from mds import StreamingDataLoader, StreamingDataset


def test_the_explanation_of_local_parquet_says_that_nothing_is_fetched(tmp_path):
    """Files on this machine are decoded into the cache, which grows, and are not fetched."""
    path = str(tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"x": range(100)}), path)
    text = StreamingDataset(remote=path, batch_size=4).explain()
    assert "local files are decoded in the cache" in text
    assert "the folder grows to about" in text
    assert "for each node and epoch" not in text


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "worker_type": "processes"}])
@pytest.mark.parametrize("settings", [{}, {"remainder": "short"}, {"topology": (1, 2)}])
def test_memory_follows_the_data_and_not_the_batch_size(make, settings, workers):
    """A batch as large as a trillion samples costs what a batch of all samples costs."""
    folder, batches = make(samples=100), []
    for size in (1_000, 10**12):
        dataset = StreamingDataset(local=folder, batch_size=size, shuffle=True, **settings)
        loader = StreamingDataLoader(dataset, **workers)
        tracemalloc.start()
        try:
            batches.append([batch["id"].tolist() for batch in loader])
            state = loader.state_dict()
            assert tracemalloc.get_traced_memory()[1] < 10 << 20
        finally:
            tracemalloc.stop()
        assert state["sample_in_epoch"] == 100
    assert batches[0] == batches[1]
    assert len(batches[0]) == 1
