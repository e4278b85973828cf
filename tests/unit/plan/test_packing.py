"""Packs: best fit as it is defined, windows that stand alone, the same packs in every world."""

import dataclasses

import numpy as np
import pytest
from ordertools import make_plan
from packs import LENGTHS, SHARDS, Given, lengths_of, packed, steps_of

from mds._cache import order_files
from mds._cache.order_files import prepare, share_order
from mds.errors import ConfigError, PlanError, StateError
from mds.plan import OrderHash
from mds.plan._pack_windows import balance, pack_window
from mds.plan._packers import best_fit_decreasing
from mds.plan._packing import Packing
from mds.plan._state import emit_state, parse_state


def best_fit_by_hand(sizes, capacity):
    """The definition: longest first, each into the fullest pack that still takes it."""
    rooms = []
    for at in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        fitting = [room for room in rooms if room >= sizes[at]]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - sizes[at])
        else:
            rooms.append(capacity - sizes[at])
    return rooms


@pytest.mark.parametrize("capacity", [1, 2, 7, 100, 1023, 1024, 1025, 5000, 70_000])
@pytest.mark.parametrize("seed", range(4))
def test_packs_are_best_fit_decreasing(capacity, seed):
    """The rooms that are left are those of the definition, and every document has its place."""
    sizes = np.minimum(lengths_of(400, seed, mean=1 + capacity / 6), capacity)
    of, count = best_fit_decreasing(sizes, capacity)
    filled = np.bincount(of, sizes, minlength=count)
    assert sorted(capacity - filled) == sorted(best_fit_by_hand(sizes.tolist(), capacity))
    assert filled.max() <= capacity
    assert (np.bincount(of, minlength=count) > 0).all()


@pytest.mark.parametrize("sizes", [[], [5], [10], [10, 10], [1] * 25, [9, 1, 9, 1], [6, 5, 4, 5]])
def test_small_windows(sizes):
    """No document, one, full packs, documents of one length."""
    of, count = best_fit_decreasing(np.array(sizes, np.int64), 10)
    assert count == len(best_fit_by_hand(sizes, 10))
    assert len(of) == len(sizes)


def test_ties_go_by_position():
    """Of documents of one length the earlier one is placed first, so the order decides."""
    ids, sizes = np.arange(40), np.full(40, 30)
    packs = pack_window(ids, sizes, Packing(100), None)
    assert np.array_equal(packs.ids, ids)
    assert np.array_equal(packs.bounds, [*range(0, 40, 3), 40])


def test_a_long_document_becomes_pieces_of_the_capacity_and_a_rest():
    """And no other document is cut."""
    sizes = np.array([250, 40, 100, 200, 1])
    packs = pack_window(np.arange(5) + 70, sizes, Packing(100, overflow="split"), 5)
    pieces = sorted(
        zip(packs.ids.tolist(), packs.starts.tolist(), packs.sizes.tolist(), strict=True)
    )
    assert pieces == [
        (70, 0, 100), (70, 100, 100), (70, 200, 50), (71, 0, 40), (72, 0, 100),
        (73, 0, 100), (73, 100, 100), (74, 0, 1),
    ]  # fmt: skip


def test_what_else_may_become_of_a_long_document():
    """Cut to its beginning, left out, or refused with its number; both losses are counted."""
    sizes, ids = np.array([250, 40, 300, 0]), np.arange(4) + 70
    cut = pack_window(ids, sizes, Packing(100, overflow="truncate"), 5)
    assert sorted(cut.sizes.tolist()) == [40, 100, 100]
    assert (cut.cut_tokens, cut.dropped) == (350, 0)
    dropped = pack_window(ids, sizes, Packing(100, overflow="drop"), 5)
    assert dropped.ids.tolist() == [71]
    assert (dropped.cut_tokens, dropped.dropped) == (0, 2)
    message = r"sample 70 has 250 tokens, but a pack has only 100. Write packing=Packing\({}, over"
    with pytest.raises(PlanError, match=message.format("100")):
        pack_window(ids, sizes, Packing(100), 5)
    with pytest.raises(PlanError, match=message.format("budget=100")):
        pack_window(ids, sizes, Packing(budget=100), 5)


def test_a_budget_makes_batches_of_like_lengths():
    """None takes more than the budget when it is padded, and few tokens are padding."""
    sizes = np.minimum(lengths_of(5000), 2000)
    packs = pack_window(np.arange(5000), sizes, Packing(budget=4096, overflow="split"), 3)
    padded = 0
    for first, last in zip(packs.bounds[:-1], packs.bounds[1:], strict=True):
        longest = int(packs.sizes[first:last].max())
        assert longest * (last - first) <= 4096
        padded += longest * (last - first)
    assert sizes.sum() / padded > 0.98
    assert sorted(packs.ids.tolist()) == list(range(5000))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "a capacity or budget="),
        ({"capacity": 5, "budget": 5}, "one of them"),
        ({"capacity": 0}, "capacity .* got 0"),
        ({"capacity": True}, "capacity .* got True"),
        ({"capacity": 8192.0}, "capacity .* got 8192.0"),
        ({"budget": -1}, "budget .* got -1"),
        ({"capacity": 1 << 40}, "must be a number of tokens"),
        ({"capacity": 5, "column": ""}, "name of a column"),
        ({"capacity": 5, "overflow": "cut"}, "is now overflow='truncate'"),
        ({"capacity": 5, "overflow": "wrap"}, "'error', 'split', 'truncate', 'drop'"),
        ({"capacity": 5, "column": 3}, "name of a column"),
        ({"capacity": 5, "layout": "padded"}, "'varlen', 'dense'"),
        ({"capacity": 5, "labels": "next"}, "'masked', 'shifted'"),
        ({"capacity": 5, "balance": "flops"}, "'attention', 'tokens'"),
    ],
    ids=str,
)
def test_what_is_no_packing_is_refused(arguments, says):
    """The argument, its value and the way out."""
    with pytest.raises(ConfigError, match=says):
        Packing(**arguments)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("weights", [[3] * 16, [100] + [1] * 15, list(range(16)), [0] * 16])
def test_balance_gives_every_group_as_many(groups, weights):
    """And sums that are as alike as the weights let them be."""
    of = balance(np.array(weights), groups)
    assert (np.bincount(of, minlength=groups) == 16 // groups).all()
    sums = np.bincount(of, weights, minlength=groups)
    assert sums.max() - sums.min() <= max(weights)


def test_ranks_have_alike_attention_work():
    """Sixty-four packs of a step over eight ranks: the slowest has within 2 % of the mean."""
    sizes = lengths_of(60_000, mean=600, most=8192)
    packs = pack_window(np.arange(60_000), sizes, Packing(8192), 1)
    work, slowest = packs.work, []
    for first in range(0, len(work) - 64, 64):
        mine = work[first : first + 64]
        sums = np.bincount(balance(mine, 8), mine)
        slowest.append(sums.max() / sums.mean())
    assert np.mean(slowest) < 1.02


def test_workers_of_a_node_share_an_order_that_takes_long(tmp_path, monkeypatch):
    """The first one computes the file, and the others read it instead of computing the order."""
    world, order = (1, 1, 2), {"shuffle_algo": "py1e"}
    expected = steps_of(packed(world, **order), world)
    (stream_order,) = packed(world, **order, small_order=0).long_orders
    assert not packed(world, **order).long_orders
    prepare(packed(world, **order, small_order=0), str(tmp_path))

    new_shuffle = type(stream_order).new_shuffle

    def compute(self):
        assert self.params.epoch == 1, "only a thread computes, for the next epoch"
        return new_shuffle(self)

    monkeypatch.setattr(type(stream_order), "new_shuffle", compute)
    plan = share_order(packed(world, **order, small_order=0), str(tmp_path))
    assert steps_of(plan, world) == expected
    order_files._ahead.join(60)


def test_the_hash_is_the_sum_of_what_ranks_saw():
    """Of any world; another epoch, and another state of the order, have another."""
    plan = packed((2, 2, 1))
    seen = OrderHash()
    for node in range(2):
        for rank in range(2):
            for mine in plan.filling.rank_packs(node, rank, 0):
                seen.take(*mine.order)
    assert str(seen) == str(packed((1, 1, 1)).order_hash(plan.steps))
    assert str(seen) != str(packed((1, 1, 1), shuffle_seed=5).order_hash(plan.steps))


def test_every_epoch_packs_anew():
    """The windows are other ones, so other documents meet."""
    first = packed((1, 1, 1))
    second = first.following()
    assert steps_of(first, (1, 1, 1))[0] != steps_of(second, (1, 1, 1))[0]


def test_a_window_stands_alone():
    """Loaded alone it is what it is on the way; only the samples of it are asked for lengths."""
    plan = packed((1, 1, 1))
    asked = []
    take = plan.filling.lengths.take

    def counted(ids):
        asked.append(len(ids))
        return take(ids)

    plan.filling.lengths.take = counted
    alone = plan.filling.load(3, 2)
    assert asked == [200]
    for _ in plan.filling.rank_packs(0, 0, 0):
        pass
    again = plan.filling.load(3, 2)
    assert np.array_equal(alone.ids, again.ids)
    assert np.array_equal(alone.bounds, again.bounds)


def test_a_window_is_never_more_than_a_shuffle_block():
    """Otherwise it has 1,024 to 2,047 packs, or as many as were asked for, if they are not tiny."""
    assert packed((1, 1, 1)).filling.window == 200
    whole = packed((1, 1, 1), shuffle=False, packing=Packing(512, overflow="split", window=8))
    last = int(whole.filling.windows[0]) - 1
    packs = [len(whole.filling.load(0, window)) for window in range(last)]
    assert 4 <= min(packs) <= max(packs) <= 20
    packing = Packing(8192)
    for mean in (8192, 8000, 2000, 512, 511, 90):
        assert 1024 <= packing.window_documents(mean, 1) * mean / 8192 < 2048
    assert packing.window_documents(1, 1) == 131_072
    assert packing.window_documents(10**9, 1) == 1
    for window in (0, -1, 1.5, True, 1 << 20, "8"):
        with pytest.raises(ConfigError, match="window"):
            Packing(8192, window=window)


def test_a_resumed_run_keeps_its_window():
    """A state records it, also one of a version with other windows; another one is refused."""
    world = (1, 1, 1)
    before = packed(world, shuffle=False, packing=Packing(512, overflow="split", window=64))
    end = next(before.filling.rank_packs(0, 0, 0)).end
    point = dataclasses.replace(before.state(0), order=before.order_facts()).at(end)
    resumed = packed(world, shuffle=False, state=point)
    window = before.filling.window
    assert resumed.filling.window == window != packed(world, shuffle=False).filling.window
    assert steps_of(resumed, world) == steps_of(before, world)[1:]
    assert resumed.following().filling.window == before.filling.window
    other = packed(world, shuffle=False, packing=Packing(512, overflow="split", window=32))
    with pytest.raises(StateError, match="packing_window was"):
        other.check(point)


def test_a_state_of_another_packing_is_refused():
    """With the differences; and one that counts samples with the reason."""
    plan = packed((1, 1, 1))
    state = {"epoch": "see position", "sample_in_epoch": "see position", "num_canonical_nodes": 4,
             "shuffle_seed": 9176, "initial_physical_nodes": 1, "version": 2, "unit": "packs",
             "position": {"epoch": 0, "in_epoch": 16, "cursors": [[0, 4]] * 4, "turn": 0},
             "dataset": plan.dataset_facts(), "order": plan.order_facts()}  # fmt: skip
    plan.check(state)
    other = packed((1, 1, 1), packing=Packing(256, overflow="truncate"))
    with pytest.raises(StateError) as told:
        other.check(state)
    assert "packing_capacity was 512 and is 256" in str(told.value)
    assert "packing_overflow was 'split' and is 'cut'" in str(told.value)
    with pytest.raises(StateError, match=r"packing_lengths was '\w+' and is '\w+'"):
        packed((1, 1, 1), lengths=LENGTHS + 1).check(state)
    with pytest.raises(StateError, match="counts samples"):
        plan.check(emit_state(make_plan(SHARDS, (1, 1, 1), num_canonical_nodes=4).state(0)))
    with pytest.raises(StateError, match="counts samples"):
        packed(
            (1, 1, 1),
            state=emit_state(make_plan(SHARDS, (1, 1, 1), num_canonical_nodes=4).state(16)),
        )


@pytest.mark.parametrize(
    "cursors",
    [[[0, 4]] * 3, [[99, 0]] * 4, [[0, 5000]] * 4, [[4, 1]] * 4],
    ids=["too few", "windows", "packs", "beyond"],
)
def test_cursors_beyond_the_end_are_refused(cursors):
    """A forged state, or one of other lengths."""
    state = {"epoch": "", "sample_in_epoch": "", "num_canonical_nodes": 4, "shuffle_seed": 9176,
             "initial_physical_nodes": 1, "version": 2, "unit": "packs",
             "position": {"epoch": 0, "in_epoch": 16, "cursors": cursors, "turn": 0}}  # fmt: skip
    resume = parse_state(state) if len(cursors) == 4 else state
    with pytest.raises(StateError, match="cursor"):
        next(packed((1, 1, 1), state=resume).blocks(0, 0, 0))


@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
def test_batches_by_stream_are_refused(method):
    """A pack has documents of all streams."""
    with pytest.raises(PlanError, match="of all streams"):
        make_plan(SHARDS, (1, 1, 1), packing=Packing(512), batching_method=method)


def test_shares_of_streams_repeat_and_choose_documents():
    """A document comes as often as its stream is repeated."""
    streams = [{"shards": SHARDS, "repeat": 2}, {"shards": [300], "choose": 100}]
    lengths = lengths_of(sum(SHARDS) + 300, 3, most=500)
    plan = make_plan(streams, (1, 1, 1), shuffle=True, shuffle_algo="seekable", batch_size=16,
                     packing=Packing(512, overflow="split"), lengths=Given(lengths))  # fmt: skip
    found = np.concatenate([*plan.blocks(0, 0, 0)])
    counts = np.bincount(found, minlength=len(lengths))
    assert (counts[: sum(SHARDS)] == 2).all()
    assert (counts[sum(SHARDS) :].max(), counts[sum(SHARDS) :].sum()) == (1, 100)


def test_states_keep_the_earlier_word_of_a_truncation():
    """A state of "truncate" has the word "cut", and either way the packing comes back."""
    packing = Packing(100, column="ids", overflow="truncate")
    assert packing.facts()["packing_overflow"] == "cut"
    assert Packing.of_facts(packing.facts(), "ids", None) == packing
