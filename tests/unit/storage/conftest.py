"""An environment without credentials, endpoints and proxies for the tests of stores."""

from __future__ import annotations

import uuid

import pytest

# Names in the environment that would change what the tests connect to.
FOREIGN = (
    "S3_ENDPOINT_URL",
    "S3_CANNED_ACL",
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "MOSAICML_STREAMING_AWS_REQUESTER_PAYS",
    "GCS_KEY",
    "GCS_SECRET",
    "STORAGE_EMULATOR_HOST",
    "AZURE_ACCOUNT_NAME",
    "AZURE_ACCOUNT_ACCESS_KEY",
    "AZURE_STORAGE_CONNECTION_STRING",
    "HF_TOKEN",
    "HF_ENDPOINT",
    "DATABRICKS_HOST",
    "DATABRICKS_TOKEN",
    "COMPOSER_SFTP_KEY_FILE",
    "COMPOSER_SFTP_KNOWN_HOSTS_FILE",
    "http_proxy",
    "https_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "all_proxy",
)


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path_factory):
    """No credentials, endpoints or proxies but those of the test."""
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    nothing = tmp_path_factory.getbasetemp() / "no-such-file"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(nothing))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(nothing))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture
def name():
    """A prefix that no other test uses."""
    return uuid.uuid4().hex[:12]
