"""A limit holds whatever the ledger says and whatever the folder held before."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import struct

import numpy as np
import pytest
from cache_tools import SAMPLES, disk_usage, open_cache, read, shuffled

from mds._cache import ledger_file
from mds._cache.ledger_file import ABSENT, FETCHING, MANAGED, UNMANAGED

LIMIT = 120_000


def ledger_of(folder):
    return os.path.join(folder, ".mds", "ledger")


def holds(cache):
    """Whether a cache keeps to its limit, in its books and on the disk."""
    used = cache.usage  # opens the folder
    return disk_usage(cache.sources[0].folder) <= used <= cache.limit


@pytest.fixture
def full(remote, folder):
    """A cache folder that was filled under a limit, with the ledger in its first and last state."""
    with open_cache(remote, folder, LIMIT) as cache:
        cache.hold(0)
        cache.release(0)
    with open(ledger_of(folder), "rb") as file:
        early = file.read()
    with open_cache(remote, folder, LIMIT) as cache:
        read(cache, shuffled())
    return folder, early


def damaged(data, kind, early):
    """Bytes for the ledger that are not what it should say."""
    if kind.startswith("early"):
        data = bytearray(early)
        if kind == "early, another boot":
            data[32:40] = b"another!"
        return bytes(data)
    if kind == "zeros":
        return bytes(len(data))
    if kind == "ones":
        return b"\xff" * len(data)
    if kind == "random":
        return random.Random(1).randbytes(len(data))
    if kind == "random behind the header":
        return data[:64] + random.Random(2).randbytes(len(data) - 64)
    if kind == "truncated":
        return data[:-20]
    if kind == "long":
        return data + bytes(48)
    if kind == "empty":
        return b""
    return edited(data, kind)


def edited(data, kind):
    """The ledger with other numbers in its entries."""
    data = bytearray(data)
    entries = np.frombuffer(data, ledger_file._ENTRY, offset=ledger_file._ENTRIES_OFFSET)
    generator = np.random.default_rng(3)
    count = len(entries)
    values = {
        "negative sizes": ("size", -(10**6)),
        "huge sizes": ("size", 2**62),
        "plausible sizes": ("size", 3),
        "no sizes": ("size", 0),
        "random states": ("state", generator.integers(0, 256, count)),
        "possible states": ("state", generator.integers(0, 5, count)),
        "all are foreign": ("state", UNMANAGED),
        "all are being fetched": ("state", FETCHING),
        "random owners": ("owner", generator.integers(0, 65536, count)),
        "owners that are dead": ("owner", np.arange(count) % ledger_file.SLOTS + 1),
        "times to come": ("used", 1e18),
        "no times": ("used", np.nan),
        "stamps": ("stamp", generator.integers(0, 2**62, count)),
        "tags": ("content", generator.integers(0, 2**62, count)),
        "unchecked": ("is_checked", 200),
    }
    if kind == "own size":
        data[48:56] = (-(2**40)).to_bytes(8, "little", signed=True)
    else:
        name, value = values[kind]
        entries[name] = value
    return bytes(data)


KINDS = [
    *("early", "early, another boot", "zeros", "ones", "random", "random behind the header"),
    *("truncated", "long", "empty", "own size", "negative sizes", "huge sizes", "plausible sizes"),
    *("no sizes", "random states", "possible states", "all are foreign", "all are being fetched"),
    *("random owners", "owners that are dead", "times to come", "no times", "stamps", "tags"),
    "unchecked",
]


@pytest.mark.slow
@pytest.mark.parametrize("is_in_place", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_ledger_that_is_wrong_heals_and_the_limit_holds(remote, full, kind, is_in_place):
    """Old, damaged or from elsewhere: what is ours is evicted, a user's own file stays."""
    folder, early = full
    own = os.path.join(folder, next(n for n in os.listdir(remote) if not n.startswith("index")))
    shutil.copy(os.path.join(remote, os.path.basename(own)), own)
    with open(ledger_of(folder), "rb") as file:
        before = file.read()
    data = damaged(before, kind, early)
    if not is_in_place or len(data) != len(before):
        os.unlink(ledger_of(folder))
        open(ledger_of(folder), "xb").close()
    with open(ledger_of(folder), "r+b") as file:  # never shorter: this process has it mapped
        file.write(data)
    for seed in range(2):
        with open_cache(remote, folder, LIMIT) as cache:
            assert holds(cache)
            assert read(cache, shuffled(seed)) == shuffled(seed).tolist()
            assert holds(cache)
            assert cache.evict_coldest()
    assert os.path.exists(own)
    with open_cache(remote, folder) as cache:
        entries = cache.runtime.fetcher.open(cache._folders[0]).ledger.entries
        assert int((entries["state"] == UNMANAGED).sum()) == 1
        assert int((entries["state"] == MANAGED).sum()) > 3


def test_a_ledger_from_another_folder_is_not_believed(remote, packed, full, tmp_path):
    """Its numbers are of other files."""
    folder, _ = full
    other = str(tmp_path / "other")
    with open_cache(remote, other) as cache:
        read(cache)
    shutil.copy(ledger_of(other), ledger_of(folder))
    with open_cache(remote, folder, LIMIT) as cache:
        assert holds(cache)
        assert read(cache, shuffled()) == shuffled().tolist()
        assert holds(cache)


def test_a_copied_cache_folder_works_and_its_files_are_a_users_own(remote, full, tmp_path, caplog):
    """What a user copied is never deleted, and the limit says what is in the way."""
    folder, _ = full
    copy = shutil.copytree(folder, tmp_path / "copy")
    before = sorted(os.listdir(copy))
    with open_cache(remote, copy, LIMIT // 2) as cache:
        assert read(cache, shuffled()) == shuffled().tolist()
    assert sorted(os.listdir(copy)) == before
    assert "did not fetch" in caplog.text


@pytest.mark.parametrize("form", ["remote", "packed"])
def test_a_folder_above_a_new_limit_is_brought_below_it_when_it_is_opened(request, folder, form):
    """What was used longest ago goes first."""
    remote = request.getfixturevalue(form)
    with open_cache(remote, folder) as cache:
        read(cache)
        cache.runtime.fetcher.open(cache._folders[0]).ledger.entries["used"][:] = (
            np.arange(20) + 1000.0
        )
    assert disk_usage(folder) > LIMIT
    with open_cache(remote, folder, LIMIT) as cache:
        assert holds(cache)
        there = np.flatnonzero(cache.runtime.budget.folders[0].ledger.entries["state"] == MANAGED)
        assert there.tolist() == list(range(20 - len(there), 20))
        assert len(there) > 5
        assert read(cache, shuffled()) == shuffled().tolist()


def test_a_users_own_files_stay_and_the_limit_says_so(remote, folder, caplog):
    """The job works, adds nothing, and tells what would help."""
    shutil.copytree(remote, folder)
    with open_cache(remote, folder, LIMIT) as cache:
        assert read(cache, shuffled()) == shuffled().tolist()
    assert len(os.listdir(folder)) == len(os.listdir(remote)) + 1
    assert "remove them" in caplog.text
    assert f"cache_limit to {cache.usage}" in caplog.text


def number(data):
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def test_files_with_the_marker_that_any_version_wrote_are_used_and_evicted(remote, folder):
    """The nanoseconds of a file's time are a digest of its inode, its size and its content."""
    os.mkdir(folder)
    with open(os.path.join(remote, "index.json"), "rb") as file:
        shards = json.load(file)["shards"]
    for shard in shards:
        raw = shard["raw_data"]
        path = shutil.copy(os.path.join(remote, raw["basename"]), folder)
        facts = [[raw["basename"], raw["bytes"], sorted(raw["hashes"].items())]]
        tag = number(json.dumps(facts).encode())
        state = os.stat(path)
        digits = number(struct.pack("<QQQ", state.st_ino, state.st_size, tag)) % 10**9
        os.utime(path, ns=(0, state.st_mtime_ns // 10**9 * 10**9 + digits))
    assert disk_usage(folder) > LIMIT
    with open_cache(remote, folder, LIMIT) as cache:
        assert holds(cache)
        states = cache.runtime.fetcher.open(cache._folders[0]).ledger.entries["state"]
        assert set(states.tolist()) == {ABSENT, MANAGED}
        assert read(cache, shuffled()) == shuffled().tolist()


def test_two_jobs_with_different_limits_keep_to_their_own(remote, folder, caplog):
    """The folder never has more than the larger limit, and the smaller one's after its opening."""
    with open_cache(remote, folder, 2 * LIMIT) as large:
        read(large, shuffled())
        large.hold(3)
        with open_cache(remote, folder, LIMIT) as small:
            assert holds(small)
            assert read(small, shuffled(2)) == shuffled(2).tolist()
            assert holds(small)
            assert read(large, shuffled(3)) == shuffled(3).tolist()
            assert holds(large)
            assert disk_usage(folder) > LIMIT
            assert read(small, shuffled(4)) == shuffled(4).tolist()
        large.release(3)
    assert "no shards are added" not in caplog.text


def test_what_another_job_has_in_use_stays_and_is_told(remote, folder, caplog):
    """Its limit is larger; nothing that is mapped goes."""
    with open_cache(remote, folder, 3 * LIMIT) as large:
        for shard in range(20):
            large.hold(shard)
        with open_cache(remote, folder, LIMIT) as small:
            assert read(small, range(SAMPLES)) == list(range(SAMPLES))
        for shard in range(20):
            large.release(shard)
    assert "no shards are added" in caplog.text
