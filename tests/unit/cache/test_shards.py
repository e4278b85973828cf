"""The front door: holding shards, reading in place, decompressing, checking, random access."""

from __future__ import annotations

import os
import pickle
import shutil
from threading import Thread

import numpy as np
import pytest
from cache_tools import SAMPLES, contents, disk_usage, open_cache, payload, read, write

from mds._cache import recovery
from mds._cache.ledger import Ledger
from mds._cache.shard_cache import ShardCache
from mds._cache.source import Source
from mds._index.table import read_index
from mds.errors import CacheLimitError, ConfigError, CorruptError, NotFoundError, ShardError
from mds.events import Evicted, subscribe


def in_place(folder, limit=None, **options):
    return ShardCache(
        [Source(read_index(os.path.join(folder, "index.json")), None, folder, **options)],
        limit=limit,
    )


def test_a_held_shard_is_local_and_right(remote, folder):
    """A shard is fetched under its own name, and its reader gives the samples."""
    with open_cache(remote, folder) as cache:
        reader = cache.hold(3)
        name = cache.sources[0].index.shard(3).raw.basename
        first = int(cache.sources[0].index.offsets[3])
        assert reader[0] == {"x": first, "b": payload(first)}
        with open(os.path.join(folder, name), "rb") as a, open(f"{remote}/{name}", "rb") as b:
            assert a.read() == b.read()
        cache.release(3)
        assert cache.stats()["fetched_shards"] == 1


def test_data_without_a_remote_are_read_in_place(remote, tmp_path):
    """Nothing is written beside the user's data or anywhere else."""
    before = contents(remote)
    with in_place(remote, limit=100) as cache:  # a limit is of no concern to the user's own data
        assert read(cache) == list(range(SAMPLES))
        assert cache.usage == 0
    assert contents(remote) == before
    assert not os.path.exists(tmp_path / "home")


@pytest.mark.parametrize("limit", [None, 60_000])
def test_compressed_data_in_place_are_decompressed_elsewhere(packed, tmp_path, limit):
    """The user's folder stays as it is; what was decompressed serves the next start."""
    before = contents(packed)
    with in_place(packed, limit) as cache:
        assert read(cache) == list(range(SAMPLES))
        assert sorted(read(cache, np.arange(50))) == list(range(50))
    assert contents(packed) == before
    made = disk_usage(tmp_path / "home")
    assert made > 0
    assert limit is None or made <= limit
    if limit is None:
        with in_place(packed) as cache:
            assert read(cache) == list(range(SAMPLES))
            assert cache.stats()["fetched_shards"] == 0


def test_without_a_cache_folder_compressed_data_are_decompressed_in_memory(packed, monkeypatch):
    """A cache folder that cannot be made is no obstacle for local data."""
    monkeypatch.setenv("MDS_CACHE_DIR", "/proc/no-such-place")
    with in_place(packed) as cache:
        assert read(cache) == list(range(SAMPLES))
        assert cache.stats()["in_memory_shards"] > 0


def test_a_raw_file_beside_its_compressed_form_is_used(packed, tmp_path):
    """What the user has decompressed already is read in folder."""
    index = read_index(os.path.join(packed, "index.json"))
    with in_place(packed) as cache:
        home = cache.hold(0).source
    shutil.copy(home, os.path.join(packed, index.shard(0).raw.basename))
    shutil.rmtree(tmp_path / "home")
    with in_place(packed) as cache:
        assert cache.hold(0).source.startswith(packed)


def test_keep_zip_keeps_the_compressed_file(packed, folder):
    """And a decompressed file that got lost is made from it without the remote."""
    with open_cache(packed, folder, keep_zip=True) as cache:
        cache.hold(0)
        info = cache.sources[0].index.shard(0)
        assert os.path.getsize(os.path.join(folder, info.zip.basename)) == info.zip.size
        cache.release(0)
    os.unlink(os.path.join(folder, info.raw.basename))
    with open_cache(packed, folder, keep_zip=True) as cache:
        os.rename(f"{packed}/{info.zip.basename}", f"{packed}/away")
        assert cache.hold(0)[0]["x"] == 0


def test_a_compressed_file_left_by_others_is_used_and_never_deleted(packed, folder, remote):
    """Eviction takes the decompressed file that we made, and leaves the rest."""
    os.makedirs(folder)
    info = read_index(f"{packed}/index.json").shard(0)
    left = os.path.join(folder, info.zip.basename)
    shutil.copy(f"{packed}/{info.zip.basename}", left)
    with open_cache(packed, folder) as cache:
        os.rename(f"{packed}/{info.zip.basename}", f"{packed}/away")
        cache.hold(0)
        cache.release(0)
        assert cache.evict(0)
    assert os.path.exists(left)
    assert not os.path.exists(os.path.join(folder, info.raw.basename))


def test_files_of_others_serve_and_stay(remote, folder):
    """A folder filled by another tool is used as it is, and eviction never touches it."""
    shutil.copytree(remote, folder)
    before = contents(folder)
    with open_cache(remote, folder, limit=400_000) as cache:
        assert read(cache) == list(range(SAMPLES))
        assert cache.stats()["fetched_shards"] == 0
        assert not any(cache.evict(shard) for shard in range(len(cache.sources[0].index)))
    after = contents(folder)
    assert {name: after[name] for name in before if name != "index.json"} == {
        name: before[name] for name in before if name != "index.json"
    }


@pytest.mark.parametrize("damage", ["flipped", "short"])
def test_damaged_files_of_others_are_replaced(remote, folder, damage):
    """What lies there is checked by the index's digest once, whoever made it."""
    shutil.copytree(remote, folder)
    path = os.path.join(folder, "shard.00002.mds")
    with open(path, "r+b") as file:
        file.seek(-10, os.SEEK_END)
        if damage == "flipped":
            file.write(b"\0")
        else:
            file.truncate()
    with open_cache(remote, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
        assert cache.stats()["replaced_files"] == 1


def test_eviction_is_told_and_what_is_in_hand_stays(remote, folder):
    """Evicting needs that nobody has the shard."""
    seen = []
    with open_cache(remote, folder, limit=100_000) as cache, subscribe(seen.append):
        cache.hold(0)
        assert not cache.evict(0)
        cache.release(0)
        assert cache.evict(0)
        assert not cache.evict(0)
        assert [event for event in seen if isinstance(event, Evicted)]
        assert cache.hold(0)[0]["x"] == 0
        cache.release(0)


def test_the_coldest_goes_first_and_what_is_in_hand_or_of_others_stays(remote, folder):
    """Without a plan that is the shard that was used longest ago."""
    os.makedirs(folder)
    shutil.copy(f"{remote}/shard.00004.mds", folder)
    with open_cache(remote, folder) as cache:
        for shard in (2, 0, 1, 4):
            cache.hold(shard)
        for shard in (0, 1, 4):
            cache.release(shard)
        assert cache.evict_coldest()
        assert cache.evict_coldest()
        assert not cache.evict_coldest()
    kept = {name for name in os.listdir(folder) if name.startswith("shard.")}
    assert kept == {"shard.00002.mds", "shard.00004.mds"}


def test_used_bytes_are_read_between_changes(remote, folder, monkeypatch):
    """A statistic does not show the moment at which a shard and its victims count both."""
    monkeypatch.setattr(recovery, "_READ_SECONDS", 60.0)
    reserve, sums, threads = Ledger.reserve, [], []
    with open_cache(remote, folder, limit=60_000) as cache:

        def reserve_and_read(*arguments):
            reserve(*arguments)  # at the second call, the victims are cleared after it returns
            threads.append(Thread(target=lambda: sums.append(cache.stats()["used_bytes"])))
            threads[-1].start()
            threads[-1].join(0.02)

        monkeypatch.setattr(Ledger, "reserve", reserve_and_read)
        for shard in range(20):
            cache.hold(shard)
            cache.release(shard)
        for thread in threads:
            thread.join()
        assert cache.stats()["evicted_shards"] > 5
    assert len(sums) > 25
    assert max(sums) <= 60_000


def test_a_limit_that_cannot_work_is_refused_with_one_that_can(remote, folder):
    """The number in the message is enough."""
    with pytest.raises(CacheLimitError, match="cache_limit") as refusal:
        open_cache(remote, folder, limit=100)
    least = int(str(refusal.value).split("Set cache_limit to ")[1].split()[0])
    with pytest.raises(CacheLimitError):
        open_cache(remote, folder, limit=least - 1)
    with open_cache(remote, folder, limit=least) as cache:
        assert sorted(read(cache)) == list(range(SAMPLES))


def test_a_hash_that_the_index_lacks_is_refused(remote, folder):
    """validate_hash is judged when the cache is made."""
    with pytest.raises(ConfigError, match=r"md5.*sha1"):
        open_cache(remote, folder, validate_hash="md5")


def test_validate_hash_checks_what_is_there_in_every_process(remote, folder):
    """Asked for, the digest is checked at the first use although it was right when fetched."""
    with open_cache(remote, folder) as cache:
        read(cache)
    path = os.path.join(folder, "shard.00002.mds")
    state = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"\0")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # damage leaves no trace
    with open_cache(remote, folder, validate_hash="sha1") as cache:
        assert read(cache) == list(range(SAMPLES))
        assert cache.stats()["replaced_files"] == 1


def test_validate_hash_reports_damage_of_the_users_own(remote):
    """Without a remote there is nothing to replace it with: an error with both digests."""
    with open(os.path.join(remote, "shard.00002.mds"), "r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"\0")
    before = contents(remote)
    facts = r"shard.00002.mds.*sha1 \w{40}.*found \w{40}"
    with (
        in_place(remote, validate_hash="sha1") as cache,
        pytest.raises(CorruptError, match=facts),
    ):
        read(cache)
    assert contents(remote) == before


def test_a_broken_shard_on_the_remote_is_an_error_with_the_facts(remote, packed, folder, tmp_path):
    """Both digests, or both sizes; nothing of it is kept under a name that a reader looks at."""
    for source, name in ((remote, "shard.00002.mds"), (packed, "shard.00002.mds.zstd")):
        path = os.path.join(source, name)
        with open(path, "r+b") as file:
            file.seek(-10, os.SEEK_END)
            file.write(b"\0")
        where = folder + name
        with open_cache(source, where) as cache:
            with pytest.raises(CorruptError, match=rf"{name}.*sha1 \w{{40}}.*found \w{{40}}"):
                cache.hold(2)
            assert "shard.00002.mds" not in os.listdir(where)
            os.truncate(path, 77)
            with pytest.raises(CorruptError, match=rf"{name}.*77"):
                cache.hold(2)
            assert cache.usage < 40_000


def test_a_missing_shard_is_an_error_and_mends_itself(remote, folder):
    """The same object works once the shard is there."""
    away = os.path.join(remote, "away")
    os.rename(os.path.join(remote, "shard.00003.mds"), away)
    with open_cache(remote, folder) as cache:
        for _ in range(2):
            with pytest.raises(NotFoundError, match=r"shard\.00003\.mds"):
                read(cache)
        os.rename(away, os.path.join(remote, "shard.00003.mds"))
        assert read(cache) == list(range(SAMPLES))


def test_missing_and_short_files_of_the_users_own_are_errors(remote):
    """They name the file, and nothing is changed."""
    os.unlink(os.path.join(remote, "shard.00003.mds"))
    os.truncate(os.path.join(remote, "shard.00004.mds"), 10)
    with in_place(remote) as cache:
        with pytest.raises(NotFoundError, match=r"shard\.00003\.mds"):
            cache.hold(3)
        with pytest.raises(ShardError, match=r"shard\.00004\.mds"):
            cache.hold(4)


def test_random_access_fetches_ranges_until_the_shard_pays(tmp_path, folder):
    """A handful of samples of a large shard comes by range, many bring the shard."""
    remote = write(tmp_path / "large", samples=40, size=40_000, size_limit=1_000_000)
    with open_cache(remote, folder) as cache:
        assert cache.sample(0, 7) == {"x": 7, "b": payload(7, 40_000)}
        stats = cache.stats()
        assert stats["fetched_shards"] == 0
        assert stats["ranged_bytes"] < 45_000
        got = cache.samples_many(np.array([0, 1, 0, 1, 0]), np.array([5, 0, 2, 3, 5]))
        second = int(cache.sources[0].index.offsets[1])
        assert [sample["x"] for sample in got] == [5, second, 2, second + 3, 5]
        for row in range(20):
            cache.sample(0, row)
        assert cache.stats()["fetched_shards"] == 1
        assert cache.sample(0, 3)["x"] == 3
        with pytest.raises(IndexError):
            cache.sample(0, 1000)


def test_ranges_are_not_used_when_digests_were_asked_for(tmp_path, folder):
    """A range cannot be checked."""
    remote = write(tmp_path / "large", samples=40, size=40_000, size_limit=1_000_000)
    with open_cache(remote, folder, validate_hash="sha1") as cache:
        cache.sample(0, 7)
        assert cache.stats()["fetched_shards"] == 1


def test_a_cache_is_plain_configuration(remote, folder):
    """It pickles, with nothing open, and says what state it is in."""
    cache = open_cache(remote, folder, limit=100_000)
    assert "not in use" in repr(cache)
    read(cache)
    assert "0 in use" in repr(cache)
    copy = pickle.loads(pickle.dumps(cache))
    assert "not in use" in repr(copy)
    assert sorted(read(copy)) == list(range(SAMPLES))
    cache.close()
    cache.close()
    copy.close()


def test_several_sources_are_numbered_through(remote, packed, tmp_path):
    """Shards of the second source follow those of the first, each with its own folder."""
    one, two = open_cache(remote, tmp_path / "a"), open_cache(packed, tmp_path / "b")
    cache = ShardCache([*one.sources, *two.sources], limit=150_000)
    first = len(one.sources[0].index)
    assert cache.hold(first)[0]["x"] == 0
    cache.release(first)
    assert cache.hold(first - 1)[0]["b"] == payload(int(one.sources[0].index.offsets[-2]))
    cache.close()


def test_a_link_does_not_lead_a_download_outside(remote, folder, tmp_path):
    """Files are written inside the cache folder only."""
    import json

    with open(f"{remote}/index.json") as file:
        index = json.load(file)
    os.mkdir(f"{remote}/link")
    name = index["shards"][0]["raw_data"]["basename"]
    os.rename(f"{remote}/{name}", f"{remote}/link/{name}")
    index["shards"][0]["raw_data"]["basename"] = f"link/{name}"
    with open(f"{remote}/index.json", "w") as file:
        json.dump(index, file)
    (tmp_path / "outside").mkdir()
    os.makedirs(folder)
    os.symlink(tmp_path / "outside", f"{folder}/link")
    with open_cache(remote, folder) as cache, pytest.raises(ConfigError, match="link"):
        cache.hold(0)
    assert not os.listdir(tmp_path / "outside")
