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

from devtools import dialects
from devtools.httpserver import http_server
from devtools.proxy import Fault, FaultProxy
from mds import StreamingDataLoader, StreamingDataset
from mds._cache.index_copy import fetch_index
from mds.errors import (
    IndexFileError,
    MissingDependencyError,
    NotFoundError,
    StoreError,
    TransientError,
    UnreachableError,
    need,
)
from mds.storage import Store, register_store
from mds.storage._local import LocalStore
from mds.storage._registry import _stores


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
    _stores.entries.pop("counting")


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
    first = fetch_index(url, folder, attempts=0)
    counting.is_down = True
    try:
        assert fetch_index(url, folder, attempts=0).fingerprint() == first.fingerprint()
    finally:
        counting.is_down = False


def fill_cache(remote, folder):
    """Fill a cache folder from a server, and return the URL, where nothing listens any more."""
    with http_server(remote) as server, FaultProxy(server) as proxy:
        dataset = StreamingDataset(remote=proxy.url, local=folder, batch_size=4)
        assert len(list(dataset)) == SAMPLES
    return proxy.url


@pytest.mark.parametrize("workers", [0, 2])
def test_a_complete_cache_is_read_where_nothing_answers(remote, folder, caplog, workers):
    """A start without a network reads the cache, also in worker processes, and warns once."""
    url = fill_cache(remote, folder)
    dataset = StreamingDataset(
        remote=url, local=folder, batch_size=4, download_retry=0, columns=["x"]
    )
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=workers)
    assert sorted(x for batch in loader for x in batch["x"].tolist()) == list(range(SAMPLES))
    warnings = [text for text in caplog.messages if "verified index" in text]
    assert len(warnings) == 1
    assert "cannot be read" in warnings[0]


def test_a_shard_that_the_cache_lacks_raises_where_nothing_answers(remote, folder):
    """Without a network the samples of the cache come, and a missing shard is an error."""
    url = fill_cache(remote, folder)
    os.unlink(os.path.join(folder, "shard.00002.mds"))
    dataset = StreamingDataset(remote=url, local=folder, batch_size=4, download_retry=0)
    assert dataset[0]["x"] == 0
    with pytest.raises(UnreachableError, match=r"shard\.00002"):
        dataset[25]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "does not accept the credentials"),
        (403, "does not accept the credentials"),
        (404, "no longer has this dataset"),
        (410, "no longer has this dataset"),
        (451, "cannot be read"),
        (503, "cannot be read"),
    ],
)
def test_a_remote_that_refuses_leaves_the_cache_usable(remote, folder, caplog, status, reason):
    """Expired credentials and a deleted dataset are warnings of their own beside a full cache."""
    with http_server(remote) as server, FaultProxy(server) as proxy:
        with open_cache(proxy.url, folder) as cache:
            assert read(cache) == list(range(SAMPLES))
        proxy.add(Fault("status", match="", times=None, status=status))
        with open_cache(proxy.url, folder) as cache:
            assert read(cache) == list(range(SAMPLES))
    assert [text for text in caplog.messages if reason in text]


def test_a_dataset_that_was_deleted_is_read_from_the_cache(remote, folder, caplog):
    """A folder on a mounted disk may go after everything was fetched."""
    with open_cache(remote, folder) as cache:
        read(cache)
    shutil.rmtree(remote)
    with open_cache(remote, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
    assert "no longer has this dataset" in caplog.text


def test_a_copied_cache_is_read_where_nothing_answers(remote, folder, tmp_path):
    """The note and the text of the index identify a cache that was copied to another machine."""
    url = fill_cache(remote, folder)
    copied = str(tmp_path / "copied")
    shutil.copytree(folder, copied)
    with open_cache(url, copied) as cache:
        assert read(cache) == list(range(SAMPLES))


def test_a_failed_replacement_leaves_the_files_of_a_copied_cache(tmp_path, folder):
    """A file that nothing identifies stays until its replacement has come."""
    remote = write(tmp_path / "bare", hashes=[])
    url = fill_cache(remote, folder)
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    before = contents(str(copied))
    with open_cache(url, copied) as cache, pytest.raises(UnreachableError):
        read(cache)
    assert {name: contents(str(copied))[name] for name in before if "shard" in name} == {
        name: value for name, value in before.items() if "shard" in name
    }


def test_an_index_that_no_note_names_is_not_used_without_its_remote(remote, folder, tmp_path):
    """A folder of unknown origin is no cache of a remote; the error says how to read it."""
    url = fill_cache(remote, folder)
    other = str(tmp_path / "other")
    shutil.copytree(remote, other)
    with pytest.raises(UnreachableError, match="give only local='") as error:
        fetch_index(url, other, attempts=0)
    local = re.search("give only local='([^']*)'", str(error.value))[1]
    assert len(list(StreamingDataset(local=local, batch_size=4))) == SAMPLES


@pytest.mark.parametrize("damage", ["index", "note"])
def test_a_changed_index_is_not_used_without_its_remote(remote, folder, damage):
    """An index of another text than the noted one, or without a note, is not the remote's."""
    url = fill_cache(remote, folder)
    if damage == "note":
        os.unlink(os.path.join(folder, ".mds", "origin.json"))
    else:
        path = os.path.join(folder, "index.json")
        with open(path) as file:
            index = json.load(file)
        index["shards"].pop()
        with open(path, "w") as file:
            json.dump(index, file)
    with pytest.raises(UnreachableError):
        fetch_index(url, folder, attempts=0, timeout=1.0)


def test_a_missing_package_leaves_the_cache_usable(counting, remote, folder, caplog):
    """Without the package of a store a full cache is read; a missing shard names the package."""
    url = f"counting://{remote}"
    with open_cache(url, folder) as cache:
        read(cache)

    def fail(*_):
        raise need("counter", "counting", "counting:// URLs")

    register_store("counting", fail, replace=True)
    with open_cache(url, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
    assert "pip install" in caplog.text
    os.unlink(os.path.join(folder, "shard.00002.mds"))
    with open_cache(url, folder) as cache, pytest.raises(MissingDependencyError, match="counter"):
        read(cache)


def test_a_hub_that_may_not_be_asked_leaves_the_cache_usable(tmp_path, folder, monkeypatch):
    """HF_HUB_OFFLINE ends every request to the Hub before it is sent."""
    url = "hf://datasets/org/name/data"
    write(tmp_path / "hub" / "data")
    monkeypatch.setenv("HF_TOKEN", "token")
    with http_server(str(tmp_path / "hub"), handler=dialects.Hub) as endpoint:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        with open_cache(url, folder) as cache:
            assert read(cache) == list(range(SAMPLES))
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with open_cache(url, folder) as cache:
            assert read(cache) == list(range(SAMPLES))
        with pytest.raises(StoreError, match="HF_HUB_OFFLINE is set"):
            fetch_index(url, folder + "2")


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


def test_copied_shards_without_digests_are_named_where_the_remote_is_gone(tmp_path, folder):
    """The error says why a copy is not used, and its remedy works."""
    remote = write(tmp_path / "remote", hashes=[])
    with open_cache(remote, folder) as cache:
        read(cache)
    copy = str(tmp_path / "copy")
    shutil.copytree(folder, copy)
    shutil.rmtree(remote)
    with (
        open_cache(remote, copy) as cache,
        pytest.raises(NotFoundError, match=r"so it is not used\..*give only local='") as caught,
    ):
        read(cache)
    assert f"give only local={copy!r}" in str(caught.value)
    assert len(list(StreamingDataset(local=copy, batch_size=10))) == SAMPLES
