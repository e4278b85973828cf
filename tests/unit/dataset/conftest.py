"""Small datasets whose samples tell their own number."""

import os
import pathlib
import sys

import pytest

from mds import MDSWriter

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # for the table of mistakes


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path, monkeypatch):
    """No test touches the cache folder of whoever runs it."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "user-cache"))


@pytest.fixture(scope="session")
def make(tmp_path_factory):
    """``make(samples)``: a folder of shards of ten samples; the same arguments, the same folder."""
    made = {}

    def write(samples=100, first=0, columns=None, value=None, **options):
        key = (samples, first, str(columns), str(value), str(options))
        if key not in made:
            out = tmp_path_factory.mktemp("data")
            columns = columns or {"id": "int", "text": "str", "vector": "ndarray:float32:4"}
            os.rmdir(out)
            with MDSWriter(
                out=str(out), columns=columns, samples_per_shard=10, hashes=["xxh3_64"], **options
            ) as writer:
                for i in range(first, first + samples):
                    writer.write((value or sample)(i))
            made[key] = str(out)
        return made[key]

    return write


def sample(i):
    """Sample number i."""
    import numpy as np

    return {"id": i, "text": f"sample {i}", "vector": np.full(4, i, np.float32)}
