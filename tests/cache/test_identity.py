"""Whose index and whose shards lie in a cache folder."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import ClassVar

import numpy as np
import pytest
from cache_tools import SAMPLES, contents, open_cache, read, write

from mds.cache import fetch_index
from mds.errors import IndexFileError, NotFoundError, TransientError
from mds.storage import Store, register_store
from mds.storage.local import LocalStore
from mds.storage.registry import _registered


class Counting(LocalStore):
    """A local store under a scheme of its own, which notes what is asked of it."""

    asked: ClassVar[list] = []
    is_down = False

    def __init__(self, url, options=None, timeout=60.0):
        super().__init__(url.removeprefix("counting://"), options, timeout)
        self.url, self.local_path = url, None

    def head(self, key):
        self.asked.append(("head", key))
        if self.is_down:
            raise TransientError("head: down for maintenance")
        return super().head(key)

    def stream(self, key, start=0, end=None):
        self.asked.append(("get", key))
        return super().stream(key, start, end)

    get_file = Store.get_file


@pytest.fixture
def counting(monkeypatch):
    """URLs counting://path, and the list of what was asked."""
    monkeypatch.setattr(Counting, "asked", [])
    register_store("counting", Counting)
    yield Counting
    _registered.pop("counting")


def test_one_request_brings_the_index_and_one_look_says_that_it_is_the_same(
    counting, remote, folder
):
    """A first start asks once; another asks for no more than the version."""
    url = f"counting://{remote}"
    first = fetch_index(url, folder)
    assert counting.asked == [("get", "index.json")]
    second = fetch_index(url, folder)
    assert counting.asked[1:] == [("head", "index.json")]
    assert first.fingerprint() == second.fingerprint()


def test_a_remote_that_cannot_be_asked_now_is_believed_to_be_the_same(counting, remote, folder):
    """A cache that is complete works through an outage."""
    url = f"counting://{remote}"
    first = fetch_index(url, folder, retries=0)
    counting.is_down = True
    try:
        assert fetch_index(url, folder, retries=0).fingerprint() == first.fingerprint()
    finally:
        counting.is_down = False


def test_a_changed_remote_is_noticed_and_only_what_changed_is_fetched(tmp_path, folder):
    """Shards are recognised by their digests, whatever the index was before."""
    remote = write(tmp_path / "remote")
    with open_cache(remote, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
        before = cache.stats()["fetched_shards"]
    other = write(tmp_path / "other", salt=10_000)
    index = json.loads((tmp_path / "remote" / "index.json").read_text())
    new = json.loads((tmp_path / "other" / "index.json").read_text())
    index["shards"][2] = new["shards"][2]
    shutil.copy(f"{other}/shard.00002.mds", f"{remote}/shard.00002.mds")
    (tmp_path / "remote" / "index.json").write_text(json.dumps(index))
    with open_cache(remote, folder) as cache:
        start, stop = cache.sources[0].index.offsets[2:4].tolist()
        changed = np.arange(start, stop)
        assert read(cache, changed, salt=10_000) == changed.tolist()
        rest = np.setdiff1d(np.arange(SAMPLES), changed)
        assert read(cache, rest) == rest.tolist()
        assert cache.stats()["fetched_shards"] == 1
        assert before > 10


def test_without_digests_another_index_means_other_shards(tmp_path, folder):
    """Sizes alone do not tell one content from another."""
    remote = write(tmp_path / "remote", hashes=[])
    with open_cache(remote, folder) as cache:
        read(cache)
    shutil.rmtree(remote)
    write(remote, hashes=[], salt=10_000)
    with open_cache(remote, folder) as cache:
        assert read(cache, salt=10_000) == list(range(SAMPLES))


def test_shards_that_the_new_index_lacks_are_removed_if_they_are_ours(tmp_path, folder):
    """A dataset that shrank leaves no orphans; files of others stay."""
    remote = write(tmp_path / "remote")
    with open_cache(remote, folder) as cache:
        read(cache)
    with open(os.path.join(folder, "notes.txt"), "w") as file:
        file.write("mine")
    shutil.rmtree(remote)
    write(remote, samples=30)
    with open_cache(remote, folder) as cache:
        assert read(cache) == list(range(30))
        count = len(cache.sources[0].index)
    left = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    assert left == ["index.json", "notes.txt", *(f"shard.{i:05}.mds" for i in range(count))]


@pytest.mark.parametrize("left", ["", "[]", "other", "folder"])
def test_what_lies_at_the_place_of_the_index_stays(tmp_path, remote, folder, left):
    """An empty, broken or foreign index.json is its owner's; the dataset is kept beside it."""
    os.makedirs(folder)
    path = os.path.join(folder, "index.json")
    if left == "other":
        shutil.copy(write(tmp_path / "other", samples=20) + "/index.json", path)
    elif left == "folder":
        os.mkdir(path)
    else:
        with open(path, "w") as file:
            file.write(left)
    before = contents(folder)
    with open_cache(remote, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
    assert {name: contents(folder)[name] for name in before} == before
    assert [name for name in os.listdir(folder) if name != ".mds"] == ["index.json"]


def test_a_broken_index_is_not_published(remote, folder):
    """The error names the remote's, and the folder keeps what it had."""
    fetch_index(remote, folder)
    good = contents(folder)["index.json"]
    with open(f"{remote}/index.json", "w") as file:
        file.write('{"shards": [')
    with pytest.raises(IndexFileError, match=re.escape(f"{remote}/index.json")):
        fetch_index(remote, folder)
    assert contents(folder)["index.json"] == good


def test_a_missing_index_is_named(tmp_path, folder):
    """On the remote and in a folder of the user's."""
    with pytest.raises(NotFoundError, match=r"nowhere.*index.json"):
        fetch_index(str(tmp_path / "nowhere"), folder)
    with pytest.raises(NotFoundError, match=r"nowhere.*index.json"):
        fetch_index(None, str(tmp_path / "nowhere"))
