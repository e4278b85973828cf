"""Helpers of the tests of stats, in this folder and in tests/programs/dataset."""

import multiprocessing

import numpy as np
import pytest

from mds import MDSWriter, StreamingDataLoader, StreamingDataset

SAMPLES = 320


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """A folder of 16 shards with 20 samples each."""
    out = str(tmp_path_factory.mktemp("remote"))
    columns = {"n": "int64", "x": "ndarray:float32:24"}
    with MDSWriter(out=out, columns=columns, size_limit=20 * 108, hashes=["xxh3_64"]) as writer:
        for n in range(SAMPLES):
            writer.write({"n": n, "x": np.full(24, n, np.float32)})
    return out


@pytest.fixture
def dataset(remote, tmp_path):
    """The dataset behind an empty cache folder."""
    return StreamingDataset(
        remote=remote, local=str(tmp_path / "cache"), batch_size=8, shuffle=True
    )


def first_of(samples):
    """A collate function of the caller's: it makes worker processes of workers."""
    return np.array([sample["n"] for sample in samples])


def loader_of(dataset, start, **options):
    context = None if start is None else multiprocessing.get_context(start)
    return StreamingDataLoader(
        dataset, num_workers=2, collate_fn=first_of, multiprocessing_context=context, **options
    )
