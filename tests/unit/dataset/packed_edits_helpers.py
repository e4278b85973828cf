"""Helpers of the tests of packed edits, in this folder and in tests/programs/dataset."""

import functools
import itertools

import numpy as np
import pytest

from mds import MDSWriter, Packing, StreamingDataset, World
from tests.unit.dataset import runs
from tests.unit.dataset.runs import loader_over

COUNT, CAPACITY, BATCH = 700, 128, 24


def document(number):
    """Tokens that tell their document."""
    return np.full(2 + (number * 7919) % 90, number, np.uint16)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("packed"))
    columns = {"tokens": "ndarray:uint16"}
    with MDSWriter(out=folder, columns=columns, lengths="tokens", size_limit=8000) as writer:
        for number in range(COUNT):
            writer.write({"tokens": document(number)})
    return folder


def loader_of(corpus, ranks=1, rank=0, workers=0, kind="threads", state=None, **settings):
    settings = {"shuffle": True, "shuffle_algo": "seekable", "num_canonical_nodes": 4,
                "shuffle_block_size": 100, "packing": Packing(CAPACITY), **settings}  # fmt: skip
    dataset = StreamingDataset(
        local=corpus, topology=World(1, ranks, 1, rank), batch_size=BATCH // ranks, **settings
    )
    return loader_over(dataset, kind, workers, state)


def documents_of(batch):
    """The documents of a varlen batch, by their tokens."""
    ends = batch["cu_seqlens"].tolist()
    found = [batch["tokens"][a:b].tolist() for a, b in itertools.pairwise(ends)]
    # A rank without documents has one token of padding, whose label is left out as all firsts are.
    return [tokens[0] for tokens in found if len(tokens) == len(document(tokens[0]))]


train = functools.partial(runs.train, documents_of)


@pytest.fixture(scope="module")
def unedited(corpus):
    return train([loader_of(corpus)], 2)[0]


@pytest.fixture(scope="module")
def gone(unedited):
    """Documents of a window that has begun after three steps, and of later ones."""
    return [*unedited[0][3][:2], unedited[0][6][5], unedited[0][-1][0], unedited[0][0][0]]


@pytest.fixture(scope="module")
def edits(gone):
    return [
        (3, lambda loader: loader.dataset.edits.replace_samples(gone, "noise")),
        (5, lambda loader: loader.dataset.edits.skip_steps(range(6, 8))),
        (6, lambda loader: loader.dataset.edits.replace_samples([gone[0] ^ 1])),
    ]


@pytest.fixture(scope="module")
def edited(corpus, edits):
    return train([loader_of(corpus)], 2, edits)
