"""Who am I: every launcher's way of saying it, and the caller's own."""

import pytest

from mds.errors import ConfigError
from mds.world import World, find_ranks

NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_a_single_process_is_a_world_of_one():
    """Without a launcher there is one rank on one node."""
    assert find_ranks()[:3] == (0, 1, 1)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"},
        {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4(x2)"},
        {
            "OMPI_COMM_WORLD_RANK": "5",
            "OMPI_COMM_WORLD_SIZE": "8",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        },
    ],
    ids=["torchrun", "slurm", "openmpi"],
)
def test_each_launcher_is_understood(monkeypatch, variables):
    """Rank 5 of 8, four on a node, in three dialects."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ranks = find_ranks()
    assert ranks[:3] == (5, 8, 4)
    world = ranks.world(workers=2, worker=1)
    assert (world.node, world.rank_of_node, world.worker_of_rank) == (1, 1, 1)


def test_what_the_caller_says_wins(monkeypatch):
    """An explicit World, pair or function comes before the environment."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert find_ranks(World(2, 4, 1, 6))[:3] == (6, 8, 4)
    assert find_ranks((3, 4))[:2] == (3, 4)
    assert find_ranks(lambda: (0, 4))[:2] == (0, 4)


def test_contradictions_are_refused(monkeypatch):
    """The error says which launcher said what."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torchrun says 3 ranks, 2 on each node"):
        find_ranks()
    with pytest.raises(ConfigError, match="got str"):
        find_ranks("all of them")
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ConfigError, match="WORLD_SIZE is 'many'"):
        find_ranks()
