"""Users of a group share a cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from cache_tools import SAMPLES, open_cache, read, write
from prometheus_client import CollectorRegistry
from users import GROUP, USERS, run_as

from mds import StreamingDataLoader, StreamingDataset
from mds.metrics import prometheus


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
@pytest.mark.parametrize("names", ["flat", "deep"])
def test_users_of_a_group_share_a_folder_whatever_their_umask(shared, umask, names, tmp_path):
    """Also when the index changes, when shards lie in sub-folders, and under a limit."""
    remote = os.path.join(os.path.dirname(shared), "remote")
    for salt, user in enumerate(USERS):
        shutil.rmtree(remote, ignore_errors=True)
        for part in ("a", "b") if names == "deep" else ("",):
            write(os.path.join(remote, part), samples=100, salt=salt)
        if names == "deep":
            from mds import merge_index

            merge_index(remote)

        if not salt:  # what is imported late is out of the reach of others where Python is root's
            with open_cache(remote, str(tmp_path / "own"), 90_000) as cache:
                read(cache)

        def use(salt=salt, user=user):
            with open_cache(remote, shared, 90_000) as cache:
                ids = read(cache, salt=salt)
                assert sorted(set(ids)) == list(range(100)), user
                assert cache.evict_coldest()
            with open_cache(remote, shared, 90_000) as cache:
                assert cache.usage <= 90_000

        run_as(user, use, umask)
        others = USERS[salt - 1]  # who evicts what the last one fetched

        def evict(salt=salt):
            with open_cache(remote, shared) as cache:
                assert any(cache.evict(shard) for shard in range(10)), salt

        run_as(others, evict, umask)
    for path, folders, files in os.walk(shared):
        for name in (*folders, *files):
            state = os.stat(os.path.join(path, name))
            assert state.st_gid == GROUP, name
            assert state.st_mode & 0o060 == 0o060, name
            assert not state.st_mode & 0o007, name


@pytest.fixture
def read_only(tmp_path):
    """``read_only(folder)``: the path of a read-only mount of a folder."""
    point = tmp_path / "mounted"
    point.mkdir()
    mounted = []

    def mount(folder):
        for options in (["--bind", folder], ["-o", "remount,ro,bind"]):
            command = ["mount", *options, str(point)]
            if os.geteuid() or subprocess.run(command, check=False).returncode:
                pytest.skip("disks can be mounted by root only")
            mounted.append(point)
        return str(point)

    yield mount
    if mounted:
        subprocess.run(["umount", "-l", str(point)], check=True)


def test_a_read_only_cache_has_statistics(remote, folder, read_only):
    """The counters, the report and the use of the disk, as of a folder that can be written."""
    with open_cache(remote, folder) as cache:
        read(cache)
        used = cache.usage
    place = read_only(folder)
    dataset = StreamingDataset(remote=remote, local=place, batch_size=4)
    loader = StreamingDataLoader(dataset)
    assert sum(len(batch["x"]) for batch in loader) == SAMPLES
    for stats in (dataset.stats(), dataset.stats(node=True)):
        assert stats["fetched_shards"] == 0
        assert 0 < stats["used_bytes"] <= used
    assert dataset.cache_usage == dataset.stats()["used_bytes"]
    assert "batches" in str(loader.report())
    registry = CollectorRegistry()
    with prometheus(registry, dataset=dataset):
        assert registry.get_sample_value("mds_rank_used_bytes") > 0
