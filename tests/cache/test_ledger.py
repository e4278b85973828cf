"""The account of a cache folder under every order of events, deaths of processes included.

Processes are played by ledgers of one process: each has a description of the lock file of its own,
and the kernel keeps them apart as it keeps processes apart.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile

import numpy as np
import pytest
from cachetools import disk_usage, write
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mds.cache import fetch_index
from mds.cache.accounts import control_bytes, look_around
from mds.cache.book import ABSENT, FOREIGN, PRESENT
from mds.cache.budget import Account, Budget
from mds.cache.hands import Hands
from mds.cache.ledger import Ledger
from mds.cache.places import Place
from mds.cache.policy import NOW
from mds.errors import CacheError
from mds.stream import Source

SHARDS = 7


@functools.lru_cache(maxsize=1)
def _remote():
    root = tempfile.mkdtemp(prefix="mds-ledger-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return write(os.path.join(root, "remote"), samples=64, size=60)


class _Player:
    """One process: its ledger, and what it is writing or has pinned."""

    def __init__(self, place, limit, pid):
        self.place = place
        own = control_bytes(place)
        self.ledger = Ledger(place.control, len(place), place.fingerprint(), own_bytes=own)
        self.ledger.open()
        # A process that does not exist, so that its temporary files are seen as left behind.
        self.pid = pid
        self.ledger._slots["pid"][self.ledger.slot] = pid
        self.account = Account(place, self.ledger)
        if self.ledger.was_made:
            look_around(self.account)
        self.budget = Budget(limit, Hands())
        self.budget.add(self.account)
        self.writing = {}
        self.pinned = []

    def path(self, shard):
        return self.place.path(self.place.index.shard(shard).raw)

    def die(self):
        self.ledger._locks.close()


class Life(RuleBasedStateMachine):
    """Several processes come, fetch, pin, evict and die over one folder with a limit."""

    def __init__(self):
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="mds-ledger-")
        remote = _remote()
        folder = os.path.join(self.root, "cache")
        index = fetch_index(remote, folder)
        self.place = Place(Source(index, remote, folder), 0, 0)
        self.sizes = self.place.sizes().tolist()
        # Somebody's own file, there before us.
        self.foreign = self.place.path(index.shard(1).raw)
        shutil.copy(os.path.join(remote, index.shard(1).raw.basename), self.foreign)
        self.limit = control_bytes(self.place) + self.sizes[1] + int(2.6 * max(self.sizes))
        self.count = 0
        self.players = []
        self.come()

    def teardown(self):
        for player in self.players:
            player.ledger.close()
        shutil.rmtree(self.root)

    def player(self, number):
        return self.players[number % len(self.players)]

    @precondition(lambda self: len(self.players) < 4)
    @rule()
    def come(self):
        """Another process opens the folder."""
        self.count += 1
        self.players.append(_Player(self.place, self.limit, 10_000_000 + self.count))

    @precondition(lambda self: len(self.players) > 1)
    @rule(who=st.integers(0, 3))
    def die(self, who):
        """A process is killed, whatever it was doing."""
        player = self.player(who)
        player.die()
        self.players.remove(player)

    @rule(who=st.integers(0, 3), shard=st.integers(0, SHARDS - 1), part=st.floats(0, 1))
    def begin(self, who, shard, part):
        """A process reserves room and writes some of a temporary file."""
        player = self.player(who)
        busy = any(shard in other.writing for other in self.players)
        if busy or os.path.exists(player.path(shard)):
            return
        if player.ledger.entries["owner"][shard]:
            player.account.settle_orphans()
        if player.budget.reserve(player.account, shard, self.sizes[shard], NOW):
            name = os.path.basename(player.path(shard))
            path = os.path.join(
                self.place.folder, f".{name}.{player.pid}-{self.count:012x}.mds-part"
            )
            player.writing[shard] = path
            with open(path, "wb") as file:
                file.write(bytes(int(part * self.sizes[shard])))

    @rule(who=st.integers(0, 3), is_noted=st.booleans())
    def publish(self, who, is_noted):
        """A process renames what it has written; it may be killed before it notes that."""
        player = self.player(who)
        if not player.writing:
            return
        shard, path = player.writing.popitem()
        with open(path, "wb") as file:
            file.write(bytes(self.sizes[shard]))
        os.replace(path, player.path(shard))
        if is_noted:
            size, mark = self.place.measure(self.place.index.shard(shard))
            player.ledger.settle(shard, PRESENT, size, mark)
        elif len(self.players) > 1:
            player.die()
            self.players.remove(player)
        else:
            player.account.look(shard)

    @rule(who=st.integers(0, 3))
    def fail(self, who):
        """A transfer fails; the process looks what is there."""
        player = self.player(who)
        if player.writing:
            shard, path = player.writing.popitem()
            os.unlink(path)
            player.account.look(shard)

    @rule(who=st.integers(0, 3), shard=st.integers(0, SHARDS - 1))
    def pin(self, who, shard):
        """A process takes a shard in hand, if it is there."""
        player = self.player(who)
        if player.ledger.pin(shard):
            if os.path.exists(player.path(shard)):
                player.pinned.append(shard)
            else:
                player.ledger.unpin(shard)

    @rule(who=st.integers(0, 3))
    def unpin(self, who):
        """A process gives a shard back."""
        player = self.player(who)
        if player.pinned:
            player.ledger.unpin(player.pinned.pop())

    @rule(who=st.integers(0, 3), shard=st.integers(0, SHARDS - 1))
    def evict(self, who, shard):
        """A process evicts a shard, if it may."""
        player = self.player(who)
        is_pinned = any(shard in other.pinned for other in self.players)
        was_there = os.path.exists(player.path(shard))
        if player.budget.evict(player.account, shard):
            assert was_there
            assert not is_pinned
            assert not os.path.exists(player.path(shard))

    @invariant()
    def limit_holds(self):
        """The disk never has more than the books, and the books never more than the limit."""
        used = self.players[0].budget.used
        assert disk_usage(self.place.folder) <= used <= self.limit

    @invariant()
    def what_is_in_hand_stays(self):
        """Pinned files and somebody's own are there."""
        for player in self.players:
            assert all(os.path.exists(player.path(shard)) for shard in player.pinned)
        assert os.path.exists(self.foreign)
        assert self.players[0].ledger.entries["state"][1] == FOREIGN

    @invariant()
    def books_are_true(self):
        """What the books call there is there, and nothing that nobody is busy with is missing."""
        entries = self.players[0].ledger.entries
        for shard in np.flatnonzero(entries["owner"] == 0).tolist():
            is_there = os.path.exists(self.players[0].path(shard))
            assert (entries["state"][shard] != ABSENT) == is_there


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.fixture
def place(tmp_path):
    remote = write(tmp_path / "remote", samples=40)
    folder = str(tmp_path / "cache")
    return Place(Source(fetch_index(remote, folder), remote, folder), 0, 0)


def open_ledger(place):
    ledger = Ledger(place.control, len(place), place.fingerprint())
    ledger.open()
    return ledger


def test_a_second_process_sees_what_the_first_noted(place):
    """The file is one for all."""
    one, two = open_ledger(place), open_ledger(place)
    one.settle(0, PRESENT, 123, 7)
    assert (two.entries["state"][0], two.entries["size"][0]) == (PRESENT, 123)
    assert two.slot != one.slot
    assert len(two.processes()) == 2
    one.close()
    two.close()
    one.close()


def test_a_deleted_folder_is_opened_anew_and_own_reservations_live_on(place):
    """Whoever deletes the folder does not lift the limit of those who write."""
    ledger = open_ledger(place)
    with ledger.change():
        ledger.begin(1, 500)
    ledger.settle(0, PRESENT, 123, 7)
    shutil.rmtree(place.control)
    with ledger.change() as entries:
        assert entries["state"][0] == ABSENT
        assert entries["size"][1] == 500
    ledger.close()


def test_another_index_starts_another_ledger_that_knows_the_former(place):
    """What was ours stays recognisable."""
    one = open_ledger(place)
    with one.change():
        one.describe(2, 77, 88)
    one.settle(2, PRESENT, 10, 99)
    one.close()
    two = Ledger(place.control, len(place) + 1, b"another")
    two.open()
    assert two.was_made
    assert two.former["name"].tolist() == [77]
    assert two.former["mark"].tolist() == [99]
    two.close()


def test_after_a_restart_of_the_machine_nothing_counts_as_checked(place, monkeypatch):
    """A power cut can leave files of the right size without their content."""
    one = open_ledger(place)
    one.settle(0, PRESENT, 10, 1, is_checked=True)
    one.close()
    monkeypatch.setattr("mds.cache.book._boot", lambda: b"another!")
    two = open_ledger(place)
    assert not two.entries["is_checked"][0]
    assert two.entries["state"][0] == PRESENT
    two.close()


def test_a_stuck_owner_of_the_lock_is_an_error_that_names_processes(place, monkeypatch):
    """Nobody waits for ever."""
    one, two = open_ledger(place), open_ledger(place)
    monkeypatch.setattr("mds.cache.ledger.PATIENCE", 0.05)
    with one.change(), pytest.raises(CacheError, match=str(os.getpid())), two.change():
        pass
    one.close()
    two.close()


def test_a_ledger_whose_opening_failed_opens_when_it_is_next_used(place, monkeypatch):
    """The lock was stuck; later it is not."""
    monkeypatch.setattr("mds.cache.ledger.PATIENCE", 0.05)
    one = open_ledger(place)
    two = Ledger(one.control, one.shards, one.fingerprint)
    with one.change(), pytest.raises(CacheError, match=str(os.getpid())):
        two.open()
    assert "closed" in repr(two)
    with two.change() as entries:
        assert len(entries) == one.shards
    assert two.slot != one.slot
    one.close()
    two.close()


def test_slots_are_used_again(place):
    """Opening and forgetting without closing does not use a folder up."""
    for _ in range(600):
        open_ledger(place)
    ledger = open_ledger(place)
    ledger.close()
