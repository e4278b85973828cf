"""Helpers of the tests of edits, in this folder and in tests/programs/dataset."""

import numpy as np
import pytest

from mds import Stream, StreamingDataset, World
from tests.unit.dataset.runs import as_json, loader_over, write_streams

SIZES = (720, 240)


SAMPLES = sum(SIZES)


BATCH = 16


STEPS = SAMPLES // BATCH


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_streams(tmp_path_factory.mktemp("streams"), dict(zip("ab", SIZES, strict=True)))


def loader_of(folder, kind="threads", workers=0, state=None, ranks=1, rank=0, batch=BATCH, **more):
    more = {"shuffle": True, "num_canonical_nodes": 2, **more}
    dataset = StreamingDataset(
        streams=[Stream(local=str(folder / name)) for name in "ab"],
        batch_size=batch // ranks,
        topology=World(1, ranks, 1, rank) if ranks > 1 else None,
        **more,
    )
    return loader_over(dataset, kind, workers, state)


def place_of(state):
    """The step of the training at which a state is."""
    at = state.get("position", {"epoch": state["epoch"], "in_epoch": state.get("sample_in_epoch")})
    return max(at["epoch"], 0) * STEPS + at["in_epoch"] // BATCH


def train(loaders, stop, edits=()):
    """Sorted ids of each global batch by its step, up to step ``stop``, and the state there.

    All ranks run here, in step. Edits are (step, function of a loader, what it returns), each made
    when the training comes to its step.
    """
    found, state = {}, as_json(loaders[0].state_dict())
    made = set()

    def edit(step):
        for number, (at, change, says) in enumerate(edits):
            if at == step and number not in made:
                made.add(number)
                assert {change(loader) for loader in loaders} == {says}

    while (step := place_of(state)) < stop:
        edit(step)
        for batches in zip(*loaders, strict=True):
            # An edit in front of this batch may have made it another.
            found[place_before(loaders[0], len(batches[0]["id"]))] = np.sort(
                np.concatenate([b["id"] for b in batches])
            ).tolist()
            state = as_json(loaders[0].state_dict())
            if place_of(state) >= stop:
                break
            edit(place_of(state))
    return found, state


def place_before(loader, size):
    """The step of the batch that was given last."""
    count, ranks = loader._loader_state.count, loader.dataset.num_ranks
    positions = loader.dataset._dataset_run.order.positions
    place = positions.after(count.begin, (count.samples - size) * ranks).place
    return count.begin.epoch * STEPS + place // BATCH


def drop(ids, reason="", at_step=None):
    """Returns the step from which the samples do not come."""

    def act(loader):
        loader.dataset.edits.replace_samples(ids, reason, at_step=at_step)
        return int(loader.dataset.edits[-1].split()[2].rstrip(":"))

    return act


def skip(first, last):
    """Returns the step after those that are skipped."""

    def act(loader):
        loader.dataset.edits.skip_steps(range(first, last))
        return int(loader.dataset.edits[-1].split()[-2]) + 1

    return act


EDITS = [
    (5, drop([7, 800, 33], "noise"), 5),
    (9, skip(20, 24), 24),
    (11, drop([41], at_step=30), 30),
    (33, skip(33, 34), 34),
    (40, skip(55, 63), 63),
    (70, drop([8, 9]), 70),
]


@pytest.fixture(scope="module")
def unedited(folder):
    return train([loader_of(folder)], 2 * STEPS)[0]


@pytest.fixture(scope="module")
def edited(folder):
    return train([loader_of(folder)], 2 * STEPS, EDITS)[0]
