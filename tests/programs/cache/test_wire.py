"""A bad way to the remote: every epoch ends complete and right, or with the right error."""

from __future__ import annotations

import pytest
from cache_tools import SAMPLES, open_cache, read, shuffled

from devtools.httpserver import http_server
from devtools.proxy import Fault, FaultProxy
from mds._cache.index_copy import fetch_index
from mds._cache.shard_cache import ShardCache
from mds._cache.source import Source
from mds.errors import CorruptError, StalledError, TransientError

SHARDS = r"GET /shard"


@pytest.fixture
def proxy(remote):
    """A proxy before a web server with the dataset."""
    with http_server(remote) as url, FaultProxy(url) as proxy:
        yield proxy


def patient_cache(url, folder, limit=None, timeout=5.0):
    index = fetch_index(url, folder, attempts=3, timeout=timeout)
    source = Source(index, url, folder, attempts=3, timeout=timeout)
    return ShardCache([source], limit=limit)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 90_000])
@pytest.mark.parametrize(
    "fault",
    [
        Fault("drop", match=SHARDS, times=5),
        Fault("status", match=SHARDS, times=5, status=503),
        Fault("status", match=SHARDS, times=5, status=429, retry_after=0),
        Fault("cut", match=SHARDS, times=5, after=2000),
        Fault("reset", match=SHARDS, times=5, after=2000),
        Fault("short", match=SHARDS, times=1, after=2000),
        Fault("stall", match=SHARDS, times=2, after=2000),
        Fault("whole", match=SHARDS, times=None),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_trouble_that_passes_is_not_noticed(proxy, folder, fault, limit):
    """Broken, refused, stalled and short answers are asked for again."""
    with patient_cache(proxy.url, folder, limit, timeout=1.0) as cache:
        proxy.add(fault)
        ids = shuffled()
        assert read(cache, ids) == ids.tolist()


def test_retries_are_counted(proxy, folder):
    """Who looks at the numbers sees a bad wire."""
    with patient_cache(proxy.url, folder) as cache:
        proxy.add(Fault("status", match=SHARDS, times=3, status=503))
        assert read(cache) == list(range(SAMPLES))
        assert cache.stats()["retries"] == 3


def test_damage_on_the_way_is_asked_for_once_more(proxy, folder):
    """A digest tells, and one bad transfer of a shard is no reason to end a run."""
    with patient_cache(proxy.url, folder) as cache:
        proxy.add(Fault("damage", match="GET /shard.00003", times=1, after=5000))
        assert cache.hold(3)[0]["x"] == int(cache.sources[0].index.offsets[3])


def test_damage_that_stays_is_an_error_with_both_digests(proxy, folder):
    """The second time is believed."""
    with patient_cache(proxy.url, folder) as cache:
        proxy.add(Fault("damage", match="GET /shard.00003", times=None, after=5000))
        with pytest.raises(CorruptError, match=r"shard\.00003\.mds.*sha1 \w{40}.*found \w{40}"):
            cache.hold(3)


def test_trouble_that_stays_is_an_error_that_names_the_shard(proxy, folder):
    """And only as long as it stays."""
    with open_cache(proxy.url, folder) as cache:
        proxy.add(Fault("status", match=r"GET /shard\.00003", times=None, status=503))
        with pytest.raises(TransientError, match=r"shard\.00003.*503"):
            read(cache)
        proxy.clear()
        assert read(cache) == list(range(SAMPLES))


@pytest.mark.slow
def test_a_stall_that_stays_is_an_error_in_time(proxy, folder):
    """A transfer that does not move is not waited for."""
    index = fetch_index(proxy.url, folder)
    with ShardCache([Source(index, proxy.url, folder, attempts=0, timeout=4.0)]) as cache:
        proxy.add(Fault("stall", match=r"GET /shard\.00003", times=None, after=100))
        with pytest.raises(StalledError, match=r"shard\.00003"):
            read(cache)
