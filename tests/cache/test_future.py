"""The table of next uses against a plain list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mds.cache.future import Future
from mds.cache.lookahead import Lookahead, distinct, locate
from mds.cache.policy import NEVER

SHARDS = 6
buckets = st.lists(st.lists(st.integers(0, SHARDS - 1), min_size=1, max_size=8), max_size=40)


@given(buckets, st.data())
def test_the_table_says_what_the_list_says(buckets, data):
    """Next use, rows ahead and the working set are those of the order itself."""
    future = Future(SHARDS)
    known, now = 0, 0
    while known < len(buckets):
        for _ in range(data.draw(st.integers(1, 5))):
            if known < len(buckets):
                future.append(np.array(buckets[known], np.int64))
                known += 1
        now = data.draw(st.integers(now, known))
        future.advance(now)
        ahead = list(enumerate(buckets))[now:known]
        assert future.entries == sum(len(set(bucket)) for _, bucket in ahead)
        for shard in range(SHARDS):
            uses = [at for at, bucket in ahead if shard in bucket]
            expected = float(uses[0]) if uses else NEVER
            assert future.next_use(np.array([shard]))[0] == expected
            when = data.draw(st.integers(now, known))
            later = [at for at in uses if at >= when]
            assert future.next_after(shard, when) == (later[0] if later else NEVER)
            assert future.rows_before(shard, when) == sum(
                bucket.count(shard) for at, bucket in ahead if at < when
            )
        alive = [
            sum(
                10 + shard
                for shard in range(SHARDS)
                if any(shard in b for t, b in ahead if t <= at)
                and any(shard in b for t, b in ahead if t >= at)
            )
            for at, _ in ahead
        ]
        sizes = np.arange(SHARDS) + 10
        assert future.working_set(sizes) == max(alive, default=0)


@given(
    st.lists(st.lists(st.integers(-1, 29), max_size=12), max_size=8),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_looking_ahead_changes_nothing(blocks, counts):
    """Whatever was looked at, the ids come in order, with their shards and rows."""
    offsets = np.array([0, 10, 10, 25, 30])
    flat = [i for block in blocks for i in block if i >= 0]
    ids = Lookahead([np.array(block, np.int64) for block in blocks], offsets)
    taken = []
    for count in counts:
        start = len(taken)
        shards, rows = ids.look(start + 1, start + 2 * count)
        expected = flat[start + 1 : start + 2 * count]
        assert (offsets[shards] + rows).tolist() == expected
        got, whose, where = ids.take(count)
        assert (offsets[whose] + where).tolist() == got.tolist()
        assert all(offsets[s] <= i < offsets[s + 1] for s, i in zip(whose, got, strict=True))
        taken += got.tolist()
        assert ids.position == len(taken)
    assert taken == flat[: sum(counts)]


@given(st.lists(st.lists(st.integers(-1, 29), max_size=12), max_size=8), st.integers(1, 7))
def test_orders_are_cut_into_equal_pieces(blocks, size):
    """The shards of an order come in arrays of one size."""
    offsets = np.array([0, 10, 10, 25, 30])
    pieces = list(locate([np.array(block, np.int64) for block in blocks], offsets, size))
    flat = [int(np.searchsorted(offsets, i, "right")) - 1 for b in blocks for i in b if i >= 0]
    assert [shard for piece in pieces for shard in piece.tolist()] == flat
    assert all(len(piece) == size for piece in pieces[:-1])


def test_distinct_shards_keep_the_order_of_their_first_use():
    """Nearest deadline first."""
    assert distinct(np.array([5, 2, 5, 9, 2])).tolist() == [5, 2, 9]
