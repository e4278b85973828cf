"""Helpers of the tests of packed, in this folder and in tests/programs/loader."""

import itertools
import json

import numpy as np
import pytest

from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset
from mds.world import World

COUNT = 700


CAPACITY = 128


COLUMNS = {"tokens": "ndarray:uint16", "weight": "ndarray:float32", "name": "str"}


def document(i):
    """Tokens that tell their document and their place; a few are longer than a pack."""
    length = 400 if i % 97 == 5 else 1 + (i * 7919) % 90
    tokens = (np.arange(length) * 31 + i) % 60_000
    return {"tokens": tokens.astype(np.uint16), "weight": (tokens / 2).astype(np.float32),
            "name": f"n{i}"}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Documents in shards of a few dozen, with their lengths beside the index."""
    folder = str(tmp_path_factory.mktemp("packed"))
    with MDSWriter(out=folder, columns=COLUMNS, lengths="tokens", size_limit=8000) as writer:
        for i in range(COUNT):
            writer.write(document(i))
    return folder


def make(folder, world=(1, 0), layout="varlen", **settings):
    """A dataset of one rank: of a node of so many ranks; 24 packs a step in any world."""
    ranks, rank = world
    settings = {"shuffle": True, "shuffle_algo": "seekable", "num_canonical_nodes": 4,
                "shuffle_block_size": 60,
                "packing": Packing(CAPACITY, overflow="split", layout=layout),
                "topology": World(1, ranks, 1, rank), "batch_size": 24 // ranks,
                **settings}  # fmt: skip
    return StreamingDataset(local=folder, **settings)


def packs_of(batch):
    """The documents of a varlen batch: their tokens as tuples."""
    ends = batch["cu_seqlens"].tolist()
    tokens = batch["tokens"].tolist()
    return [tuple(tokens[a:b]) for a, b in itertools.pairwise(ends)]


def run(folder, ranks=1, workers=0, state=None, steps=None, **settings):
    """Global batches of a world as sorted documents, and the state of rank 0 behind each."""
    rows, states = [], []
    for rank in range(ranks):
        loader = StreamingDataLoader(
            make(folder, (ranks, rank), **settings), num_workers=workers, worker_type="auto"
        )
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        for step, batch in enumerate(loader):
            if step == steps:
                break
            if step == len(rows):
                rows.append([])
            rows[step] += packs_of(batch)
            if rank == 0:
                states.append(loader.state_dict())
            del batch
    return [sorted(row) for row in rows], states
