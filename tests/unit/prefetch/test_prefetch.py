"""Windows of a worker, with and without a limit, near and far."""

from __future__ import annotations

import gc
import os
import threading
import time

import numpy as np
import pytest
from cache_tools import (
    SAMPLES,
    NodeOf,
    disk_usage,
    open_cache,
    payload,
    read,
    shuffled,
    write,
)

from devtools.httpserver import http_server
from mds._cache.policy import HEADERS, NEVER
from mds._cache.process_cache import CacheTuning
from mds._prefetch.prefetcher import Prefetcher
from mds.errors import NotFoundError
from mds.events import Fetched, Waited, subscribe


def fetching_threads(others):
    """Those that fetch, but ``others``, which other tests have left."""
    threads = [thread for thread in threading.enumerate() if thread not in others]
    return [thread for thread in threads if thread.name.startswith("mds-fetch")]


def all_end(threads):
    """Whether threads end, which takes them a moment."""
    for thread in threads:
        thread.join(60)
    return not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("limit", [None, 60_000, 150_000])
@pytest.mark.parametrize("form", ["remote", "packed"])
@pytest.mark.parametrize("order", ["straight", "shuffled"])
def test_every_sample_comes_in_order(request, folder, limit, form, order):
    """Under any limit, raw and compressed, an epoch is the ids that were asked for."""
    source = request.getfixturevalue(form)
    with open_cache(source, folder, limit) as cache:
        for epoch in range(2):
            ids = shuffled(epoch) if order == "shuffled" else np.arange(SAMPLES)
            assert read(cache, ids) == ids.tolist()
            assert limit is None or disk_usage(folder) <= limit
        assert cache.stats()["held_shards"] == 0


def test_a_window_has_ids_shards_and_rows_that_belong_together(remote, folder):
    """The three arrays are parallel, and readers know which shards are theirs."""
    with open_cache(remote, folder) as cache:
        offsets = cache.sources[0].index.offsets
        blocks = [np.array([5, -1, 199, 3]), np.array([], np.int64), np.array([100])]
        with Prefetcher(cache, blocks, offsets, predownload=4) as prefetcher:
            windows = list(prefetcher.windows())
        ids = np.concatenate([window.ids for window in windows])
        assert ids.tolist() == [5, 199, 3, 100]
        for window in windows:
            assert (offsets[window.shards] + window.rows == window.ids).all()
        with Prefetcher(cache, [np.arange(5)], offsets, predownload=4) as prefetcher:
            window = next(prefetcher.windows())
            assert window.readers.get(0)[1]["x"] == 1
            assert window.readers.get(7) is None
            with pytest.raises(KeyError):
                window.readers[7]


def test_local_data_need_no_thread(remote):
    """Reading in place starts nothing."""
    with open_cache(None, remote) as cache:
        before = {*threading.enumerate()}
        with Prefetcher(cache, [shuffled()], cache.sources[0].index.offsets, predownload=8) as p:
            for window in p.windows():
                assert not {*threading.enumerate()} - before
                assert window.readers[int(window.shards[0])] is not None


@pytest.mark.parametrize("limit", [None, 60_000])
def test_threads_end_with_the_prefetcher(remote, folder, limit):
    """When it is closed, left by an exception, or forgotten."""
    others = {*threading.enumerate()}
    cache = open_cache(remote, folder, limit)
    offsets = cache.sources[0].index.offsets

    def begin():
        prefetcher = Prefetcher(cache, [shuffled()], offsets, predownload=100)
        windows = prefetcher.windows()
        window = next(windows)
        assert window.readers[int(window.shards[0])] is not None
        return prefetcher, windows

    prefetcher, windows = begin()
    started = fetching_threads(others)
    assert started
    prefetcher.close()
    prefetcher.close()
    assert all_end(started)
    windows.close()

    def fail():
        with begin()[0]:
            started.extend(fetching_threads(others))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert all_end(started)

    prefetcher, windows = begin()
    started = fetching_threads(others)
    del prefetcher, windows
    gc.collect()
    assert all_end(started)
    assert cache.stats()["held_shards"] == 0
    cache.close()


@pytest.mark.parametrize("limit", [None, 60_000])
def test_a_background_failure_is_raised_where_its_sample_is_asked_for(remote, folder, limit):
    """What comes before it comes, and the object works again when the shard is back."""
    with open_cache(remote, folder, limit) as cache:
        offsets = cache.sources[0].index.offsets
        os.rename(f"{remote}/shard.00005.mds", f"{remote}/away")
        seen = []

        def go():
            with Prefetcher(cache, [np.arange(SAMPLES)], offsets, predownload=500) as prefetcher:
                for window in prefetcher.windows():
                    for shard, row in zip(
                        window.shards.tolist(), window.rows.tolist(), strict=True
                    ):
                        seen.append(window.readers[shard][row]["x"])

        with pytest.raises(NotFoundError, match=r"shard\.00005\.mds"):
            go()
        assert seen == list(range(offsets[5]))
        os.rename(f"{remote}/away", f"{remote}/shard.00005.mds")
        assert read(cache) == list(range(SAMPLES))


def test_shards_come_ahead_of_the_reader(remote, folder):
    """While the first sample is looked at, the next shards arrive by themselves."""
    with open_cache(remote, folder) as cache:
        offsets = cache.sources[0].index.offsets
        with Prefetcher(cache, [np.arange(SAMPLES)], offsets, predownload=50) as prefetcher:
            windows = prefetcher.windows()
            next(windows)
            wanted = {f"shard.{i:05}.mds" for i in range(5)}
            until = time.monotonic() + 60
            while not wanted <= set(os.listdir(folder)) and time.monotonic() < until:
                threading.Event().wait(0.01)
            assert wanted <= set(os.listdir(folder))
            windows.close()


def test_shards_of_many_rows_come_side_by_side(tmp_path, folder):
    """Each thread has one, however few samples ahead were asked for and however long shards are."""
    remote = write(tmp_path / "remote", samples=160_000, size=1, size_limit=500_000)
    with open_cache(remote, folder) as cache:
        index = cache.sources[0].index
        assert len(index) >= 5
        assert int(index.samples[0]) > 16_384
        with Prefetcher(cache, [np.arange(160_000)], index.offsets, predownload=64) as prefetcher:
            windows = prefetcher.windows()
            next(windows)
            wanted = {f"shard.{i:05}.mds" for i in range(len(index))}
            until = time.monotonic() + 60
            while not wanted <= set(os.listdir(folder)) and time.monotonic() < until:
                threading.Event().wait(0.01)
            assert wanted <= set(os.listdir(folder))
            windows.close()


def test_the_first_rows_of_a_far_dataset_come_by_range(tmp_path, folder):
    """The first samples do not wait for their whole shards, which would fill the wire."""
    tuning = CacheTuning(head_start_seconds=60.0)
    remote = write(tmp_path / "remote", samples=60, size=20_000, size_limit=400_000)
    came = []
    with (
        http_server(str(remote)) as url,
        open_cache(url, folder, tuning=tuning) as cache,
        subscribe(came.append),
    ):
        ids = shuffled(samples=60)
        assert read(cache, ids, predownload=32, size=20_000) == ids.tolist()
        are_ranges = [event.ranged for event in came if isinstance(event, Fetched)]
        assert are_ranges == sorted(are_ranges, reverse=True)
        stats = cache.stats()
        assert 0 < stats["ranged_bytes"] < 8 * 25_000
        assert stats["fetched_shards"] == len(cache.sources[0].index)


def test_a_large_dataset_and_a_small_cache_cost_no_more_than_the_samples(tmp_path, folder):
    """Shuffled over everything with room for a fraction: ranges, not whole shards again."""
    remote = write(tmp_path / "remote", samples=320, size=20_000, size_limit=200_000)
    with open_cache(remote, folder, limit=1_000_000) as cache:
        size = int(cache.sources[0].index.raw_size.sum())
        orders = [shuffled(epoch, 320) for epoch in range(3)]
        for epoch, ids in enumerate(orders):
            both = NodeOf(np.concatenate(orders[epoch : epoch + 2]))
            assert read(cache, ids, node=both, size=20_000) == ids.tolist()
        stats = cache.stats()
        came = stats["fetched_bytes"] + stats["ranged_bytes"]
        # A tenth of the dataset stays from epoch to epoch.
        assert came < 3 * size
        assert stats["fetched_shards"] < 10


def test_what_fits_stays_from_epoch_to_epoch(remote, folder):
    """In order, again and again, with room for half: half of the shards are hits."""
    with open_cache(remote, folder, limit=140_000) as cache:
        shards = len(cache.sources[0].index)
        for epoch in range(4):
            read(cache, node=NodeOf(np.tile(np.arange(SAMPLES), 2 if epoch < 3 else 1)))
        stats = cache.stats()
        came = stats["fetched_bytes"] + stats["ranged_bytes"]
        assert came < 0.75 * 4 * shards * 10_400


def test_waiting_is_counted_and_told(remote, folder):
    """Who waited, for what, and how long."""
    told = []
    with open_cache(remote, folder) as cache, subscribe(told.append):
        read(cache, shuffled())
        stats = cache.stats()
    waited = [event for event in told if isinstance(event, Waited)]
    assert stats["waits"] == len(waited)
    assert stats["waited_seconds"] == pytest.approx(sum(event.seconds for event in waited))
    if waited:
        assert stats["longest_wait_for"].startswith("shard.")


def test_a_small_limit_is_announced_with_one_that_would_do(remote, folder, caplog):
    """Once, beforehand, with a number."""
    with open_cache(remote, folder, limit=60_000) as cache:
        read(cache, np.concatenate([shuffled(i) for i in range(20)]))
    said = [record.message for record in caplog.records if "cache_limit" in record.message]
    assert len(said) == 1
    assert "With cache_limit=" in said[0]


def test_many_shards_cost_little_memory(tmp_path):
    """The plan of a worker is arrays: half a million shards are a few megabytes."""
    from mds._prefetch.next_use import UseTable

    future = UseTable(500_000)
    size = sum(getattr(future, name).nbytes for name in ("rows", "_first_entry", "_last_entry"))
    assert size <= 12_000_000
    assert future.next_use(np.array([499_999])).tolist() == [NEVER]


def test_bytes_of_samples_are_right_under_a_limit_with_large_samples(tmp_path, folder):
    """Rows that wait in memory are the rows."""
    remote = write(tmp_path / "remote", samples=64, size=50_000, compression="zstd")
    with open_cache(remote, folder, limit=1_200_000) as cache:
        ids = np.concatenate([shuffled(i, 64) for i in range(3)])
        assert read(cache, ids, size=50_000) == ids.tolist()


@pytest.mark.parametrize("limit", [None, 90_000])
@pytest.mark.parametrize("form", ["remote", "packed"])
def test_readers_in_threads_share_a_cache(request, folder, limit, form):
    """Several prefetchers of one process, each with its part of the order."""
    got = {}
    with open_cache(request.getfixturevalue(form), folder, limit) as cache:

        def work(number):
            ids = shuffled()[number::3]
            got[number] = read(cache, ids) == ids.tolist()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cache.stats()["held_shards"] == 0
    assert got == {0: True, 1: True, 2: True}
    assert limit is None or disk_usage(folder) <= limit


def test_a_range_reads_nothing_that_is_read_by_itself_at_another_time(tmp_path, folder):
    """Every second row of a far shard comes alone, and the others when their time comes."""
    remote = write(tmp_path / "remote", samples=60, size=3000, size_limit=60_000)
    came = []
    with open_cache(remote, folder, limit=140_000) as cache, subscribe(came.append):
        info = cache.sources[0].index.shard(0)
        header = 8192
        reader = cache.runtime.uncached.read_rows(0, range(0, info.samples, 2), HEADERS)
        assert all(row in reader for row in range(0, info.samples, 2))
    pieces = [event.size for event in came if isinstance(event, Fetched)]
    assert len(pieces) == 1 + -(-info.samples // 2)
    assert sum(pieces) <= header + 3100 * -(-info.samples // 2)


def test_a_small_shard_comes_in_one_piece(tmp_path, folder):
    """Scattered rows of a shard of a few kilobytes are one request."""
    remote = write(tmp_path / "remote", samples=60, size=500, size_limit=8000)
    came = []
    with open_cache(remote, folder, limit=60_000) as cache, subscribe(came.append):
        info = cache.sources[0].index.shard(0)
        samples = cache.runtime.uncached.read_rows(0, [0, 5, 9]).samples([0, 5, 9])
        assert [sample["b"] for sample in samples] == [payload(x, 500) for x in (0, 5, 9)]
    assert [event.size for event in came if isinstance(event, Fetched)] == [info.raw.size]
