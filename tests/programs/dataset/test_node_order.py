"""What a process knows of the other workers of its node, and what that saves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.eviction import belady
from mds import MDSWriter, StreamingDataset
from mds._cache import policy
from mds._cache.ledger_file import ledger_size
from mds._prefetch.next_use import UseTable
from mds.world import World
from tests.unit.dataset.node_order_helpers import epoch_of

SHARDS, EPOCHS = 40, 3


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


@pytest.mark.slow
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
