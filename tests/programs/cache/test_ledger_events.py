"""The ledger of a cache folder under every order of events, deaths of processes included.

Processes are played by ledgers of one process: each opens the lock file itself, and the kernel
keeps them apart as it keeps processes apart.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import threading

import numpy as np
from cache_tools import disk_usage, write
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mds._cache.budget import Budget
from mds._cache.counters import Counters
from mds._cache.folder import CacheFolder
from mds._cache.index_copy import fetch_index
from mds._cache.ledger import Ledger
from mds._cache.ledger_file import ABSENT, FETCHING, MANAGED, UNMANAGED
from mds._cache.open_readers import ReaderPool
from mds._cache.recovery import OpenFolder, control_bytes, scan_folder
from mds._cache.source import Source

SHARDS = 7


@functools.lru_cache(maxsize=1)
def _remote():
    root = tempfile.mkdtemp(prefix="mds-ledger-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return write(os.path.join(root, "remote"), samples=64, size=60)


class _Player:
    """One process: its ledger, and what it is writing or has pinned."""

    def __init__(self, folder, limit, pid):
        self.folder = folder
        own = control_bytes(folder)
        self.ledger = Ledger(folder.control, len(folder), folder.fingerprint(), own_bytes=own)
        self.ledger.open()
        # A process that does not exist, so that its temporary files are seen as left behind.
        self.pid = pid
        self.ledger.table.slots["pid"][self.ledger.slot] = pid
        self.opened = OpenFolder(folder, self.ledger)
        if self.ledger.is_new:
            scan_folder(self.opened)
        self.budget = Budget(limit, ReaderPool(), [self.opened], Counters())
        self.writing = {}
        self.pinned = []

    def path(self, shard):
        return self.folder.path(self.folder.index.shard(shard).raw)

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
        self.folder = CacheFolder(Source(index, remote, folder), 0, 0)
        self.sizes = self.folder.sizes().tolist()
        # Somebody's own file, there before us.
        self.foreign = self.folder.path(index.shard(1).raw)
        shutil.copy(os.path.join(remote, index.shard(1).raw.basename), self.foreign)
        self.limit = control_bytes(self.folder) + self.sizes[1] + int(2.6 * max(self.sizes))
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
        self.players.append(_Player(self.folder, self.limit, 10_000_000 + self.count))

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
            player.opened.recover_entries()
        if player.budget.reserve(player.opened, shard, self.sizes[shard]):
            name = os.path.basename(player.path(shard))
            path = os.path.join(
                self.folder.root, f".{name}.{player.pid}-{self.count:012x}.mds-part"
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
            size, stamp = self.folder.stat(self.folder.index.shard(shard))
            player.ledger.commit(shard, MANAGED, size, stamp)
        elif len(self.players) > 1:
            player.die()
            self.players.remove(player)
        else:
            player.opened.rescan(shard)

    @rule(who=st.integers(0, 3))
    def fail(self, who):
        """A transfer fails; the process looks what is there."""
        player = self.player(who)
        if player.writing:
            shard, path = player.writing.popitem()
            os.unlink(path)
            player.opened.rescan(shard)

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
        if player.budget.evict(player.opened, shard):
            assert was_there
            assert not is_pinned
            assert not os.path.exists(player.path(shard))

    @invariant()
    def limit_holds(self):
        """The disk never has more than the books, and the books never more than the limit."""
        used = self.players[0].budget.used
        assert disk_usage(self.folder.root) <= used <= self.limit

    @invariant()
    def what_is_in_hand_stays(self):
        """Pinned files and somebody's own are there."""
        for player in self.players:
            assert all(os.path.exists(player.path(shard)) for shard in player.pinned)
        assert os.path.exists(self.foreign)
        assert self.players[0].ledger.entries["state"][1] == UNMANAGED

    @invariant()
    def books_are_true(self):
        """What the books call there is there, and nothing that nobody is busy with is missing."""
        entries = self.players[0].ledger.entries
        for shard in np.flatnonzero(entries["owner"] == 0).tolist():
            is_there = os.path.exists(self.players[0].path(shard))
            assert (entries["state"][shard] != ABSENT) == is_there


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=40)


def test_what_is_leaving_comes_again_when_it_has_left(tmp_path):
    """Whoever evicts a shard notes in the end that it is gone, and not of one that comes anew."""
    remote, cache = _remote(), str(tmp_path / "cache")
    index = fetch_index(remote, cache)
    folder = CacheFolder(Source(index, remote, cache), 0, 0)
    limit = control_bytes(folder) + 3 * folder.sizes().max()
    evictor, newcomer = (_Player(folder, limit, pid) for pid in (10_000_001, 10_000_002))
    size = int(folder.sizes()[0])
    shutil.copy(os.path.join(remote, index.shard(0).raw.basename), evictor.path(0))
    with evictor.ledger.change():
        evictor.ledger.commit(0, MANAGED, *folder.stat(index.shard(0)))
        victim = evictor.budget._try_lock(evictor.opened, 0, 0.0)
    reserving = threading.Thread(target=newcomer.budget.reserve, args=(newcomer.opened, 0, size))
    reserving.start()
    reserving.join(0.2)
    assert evictor.ledger.entries["owner"][0] == evictor.ledger.slot + 1
    assert evictor.budget._delete(victim)
    reserving.join(60)
    entry = evictor.ledger.entries[0]
    assert (entry["state"], entry["owner"]) == (FETCHING, newcomer.ledger.slot + 1)
    assert entry["size"] == size
    for player in (evictor, newcomer):
        player.ledger.close()
