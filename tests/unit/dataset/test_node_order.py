"""What a process knows of the other workers of its node, and what that saves."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.eviction import belady
from mds import MDSWriter, StreamingDataset
from mds.cache import policy
from mds.cache.budget import Budget
from mds.cache.ledger_file import _SLOT, ProcessTable, ledger_size
from mds.cache.process_cache import Peers
from mds.dataset.node_order import EPOCH_TIME, NodeOrder
from mds.dataset.worker_epoch import WorkerEpoch
from mds.plan import EpochPlan
from mds.prefetch.lookahead import Lookahead
from mds.prefetch.next_use import NextUseIndex, UseTable, join_index, leave_index
from mds.storage.locks import open_locks
from mds.world import World

SHARDS, EPOCHS = 40, 3


class AllSamples:
    """A shard map in which every sample is stored and selected."""

    def stored(self, samples):
        return samples


def epoch_of(world, shards, epoch=0, start=0, resume=None, **settings):
    settings = {"shuffle": True, "batch_size": 4, **settings}
    plan = EpochPlan([{"shards": shards}], world, epoch=epoch, resume=resume, **settings)
    return WorkerEpoch(plan, world, start)


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
    state = whole.plan.state(64)
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


@given(
    st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=80), min_size=1, max_size=3),
    st.integers(2, 6),
)
def test_the_rule_of_eviction_is_beladys(orders, room):
    """With the table and the policy no more is fetched than by the rule that knows everything."""
    times = [(at, shard) for order in orders for at, shard in enumerate(order)]
    trace = [shard for _, shard in sorted(times, key=lambda use: use[0])]
    table = UseTable(8)
    for at, shard in enumerate(trace):  # as if one worker read them in turn
        table.append(np.array([at]), np.array([shard]))
    kept, came = [], 0
    for at, shard in enumerate(trace):
        table.advance(at)
        if shard in kept:
            continue
        came += 1
        if len(kept) == room:
            shards = np.array(kept)
            nexts = table.next_use(shards)
            order = policy.eviction_order(nexts, np.zeros(len(kept)), np.ones(len(kept), bool))
            residents = [policy.Resident(kept[i], 1, nexts[i]) for i in order]
            (victim,) = policy.victims(1, residents, needed_at=policy.NOW)
            kept.remove(victim.shard)
        kept.append(shard)
    assert came == belady(trace, [1] * 8, room)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_three_epochs_cost_what_beladys_rule_does(tmp_path, compression):
    """Of a dataset as README makes it, with room for a quarter: a tenth more at most."""
    rng = np.random.default_rng(0)
    remote, local = str(tmp_path / "remote"), str(tmp_path / "local")
    with MDSWriter(
        out=remote, columns={"b": "bytes"}, size_limit=50_000, compression=compression
    ) as writer:
        for _ in range(SHARDS * 24):
            writer.write({"b": rng.bytes(2000)})
    shards = StreamingDataset(local=remote, batch_size=4).shards
    sizes = [info.raw.size for info in shards]
    room = sum(sizes) // 4
    own = ledger_size(len(sizes)) + 2 * (tmp_path / "remote" / "index.json").stat().st_size
    dataset = StreamingDataset(
        remote=remote,
        local=local,
        batch_size=4,
        shuffle=True,
        shuffle_block_size=24 * 4,
        cache_limit=room + own,
    )
    for _ in range(EPOCHS):
        assert all(len(sample["b"]) == 2000 for sample in dataset)
    counted = dataset.stats()
    came = counted["fetched_bytes"] + counted["ranged_bytes"]
    trace, bounds = [], np.append(0, np.cumsum([info.samples for info in shards]))
    for epoch in range(EPOCHS):
        mine = epoch_of(
            World(1, 1, 1, 0),
            np.diff(bounds),
            epoch,
            shuffle_block_size=24 * 4,
        )
        ids = np.concatenate(list(mine.blocks()))
        trace += (bounds.searchsorted(ids, "right") - 1).tolist()
    assert came <= 1.1 * belady(trace, sizes, room)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_jobs_with_orders_of_their_own_leave_each_other_their_share(tmp_path, compression):
    """Two that share a folder fetch what each does alone with half of the limit: a tenth more."""
    rng = np.random.default_rng(0)
    remote = str(tmp_path / "remote")
    with MDSWriter(
        out=remote, columns={"b": "bytes"}, size_limit=50_000, compression=compression
    ) as writer:
        for _ in range(SHARDS * 24):
            writer.write({"b": rng.bytes(2000)})
    shards = StreamingDataset(local=remote, batch_size=4).shards
    own = ledger_size(len(shards)) + 2 * (tmp_path / "remote" / "index.json").stat().st_size
    room = sum(info.raw.size for info in shards) // 2

    def job(local, seed, room):
        return StreamingDataset(
            remote=remote,
            local=str(tmp_path / local),
            batch_size=4,
            shuffle=True,
            shuffle_seed=seed,
            shuffle_block_size=24 * 4,
            cache_limit=room + own,
        )

    def read(datasets):
        for _ in range(EPOCHS):
            for samples in zip(*datasets, strict=True):
                assert all(len(sample["b"]) == 2000 for sample in samples)
        stats = [dataset.stats() for dataset in datasets]
        return sum(each["fetched_bytes"] + each["ranged_bytes"] for each in stats)

    alone = sum(read([job(f"alone{seed}", seed, room // 2)]) for seed in (1, 2))
    together = read([job("shared", 1, room), job("shared", 2, room)])
    assert together <= 1.1 * alone
