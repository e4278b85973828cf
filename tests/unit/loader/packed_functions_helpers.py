"""Helpers of the tests of packed functions, in this folder and in tests/programs/loader."""

import itertools

import numpy as np
import pytest
import torch

from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset
from mds.world import World

COUNT, CAPACITY = 500, 96


COLUMNS = {"tokens": "ndarray:uint16", "number": "int", "place": "ndarray:float32:3"}


def tokens_of(i):
    """Tokens that tell their document; a few documents are longer than a pack."""
    length = 250 if i % 50 == 7 else 1 + (i * 7919) % 70
    return (np.arange(length) * 31 + 1 + i) % 60_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Documents, each with its number and a vector that does not follow the tokens."""
    folder = str(tmp_path_factory.mktemp("documents"))
    with MDSWriter(out=folder, columns=COLUMNS, lengths="tokens", size_limit=8000) as writer:
        for i in range(COUNT):
            place = np.arange(3, dtype=np.float32) + i
            writer.write({"tokens": tokens_of(i).astype(np.uint16), "number": i, "place": place})
    return folder


def make(folder, world=(1, 0), kind=StreamingDataset, layout="varlen", **settings):
    """A dataset of one rank: of a node of so many ranks; 24 packs a step in any world."""
    ranks, rank = world
    settings = {"shuffle": True, "shuffle_algo": "seekable", "num_canonical_nodes": 2,
                "shuffle_block_size": 60,
                "packing": Packing(CAPACITY, overflow="split", layout=layout),
                "topology": World(1, ranks, 1, rank), "batch_size": 24 // ranks,
                **settings}  # fmt: skip
    return kind(local=folder, **settings)


def documents(batch, names):
    """The documents of a varlen batch: a tuple of lists of the columns, without padding."""
    columns = [batch[name].tolist() for name in names]
    pairs = itertools.pairwise(batch["cu_seqlens"].tolist())
    found = [tuple(tuple(column[a:b]) for column in columns) for a, b in pairs]
    return [document for document in found if any(document[0])]


def run(dataset_of, names, ranks, workers, state=None):
    """Global batches as sorted documents, and the states of rank 0."""
    rows, states = [], []
    for rank in range(ranks):
        loader = StreamingDataLoader(dataset_of((ranks, rank)), num_workers=workers,
                                     worker_type="threads" if workers else "auto")  # fmt: skip
        if state is not None:
            loader.load_state_dict(state)
        for step, batch in enumerate(loader):
            if step == len(rows):
                rows.append([])
            rows[step] += documents(batch, names)
            if rank == 0:
                states.append(loader.state_dict())
    return [sorted(row) for row in rows], states


def noise(sample, rng):
    """A mask of the loss by random numbers, tokens as a list, and a text."""
    tokens = sample["tokens"].astype(np.int64)
    kept = rng.random(len(tokens)) < 0.5
    return {
        "tokens": tokens.tolist(),
        "labels": torch.from_numpy(np.where(kept, tokens, -100)),
        "weight": rng.random(len(tokens)),
        "text": f"document {sample['number']}",
        "place": sample["place"],
    }
