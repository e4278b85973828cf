"""The table of next uses against a plain list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mds._cache.policy import NEVER, working_set
from mds._prefetch.lookahead import Lookahead
from mds._prefetch.next_use import UseTable

SHARDS = 6
SIZE = 4  # of a bucket
WORKERS = 2
orders = st.lists(
    st.lists(st.integers(0, SHARDS - 1), min_size=0, max_size=60),
    min_size=WORKERS,
    max_size=WORKERS,
)


@given(orders, st.data())
def test_the_table_says_what_the_orders_say(orders, data):
    """Next use and rows ahead are those of the orders themselves, to the position."""
    uses_table = UseTable(SHARDS)
    length = max(map(len, orders))
    known = now = 0
    while known < length:
        for _ in range(data.draw(st.integers(1, 4))):
            here = sorted(
                (known + at, shard)
                for order in orders
                for at, shard in enumerate(order[known : known + SIZE])
            )
            if here:
                uses_table.append(*np.array(here, np.int64).T)
                known += SIZE
        now = data.draw(st.integers(now, max(now, min(known, length))))
        uses_table.advance(now)
        for shard in range(SHARDS):
            uses = sorted(
                at
                for order in orders
                for at, used in enumerate(order[:known])
                if used == shard and at >= now
            )
            expected = float(uses[0]) if uses else NEVER
            told = uses_table.next_use(np.array([shard]))[0]
            if uses and uses[0] // SIZE == now // SIZE:  # within a bucket it may be told earlier
                assert now <= told <= expected
            else:
                assert told == expected
            when = data.draw(st.integers(now, now + 20))
            later = [at for at in uses if at >= when]
            told = uses_table.next_after(shard, when)
            if later and later[0] // SIZE == when // SIZE:
                assert when <= told <= later[0]
            else:
                assert told == (later[0] if later else NEVER)
            rows = uses_table.rows_before(shard, when)
            assert rows >= sum(at < when for at in uses)
            start = now - now % SIZE
            end = when - when % SIZE + SIZE
            both = [at for o in orders for at, used in enumerate(o[:known]) if used == shard]
            assert rows <= sum(start <= at < end for at in both)


@given(st.lists(st.integers(0, SHARDS - 1), max_size=40))
def test_the_working_set_is_what_is_between_first_and_last_use(order):
    """The most bytes that are needed at one time."""
    alive = [
        sum(10 + s for s in range(SHARDS) if s in order[: at + 1] and s in order[at:])
        for at in range(len(order))
    ]
    sizes = np.arange(SHARDS) + 10
    assert working_set(np.array(order, np.int64), sizes) == max(alive, default=0)


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
