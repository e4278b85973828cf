"""One store a stream, from the index to the last shard."""

import pickle
import uuid

import numpy as np
import pytest

from mds import MDSWriter, StreamingDataset
from mds.errors import TransientError
from mds.storage import register_store
from mds.storage._memory import MemoryStore
from mds.storage._registry import _stores


@pytest.fixture
def opened():
    """URLs counted://name, whose stores are made by a closure and do not pickle; those made."""
    made = []

    def factory(url, options, timeout):
        store = MemoryStore(url, options, timeout)
        store.own = lambda: None
        made.append(store)
        return store

    register_store("counted", factory)
    yield made
    _stores.entries.pop("counted")


def dataset(folder, remote):
    with MDSWriter(out=remote, columns={"x": "ndarray:int32:100"}, size_limit=1 << 12) as writer:
        for i in range(40):
            writer.write({"x": np.full(100, i, np.int32)})
    return StreamingDataset(remote=remote, local=str(folder), batch_size=1, shuffle=False)


def values(samples):
    return [int(sample["x"][0]) for sample in samples]


def test_the_store_of_the_index_brings_the_shards(opened, tmp_path):
    """A dataset opens its store once, and every shard comes through it."""
    data = dataset(tmp_path, f"counted://{uuid.uuid4()}")
    opened[:-1] = []  # those of the writer
    assert values(data) == list(range(40))
    assert len(opened) == 1


def test_a_store_stays_behind_in_a_pickle(opened, tmp_path):
    """A copy of a dataset opens a store of its own, so that a store need not pickle."""
    data = pickle.loads(pickle.dumps(dataset(tmp_path, f"counted://{uuid.uuid4()}")))
    before = len(opened)
    assert values(data) == list(range(40))
    assert len(opened) == before + 1


def test_retries_of_shards_are_those_of_the_stream(opened, tmp_path):
    """A shard is tried as often as the stream says, and each further try is counted."""
    data = dataset(tmp_path, f"counted://{uuid.uuid4()}")
    (store,) = opened[-1:]
    stream, troubles = store.stream, [TransientError("get: hiccup")]

    def troubled(key, start=0, end=None):
        if troubles:
            raise troubles.pop()
        return stream(key, start, end)

    store.stream = troubled
    assert values(data) == list(range(40))
    assert data.stats()["retries"] == 1
