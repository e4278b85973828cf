"""Packers keep the laws of every packer, and what is no packer is refused by name."""

from typing import ClassVar

import numpy as np
import pytest

from mds.errors import ConfigError, PlanError, UnknownNameError
from mds.plan import register_packer
from mds.plan._pack_windows import pack_window
from mds.plan._packers import _packers, find_packer
from mds.plan._packing import Packing
from mds.testing import PackerContract


def alone(sizes, room):
    """A pack for each document."""
    return np.arange(len(sizes)), len(sizes)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Registrations of a test end with it."""
    monkeypatch.setattr(_packers, "entries", {"alone": alone})


class TestBestFit(PackerContract):
    """The default."""

    packer = "best_fit"


class TestGreedy(PackerContract):
    """Whole documents in their order."""

    packer = "greedy"


class TestConcat(PackerContract):
    """Documents end to end, cut at packs."""

    packer = "concat"


class TestSeparators(PackerContract):
    """The same with a token after each document."""

    packer = "concat"
    settings: ClassVar = {"separator": 7}


class TestOwn(PackerContract):
    """A function of the user."""

    packer = "alone"


def greedy_by_hand(sizes, room):
    """The sequences that axolotl's sequential packer forms of the same lengths."""
    packs, free = [], 0
    for number, size in enumerate(sizes):
        if size > free:
            packs.append([])
            free = room
        packs[-1].append(number)
        free -= size
    return packs


def documents_of(packs):
    """Of each pack its documents."""
    return [
        packs.ids[first:last].tolist()
        for first, last in zip(packs.bounds[:-1], packs.bounds[1:], strict=True)
    ]


@pytest.mark.parametrize("room", [1, 10, 99, 5000])
def test_greedy_opens_a_pack_for_what_does_not_fit(room):
    """And never goes back to an earlier one."""
    sizes = np.minimum(np.random.default_rng(room).integers(1, 40, 500), room)
    packs = pack_window(np.arange(500), sizes, Packing(room, packer="greedy"), None)
    assert documents_of(packs) == greedy_by_hand(sizes.tolist(), room)
    assert not len(pack_window(np.arange(0), np.zeros(0, int), Packing(9, packer="greedy"), None))


@pytest.mark.parametrize("separator", [None, 2])
@pytest.mark.parametrize("room", [1, 10, 99, 5000])
def test_concat_fills_all_packs_but_the_last(room, separator):
    """The sequences are those of TRL's strategy "wrapped": all tokens, cut at the capacity."""
    sizes = np.random.default_rng(room).integers(0, 40, 500)
    packing = Packing(room, packer="concat", separator=separator)
    packs = pack_window(np.arange(500), sizes, packing, None)
    extra = separator is not None
    stream = [(n, at) for n, size in enumerate(sizes) for at in range(size + (extra and size > 0))]
    wrapped = [stream[first : first + room] for first in range(0, len(stream), room)]
    tokens = [
        (n, start + at)
        for n, start, size in zip(packs.ids, packs.starts, packs.sizes, strict=True)
        for at in range(size)
    ]
    assert [len(pack) for pack in wrapped] == packs.tokens.tolist()
    assert tokens == [token for pack in wrapped for token in pack]


def test_what_concat_and_separators_refuse():
    """An overflow that cannot be, and what is no token."""
    with pytest.raises(ConfigError, match=r"overflow='truncate'.*Leave overflow out"):
        Packing(100, packer="concat", overflow="truncate")
    for token in (-1, True, 1.5, 1 << 63):
        with pytest.raises(ConfigError, match=r"separator .* must be a token"):
            Packing(100, separator=token)


def test_a_separator_is_recorded():
    """A run with another one is refused, and a state says which."""
    facts = Packing(100, packer="concat", separator=3).facts()
    assert facts["packing_separator"] == 3
    assert Packing.of_facts(facts, "x", None) == Packing(
        100, column="x", packer="concat", separator=3, overflow="error"
    )
    assert Packing(100).estimate_tokens(50, 4) == 50
    assert Packing(100, separator=3).estimate_tokens(50, 4) == 54


def test_the_default_is_not_recorded():
    """Facts, and so states, of runs without the argument stay as they were."""
    facts = Packing(100).facts()
    assert facts == Packing(100, packer="best_fit").facts()
    assert "best_fit" not in str(facts)
    assert Packing.of_facts(facts, "tokens", None) == Packing(100, "tokens")
    own = Packing(100, packer="alone").facts()
    assert own != facts
    assert Packing.of_facts(own, "tokens", None) == Packing(100, "tokens", packer="alone")


def test_an_unknown_name_gets_the_nearest():
    """And all that there are."""
    with pytest.raises(UnknownNameError, match=r"no packer 'best_fitt'.*best_fit.*alone"):
        Packing(100, packer="best_fitt")
    with pytest.raises(ConfigError, match="must be the name of a packer"):
        Packing(100, packer=3)


def test_packs_of_a_packer_in_place_of_a_built_in_one_are_checked():
    """As those of any other packer of a user."""
    register_packer(
        "best_fit", lambda sizes, room: (np.zeros(len(sizes), np.int64), 1), replace=True
    )
    with pytest.raises(PlanError, match="packer 'best_fit' returned"):
        pack_window(np.arange(3), np.array([60, 70, 80]), Packing(100, packer="best_fit"), 1)


def test_a_budget_has_a_way_of_its_own():
    """Batches of like lengths are not made by a packer."""
    with pytest.raises(ConfigError, match=r"packer 'alone'.*budget="):
        Packing(budget=100, packer="alone")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda sizes, room: (np.zeros(len(sizes), np.int64), 1), "tokens for 100"),
        (lambda sizes, room: (np.arange(len(sizes)), 2), "packs 0 to 2 of 2"),
        (lambda sizes, room: (np.arange(len(sizes)) - 1, 2), "packs -1 to 1 of 2"),
        (lambda sizes, room: (np.arange(2), 2), r"shape \(2,\)"),
        (lambda sizes, room: (np.arange(3) * 1.0, 3), "float64"),
        (lambda sizes, room: (np.arange(3), 4), "packs of 0 to"),
        (lambda sizes, room: (np.arange(3), "3"), "'3'"),
    ],
)
def test_wrong_packs_are_refused_by_name(function, says):
    """Before a batch is made of them."""
    register_packer("wrong", function)
    with pytest.raises(PlanError, match=f"packer 'wrong' returned .*{says}"):
        pack_window(np.arange(3), np.array([60, 70, 80]), Packing(100, packer="wrong"), 1)


def test_an_entry_point_is_a_packer(monkeypatch):
    """Of the group mds.packers, loaded when the name is first used."""
    monkeypatch.setattr(
        "mds._lazy_imports.load_plugin",
        lambda group, name, what: alone if name == "theirs" else None,
    )
    assert find_packer("theirs").pack(np.array([5]), 10)[1] == 1
    assert Packing(10, packer="theirs").packer == "theirs"


def test_a_run_keeps_its_packer():
    """A state of another packer is refused, with both names."""
    plans = [TestOwn()._plan(*_one()), TestBestFit()._plan(*_one())]
    with pytest.raises(ValueError, match="packing"):
        plans[0].check(plans[1].state(0))


def _one():
    from mds.world import World

    return (World(1, 1, 1, 0),)
