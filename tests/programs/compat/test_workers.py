"""Worker processes of every kind have the datasets, streams and replacements of their parent."""

import pytest
import torch
from streaming import MDSWriter, StreamingDataset
from streaming.base import batching
from streaming.base.format.mds import encodings
from torch.utils.data import DataLoader

from mds.compat.streaming import FOLDER
from tests.unit.compat.user_code import Negative, Unscrambles, reversed_work

pytestmark = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_9_start_methods(numbers, context):
    """Item 9: workers may be forked, spawned, or made by the fork server."""
    dataset = StreamingDataset(local=numbers, batch_size=10, shuffle=True)
    loader = DataLoader(
        dataset, batch_size=10, num_workers=2, multiprocessing_context=context, timeout=600
    )
    assert sorted(torch.cat([b["n"] for b in loader]).tolist()) == list(range(200))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_stream_that_decrypts(secret, tmp_path, method, monkeypatch):
    """The cache asks the stream's own way for every shard, in workers of every kind."""
    monkeypatch.syspath_prepend(FOLDER)  # spawned workers import this file by itself
    stream = Unscrambles(remote=secret, local=str(tmp_path / method))
    dataset = StreamingDataset(streams=[stream], batch_size=10)
    assert dataset[17] == {"n": 17}
    loader = DataLoader(dataset, 10, num_workers=1, multiprocessing_context=method)
    assert torch.cat([batch["n"] for batch in loader]).tolist() == list(range(50))


def test_spawned_workers_have_the_replacements(numbers, monkeypatch):
    """A worker that imports this file alone calls the functions that this process has set."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setitem(batching.batching_methods, "random", reversed_work)
    dataset = StreamingDataset(local=numbers, batch_size=10)
    loader = DataLoader(dataset, 10, num_workers=1, multiprocessing_context="spawn")
    assert torch.cat([batch["n"] for batch in loader]).tolist() == list(range(199, -1, -1))


def test_spawned_workers_have_encodings_of_users(tmp_path, monkeypatch):
    """A class that replaces a built-in encoding decodes in a worker that imports mds anew."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setitem(encodings._encodings, "int16", Negative)
    with MDSWriter(columns={"n": "int16"}, out=str(tmp_path / "data")) as writer:
        for n in range(20):
            writer.write({"n": n})
    dataset = StreamingDataset(local=str(tmp_path / "data"), batch_size=10)
    loader = DataLoader(dataset, 10, num_workers=1, multiprocessing_context="spawn")
    assert torch.cat([batch["n"] for batch in loader]).tolist() == [-n for n in range(20)]
