"""Decisions of the cache as functions of numbers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mds._cache import policy
from mds._cache.policy import NEVER, Resident
from mds._cache.process_cache import fetch_threads
from mds._cache.uncached import coalesce

spans = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=20).map(
    lambda steps: [
        (sum(g + s for g, s in steps[:i]) + gap, sum(g + s for g, s in steps[:i]) + gap + size)
        for i, (gap, size) in enumerate(steps)
    ]
)


def test_victims_go_in_their_order_until_there_is_room():
    """Residents are taken from the front, no more than needed."""
    residents = [Resident(1, 10, 90), Resident(2, 10, 50), Resident(3, 10, 20)]
    assert policy.victims(15, residents, needed_at=5) == residents[:2]


def test_what_is_needed_sooner_stays():
    """Nothing is evicted when those needed later do not make enough room."""
    residents = [Resident(1, 10, 90), Resident(2, 10, 4)]
    assert policy.victims(15, residents, needed_at=5) is None
    assert policy.victims(10, residents, needed_at=5) == residents[:1]


def test_nothing_is_evicted_for_what_is_never_needed_again():
    """What nobody needs again gets free room only."""
    assert policy.victims(1, [Resident(1, 10, NEVER)], needed_at=NEVER) is None


def test_a_whole_shard_pays_when_ranges_cost_as_much():
    """Requests count, and so does fetching again what had to go."""
    assert policy.pays(100, 100, 0)
    assert not policy.pays(100, 99, 0)
    assert not policy.pays(100, 150, 51)
    assert policy.range_cost(2, 50) == 2 * (50 + policy.REQUEST)


@given(spans, st.integers(0, 30), st.integers(1, 200))
def test_joined_ranges_cover_the_spans_in_order(spans, gap, longest):
    """Every span lies in one range; ranges rise, and only gaps of the allowed size are bridged."""
    ranges = list(coalesce(spans, gap, longest))
    assert all(any(a <= start and end <= b for a, b in ranges) for start, end in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))
    covered = sum(b - a for a, b in ranges)
    wanted = sum(end - start for start, end in spans)
    assert wanted <= covered <= wanted + gap * max(len(spans) - 1, 0)


def test_bytes_by_last_use_are_those_of_a_small_cache():
    """Three shards in turn through room for two come every time; through room for three, once."""
    turns = [[0], [1], [2]] * 4
    assert policy.lru_bytes(turns, [10, 10, 10], 20) == 120
    assert policy.lru_bytes(turns, [10, 10, 10], 30) == 30
    assert policy.lru_bytes([[0, 1], [1, 0]], [10, 10], 5) == 30


def test_every_process_gets_its_share():
    """What all have in hand and on its way is half of the limit at most."""
    assert 2 * 3 * policy.share(100, 3) <= 50


def test_threads_of_a_node_are_bounded():
    """Many processes have few transfers each, and none has none."""
    assert fetch_threads(1) == 16
    assert fetch_threads(8) * 8 <= 48
    assert fetch_threads(1000) == 2


def test_another_job_keeps_what_it_used_last_within_its_share():
    """Of five residents it has three of ten bytes each; twenty are its share."""
    teams = np.array([7, 7, 8, 7, 0])
    sizes = np.array([10, 10, 10, 10, 10])
    last_uses = np.array([3.0, 1.0, 0.0, 2.0, 5.0])
    kept = policy.shares_of_others(teams, sizes, last_uses, [7], 20)
    assert kept.tolist() == [True, False, False, True, False]
    assert not policy.shares_of_others(teams, sizes, last_uses, [], 20).any()
    assert policy.shares_of_others(teams, sizes, last_uses, [7, 8], 100).tolist() == [
        True,
        True,
        True,
        True,
        False,
    ]
