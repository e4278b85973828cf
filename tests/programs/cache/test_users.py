"""Users of a group share a cache folder."""

from __future__ import annotations

import os
import shutil

import pytest
from cache_tools import open_cache, read, write
from users import GROUP, USERS, run_as


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
