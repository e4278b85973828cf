"""URLs are read in one way everywhere, and secrets in them are not shown."""

import importlib

import pytest

from mds import LocalDataset, MDSWriter, Stream, StreamingDataset
from mds.errors import ConfigError
from mds.storage import open_store, register_store
from mds.storage._azure import AzureOptions, _locate
from mds.storage._memory import MemoryStore
from mds.storage._registry import _HOMES, schemes
from mds.storage._url import (
    is_local,
    join,
    local_path,
    parse_url,
    redact,
    redact_text,
    scheme_of,
    source_name,
)


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("/data/train", ""),
        ("data/train", ""),
        ("./a:b", ""),
        ("C:/data", ""),
        ("a:b/c", ""),
        ("file:///data", "file"),
        ("file:/data", "file"),
        ("s3://bucket/x", "s3"),
        ("S3://bucket/x", "s3"),
        ("azure-dl://c/x", "azure-dl"),
        ("dbfs:/Volumes/a", "dbfs"),
        ("hf://datasets/a/b", "hf"),
    ],
)
def test_schemes(url, scheme):
    """What is a URL and what is a path."""
    assert scheme_of(url) == scheme
    assert is_local(url) == (scheme in ("", "file"))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/data/a%20b", "/data/a%20b"),
        ("file:///data/a%20b", "/data/a b"),
        ("file:/data", "/data"),
        ("file://localhost/data", "/data"),
    ],
)
def test_local_paths(url, path):
    """A path is itself; a file URL has its escapes undone."""
    assert local_path(url) == path


@pytest.mark.parametrize(
    ("url", "key", "joined"),
    [
        ("/data", "a/b", "/data/a/b"),
        ("/data/", "a", "/data/a"),
        ("/", "a", "/a"),
        ("", "a", "a"),
        ("s3://bucket", "a", "s3://bucket/a"),
        ("s3://bucket/what?", "a", "s3://bucket/what?/a"),
        ("https://h/d?sig=1", "a", "https://h/d/a?sig=1"),
        ("dbfs:/d", "a", "dbfs:/d/a"),
        ("s3://bucket/x", "", "s3://bucket/x"),
    ],
)
def test_joins(url, key, joined):
    """The URL of an object; a signature stays at the end."""
    assert join(url, key) == joined


def test_secrets_are_not_shown():
    """Passwords and signatures stay out of errors, logs and reprs."""
    assert redact("sftp://anna:pa:ss@host:22/x") == "sftp://anna:***@host:22/x"
    assert "secret" not in redact("https://user:secret@host/x?signature=secret")
    assert redact("s3://bucket/a@b:c/d") == "s3://bucket/a@b:c/d"
    assert redact("/plain/a:b@c") == "/plain/a:b@c"
    store = open_store("https://user:secret@127.0.0.1:1/x?signature=secret")
    assert "secret" not in repr(store)
    assert "secret" not in store.url_of("index.json")


def test_secrets_of_a_url_with_one_slash_are_not_shown():
    """pathlib.Path drops a slash of a URL, whose password and signature stay masked."""
    url = "https:/me:secret@host/x?X-Amz-Signature=1f"
    assert redact_text(f"No such option {url!r}.") == "No such option 'https:/***@host/x?...'."
    with pytest.raises(ConfigError, match=r"^'https:/\*\*\*@host/x\?\.\.\.': write https://"):
        is_local(url)
    assert redact_text("C:/a/b@c file:/x/y") == "C:/a/b@c file:/x/y"


@pytest.mark.parametrize(
    ("spellings", "name"),
    [
        (
            [
                "https://host/a/b",
                "https://host:443/a/b/",
                "HTTPS://HOST/a/b#here",
                "https://user:pa@ss@host/a/b",
                "https://token@host/a/b?",
                "https://host/a/b?X-Amz-Signature=1f&X-Amz-Credential=AKIA&X-Amz-Expires=60",
                "https://host/a/b/?AWSAccessKeyId=AKIA&Signature=x%2Fy&Expires=17&x-id=GetObject",
                "https://host/a/b?Policy=e30&Signature=x&Key-Pair-Id=K2",
                "https://host/a/b?GoogleAccessId=a%40b&Expires=17&Signature=x",
                "https://host/a/b?X-Goog-Algorithm=GOOG4&x-goog-signature=1f",
                "https://host/a/b?sv=2024-11-04&ss=b&srt=co&sp=rl&se=2027&st=2026&spr=https&sig=x",
                "https://host/a/b?q-sign-algorithm=sha1&q-ak=A&x-cos-security-token=t",
                "https://host/a/b?OSSAccessKeyId=A&security-token=t&Expires=1",
                "https://host/a/b?access_token=secret&response-content-type=text",
            ],
            "https://host/a/b",
        ),
        (["s3://bucket/a", "S3://bucket/a//", "s3://key:secret@bucket/a"], "s3://bucket/a"),
        (["sftp://anna:secret@host:22/a/", "sftp://host/a"], "sftp://host/a"),
        (["oci://bucket@space/a", "oci://bucket@space/a/"], "oci://bucket@space/a"),
        (["azure-dl://box@me.dfs.core.windows.net/a"], "azure-dl://box@me.dfs.core.windows.net/a"),
        (["hf://datasets/org/name@rev/a/"], "hf://datasets/org/name@rev/a"),
        (["dbfs:/Volumes/a/", "dbfs:///Volumes/a"], "dbfs:///Volumes/a"),
        (["/data/a%20b", "/data/a%20b/", "/data/./a%20b", "file:///data/a%2520b"], "/data/a%20b"),
    ],
)
def test_spellings_of_one_source(spellings, name):
    """A source has one name, whoever signed the URL, and the name has no secret in it."""
    assert {source_name(url) for url in spellings} == {name}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://host/a", "http://host/a"),
        ("https://host/a", "https://host:8443/a"),
        ("https://host/a?version=3", "https://host/a?version=4"),
        ("https://host/a?version=3", "https://host/a"),
        ("https://host/a?st=1", "https://host/a?st=2"),
        ("s3://bucket/a?v=1", "s3://bucket/a?v=2"),
        ("azure://one@me.blob.core.windows.net/a", "azure://two@me.blob.core.windows.net/a"),
        ("hf://datasets/org/name@one/a", "hf://datasets/org/name@two/a"),
        ("s3://bucket/a", "gs://bucket/a"),
        ("s3://bucket/a//b", "s3://bucket/a/b"),
        ("oci://Box@space/a", "oci://box@space/a"),
        ("/data/a", "/data/A"),
    ],
)
def test_sources_that_differ_have_other_names(one, other):
    """What chooses an object stays in the name of a source."""
    assert source_name(one) != source_name(other)


def test_the_name_of_a_source_shows_no_unknown_secret():
    """What is kept of a query is a digest: it may be a secret of a kind that is not known here."""
    assert "hunter2" not in source_name("https://host/a?pass=hunter2")


def test_parts_of_a_url():
    """User, password, host and port, with escapes undone."""
    place = parse_url("sftp://anna:p%40ss@host:2222/a/b/")
    assert (place.user, place.password) == ("anna", "p@ss")
    assert (place.hostname, place.port, place.path) == ("host", 2222, "a/b")
    assert parse_url("oci://bucket@namespace/a").host == "bucket@namespace"
    assert parse_url("dbfs:/Volumes/c/s").path == "Volumes/c/s"
    with pytest.raises(ConfigError, match="port"):
        parse_url("sftp://host:port/x")


ACCOUNT = AzureOptions(account_name="me", account_key="key")
HOST = "https://me.blob.core.windows.net"


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("azure://box/a/b", ACCOUNT, (HOST, "me", "box", "a/b")),
        ("azure:///box/a/b", ACCOUNT, (HOST, "me", "box", "a/b")),
        ("azure://me/box/a/b", ACCOUNT, (HOST, "me", "box", "a/b")),
        ("azure://me/box/a/b", AzureOptions(), (HOST, "me", "box", "a/b")),
        ("azure://me.blob.core.windows.net/box/a", AzureOptions(), (HOST, "me", "box", "a")),
        ("azure-dl://me.dfs.core.windows.net/box/a", AzureOptions(), (HOST, "me", "box", "a")),
        ("azure-dl://box@me.dfs.core.windows.net/a", AzureOptions(), (HOST, "me", "box", "a")),
        (
            "azure://127.0.0.1:10000/box/a",
            AzureOptions(account_name="me", endpoint="http://127.0.0.1:10000/me"),
            ("http://127.0.0.1:10000/me", "me", "box", "a"),
        ),
    ],
)
def test_where_an_azure_url_points(url, options, expected):
    """Account and container stand in several places; all forms that are in use are read."""
    assert _locate(parse_url(url), options) == expected


def test_an_azure_url_without_a_container_is_refused():
    """The error shows the forms."""
    with pytest.raises(ConfigError, match="container"):
        open_store("azure://", options={"account_name": "me"})


@pytest.mark.parametrize(
    "url", ["s3:/bucket/train", "GS:/bucket", "http:/host/x", "webdav:/x/y", "s3:b/x", "HF:a/b"]
)
def test_a_url_that_lost_a_slash_is_no_path(url):
    """Every function that takes a place refuses it with the same sentence."""
    for use in (is_local, local_path, open_store, lambda place: Stream(local=place), LocalDataset):
        with pytest.raises(
            ConfigError, match=f"'{url}': write {url.split(':')[0]}:// with two slashes"
        ):
            use(url)


def test_a_folder_with_the_name_of_a_scheme_is_a_path(tmp_path, monkeypatch):
    """A folder that is there is read, and a name that no scheme begins is a path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:b").mkdir()
    assert is_local("s3:b/x")
    assert is_local("run:5/x")


@pytest.mark.parametrize("url", ["s3://bucket/train", "http://host/x?sig=0123456789abcdef"])
def test_a_folder_of_this_machine_is_not_a_url(url, tmp_path, monkeypatch):
    """A URL as `local=` or as the root of all caches is refused, and no folder `s3:` appears."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"local= must be .* Give the URL as remote=") as told:
        StreamingDataset(remote="somewhere", local=url)
    assert "0123456789abcdef" not in str(told.value)
    with pytest.raises(ConfigError, match=r"StreamingDataset\(remote"):
        LocalDataset(url)
    monkeypatch.setenv("MDS_CACHE_DIR", url)
    with pytest.raises(ConfigError, match="MDS_CACHE_DIR must be a path on this machine"):
        Stream(remote="somewhere")
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_read_where_it_was_written(tmp_path, monkeypatch):
    """`~` and file:// mean the same folder to a writer and to a reader."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with MDSWriter(out="~/train", columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    for place in ("~/train", f"file://{tmp_path}/train"):
        assert LocalDataset(place)[0] == {"x": 1}
        assert StreamingDataset(local=place, batch_size=1)[0] == {"x": 1}
        assert StreamingDataset(remote=place, local="~/cache", batch_size=1)[0] == {"x": 1}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cache", "train"]


def test_a_scheme_of_ones_own():
    """Anybody can add a provider, without touching ours."""
    register_store("mine", MemoryStore)
    store = open_store("mine://box", options={"concurrency": 3})
    store.put("x", b"1")
    assert store.get("x") == b"1"
    assert "mine" in schemes()


@pytest.mark.parametrize("url", ["nobody://x/y", ""])
def test_a_scheme_that_nobody_knows_is_refused(url):
    """With what to do about it."""
    with pytest.raises(ConfigError):
        open_store(url)


def test_alipan_is_refused_with_the_way_out():
    """A known scheme without a provider says so."""
    with pytest.raises(ConfigError, match="register_store"):
        open_store("alipan://drive/data")


@pytest.mark.parametrize("scheme", sorted(_HOMES))
def test_every_scheme_has_its_provider(scheme):
    """Every scheme of the table leads to a function or class that is there."""
    module, _, name = _HOMES[scheme].partition(":")
    assert callable(getattr(importlib.import_module(f"mds.storage._{module}"), name))


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("s3://bucket", "botocore", "s3"),
        ("gs://bucket", "google.auth", "gcs"),
        ("azure://box", "azure.storage.blob", "azure"),
        ("oci://bucket@n", "oci", "oci"),
        ("dbfs:/data", "databricks.sdk.core", "databricks"),
        ("sftp://u:p@127.0.0.1:1/x", "paramiko", "sftp"),
    ],
)
def test_a_missing_package_is_one_sentence_with_the_command(url, package, extra, monkeypatch):
    """Each cloud is an extra; without it, the error is the pip command."""
    import sys

    from mds.errors import MissingDependencyError

    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("AZURE_ACCOUNT_NAME", "me")
    monkeypatch.setenv("AZURE_ACCOUNT_ACCESS_KEY", "a2V5")
    with pytest.raises(MissingDependencyError, match=rf'pip install "mds-streaming\[{extra}\]"'):
        open_store(url, timeout=7).get("x")  # a timeout of its own: no client is there yet


def test_common_options_must_make_sense():
    """No parts of no bytes."""
    with pytest.raises(ConfigError, match="part_size=0"):
        open_store("memory://x", options={"part_size": 0})
    with pytest.raises(ConfigError, match="timeout"):
        open_store("memory://x", timeout=0)


def test_a_package_may_announce_its_store(monkeypatch):
    """An entry point of the group mds.stores is found by its name, the scheme."""
    from importlib import metadata

    point = metadata.EntryPoint("announced", "mds.storage._memory:MemoryStore", "mds.stores")

    def points(*, group, name):
        return [point] if (group, name) == ("mds.stores", "announced") else []

    monkeypatch.setattr(metadata, "entry_points", points)
    store = open_store("announced://box")
    store.put("x", b"1")
    assert store.get("x") == b"1"
