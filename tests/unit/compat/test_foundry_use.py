"""What LLM Foundry's kind of code does with the library, line by line."""

import inspect
import json
import logging
import os

import numpy as np
import pytest
import torch
from streaming import Stream, StreamingDataset
from streaming.base import StreamingDataset as FromBase
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

EVERY = tuple(inspect.signature(StreamingDataset).parameters)


class TextDataset(StreamingDataset):
    """Every constructor argument by keyword; __getitem__ of its own above the base's."""

    def __init__(self, *, max_seq_len, streams=None, remote=None, local=None, **rest):
        if local is not None and remote is None and not os.path.isdir(local):
            raise FileNotFoundError(local)
        super().__init__(
            streams=streams,
            remote=remote,
            local=local,
            split=rest.get("split"),
            download_retry=rest.get("download_retry", 2),
            download_timeout=rest.get("download_timeout", 60),
            validate_hash=rest.get("validate_hash"),
            keep_zip=rest.get("keep_zip", False),
            epoch_size=rest.get("epoch_size"),
            predownload=rest.get("predownload"),
            cache_limit=rest.get("cache_limit"),
            partition_algo=rest.get("partition_algo", "relaxed"),
            num_canonical_nodes=rest.get("num_canonical_nodes"),
            batch_size=rest.get("batch_size"),
            shuffle=rest.get("shuffle", False),
            shuffle_algo=rest.get("shuffle_algo", "py1e"),
            shuffle_seed=rest.get("shuffle_seed", 9176),
            shuffle_block_size=rest.get("shuffle_block_size"),
            sampling_method=rest.get("sampling_method", "balanced"),
            sampling_granularity=rest.get("sampling_granularity", 1),
            batching_method=rest.get("batching_method", "random"),
            allow_unsafe_types=rest.get("allow_unsafe_types", False),
            replication=rest.get("replication"),
            stream_name=rest.get("stream_name", "stream"),
            stream_config=rest.get("stream_config"),
        )
        self.max_seq_len = max_seq_len

    def __getitem__(self, idx):
        sample = super().__getitem__(idx)
        tokens = sample["tokens"][: self.max_seq_len]
        return torch.from_numpy(np.array(tokens, dtype=np.int64))


class FinetuningDataset(TextDataset):
    """Scales its count by a packing ratio, and forwards by keyword."""

    packing_ratio = 2.5

    def state_dict(self, num_samples, from_beginning):
        if self.packing_ratio is not None:
            num_samples = int(self.packing_ratio * num_samples)
        return super().state_dict(num_samples=num_samples, from_beginning=from_beginning)


class PairsDataset(TextDataset):
    """Calls the base's __getitem__ unbound."""

    def __getitem__(self, idx):
        sample = StreamingDataset.__getitem__(self, idx)
        return {"a": int(sample["tokens"][0]), "b": int(sample["tokens"][1])}


def test_the_names_it_imports():
    """Both paths give the same class; the logger of the old name can be set."""
    assert FromBase is StreamingDataset
    logging.getLogger("streaming").setLevel(logging.ERROR)


def test_config_is_filtered_by_the_signature(tokens):
    """A config is cut down to what the real signature shows, and passes."""
    config = {"local": tokens, "shuffle": True, "batch_size": 4, "unknown": 1, "seed": 3}
    allowed = inspect.signature(StreamingDataset).parameters
    assert "kwargs" not in allowed
    dataset = StreamingDataset(**{k: v for k, v in config.items() if k in allowed})
    assert len(list(dataset)) == 64


def test_streams_from_mappings_tell_where_they_live(tokens):
    """`stream.remote` and `stream.local` are read after construction, also without a local."""
    streams = [Stream(remote=tokens, split=None), Stream(local=tokens)]
    dataset = TextDataset(max_seq_len=8, streams=streams, batch_size=4)
    for stream in dataset.streams:
        assert stream.remote in (tokens, None)
        assert isinstance(stream.local, str)


@pytest.mark.parametrize("workers", [0, 2])
def test_iteration_calls_the_subclass(tokens, workers):
    """Samples are what the subclass makes of them, through a plain DataLoader."""
    dataset = TextDataset(max_seq_len=8, local=tokens, batch_size=4, shuffle=True)
    loader = DataLoader(
        dataset,
        batch_size=4,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=2 if workers else None,
    )
    batches = list(loader)
    assert {tuple(b.shape) for b in batches} == {(4, 8)}
    assert sorted(int(row[0]) for b in batches for row in b) == list(range(64))


def test_the_unbound_base_method(tokens):
    """A subclass that calls the base's method unbound gets the sample."""
    dataset = PairsDataset(max_seq_len=8, local=tokens, batch_size=4)
    assert next(iter(dataset)) == {"a": 0, "b": 1}


def test_states_by_keyword_and_by_position(tokens):
    """Scaled counts become whole; both ways of calling give the same."""
    dataset = FinetuningDataset(max_seq_len=8, local=tokens, batch_size=4)
    next(iter(dataset))
    assert dataset.state_dict(5, True)["sample_in_epoch"] == 12
    assert dataset.state_dict(num_samples=4, from_beginning=True)["sample_in_epoch"] == 10


def test_swapping_a_dataset(tokens):
    """A callback asks for a state before any iteration, sets epoch 0 and loads it back."""
    dataset = TextDataset(max_seq_len=8, local=tokens, batch_size=4, shuffle=True)
    state = dataset.state_dict(num_samples=0, from_beginning=False)
    state["epoch"] = 0
    dataset.load_state_dict(state)
    assert len(list(dataset)) == 64


def test_a_curriculum_rebuilds_in_the_same_process(tokens):
    """Mid-run: clean, rebuild on the same folder, keep the old state, go on with both."""
    first = TextDataset(max_seq_len=8, local=tokens, batch_size=4, shuffle=True)
    iterator = iter(first)
    for _ in range(12):
        next(iterator)
    states = {"0": first.state_dict(12, True)}
    clean_stale_shared_memory()
    second = TextDataset(max_seq_len=16, local=tokens, batch_size=4, shuffle=True)
    assert isinstance(second, StreamingDataset)
    assert len(list(second)) == 64
    assert len(list(iterator)) == 52
    again = TextDataset(max_seq_len=8, local=tokens, batch_size=4, shuffle=True)
    again.load_state_dict(json.loads(json.dumps(states["0"])))
    assert len(list(again)) == 52


def test_profiling_on_a_temporary_folder(tokens, tmp_path):
    """A small dataset on a copy of its own beside the one that trains, with zero workers."""
    training = TextDataset(max_seq_len=8, remote=tokens, local=str(tmp_path / "a"), batch_size=4)
    iterator = iter(training)
    next(iterator)
    profiling = TextDataset(max_seq_len=8, remote=tokens, local=str(tmp_path / "b"), batch_size=4)
    loader = DataLoader(profiling, batch_size=4, num_workers=0)
    assert len(list(loader)) == 16
    assert len(list(iterator)) == 63


def test_an_own_index_merger_finds_what_it_expects(tokens):
    """Shard names and the index have the fields that mergers by hand read."""
    with open(os.path.join(tokens, "index.json")) as file:
        index = json.load(file)
    assert index["version"] == 2
    for number, shard in enumerate(index["shards"]):
        assert shard["raw_data"]["basename"] == f"shard.{number:05}.mds"
        assert shard["zip_data"]["basename"] == f"shard.{number:05}.mds.zstd"
        assert set(shard["raw_data"]["hashes"]) == {"sha1", "xxh64"}


def test_every_parameter_is_a_keyword_of_the_config():
    """All that it passes by name is in the signature."""
    assert {"sampling_granularity", "batching_method", "replication", "stream_config"} <= {*EVERY}
