"""Subclasses of users: what 0.13 calls of theirs is called, or they are told what is not."""

import os
import warnings

import numpy as np
import pytest
import torch
from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from torch.utils.data import DataLoader

from mds.compat.streaming import FOLDER


class AsksForItem(StreamingDataset):
    """Public code calls `.item()` on the number that it is given."""

    def __getitem__(self, idx):
        sample = super().__getitem__(idx)
        return {"n": sample["n"], "id": idx.item() if not isinstance(idx, int) else -1}


class GetsItem(StreamingDataset):
    """The same in `get_item`, whose number is what `__getitem__` passed on."""

    def get_item(self, idx):
        return super().get_item(idx)["n"] + 1000 * isinstance(idx, np.int64)


@pytest.mark.parametrize("workers", [0, 2])
def test_numbers_are_numpys(numbers, workers):
    """Iteration gives both methods numbers of NumPy; those of a caller stay as they are."""
    loader = DataLoader(AsksForItem(local=numbers, batch_size=10), 10, num_workers=workers)
    found = torch.cat([batch["id"] for batch in loader]).tolist()
    assert sorted(found) == list(range(200))
    assert sorted(GetsItem(local=numbers, batch_size=10)) == list(range(1000, 1200))
    dataset = GetsItem(local=numbers, batch_size=10)
    assert dataset[5] == 5
    assert dataset[np.int64(5)] == 1005
    assert dataset[np.array([1, 2])] == [1001, 1002]
    assert AsksForItem(local=numbers, batch_size=10)[3]["id"] == -1


class Backwards(StreamingDataset):
    """A curriculum: the same ids, from the last one on."""

    def _get_work(self, epoch, sample_in_epoch):
        self.asked = epoch, sample_in_epoch
        return super()._get_work(epoch, sample_in_epoch)[::-1]


def test_get_work_is_called(numbers):
    """Each worker's ids are those that `_get_work` gives, also after a state is loaded."""
    dataset = Backwards(local=numbers, batch_size=10)
    assert [sample["n"] for sample in dataset] == list(range(199, -1, -1))
    assert dataset.asked == (0, 0)
    loader = DataLoader(dataset, batch_size=10, num_workers=2)
    assert sorted(torch.cat([b["n"] for b in loader]).tolist()) == list(range(200))
    again = Backwards(local=numbers, batch_size=10)
    again.load_state_dict(
        StreamingDataset(local=numbers, batch_size=10).state_dict(50, True) | {"epoch": 0}
    )
    assert [sample["n"] for sample in again] == list(range(199, 49, -1))
    assert again.asked == (0, 50)


def test_get_work_alone_gives_this_workers_ids(numbers):
    """Called from outside it gives the ids that iteration would."""
    dataset = StreamingDataset(local=numbers, batch_size=8, shuffle=True)
    ids = dataset._get_work(0, 0)
    assert [int(i) for i in ids if i >= 0] == [sample["n"] for sample in dataset]


class Packing(StreamingDataLoader):
    """Counts the samples of a batch in a way of its own."""

    def _get_batch_size(self, batch):
        return 3 * super()._get_batch_size(batch)


def test_get_batch_size_is_called(numbers):
    """A loader's state counts what its subclass says."""
    loader = Packing(StreamingDataset(local=numbers, batch_size=10), batch_size=10)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    assert loader.num_samples_yielded == 60
    assert loader.state_dict()["sample_in_epoch"] == 60
    assert loader._get_batch_size({"a": [1, 2]}) == 6
    assert loader._get_batch_size(torch.zeros(4, 2)) == 12
    assert loader._get_batch_size([[1, 2, 3]]) == 9
    with pytest.raises(ValueError):
        loader._get_batch_size({})


@pytest.fixture
def secret(tmp_path):
    """A compressed dataset whose files on the remote are scrambled."""
    with MDSWriter(
        columns={"n": "int"}, out=str(tmp_path / "remote"), compression="zstd", size_limit=300
    ) as writer:
        for n in range(50):
            writer.write({"n": n})
    for name in os.listdir(tmp_path / "remote"):
        if name.endswith(".zstd"):
            path = tmp_path / "remote" / name
            path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))
    return str(tmp_path / "remote")


class Unscrambles(Stream):
    """Decrypts what it has downloaded."""

    def _decompress_shard_part(self, zip_info, zip_filename, raw_filename, compression):
        with open(zip_filename, "rb") as file:
            data = bytes(byte ^ 0x55 for byte in file.read())
        with open(zip_filename, "wb") as file:
            file.write(data)
        super()._decompress_shard_part(zip_info, zip_filename, raw_filename, compression)


class Downloads(Stream):
    """Notes what it downloads."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.names = []

    def _download_file(self, from_basename, to_basename=None):
        self.names.append(from_basename)
        return super()._download_file(from_basename, to_basename)


class Prepares(Stream):
    """Notes the shards that it prepares."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.bytes = 0

    def prepare_shard(self, shard):
        self.bytes += (size := super().prepare_shard(shard))
        return size


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_stream_that_decrypts(secret, tmp_path, method, monkeypatch):
    """The cache asks the stream's own way for every shard, in workers of every kind."""
    monkeypatch.syspath_prepend(FOLDER)  # spawned workers import this file by itself
    stream = Unscrambles(remote=secret, local=str(tmp_path / method))
    dataset = StreamingDataset(streams=[stream], batch_size=10)
    assert dataset[17] == {"n": 17}
    loader = DataLoader(dataset, 10, num_workers=1, multiprocessing_context=method)
    assert torch.cat([batch["n"] for batch in loader]).tolist() == list(range(50))


def test_a_stream_that_downloads_in_its_own_way(numbers, tmp_path):
    """The index and the shards go through `_download_file`, each once."""
    stream = Downloads(remote=numbers, local=str(tmp_path / "local"))
    dataset = StreamingDataset(streams=[stream], batch_size=10)
    assert [sample["n"] for sample in dataset] == list(range(200))
    assert stream.names[0] == "index.json"
    shards = [f"shard.{i:05}.mds" for i in range(dataset.num_shards)]
    assert sorted(set(stream.names[1:])) == shards


def test_a_stream_that_prepares_shards(numbers, tmp_path):
    """`prepare_shard` is called with a reader, and tells the bytes that came."""
    stream = Prepares(remote=numbers, local=str(tmp_path / "local"))
    dataset = StreamingDataset(streams=[stream], batch_size=10)
    assert len(list(dataset)) == 200
    assert stream.bytes == sum(shard.get_raw_size() for shard in dataset.shards)


def test_shards_one_by_one(secret, tmp_path):
    """Called from outside the methods bring the files of single shards."""
    from streaming.base.world import World

    stream = Unscrambles(remote=secret, local=str(tmp_path / "local"))
    shards = stream.get_shards(World.detect(), False)
    usage = np.zeros(len(shards), np.int64)
    stream.set_up_local(shards, usage)
    assert usage.tolist() == [0] * len(shards)
    size = stream.prepare_shard(shards[2])
    assert size == shards[2].get_raw_size()
    assert stream.prepare_shard(shards[2]) == 0
    assert shards[2][0]["n"] > 0
    stream.set_up_local(shards, usage)
    assert usage.tolist() == [0, 0, size, *[0] * (len(shards) - 3)]
    assert stream.get_index_size() == os.path.getsize(tmp_path / "local" / "index.json")


def test_weights_are_told_to_streams(numbers):
    """`apply_weights` derives what each stream was not told."""
    streams = [Stream(local=numbers, proportion=1), Stream(local=numbers, proportion=3)]
    assert Stream.apply_weights(streams, np.array([20, 20]), None, 1) == 40
    assert [(s.proportion, s.repeat, s.choose) for s in streams] == [
        (0.25, 0.5, 10),
        (0.75, 1.5, 30),
    ]
    assert (streams[0]._proportion, streams[0]._repeat) == (1, None)


@pytest.mark.parametrize("name", ["_prepare_thread", "resample_streams", "evict_shard"])
def test_what_is_not_called_is_told(name):
    """A class that overrides what has no counterpart hears so when it is made."""
    with pytest.warns(UserWarning, match=f"Mine overrides {name}.*In its place there is"):
        type("Mine", (StreamingDataset,), {name: lambda self: None})
    with pytest.warns(UserWarning, match="Mine overrides get_shards"):
        type("Mine", (Stream,), {"get_shards": lambda self: None})


def test_what_is_called_is_not_warned_of():
    """The usual subclasses are made without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type("Mine", (StreamingDataset,), {"__getitem__": None, "_get_work": None})
        type("Mine", (Stream,), {"prepare_shard": None})


def test_shards_are_readers(numbers, tmp_path):
    """`dataset.shards[i]` is the reader of a shard, which fetches what it is asked for."""
    dataset = StreamingDataset(remote=numbers, local=str(tmp_path / "local"), batch_size=4)
    first, second = dataset.shards[0], dataset.shards[1]
    assert second[0]["n"] == len(first) == dataset.samples_per_shard[0]
    assert second is dataset.shards[1]
    assert second.column_names == ["n", "text", "value"]
    assert second.column_encodings == ["int", "str", "float64"]
    assert second.column_sizes == [8, None, 8]
    assert second.raw_data.basename == "shard.00001.mds"
    assert sum(shard.samples for shard in dataset.shards) == 200
    assert [len(shard) for shard in dataset.shards[-2:]] == dataset.samples_per_shard[-2:].tolist()


def test_errors_have_the_builtin_types_of_old(numbers, tmp_path):
    """Five errors whose types code catches."""
    with pytest.raises(RuntimeError):
        StreamingDataset(local=str(tmp_path / "nowhere"), batch_size=1)
    with pytest.raises(FileExistsError):
        Stream()
    (tmp_path / "index.json").write_text("")
    with pytest.raises(ValueError, match=r"index\.json") as caught:
        StreamingDataset(local=str(tmp_path), batch_size=1)
    assert type(caught.value).__mro__[2].__name__ == "FormatError"
    assert "JSONDecodeError" in [kind.__name__ for kind in type(caught.value).__mro__]
    (tmp_path / "index.json").write_text('{"version": 2, "shards": []}')
    with pytest.raises(RuntimeError):
        StreamingDataset(local=str(tmp_path), batch_size=1)
    os.unlink(os.path.join(numbers, "shard.00000.mds"))
    with pytest.raises(ValueError):
        StreamingDataset(local=numbers, batch_size=1)[0]
    with pytest.raises(IndexError):
        StreamingDataset(local=numbers, batch_size=1).evict_shard(999)
    with pytest.raises(ValueError):
        StreamingDataset(local=numbers, batch_size=1, replication=2)


def test_what_is_accepted_there_is_accepted_with_a_warning(numbers):
    """An algorithm that is not used, a text for a truth, a digest of what is not fetched."""
    with pytest.warns(UserWarning, match="shuffle_algo 'other'"):
        StreamingDataset(local=numbers, batch_size=1, shuffle_algo="other")
    with pytest.warns(UserWarning, match="shuffle='yes' is taken for True"):
        assert StreamingDataset(local=numbers, batch_size=1, shuffle="yes").shuffle
    with pytest.warns(UserWarning, match="validate_hash='sha1' is left out"):
        assert StreamingDataset(local=numbers, batch_size=1, validate_hash="sha1")[3]["n"] == 3
    with pytest.warns(UserWarning, match="predownload < batch_size"):
        StreamingDataset(local=numbers, batch_size=8, predownload=1)
