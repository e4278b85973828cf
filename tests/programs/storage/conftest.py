"""Real servers for the tests of stores, started once a session and stopped at its end."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from devtools import servers
from devtools.httpserver import http_server
from tests.unit.storage.conftest import environment, name

__all__ = ["environment", "name"]


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
