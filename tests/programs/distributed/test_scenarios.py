"""Runs over 2 nodes x 2 ranks x 2 workers, and resumed on other topologies, follow the plan."""

import pytest
from scenarios import METHODS, Ranks, play, write_streams

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """The folder of the three datasets."""
    folder = tmp_path_factory.mktemp("streams")
    write_streams(str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def ranks():
    """The launcher that all scenarios share."""
    with Ranks() as launcher:
        yield launcher


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_follows_the_plan(method, seed, streams, ranks, tmp_path):
    """Stops, kills and new topologies leave every global batch as it was planned."""
    play(1000 * METHODS.index(method) + seed, streams, tmp_path / "home", ranks, method)
