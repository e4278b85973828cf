"""What a process knows of the other workers of its node, and what that saves."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest

from mds._cache.budget import Budget
from mds._cache.ledger_file import _SLOT, ProcessTable
from mds._cache.process_cache import Peers
from mds._iteration.node_order import EPOCH_TIME, NodeOrder
from mds._prefetch.lookahead import Lookahead
from mds._prefetch.next_use import NextUseIndex, join_index, leave_index
from mds.storage._locks import open_locks
from mds.world import World
from tests.unit.dataset.node_order_helpers import epoch_of


class AllSamples:
    """A shard map in which every sample is stored and selected."""

    def stored(self, samples):
        return samples


def order_of(*args, **kwargs):
    epoch = epoch_of(*args, **kwargs)
    return NodeOrder(epoch.order, AllSamples(), epoch.start)


def everything(order):
    """All times and samples of a merged order."""
    times, samples = zip(*order.pieces(), strict=True)
    return np.concatenate(times), np.concatenate(samples)


@pytest.mark.parametrize("place", range(4))
def test_all_workers_of_a_node_know_the_same_order(place):
    """From wherever it is asked, it is what the four workers read, now and in the next epoch."""
    shards = [10] * 12
    times, samples = everything(order_of(World(2, 2, 2, place), shards))
    expected = []
    for epoch in (0, 1):
        for worker in range(4):
            mine = epoch_of(World(2, 2, 2, worker), shards, epoch)
            ids = np.concatenate(list(mine.blocks()))
            expected += [(epoch * EPOCH_TIME + at, int(i)) for at, i in enumerate(ids)]
    assert sorted(zip(times.tolist(), samples.tolist(), strict=True)) == sorted(expected)
    assert (np.diff(times) >= 0).all()


def test_other_nodes_do_not_count():
    """The workers of a node know nothing of the samples of another, and have another team."""
    here, there = (order_of(World(2, 1, 2, worker), [10] * 12) for worker in (0, 2))
    now = [times < EPOCH_TIME for times in (everything(here)[0], everything(there)[0])]
    mine, theirs = (
        set(everything(o)[1][n].tolist()) for o, n in zip((here, there), now, strict=True)
    )
    assert not mine & theirs
    assert here.team != there.team


def test_a_resumed_epoch_has_the_times_of_the_whole_one():
    """Workers that begin in the middle, and in later epochs, mean the same time by a number."""
    world = World(1, 1, 2, 0)
    whole = epoch_of(world, [10] * 12)
    state = whole.order.state(64)
    resumed = order_of(world, [10] * 12, resume=state)
    assert resumed.start == 32
    assert resumed.team == NodeOrder(whole.order, AllSamples()).team
    assert order_of(world, [10] * 12, epoch=2).start == 2 * EPOCH_TIME
    assert order_of(world, [10] * 12, epoch=2).team == resumed.team


def test_an_order_of_a_thousand_million_samples_costs_little():
    """It is made as it is asked for, and what is remembered of it has an end."""
    shards = np.full(10_000, 100_000)
    order = order_of(World(1, 8, 8, 5), shards, shuffle_algo="seekable")
    offsets = np.append(0, np.cumsum(shards))
    tracemalloc.start()
    index = NextUseIndex(len(shards), Lookahead([], offsets), order)
    for _ in range(4):
        index.extend(3000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index._uses.entries <= 400_000 + 64 * 64
    assert peak < 80 << 20
    assert order.every == 4  # two ranks of eight workers stand for eight


def test_what_is_remembered_has_an_end():
    """However far is looked and however many shards there are."""
    shards = np.full(100_000, 4)
    order = order_of(World(1, 1, 8, 5), shards, shuffle_algo="naive")
    index = NextUseIndex(len(shards), Lookahead([], np.append(0, np.cumsum(shards))), order)
    index.extend(1 << 40)
    assert 390_000 < index._uses.entries <= 400_000 + 64 * 8


def test_readers_of_one_order_share_an_index():
    """Threads of a process that read the same order go by one table, which the last one takes."""
    budget = Budget.__new__(Budget)
    budget.oracles, budget.oracles_lock = [], threading.Lock()
    world, ids = World(1, 1, 2, 0), Lookahead([], np.arange(0, 121, 10))
    first = join_index(budget, 12, ids, order_of(world, [10] * 12))
    second = join_index(budget, 12, ids, order_of(world, [10] * 12))
    other = join_index(budget, 12, ids, None)
    assert first is second
    assert budget.oracles == [first, other]
    leave_index(budget, first)
    leave_index(budget, other)
    assert budget.oracles == [first]
    leave_index(budget, second)
    assert not budget.oracles


def test_the_slowest_of_the_same_order_counts(tmp_path):
    """Another job with another order on the same folder neither holds up nor hurries a team."""
    lines = np.zeros(8, _SLOT)
    tables = []
    for _ in range(3):
        table = ProcessTable(lines, open_locks(str(tmp_path / "lock")))
        assert table.claim(set())
        table.count_reader(1)
        tables.append(table)
    one, two, stranger = tables
    assert stranger.report_progress(99, 5) == (5, 1, 1)
    assert one.report_progress(17, 400) == (400, 1, 2)
    assert two.report_progress(17, 300) == (300, 2, 3)
    assert one.report_progress(17, 500) == (300, 2, 3)
    two.count_reader(-1)
    assert one.report_progress(17, 500) == (500, 1, 2)
    assert one.teams() == [17, 99]
    assert Peers([]).report_progress(1, 17, 40) == (40, 1, 1)
    assert Peers([]).jobs() == 1
