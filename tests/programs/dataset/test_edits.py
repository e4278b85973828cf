"""Samples that are dropped and steps that are skipped while a training runs."""

import numpy as np
import pytest

from mds.errors import ConfigError, StateError
from tests.states import changed
from tests.unit.dataset import edits_helpers
from tests.unit.dataset.edits_helpers import (
    BATCH,
    EDITS,
    SAMPLES,
    SIZES,
    STEPS,
    drop,
    loader_of,
    place_of,
    train,
)

# Fixtures of both halves of these tests.
folder = edits_helpers.folder
unedited = edits_helpers.unedited
edited = edits_helpers.edited

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_dropped_samples_never_come_and_all_else_is_equal(unedited, edited):
    """From its step on each is gone, another of its stream is there, and nothing else moves."""
    gone = {7: 5, 800: 5, 33: 5, 41: 30, 8: 70, 9: 70}
    changed = 0
    for step, ids in edited.items():
        before, now = unedited[step], [*ids]
        assert len(ids) == BATCH
        for sample in before:
            if step >= gone.get(sample, 1 << 62):
                changed += 1
                assert sample not in ids
            else:
                now.remove(sample)
        lost = [sample for sample in before if step >= gone.get(sample, 1 << 62)]
        assert sorted(n >= SIZES[0] for n in now) == sorted(n >= SIZES[0] for n in lost)
    assert changed >= 8


@pytest.mark.parametrize(("kind", "workers"), [("threads", 2), ("threads", 3), ("processes", 2)])
def test_workers_change_nothing(folder, edited, kind, workers):
    """Batches made ahead in threads and in processes are made anew where an edit holds."""
    assert train([loader_of(folder, kind, workers)], 2 * STEPS, EDITS)[0] == edited


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shuffle_algo": "seekable", "remainder": "short"},
        {"batching_method": "stratified"},
        {"batching_method": "per_stream"},
        {"shuffle": False},
    ],
    ids=["py1e", "exact", "stratified", "per_stream", "straight"],
)
def test_stops_and_other_worlds_change_nothing(folder, settings):
    """A run that goes on elsewhere after each few steps sees what an undisturbed one sees."""
    undisturbed, _ = train([loader_of(folder, **settings)], 2 * STEPS, EDITS)
    rng = np.random.default_rng(5)
    found, state, at, edits = {}, None, 0, list(EDITS)
    while at < 2 * STEPS:
        ranks = int(rng.choice([1, 2, 4]))
        workers = int(rng.integers(0, 3))
        loaders = [
            loader_of(folder, workers=workers, state=state, ranks=ranks, rank=rank, **settings)
            for rank in range(ranks)
        ]
        some, state = train(loaders, min(at + int(rng.integers(1, 15)), 2 * STEPS), edits)
        edits = [edit for edit in edits if edit[0] >= place_of(state)]
        found |= some
        at = place_of(state)
    assert found == undisturbed


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda loader: loader.dataset.edits.replace_samples([SAMPLES]), "there is no sample 960"),
        (lambda loader: loader.dataset.edits.replace_samples([-1]), "there is no sample -1"),
        (
            lambda loader: loader.dataset.edits.replace_samples([1.5]),
            "takes the numbers of samples",
        ),
        (
            lambda loader: loader.dataset.edits.replace_samples("seven"),
            "takes the numbers of samples",
        ),
        (
            lambda loader: loader.dataset.edits.replace_samples(5),
            "takes the numbers of samples, got 5",
        ),
        (
            lambda loader: loader.dataset.edits.replace_samples(b"12"),
            "takes the numbers of samples, got b'12'",
        ),
        (
            lambda loader: loader.dataset.edits.replace_samples(bytearray(b"12")),
            "takes the numbers of samples",
        ),
        (
            lambda loader: loader.dataset.edits.replace_samples([[1], [2, 3]]),
            "takes the numbers of samples",
        ),
        (
            lambda loader: loader.dataset.edits.replace_samples([[1, 2]]),
            "takes the numbers of samples",
        ),
        (lambda loader: loader.dataset.edits.replace_samples([1], reason=3), "must be a text"),
        (
            lambda loader: loader.dataset.edits.replace_samples([1], at_step=4),
            "must be at least 5",
        ),
        (
            lambda loader: loader.dataset.edits.replace_samples([1], at_step=np.int64(4)),
            "must be at least 5",
        ),
        (
            lambda loader: loader.dataset.edits.replace_samples([1], at_step=6.0),
            "whole number, got 6.0",
        ),
        (
            lambda loader: loader.dataset.edits.replace_samples([1], at_step=True),
            "whole number, got True",
        ),
        (
            lambda loader: loader.dataset.edits.replace_samples(range(720, 841)),
            "121 of the 240 samples of stream 1",
        ),
        (
            lambda loader: loader.dataset.edits.skip_steps(range(4, 9)),
            "step 4 has already been read",
        ),
        (
            lambda loader: loader.dataset.edits.skip_steps(range(9, 9)),
            "give a range of global batches",
        ),
        (
            lambda loader: loader.dataset.edits.skip_steps(range(9, 20, 2)),
            "give a range of global batches",
        ),
        (lambda loader: loader.dataset.edits.skip_steps(7), "give a range of global batches"),
        (
            lambda loader: loader.dataset.edits.skip_steps(range(7, 10**9)),
            "belong to more than 10,000 epochs",
        ),
        (
            lambda loader: loader.dataset.edits.skip_steps(range(7, 10**12)),
            "a training has at most 2,147,483,648",
        ),
        (
            lambda loader: loader.dataset.edits.skip_steps(range(10**18, 10**18 + 1)),
            "has at most 2,147,483,648 steps",
        ),
        (
            lambda loader: loader.dataset.edits.skip_steps(range(10**30)),
            "a training has at most 2,147,483,648 steps",
        ),
        (
            lambda loader: loader.dataset.edits.skip_steps(range(10**5000, 10**5000 + 1)),
            "a training has at most",
        ),
    ],
)
def test_edits_that_make_no_sense_are_refused(folder, edit, told):
    """Before anything changes."""
    loader = loader_of(folder)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    with pytest.raises(ConfigError, match=told):
        edit(loader)
    assert loader.state_dict()["edits"] == "[]"


BROKEN = [
    {"epoch": 0, "from": 8},
    {"epoch": -1, "from": 8, "skip": 8},
    {"epoch": 0, "from": 1 << 63, "skip": 8},
    {"epoch": 0, "from": 8, "skip": 0},
    {"epoch": 0, "from": 8, "skip": 1 << 62},
    {"epoch": True, "from": 8, "skip": 8},
    {"epoch": 0, "from": 8, "drop": [SAMPLES], "why": ""},
    {"epoch": 0, "from": 8, "drop": [-1], "why": ""},
    {"epoch": 0, "from": 8, "drop": 3, "why": ""},
    {"epoch": 0, "from": 8, "drop": [1], "why": "x" * 300},
    {"epoch": 0, "from": 8, "drop": [1], "why": "", "windows": [1.5]},
    {"epoch": 0, "from": 8, "drop": [*range(600)], "why": ""},
    {"epoch": 0, "from": 8, "hop": 1},
]


@pytest.mark.parametrize("edit", BROKEN, ids=[str(i) for i in range(len(BROKEN))])
def test_broken_edits_of_a_state_are_refused(folder, edit):
    """A state comes from outside: each is checked, and nothing of it stays."""
    loader = loader_of(folder)
    _, state = train([loader], 5, [(3, drop([1]), 3)])
    with pytest.raises(StateError, match=r"the state has an (invalid )?edit"):
        loader.load_state_dict(changed(state, {"edits": [edit]}))
    assert loader.state_dict()["edits"] == state["edits"]
