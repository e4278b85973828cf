"""What "drop-in" means, item by item, seen through the door."""

import inspect
import json
import pickle

import numpy as np
import pytest
import torch
from streaming import (
    CSVWriter,
    JSONWriter,
    LocalDataset,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    TSVWriter,
    XSVWriter,
)
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import mds

REQUIRED = inspect.Parameter.empty
WRITER = {
    "columns": REQUIRED,
    "out": REQUIRED,
    "keep_local": False,
    "compression": None,
    "hashes": None,
    "size_limit": 1 << 26,
}
PARAMETERS = {
    StreamingDataset: {
        "streams": None,
        "remote": None,
        "local": None,
        "split": None,
        "download_retry": 2,
        "download_timeout": 60,
        "validate_hash": None,
        "keep_zip": False,
        "epoch_size": None,
        "predownload": None,
        "cache_limit": None,
        "sampling_method": "balanced",
        "sampling_granularity": 1,
        "partition_algo": "relaxed",
        "num_canonical_nodes": None,
        "batch_size": None,
        "shuffle": False,
        "shuffle_algo": "py1e",
        "shuffle_seed": 9176,
        "shuffle_block_size": None,
        "batching_method": "random",
        "allow_unsafe_types": False,
        "replication": None,
        "stream_name": "stream",
        "stream_config": None,
    },
    Stream: dict.fromkeys(
        (
            "remote",
            "local",
            "split",
            "proportion",
            "repeat",
            "choose",
            "download_retry",
            "download_timeout",
            "validate_hash",
            "keep_zip",
        )
    ),
    MDSWriter: WRITER,
    JSONWriter: {**WRITER, "newline": "\n"},
    CSVWriter: {**WRITER, "newline": "\n"},
    TSVWriter: {**WRITER, "newline": "\n"},
    XSVWriter: {**WRITER, "separator": REQUIRED, "newline": "\n"},
    LocalDataset: {"local": REQUIRED, "split": None},
}


@pytest.mark.parametrize("kind", PARAMETERS, ids=lambda kind: kind.__name__)
def test_1_signatures(kind):
    """Item 1: every parameter of the incumbent is visible, with its default, keyword-only."""
    found = inspect.signature(kind).parameters
    for name, default in PARAMETERS[kind].items():
        assert found[name].default == default, name
        if kind is not LocalDataset:
            assert found[name].kind is inspect.Parameter.KEYWORD_ONLY
    for name in set(found) - set(PARAMETERS[kind]):
        extra = found[name]
        assert extra.kind is extra.VAR_KEYWORD or extra.default is not REQUIRED, name


def test_1_the_dataset_has_the_arguments_of_the_incumbent_first():
    """Then those of mds but the place, which the incumbent does not take by position."""
    found = inspect.signature(StreamingDataset).parameters
    own = inspect.signature(mds.StreamingDataset).parameters
    assert [*found][: len(PARAMETERS[StreamingDataset])] == [*PARAMETERS[StreamingDataset]]
    assert {*found} == {*own} - {"place"}
    assert {name: found[name].default for name in found} == {
        name: each.default for name, each in own.items() if name != "place"
    }


def test_1_the_loader_takes_what_a_dataloader_takes(numbers):
    """Item 1: StreamingDataLoader is a DataLoader and takes its arguments."""
    dataset = StreamingDataset(local=numbers, batch_size=4)
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=0, drop_last=True)
    assert isinstance(loader, DataLoader)
    assert len(list(loader)) == 50


class ByGetitem(StreamingDataset):
    def __getitem__(self, at):
        return super().__getitem__(at)["n"] * 10


class ByGetItem(StreamingDataset):
    def get_item(self, sample_id, retry=7):
        return super().get_item(sample_id, retry)["n"] * 10


@pytest.mark.parametrize("kind", [ByGetitem, ByGetItem], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("workers", [0, 2])
def test_2_overridden_access_is_honoured(numbers, kind, workers):
    """Item 2: iteration goes through a subclass's __getitem__ or get_item, in workers too."""
    dataset = kind(local=numbers, batch_size=10)
    assert isinstance(dataset, IterableDataset)
    expected = [n * 10 for n in range(200)]
    assert sorted(int(x) for x in dataset) == expected
    loader = DataLoader(kind(local=numbers, batch_size=10), batch_size=10, num_workers=workers)
    assert sorted(torch.cat(list(loader)).tolist()) == expected
    assert dataset[3] == 30
    assert dataset[-1] == 1990


FIVE = {
    "epoch",
    "sample_in_epoch",
    "num_canonical_nodes",
    "shuffle_seed",
    "initial_physical_nodes",
}


def test_3_states(numbers):
    """Item 3: five keys, as JSON; states of older versions without one of them load."""
    dataset = StreamingDataset(local=numbers, batch_size=10, shuffle=True)
    before = list(dataset)
    state = dataset.state_dict(70, True)
    assert set(state) >= FIVE
    assert json.loads(json.dumps(state)) == state
    assert (state["epoch"], state["sample_in_epoch"]) == (0, 70)
    assert (state["num_canonical_nodes"], state["shuffle_seed"]) == (1, 9176)
    for keys in (FIVE, FIVE - {"initial_physical_nodes"}):
        again = StreamingDataset(local=numbers, batch_size=10, shuffle=True)
        again.load_state_dict({key: state[key] for key in keys})
        assert [s["n"] for s in again] == [s["n"] for s in before[70:]]


def test_3_a_state_before_the_first_epoch(numbers):
    """Item 3: the epoch is -1 before any iteration; an edited state is honoured."""
    dataset = StreamingDataset(local=numbers, batch_size=10)
    state = dataset.state_dict(num_samples=0, from_beginning=False)
    assert state["epoch"] == -1
    state["epoch"] = 0
    dataset.load_state_dict(state)
    assert [s["n"] for s in dataset] == list(range(200))


@pytest.mark.parametrize("method", ["random", "per_stream", "device_per_stream", "stratified"])
def test_4_the_order_is_the_plans(numbers, method):
    """Item 4: what a run hands out is the order that the planner (held to golden orders) gives."""
    from streaming.base.batching import generate_work

    dataset = StreamingDataset(
        streams=[Stream(local=numbers, choose=120), Stream(local=numbers, choose=60)],
        batch_size=6,
        shuffle=True,
        batching_method=method,
    )
    ids = generate_work(method, dataset, _alone(), 0, 0)
    assert ids.shape[:3] == (1, 1, 1)
    assert ids.shape[4] == 6
    seen = [s["n"] for s in dataset]
    assert seen == [int(i) % 200 for i in ids[ids >= 0]]
    later = generate_work(method, dataset, _alone(), 0, 60)
    assert [int(i) % 200 for i in later[later >= 0]] == seen[60:]


def _alone():
    from streaming.base.world import World

    return World(1, 1, 1, 0)


def test_5_formats(tmp_path):
    """Item 5: names of shards, fields of the index, and all formats through one reader."""
    with MDSWriter(columns={"b": "str", "a": "int"}, out=str(tmp_path / "mds")) as writer:
        writer.write({"a": 1, "b": "x"})
    index = json.loads((tmp_path / "mds" / "index.json").read_text())
    (shard,) = index["shards"]
    assert index["version"] == 2
    assert shard["raw_data"]["basename"] == "shard.00000.mds"
    assert shard["column_names"] == ["a", "b"]
    assert shard["column_encodings"] == ["int", "str"]
    assert (shard["compression"], shard["size_limit"]) == (None, 1 << 26)
    for kind, extra in (
        (JSONWriter, {}),
        (CSVWriter, {}),
        (TSVWriter, {}),
        (XSVWriter, {"separator": "|"}),
    ):
        out = str(tmp_path / kind.__name__)
        with kind(columns={"a": "int", "b": "str"}, out=out, **extra) as writer:
            writer.write({"a": 1, "b": "x"})
        assert StreamingDataset(local=out, batch_size=1)[0] == {"a": 1, "b": "x"}


def test_5_a_shard_by_its_entry_in_the_index(numbers):
    """Item 5: reader_from_json opens one shard of an index."""
    from streaming.base.format import get_index_basename, reader_from_json

    with open(f"{numbers}/{get_index_basename()}") as file:
        entry = json.load(file)["shards"][1]
    reader = reader_from_json(numbers, None, entry)
    assert len(reader) == entry["samples"]
    first = StreamingDataset(local=numbers, batch_size=1).samples_per_shard[0]
    assert reader[0]["n"] == first
    assert reader.raw_data.basename == "shard.00001.mds"


def test_6_errors_have_the_expected_types(numbers, tmp_path):
    """Item 6: builtin types that callers catch."""
    dataset = StreamingDataset(local=numbers, batch_size=2)
    with pytest.raises(IndexError):
        dataset[200]
    with pytest.raises(ValueError):
        dataset["x"]
    with pytest.raises(ValueError):
        StreamingDataset(batch_size=2)
    with pytest.raises(ValueError):
        StreamingDataset(streams=[Stream(local=numbers)], local=numbers)
    with pytest.raises(ValueError):
        Stream(local=numbers, proportion=1, repeat=2)
    with pytest.raises(ValueError):
        list(StreamingDataset(local=numbers))  # no batch size
    with pytest.raises(FileExistsError):
        MDSWriter(columns={"a": "int"}, out=numbers)
    with pytest.raises(FileNotFoundError):
        StreamingDataset(local=str(tmp_path / "nowhere"), batch_size=2)
    MDSWriter(columns={"a": "int"}, out=str(tmp_path / "empty")).finish()
    with pytest.raises((ValueError, RuntimeError)):
        StreamingDataset(local=str(tmp_path / "empty"), batch_size=2)


def test_6_pickles_need_leave(tmp_path):
    """Item 6: a pkl column is refused at construction without allow_unsafe_types."""
    with MDSWriter(columns={"x": "pkl"}, out=str(tmp_path / "pkl")) as writer:
        writer.write({"x": {1}})
    with pytest.raises(ValueError):
        StreamingDataset(local=str(tmp_path / "pkl"), batch_size=1)
    assert StreamingDataset(
        local=str(tmp_path / "pkl"), batch_size=1, allow_unsafe_types=True
    ).num_samples


def test_7_utilities(numbers, tmp_path):
    """Item 7: the helpers are there; merge_index makes one dataset of sub-folders."""
    from streaming.base.util import clean_stale_shared_memory, merge_index

    for part in ("0", "1"):
        with MDSWriter(columns={"n": "int"}, out=str(tmp_path / "parts" / part)) as writer:
            for n in range(5):
                writer.write({"n": int(part) * 5 + n})
    merge_index(str(tmp_path / "parts"))
    merged = StreamingDataset(local=str(tmp_path / "parts"), batch_size=1)
    assert sorted(s["n"] for s in merged) == list(range(10))
    iterator = iter(StreamingDataset(local=numbers, batch_size=1))
    next(iterator)
    clean_stale_shared_memory()
    assert len(list(iterator)) == 199


def test_8_attributes(numbers):
    """Item 8: unresolved before the first iteration, filled streams after construction."""
    dataset = StreamingDataset(
        streams=[Stream(local=numbers, repeat=2), Stream(local=numbers)], batch_size=4
    )
    assert dataset.num_canonical_nodes is None
    assert dataset.shuffle_block_size is None
    assert dataset.initial_physical_nodes is None
    assert (dataset.size, dataset.num_samples, dataset.epoch_size) == (400, 400, 600)
    assert (dataset.num_streams, dataset.predownload, dataset.next_epoch) == (2, 32, 0)
    assert dataset.streams[0].choose == 400
    assert dataset.streams[1].repeat == 1
    assert sum(s.proportion for s in dataset.streams) == pytest.approx(1)
    assert dataset.streams[0].download_retry == 2
    assert dataset.spanner[0] == (0, 0)
    assert sum(dataset.samples_per_shard) == 400
    assert list(dataset.samples_per_stream) == [200, 200]
    assert len(dataset.shards) == dataset.num_shards
    assert len(dataset) == 600
    iter(dataset)
    assert dataset.next_epoch == 1
    assert dataset.cache_usage >= 0


def test_8_custom_streams(numbers):
    """Item 8: stream_name picks a class from the registry, stream_config are its arguments."""
    from streaming.base.registry_utils import save_registry
    from streaming.base.stream import streams_registry

    class Halved(Stream):
        def __init__(self, factor=1.0, **kwargs):
            super().__init__(repeat=factor, **kwargs)

    with save_registry():
        streams_registry.register("halved", func=Halved)
        dataset = StreamingDataset(
            local=numbers, batch_size=2, stream_name="halved", stream_config={"factor": 0.5}
        )
    assert isinstance(dataset.streams[0], Halved)
    assert dataset.epoch_size == 100


def test_9_persistent_workers_and_two_datasets(numbers):
    """Item 9: train and eval live in one process, with workers that stay for several epochs."""
    loaders = [
        StreamingDataLoader(
            StreamingDataset(local=numbers, batch_size=10, shuffle=True, shuffle_seed=seed),
            batch_size=10,
            num_workers=2,
            persistent_workers=True,
        )
        for seed in (1, 2)
    ]
    orders = []
    for _ in range(2):
        for a, b in zip(*loaders, strict=True):
            orders.append((a["n"].tolist(), b["n"].tolist()))
    for which in (0, 1):
        for epoch in (orders[:20], orders[20:]):
            assert sorted(n for pair in epoch for n in pair[which]) == list(range(200))
    assert orders[:20] != orders[20:]


def test_9_a_map_style_look_without_iterating(numbers):
    """Item 9: Subset and pickles see the same samples as iteration does."""
    dataset = StreamingDataset(local=numbers, batch_size=2)
    assert [s["n"] for s in Subset(dataset, range(3))] == [0, 1, 2]
    assert pickle.loads(pickle.dumps(dataset))[5]["n"] == 5
    local = LocalDataset(numbers)
    assert isinstance(local, Dataset)
    assert len(local) == 200
    assert local[7]["value"] == 3.5


@pytest.mark.parametrize(
    "name",
    ["predownload", "num_canonical_nodes", "shuffle_seed", "shuffle_block_size", "replication",
     "sampling_granularity", "download_retry", "batch_size"],
)  # fmt: skip
def test_10_numbers_of_a_configuration(numbers, tmp_path, name):
    """Item 10: YAML gives 64.0 for 64, and texts; NumPy has numbers of its own."""
    value = 2048 if name == "shuffle_block_size" else 1

    def ids(given):
        settings = {"batch_size": 10, "shuffle": True, name: given}
        local = str(tmp_path / f"{type(given).__name__}")
        dataset = StreamingDataset(remote=numbers, local=local, **settings)
        return [batch["n"].tolist() for batch in StreamingDataLoader(dataset, batch_size=10)]

    if name in {"batch_size", "predownload"}:
        value = 10
    expected = ids(value)
    for given in (float(value), np.int64(value), np.float64(value)):
        assert ids(given) == expected
    with pytest.raises(TypeError, match=rf"{name}='{value}'.*Write {name}={value}\."):
        ids(str(value))


def test_10_numbers_of_streams_and_loaders(numbers):
    """Item 10: the message has the value to write."""
    for name in ("proportion", "repeat", "choose", "download_retry", "download_timeout"):
        with pytest.raises(TypeError, match=rf"Stream\({name}='2'\).*Write {name}=2\."):
            Stream(local=numbers, **{name: "2"})
    dataset = StreamingDataset(streams=[Stream(local=numbers, choose=20.0)], batch_size=10)
    assert dataset.epoch_size == 20
    for name in ("batch_size", "num_workers"):
        with pytest.raises(TypeError, match=rf"{name}='10'.*Write {name}=10\."):
            StreamingDataLoader(dataset, **{"batch_size": 10, name: "10"})
