"""Storage options under the names of fsspec, object_store, pyarrow and boto3."""

import pytest

from mds._cache.ownership import source_of
from mds.errors import ConfigError
from mds.storage import open_store, register_store
from mds.storage._memory import MemoryStore
from mds.storage._spellings import own_options

WANTED = {
    "endpoint_url": "http://127.0.0.1:9",
    "aws_access_key_id": "KEY",
    "aws_secret_access_key": "SECRET",
}
SAME = {
    "boto3": WANTED,
    "fsspec": {
        "key": "KEY",
        "secret": "SECRET",
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"},
    },
    "fsspec, short": {"key": "KEY", "secret": "SECRET", "endpoint_url": "http://127.0.0.1:9"},
    "polars": {
        "aws_endpoint_url": "http://127.0.0.1:9",
        "aws_access_key_id": "KEY",
        "aws_secret_access_key": "SECRET",
        "aws_allow_http": "true",
    },
    "object_store": {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "access_key_id": "KEY",
        "secret_access_key": "SECRET",
        "allow_http": True,
    },
    "pyarrow": {
        "endpoint_override": "http://127.0.0.1:9",
        "access_key": "KEY",
        "secret_key": "SECRET",
    },
}


@pytest.mark.parametrize("library", SAME)
def test_spellings_of_s3(library):
    """All open the same store, and name the same source for the cache."""
    assert own_options("s3://bucket", SAME[library]) == WANTED
    assert source_of("s3://bucket/x", SAME[library]) == source_of("s3://bucket/x", WANTED)
    with open_store("s3://bucket/x", options=SAME[library]) as store:
        assert "bucket" in store.url


OTHERS = [
    ("s3://b", {"aws_region": "eu"}, {"region_name": "eu"}),
    ("s3://b", {"anon": True}, {"anonymous": True}),
    ("s3://b", {"skip_signature": "true"}, {"anonymous": True}),
    ("s3://b", {"virtual_hosted_style_request": "false"}, {"addressing_style": "path"}),
    ("s3://b", {"part_size": 7}, {"part_size": 7}),
    ("gs://b", {"token": "anon"}, {"anonymous": True}),
    ("gs://b", {"token": "key.json"}, {"credentials_file": "key.json"}),
    ("gs://b", {"token": "google_default"}, {}),
    ("gs://b", {"service_account_path": "k.json"}, {"credentials_file": "k.json"}),
    ("azure://a/c", {"azure_storage_account_name": "a"}, {"account_name": "a"}),
    ("azure-dl://a/c", {"sas_key": "s", "anon": False}, {"sas_token": "s", "anonymous": False}),
    ("hf://datasets/o/n", {"hf_token": "t"}, {"token": "t"}),
    ("abfs://c/x", {"anon": True}, {"anon": True}),  # fsspec's own, unchanged
    ("s3://b", None, {}),
]


@pytest.mark.parametrize(("url", "options", "own"), OTHERS)
def test_other_options(url, options, own):
    """Each has the name of the store's own option."""
    assert own_options(url, options) == own


def test_one_option_with_two_values_is_refused():
    """Equal values are accepted."""
    with pytest.raises(ConfigError, match="'key' and 'aws_access_key_id' are one option"):
        own_options("s3://b", {"key": "A", "aws_access_key_id": "B"})
    assert own_options("s3://b", {"key": "A", "aws_access_key_id": "A"})


REFUSED = [
    ("s3://b/x", {"use_ssl": False}, "write http:// or https:// in endpoint_url="),
    ("s3://b/x", {"allow_http": "false"}, "write http:// or https:// in endpoint_url="),
    ("s3://b/x", {"config_kwargs": {}}, "addressing_style="),
    ("s3://b/x", {"endpont_url": "x"}, "Did you mean 'endpoint_url'?"),
    ("gs://b/x", {"service_account_key": "{}"}, "credentials_file="),
    ("gs://b/x", {"token": {"a": 1}}, "credentials_file="),
    ("azure://a/c/x", {"tenant_id": "x"}, "AZURE_TENANT_ID"),
]


@pytest.mark.parametrize(("url", "options", "remedy"), REFUSED)
def test_options_without_a_counterpart_are_refused(url, options, remedy):
    """With the option to use in their place."""
    with pytest.raises(ConfigError, match="take no storage option") as caught:
        open_store(url, options=options)
    assert remedy in str(caught.value)


def test_secrets_in_any_spelling_are_masked():
    """The name of an option tells that its value is a secret."""
    with pytest.raises(ConfigError) as caught:
        open_store("s3://b/hunter22", options={"secret": "hunter22", "kee": 1})
    assert "hunter22" not in str(caught.value)


def test_a_store_of_the_user_gets_options_as_they_are(monkeypatch):
    """It may have an option of such a name."""
    seen = {}

    def open_own(url, options, timeout):
        seen.update(options)
        return MemoryStore(url.replace("s3://", "memory://"), {}, timeout)

    monkeypatch.setattr("mds.storage._registry._stores.entries", {})
    register_store("s3", open_own, replace=True)
    open_store("s3://b/x", options={"key": "K"})
    assert seen == {"key": "K"}
