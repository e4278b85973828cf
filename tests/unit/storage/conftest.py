"""Real servers for the tests of stores, started once a module and stopped at its end."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import uuid

import pytest

from devtools import servers
from devtools.httpserver import http_server
from mds.storage import RetryPolicy, open_store

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

#: One try, so that a test of an error is quick.
ONCE = RetryPolicy(attempts=1)


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


def started(context):
    """Enter a server's context, or skip with how to install it."""
    try:
        return context.__enter__()
    except servers.ServerMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """Endpoint of an S3 server with the bucket 'bucket'; any signature is good."""
    folder = tmp_path_factory.mktemp("s3")
    (folder / "bucket").mkdir()
    context = servers.s3_server(str(folder))
    yield started(context)
    context.__exit__(None, None, None)


@pytest.fixture(scope="session")
def gcs():
    """URL of a Google Cloud Storage server with the bucket 'bucket'."""
    context = servers.gcs_server("bucket")
    yield started(context)
    context.__exit__(None, None, None)


@pytest.fixture(scope="session")
def azure():
    """Connection string of an Azure server with the container 'container'."""
    context = servers.azure_server()
    connection = started(context)
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient.from_connection_string(connection) as service:
        service.create_container("container")
    yield connection
    context.__exit__(None, None, None)


@pytest.fixture(scope="session")
def web(tmp_path_factory):
    """URL and folder of a web server."""
    folder = tmp_path_factory.mktemp("web")
    with http_server(str(folder)) as url:
        yield url, str(folder)


@pytest.fixture(scope="session")
def sftp(tmp_path_factory):
    """An SFTP server: its facts."""
    from devtools.sftpserver import sftp_server

    folder = tmp_path_factory.mktemp("sftp")
    with sftp_server(str(folder)) as server:
        yield server


def once(url, **options):
    """A store that tries once."""
    return open_store(url, options=options, retry=ONCE, timeout=20)


def read(path):
    """The bytes of a file."""
    with open(os.fspath(path), "rb") as file:
        return file.read()


@pytest.fixture
def trickling():
    """``trickling(start)``: the port of a server that says this and then a byte now and then."""
    over, ends = threading.Event(), []

    def begin(start):
        listener = socket.create_server(("127.0.0.1", 0))

        def trickle():
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                client.sendall(start)
                while not over.wait(0.05):
                    client.sendall(b"a")

        thread = threading.Thread(target=trickle)
        thread.start()
        ends.extend([thread.join, listener.close])
        return listener.getsockname()[1]

    yield begin
    over.set()
    for end in ends:
        end()
