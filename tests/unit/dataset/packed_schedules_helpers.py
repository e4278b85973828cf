"""Helpers of the tests of packed schedules, in this folder and in tests/programs/dataset."""

import functools
import itertools
import json

import numpy as np
import pytest

from mds import MDSWriter, Packing, Schedule, Stream, StreamingDataLoader, StreamingDataset, World
from tests.unit.dataset import runs
from tests.unit.dataset.runs import steps_of

CAPACITY, BATCH = 128, 24


MEAN = {"web": 40, "code": 60, "math": 12}


COUNT = {"web": 900, "code": 300, "math": 400}


FIRST = dict(zip(COUNT, np.cumsum([0, *COUNT.values()]).tolist(), strict=False))


KNOTS = {0: {"web": 0.8, "code": 0.2}, 6: {"web": 8, "code": 2}, 36: {"code": 1, "math": 1}}


SCHEDULE = Schedule(KNOTS, "linear")


def length(stream, number):
    return 1 + (number * 7919) % (2 * MEAN[stream] - 1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Three streams, of longer and shorter documents, whose tokens tell stream and number."""
    folder = tmp_path_factory.mktemp("scheduled")
    columns = {"tokens": "ndarray:uint16"}
    for name, count in COUNT.items():
        place = str(folder / name)
        with MDSWriter(out=place, columns=columns, lengths="tokens", size_limit=8000) as writer:
            for number in range(count):
                tokens = np.full(length(name, number), FIRST[name] + number + 1, np.uint16)
                writer.write({"tokens": tokens})
    return str(folder)


def loader_of(corpus, ranks=1, rank=0, workers=0, kind="threads", state=None, **settings):
    settings = {"shuffle": True, "shuffle_algo": "seekable", "num_canonical_nodes": 4,
                "shuffle_block_size": 25, "packing": Packing(CAPACITY), "schedule": SCHEDULE,
                "streams": {name: Stream(local=f"{corpus}/{name}") for name in COUNT},
                **settings}  # fmt: skip
    dataset = StreamingDataset(
        topology=World(1, ranks, 1, rank), batch_size=BATCH // ranks, **settings
    )
    more = {"num_workers": workers, "worker_type": kind} if workers else {}
    loader = StreamingDataLoader(dataset, **more)
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def documents_of(batch):
    """The numbers of the documents of a varlen batch, without places that have none."""
    ends = batch["cu_seqlens"].tolist()
    tokens = batch["tokens"].tolist()
    return [tokens[a] - 1 for a, b in itertools.pairwise(ends) if tokens[a]]


def stream_of(number):
    return next(name for name in reversed([*FIRST]) if FIRST[name] <= number)


train = functools.partial(runs.train, documents_of)


def plan_of(loader, epoch=0):
    return steps_of(loader).plan(epoch)


@pytest.fixture(scope="module")
def undisturbed(corpus):
    return train([loader_of(corpus)], 3)
