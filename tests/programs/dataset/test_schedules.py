"""Scheduled mixtures through datasets and loaders: any workers, any resume, weights set live."""

import numpy as np
import pytest

from mds.errors import ConfigError, StateError
from tests.states import changed
from tests.unit.dataset import schedules_helpers
from tests.unit.dataset.schedules_helpers import (
    STEPS,
    loader_of,
    train,
)

# Fixtures of both halves of these tests.
folder = schedules_helpers.folder

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def undisturbed(folder):
    return train([loader_of(folder)], 2 * STEPS)[0]


@pytest.mark.parametrize(("kind", "workers"), [("threads", 2), ("threads", 3), ("processes", 2)])
def test_workers_change_nothing(folder, undisturbed, kind, workers):
    """Five live changes of weights, with batches made ahead in threads and in processes."""
    assert train([loader_of(folder, kind, workers)], 2 * STEPS)[0] == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["py1e", "seekable"])
def test_fifty_stops_change_nothing(folder, algo):
    """A run that goes on elsewhere after each few steps sees what an undisturbed one sees."""
    undisturbed, _ = train([loader_of(folder, shuffle_algo=algo)], 2 * STEPS)
    rng, stops = np.random.default_rng(5), 0
    while stops < 50:
        found, state = [], None
        while len(found) < 2 * STEPS:
            stops += 1
            ranks = int(rng.choice([1, 2, 4]))
            workers = int(rng.integers(0, 3))
            loaders = [
                loader_of(
                    folder, workers=workers, state=state, ranks=ranks, rank=rank, shuffle_algo=algo
                )
                for rank in range(ranks)
            ]
            stop = min(len(found) + int(rng.integers(1, 15)), 2 * STEPS)
            some, state = train(loaders, stop)
            found += some
        assert found == undisturbed


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"step": -1, "weights": {"web": 1}}, "an edit with step '-1'"),
        ({"step": 1.5, "weights": {"web": 1}}, "an edit with step '1.5'"),
        ({"step": 3}, "does not know"),
        ({"step": 3, "weights": {"web": -1}}, "an invalid edit"),
        ({"step": 3, "weights": 3}, "an invalid edit"),
        ({"step": 3, "weights": {"sea": 1}}, "names sea"),
    ],
)
def test_broken_edits_are_refused(folder, edit, told):
    """A state comes from outside: each is checked, and nothing of it stays."""
    loader = loader_of(folder)
    _, state = train([loader], 5, [(3, {"web": 1}, None)])
    with pytest.raises((StateError, ConfigError), match=told):
        loader.load_state_dict(changed(state, {"edits": [edit]}))
    assert loader.state_dict()["edits"] == state["edits"]
