"""Folders and memory pass the contract; what a rename promises."""

import os

import pytest

from mds.errors import ConfigError, NotFoundError, StoreError
from mds.storage import open_store
from mds.storage._wrappers import Prefixed
from mds.testing import StoreContract


class TestPath(StoreContract):
    """A plain path."""

    @pytest.fixture
    def store(self, tmp_path):
        return open_store(str(tmp_path / "data"))


class TestFileUrl(StoreContract):
    """A file:// URL, with an escaped space."""

    @pytest.fixture
    def store(self, tmp_path):
        (tmp_path / "a folder").mkdir()
        return open_store(f"file://{tmp_path}/a%20folder")

    def test_the_folder_is_where_the_url_says(self, store, tmp_path):
        """The escape is undone; the data can be read in place."""
        store.put("x", b"1")
        assert (tmp_path / "a folder" / "x").read_bytes() == b"1"
        assert store.local_path == str(tmp_path / "a folder")


class TestMemory(StoreContract):
    """The store for tests; a process of its own would see nothing of it."""

    @pytest.fixture
    def store(self, name):
        return open_store(f"memory://{name}")


class TestPrefixed(StoreContract):
    """A part of a store is a store."""

    @pytest.fixture
    def store(self, name):
        whole = open_store(f"memory://{name}")
        whole.put("elsewhere", b"x")
        return Prefixed(whole, "part/of/it")


def test_a_failed_put_leaves_the_old_object_and_no_other_file(tmp_path, monkeypatch):
    """An object is replaced whole or not at all."""
    store = open_store(str(tmp_path))
    store.put("x", b"old")
    monkeypatch.setattr(os, "replace", _refuse)
    with pytest.raises(StoreError, match=r"put .*x"):
        store.put("x", b"new")
    assert os.listdir(tmp_path) == ["x"]
    assert store.get("x") == b"old"


def test_a_file_url_of_another_host_is_refused():
    """file://host/path does not silently become /path."""
    with pytest.raises(ConfigError, match="host"):
        open_store("file://elsewhere/data")


def test_a_folder_is_not_an_object(tmp_path):
    """Asking for a folder is asking for something that is not there."""
    (tmp_path / "folder").mkdir()
    store = open_store(str(tmp_path))
    for verb in (store.head, store.get):
        with pytest.raises(NotFoundError, match="folder"):
            verb("folder")


def _refuse(*_):
    raise PermissionError(1, "not today")
