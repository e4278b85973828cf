"""A small dataset whose samples tell their own number."""

import numpy as np
import pytest

from mds import MDSWriter, StreamingDataset

COLUMNS = {
    "id": "int",
    "vector": "ndarray:float32:4",
    "text": "str",
    "ragged": "ndarray:int32",
}


@pytest.fixture(params=["here", "threads"])
def how(request):
    """Where functions run; tests/programs/transforms has the processes."""
    return request.param


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path, monkeypatch):
    """No test touches the cache folder of the account that runs it."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "user-cache"))


def sample(i):
    """Sample number i; its ragged column has i % 4 + 1 numbers."""
    return {
        "id": i,
        "vector": np.full(4, i, np.float32),
        "text": f"sample {i}",
        "ragged": np.arange(i % 4 + 1, dtype=np.int32),
    }


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A hundred samples in shards of ten."""
    out = str(tmp_path_factory.mktemp("data") / "samples")
    with MDSWriter(out=out, columns=COLUMNS, samples_per_shard=10) as writer:
        for i in range(100):
            writer.write(sample(i))
    return out


@pytest.fixture
def make(folder):
    """``make(**options)``: a StreamingDataset of it, in batches of 8."""

    def dataset(kind=StreamingDataset, **options):
        return kind(local=folder, **{"batch_size": 8, **options})

    return dataset
