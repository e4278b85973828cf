"""The place of a process among nodes, ranks and workers."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mds.errors import ConfigError
from mds.world import World, find_ranks

shapes = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))


@given(shapes)
def test_every_worker_has_a_place_of_its_own(shape):
    """Node, rank of node and worker of rank are told apart, workers of a rank are neighbours."""
    nodes, ranks, workers = shape
    worlds = [World(nodes, ranks, workers, i) for i in range(nodes * ranks * workers)]
    places = [(w.node, w.rank_of_node, w.worker_of_rank) for w in worlds]
    assert places == sorted(set(places))
    assert all(w.rank == w.node * ranks + w.rank_of_node for w in worlds)
    assert [w.is_leader for w in worlds].count(True) == 1
    assert [w.is_local_leader for w in worlds].count(True) == nodes


@given(shapes, st.integers(1, 25))
def test_replicas_are_neighbours_that_have_the_same_place(shape, replication):
    """Each group of ranks becomes one rank; a number that does not divide is refused."""
    nodes, ranks, workers = shape
    worlds = [World(nodes, ranks, workers, rank * workers) for rank in range(nodes * ranks)]
    if nodes * ranks % replication:
        with pytest.raises(ConfigError, match=f"{replication} does not divide {nodes * ranks}"):
            worlds[0].replicate(replication)
        return
    found = [world.replicate(replication) for world in worlds]
    assert [w.rank for w in found] == [w.rank // replication for w in worlds]
    assert {w.num_ranks for w in found} == {nodes * ranks // replication}
    keeps = nodes * ranks // replication % ranks == 0
    assert {w.ranks_per_node for w in found} == {ranks if keeps else nodes * ranks // replication}


def test_the_environment_of_a_launcher_is_understood():
    """Four variables, as torchrun sets them; none means one process."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    world = World.detect(dict(zip(names, ("11", "16", "3", "8"), strict=True)))
    assert (world.num_nodes, world.ranks_per_node, world.rank, world.node) == (2, 8, 11, 1)
    assert World.detect({}) == World(1, 1, 1, 0)


@pytest.mark.parametrize(
    "environ", [{"RANK": "4", "WORLD_SIZE": "4"}, {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "4"}]
)
def test_a_contradictory_environment_is_refused(environ):
    """With the values, and what to set."""
    with pytest.raises(ConfigError, match="Set all three, as torchrun does"):
        World.detect(environ)
    with pytest.raises(
        ConfigError, match="the environment variable RANK must be a number, got 'x'"
    ):
        World.detect({"RANK": "x"})


def test_worlds_are_values():
    """Equal when their numbers are, also after a pickle, a copy and in a set."""
    world = World(2, 8, 4, 37)
    assert pickle.loads(pickle.dumps(world)) == world == world.copy()
    assert len({world, world.copy(), World(2, 8, 4, 36)}) == 2
    assert eval(repr(world)) == world
    assert world.to_json()["worker_of_rank"] == 1


@pytest.mark.parametrize("numbers", [(0, 1, 1, 0), (1, 0, 1, 0), (1, 1, 0, 0), (1, 1, 1, 1)])
def test_impossible_worlds_are_refused(numbers):
    """No world has less than one of anything, and every worker is inside."""
    with pytest.raises(ConfigError):
        World(*numbers)


def test_a_world_of_more_ranks_than_an_order_may_have_is_refused(monkeypatch):
    """A wrong WORLD_SIZE is an error of the configuration, and no array is made for its ranks."""
    monkeypatch.setenv("WORLD_SIZE", "99999999999999")
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    for topology in (None, World(1, 99999999999999, 1, 0), (0, 99999999999999)):
        with pytest.raises(ConfigError, match="99,999,999,999,999 ranks; at most 262144"):
            find_ranks(topology)
