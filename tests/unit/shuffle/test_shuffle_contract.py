"""Every built-in shuffle keeps the laws of the contract, and so do those that are registered."""

import importlib.metadata

import numpy as np
import pytest

from mds.errors import ConfigError, UnknownNameError
from mds.plan import EpochPlan
from mds.shuffle import (
    SequentialShuffle,
    Shuffle,
    ShuffleSpec,
    _registry,
    get_shuffle,
    register_shuffle,
)
from mds.shuffle._naive import Naive
from mds.shuffle._py1b import Py1b
from mds.shuffle._py1br import Py1br
from mds.shuffle._py1e import Py1e
from mds.shuffle._py1s import Py1s
from mds.shuffle._py2s import Py2s
from mds.shuffle._registry import find_shuffle
from mds.shuffle._seekable import Seekable
from mds.testing import ShuffleContract
from mds.world import World


class TestNaive(ShuffleContract):
    algorithm = Naive


class TestPy1b(ShuffleContract):
    algorithm = Py1b


class TestPy1br(ShuffleContract):
    algorithm = Py1br


class TestPy1e(ShuffleContract):
    algorithm = Py1e


class TestPy1s(ShuffleContract):
    algorithm = Py1s


class TestPy2s(ShuffleContract):
    algorithm = Py2s


class TestSeekable(ShuffleContract):
    algorithm = Seekable


def test_every_built_in_shuffle_is_tried():
    """A new one has to be written down here."""
    tried = {kind.algorithm for kind in ShuffleContract.__subclasses__()}
    assert set(_registry.algos.values()) <= tried


class Reversed(SequentialShuffle):
    """The last sample first."""

    canonical_nodes_per_node = 3

    def prepare(self):
        return np.random.default_rng(0)

    def generate(self, node, rng):
        yield np.arange(self.starts[node], self.starts[node + 1])[::-1]


@pytest.fixture
def _known(monkeypatch):
    monkeypatch.setattr(_registry._shuffles, "entries", dict(_registry.algos))


@pytest.mark.usefixtures("_known")
def test_a_registered_shuffle_is_used_by_its_name():
    """By get_shuffle and plans, with the defaults that it declares."""
    register_shuffle("reversed", Reversed)
    assert get_shuffle("reversed", [2, 3], 1, 0, 0).tolist() == [4, 3, 2, 1, 0]
    plan = EpochPlan(
        [{"shards": [6]}], World(1, 1, 1, 0), batch_size=6, shuffle=True, shuffle_algo="reversed"
    )
    assert plan.num_canonical_nodes == 3
    assert plan.batch(0).ravel().tolist() == [1, 3, 5, 0, 2, 4]


@pytest.mark.usefixtures("_known")
def test_a_package_brings_a_shuffle_by_an_entry_point(monkeypatch):
    """Of the group mds.shuffles; it is loaded when its name is asked for."""
    point = importlib.metadata.EntryPoint("far", f"{__name__}:Reversed", "mds.shuffles")
    monkeypatch.setattr(type(point), "load", lambda self: Reversed)
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda group, name: [point] if (group, name) == ("mds.shuffles", "far") else [],
    )
    assert find_shuffle("far") is Reversed
    with pytest.raises(UnknownNameError, match="no shuffle_algo 'near'"):
        find_shuffle("near")


@pytest.mark.usefixtures("_known")
def test_what_cannot_be_a_shuffle_is_refused():
    """A name of ours, whose order must not change, and a class of another kind."""
    with pytest.raises(ConfigError, match="'py1e' is built in"):
        register_shuffle("py1e", Reversed)
    for kind in (dict, Reversed(ShuffleSpec(np.array([1]), 1, 0, 0, 1)), Shuffle):
        with pytest.raises(ConfigError, match=r"inherit mds\.shuffle\.SequentialShuffle"):
            register_shuffle("mine", kind)
    with pytest.raises(UnknownNameError, match="no shuffle_algo 'lucky'"):
        EpochPlan([{"shards": [6]}], World(1, 1, 1, 0), shuffle=True, shuffle_algo="lucky")
