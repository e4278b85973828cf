"""What mosaicml/diffusion's kind of code does with the library, line by line."""

import json
import os

import numpy as np
import pytest
import torch
from streaming import Stream, StreamingDataset
from streaming.base import MDSWriter
from streaming.base.storage import download_file
from torch.utils.data import DataLoader, Subset


@pytest.fixture
def latents(tmp_path):
    """Two folders of precomputed latents: raw bytes under fixed names, and captions."""
    made = []
    for part in range(2):
        out = str(tmp_path / f"latents{part}")
        columns = {"caption": "str", "latents_256": "bytes", "mask": "bytes", "width": "int32"}
        with MDSWriter(columns=columns, out=out, size_limit=1 << 12) as writer:
            for n in range(40):
                writer.write(
                    {
                        "caption": f"picture {n} of {part}",
                        "latents_256": np.full((4, 8, 8), n, np.float16).tobytes(),
                        "mask": np.ones(7, bool).tobytes(),
                        "width": 256,
                    }
                )
        made.append(out)
    return made


class LatentDataset(StreamingDataset):
    """A dict of extra keyword arguments goes to the base; __getitem__ takes `index`."""

    def __init__(self, streams, split, shuffle, batch_size, streaming_kwargs):
        super().__init__(
            streams=streams,
            split=split,
            shuffle=shuffle,
            batch_size=batch_size,
            **streaming_kwargs,
        )

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        latents = np.frombuffer(sample["latents_256"], dtype=np.float16).copy()
        mask = np.frombuffer(sample["mask"], dtype=bool).copy()
        return {
            "latents": torch.from_numpy(latents).reshape(4, 8, 8),
            "mask": torch.from_numpy(mask),
            "caption": sample["caption"],
        }


OLD = {"shuffle_algo": "py1s", "shuffle_block_size": 262144, "num_canonical_nodes": 1}


def make(folders, tmp_path):
    streams = [
        Stream(
            remote=folder,
            local=str(tmp_path / "cache" / str(i)),
            proportion=share,
            download_retry=2,
            download_timeout=60,
        )
        for i, (folder, share) in enumerate(zip(folders, (0.75, 0.25), strict=True))
    ]
    return LatentDataset(streams, None, True, 4, OLD)


@pytest.mark.parametrize("workers", [0, 2])
def test_latents_by_proportion(latents, tmp_path, workers):
    """Streams with proportions, decoded by numpy from real bytes, through a plain DataLoader."""
    dataset = make(latents, tmp_path)
    batches = list(DataLoader(dataset, batch_size=4, num_workers=workers, drop_last=False))
    captions = [c for batch in batches for c in batch["caption"]]
    assert len(captions) == 80
    assert sum(c.endswith("of 0") for c in captions) == 60
    assert batches[0]["latents"].shape == (4, 4, 8, 8)
    assert batches[0]["latents"].dtype == torch.float16


def test_bytes_are_bytes(latents, tmp_path):
    """A bytes column gives a real bytes object."""
    assert type(StreamingDataset.get_item(make(latents, tmp_path), 0)["latents_256"]) is bytes


def test_a_subset_of_what_is_not_here_yet(latents, tmp_path):
    """Random access on a dataset that fetched nothing yet fetches on demand."""
    subset = Subset(make(latents, tmp_path), range(5))
    assert [s["caption"] for s in subset] == [f"picture {n} of 0" for n in range(5)]


def test_precomputation_reads_the_index(latents, tmp_path):
    """A script fetches index.json by download_file and writes the columns it finds anew."""
    index = str(tmp_path / "index.json")
    download_file(os.path.join(latents[0], "index.json"), index, 60)
    with open(index) as file:
        shard = json.load(file)["shards"][0]
    columns = dict(zip(shard["column_names"], shard["column_encodings"], strict=True))
    columns["extra"] = "bytes"
    with MDSWriter(columns=columns, out=str(tmp_path / "more")) as writer:
        for sample in StreamingDataset(local=latents[0], batch_size=1):
            writer.write({**sample, "extra": b"x"})
    assert StreamingDataset(local=str(tmp_path / "more"), batch_size=1)[39]["extra"] == b"x"
