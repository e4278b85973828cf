"""What is particular to the Hub, to Databricks, to Google, to SSH and to fsspec."""

import pytest

from devtools import dialects
from devtools.httpserver import http_server
from devtools.proxy import Fault, FaultProxy
from mds.errors import ConfigError, StalledError, TransientError, UnauthenticatedError
from mds.storage import RetryPolicy, open_store
from mds.storage._gs import GsHmacStore, GsStore
from mds.testing._store_contract import noise

ONCE = RetryPolicy(1)


@pytest.fixture
def hub(tmp_path):
    """A proxy before a server of the Hub's dialect."""
    with http_server(str(tmp_path), handler=dialects.Hub) as url, FaultProxy(url) as proxy:
        yield proxy


def test_the_hub_is_asked_once_where_the_bytes_are(hub, monkeypatch):
    """Ranges of a file go straight to its bytes; the token does not."""
    monkeypatch.setenv("HF_TOKEN", "token")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    store = open_store("hf://datasets/org/name@main/folder")
    store.put("x", noise(10_000))
    hub.seen.requests.clear()
    for start in range(0, 10_000, 1000):
        assert store.get_range("x", start, start + 1000) == noise(10_000)[start : start + 1000]
    assert hub.count("^HEAD .*/resolve/main/folder/x") <= 1
    assert hub.count("^GET .*/cdn/") == 10


def test_an_address_that_ran_out_is_asked_for_again(hub):
    """A signed address that is refused is replaced; the hub decides whether we may read."""
    store = open_store(
        "hf://datasets/org/name", options={"endpoint": hub.url, "token": "token"}, retry=ONCE
    )
    store.put("x", b"12345")
    assert store.get("x") == b"12345"
    hub.add(Fault("status", match="^GET .*/cdn/", status=403, times=1))
    assert store.get("x") == b"12345"


def test_the_hub_without_the_right_token(hub):
    """Told at once."""
    options = {"endpoint": hub.url, "token": "wrong"}
    with pytest.raises(UnauthenticatedError, match="401"):
        open_store("hf://datasets/org/name/x", options=options).get("index.json")


def test_a_hub_url_names_a_repository():
    """Organisation and name are needed."""
    with pytest.raises(ConfigError, match="hf://datasets/org/name"):
        open_store("hf://datasets/name")


def test_hmac_keys_decide_how_google_is_spoken_to(monkeypatch):
    """GCS_KEY and GCS_SECRET as ever; options of Google's own SDK go before them."""
    assert isinstance(open_store("gs://bucket").inner.inner, GsStore)
    monkeypatch.setenv("GCS_KEY", "key")
    monkeypatch.setenv("GCS_SECRET", "secret")
    store = open_store("gs://bucket").inner.inner
    assert isinstance(store, GsHmacStore)
    assert store._client().meta.endpoint_url == "https://storage.googleapis.com"
    other = open_store("gs://bucket", options={"anonymous": True}).inner.inner
    assert isinstance(other, GsStore)


def test_a_workspace_is_needed(monkeypatch, tmp_path):
    """Databricks without a workspace is told as such."""
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises((ConfigError, UnauthenticatedError)):
        open_store("dbfs:/data").get("x")


def test_a_key_file_lets_in(sftp, name, monkeypatch, tmp_path):
    """COMPOSER_SFTP_KEY_FILE and COMPOSER_SFTP_KNOWN_HOSTS_FILE work as ever."""
    (tmp_path / "known").write_text(sftp.known_hosts)
    monkeypatch.setenv("COMPOSER_SFTP_KEY_FILE", sftp.key)
    monkeypatch.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", str(tmp_path / "known"))
    store = open_store(f"sftp://{sftp.user}@127.0.0.1:{sftp.port}/{name}")
    store.put("x", b"1")
    assert store.get("x") == b"1"


def test_an_unknown_server_is_not_trusted(sftp):
    """Its key has to be vouched for; the error says where."""
    url = f"sftp://{sftp.user}:x@127.0.0.1:{sftp.port}/"
    with pytest.raises(UnauthenticatedError, match="KNOWN_HOSTS") as caught:
        open_store(url, retry=ONCE).get("x")
    assert ":x@" not in str(caught.value)


def test_a_wrong_password_is_told_at_once(sftp):
    """And it is not shown."""
    options = {"password": "not-it", "accept_unknown_host": True}
    with pytest.raises(UnauthenticatedError) as caught:
        open_store(f"sftp://{sftp.user}@127.0.0.1:{sftp.port}/", options=options).get("x")
    assert "not-it" not in str(caught.value)


def test_an_ssh_server_that_says_nothing_is_a_stall():
    """The timeout holds for the greeting too."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"sftp://u:p@127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(TransientError):
            open_store(url, timeout=0.3, retry=ONCE).get("x")


def test_a_file_system_of_fsspec_that_stands_still_is_noticed(monkeypatch, tmp_path):
    """Fsspec has no timeout of its own; ours holds all the same."""
    import threading

    from fsspec.implementations.local import LocalFileSystem

    open_store(f"local://{tmp_path}").put("x", b"12345")
    store = open_store(f"local://{tmp_path}", timeout=0.2, retry=ONCE)
    release = threading.Event()
    monkeypatch.setattr(LocalFileSystem, "cat_file", lambda *_, **__: release.wait(30))
    with pytest.raises(StalledError, match=r"no data arrived for 0\.2 s"):
        store.get("x")
    release.set()


@pytest.mark.parametrize(
    ("url", "own"),
    [("s3n://bucket/data", "s3"), ("abfss://box@me.dfs.core.windows.net/data", "azure")],
)
def test_a_scheme_of_hadoop_is_answered_with_that_of_mds(url, own, monkeypatch):
    """If fsspec does not know it."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    monkeypatch.setattr(fsspec, "available_protocols", lambda: ["hdfs"])
    with pytest.raises(ConfigError, match=rf"unknown to fsspec.* own store for {own}:// URLs"):
        open_store(url)


def test_options_of_fsspec_reach_the_file_system(tmp_path):
    """They are the file system's own, beside those that every store takes."""
    store = open_store(f"local://{tmp_path}", options={"auto_mkdir": True, "concurrency": 2})
    store.put("a/b/c", b"1")
    assert store.get("a/b/c") == b"1"
