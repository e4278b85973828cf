"""What comes out of a process about its cache."""

from __future__ import annotations

import json
import os
import re
import tempfile

import numpy as np
import pytest
from cache_tools import SAMPLES, open_cache, read, shuffled

from mds._cache.counters import ROW, sum_rows
from mds._cache.process_cache import CacheTuning
from mds.events import subscribe
from mds.metrics import Tally, chrome_trace, dump_state, prometheus


def test_a_tally_counts_what_happened(remote, folder):
    """Events by kind, with their bytes and seconds."""
    tally = Tally()
    with open_cache(remote, folder, limit=60_000) as cache, subscribe(tally):
        read(cache, shuffled())
        stats = cache.stats()
    counts = tally.as_dict()
    assert counts["fetched_bytes"] == stats["fetched_bytes"] + stats["ranged_bytes"]
    assert counts.get("evicted", 0) == stats["evicted_shards"]
    assert counts["fetched_seconds"] > 0


def test_prometheus_gets_the_same_numbers(remote, folder):
    """And the registry is as it was when the block ends."""
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    with prometheus(registry), open_cache(remote, folder) as cache:
        read(cache)
        text = client.generate_latest(registry).decode()
        fetched = float(re.search(r"^mds_fetched_bytes_total (\S+)", text, re.MULTILINE)[1])
        assert fetched == cache.stats()["fetched_bytes"]
        assert "mds_wait_seconds_bucket" in text
    assert client.generate_latest(registry) == b""


def test_prometheus_exports_the_counts_of_a_rank(remote, folder):
    """With a dataset, or a cache, every number of its stats() is a metric, read at each scrape."""
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    with open_cache(remote, folder) as cache, prometheus(registry, dataset=cache):
        assert registry.get_sample_value("mds_rank_fetched_bytes_total") == 0
        read(cache)
        stats = cache.stats()
        assert registry.get_sample_value("mds_rank_fetched_bytes_total") == stats["fetched_bytes"]
        assert registry.get_sample_value("mds_rank_used_bytes") == stats["used_bytes"] > 0
    assert client.generate_latest(registry) == b""


def test_a_trace_is_whole_json_also_after_an_exception(remote, folder, tmp_path):
    """Bars for what took time, one object a line."""
    path = tmp_path / "trace.json"

    def fail():
        with chrome_trace(str(path)), open_cache(remote, folder) as cache:
            read(cache)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    events = json.loads(path.read_text())
    bars = [event for event in events if event["name"] == "Fetched"]
    assert sum(bar["args"]["size"] for bar in bars) > 200_000
    assert all(bar["ph"] == "X" and bar["dur"] >= 0 and bar["pid"] == os.getpid() for bar in bars)


def test_the_state_says_what_every_cache_does(remote, folder):
    """Stacks, then the caches with all their counts."""
    with open_cache(remote, folder) as cache, tempfile.TemporaryFile("w+") as file:
        assert read(cache) == list(range(SAMPLES))
        dump_state(file)
        file.seek(0)
        text = file.read()
    assert "test_the_state_says_what_every_cache_does" in text
    assert re.search(r"<ShardCache [\d.]+ KB of no limit: \d+ open, 0 in use", text)
    assert "fetched_shards: " in text


def test_a_long_wait_is_told_with_its_cause(remote, folder, caplog):
    """One line: how long, for what, and what has been going on."""
    tuning = CacheTuning(slow_wait_seconds=0.0)
    with open_cache(remote, folder, tuning=tuning) as cache, cache.runtime.waiting_for(3):
        assert "waiting for shard 3" in repr(cache)
    (record,) = [record for record in caplog.records if "waited" in record.message]
    assert "shard.00003.mds" in record.message
    assert remote in record.message


def test_no_rows_have_no_longest_wait():
    """The counts of no process are zero, and their longest wait was for nothing."""
    counts = sum_rows(np.zeros(0, ROW))
    assert (counts["longest_wait"], counts["longest_wait_for"]) == (0.0, "")
    assert not any(counts.values())
