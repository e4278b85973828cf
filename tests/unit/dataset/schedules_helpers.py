"""Helpers of the tests of schedules, in this folder and in tests/programs/dataset."""

import numpy as np
import pytest

from mds import Schedule, Stream, StreamingDataset, World
from tests.unit.dataset.runs import as_json, loader_over, write_streams

SIZES = {"web": 700, "code": 200, "math": 60}


STEPS = 60  # of an epoch, in global batches of 16


BASE = {0: {"web": 8, "code": 1, "math": 1}, 50: {"web": 1, "code": 2, "math": 1}}


EDITS = [
    (7, {"math": 1, "web": 1}, None),
    (20, {"code": 1}, 30),
    (40, {"web": 1, "code": 1, "math": 1}, None),
    (70, {"web": 1}, None),
    (81, {"web": 3, "math": 1}, 97),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_streams(tmp_path_factory.mktemp("streams"), SIZES)


def dataset_of(folder, ranks=1, rank=0, schedule=None, **more):
    world = World(1, ranks, 1, rank) if ranks > 1 else None
    more = {"shuffle": True, "num_canonical_nodes": 2, **more}
    return StreamingDataset(
        streams={name: Stream(local=str(folder / name)) for name in SIZES},
        schedule=schedule or Schedule(BASE, between="linear"),
        batch_size=16 // ranks,
        topology=world,
        **more,
    )


def loader_of(folder, kind="threads", workers=0, state=None, **more):
    return loader_over(dataset_of(folder, **more), kind, workers, state)


def place_of(state):
    """The step of the training at which a state is."""
    return max(state["epoch"], 0) * STEPS + state["sample_in_epoch"] // 16


def train(loaders, stop, edits=EDITS):
    """Sorted ids of each global batch up to step ``stop``, and the state there.

    All ranks run here, in step. Edits are made after their step.
    """
    found, state = [], as_json(loaders[0].state_dict())
    step = place_of(state)
    while step < stop:
        for batches in zip(*loaders, strict=True):
            found.append(np.sort(np.concatenate([b["id"] for b in batches])).tolist())
            step += 1
            for at, weights, at_step in edits:
                if at == step:
                    for loader in loaders:
                        loader.dataset.edits.set_weights(weights, at_step=at_step)
                        begin = f"from step {at_step or step}: weights"
                        assert loader.dataset.edits[-1].startswith(begin)
            if step == stop:
                break
    state = as_json(loaders[0].state_dict())
    assert place_of(state) == step
    return found, state
