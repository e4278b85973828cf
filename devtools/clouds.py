"""Servers of this machine in place of the clouds that a page of the docs names.

Pages use addresses such as `s3://my-bucket`. A `StandIn` directs them to a local server, by
variables of the environment or by another address if the client reads no such variable.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from devtools import dialects, servers
from devtools.httpserver import http_server


class StandIn(NamedTuple):
    """Variables of the environment to set, and addresses of the page with their replacements."""

    variables: dict[str, str]
    addresses: dict[str, str]


@contextmanager
def _s3(folder: pathlib.Path) -> Iterator[StandIn]:
    (folder / "my-bucket").mkdir(parents=True)
    with servers.s3_server(str(folder)) as url:
        keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "tried")
        yield StandIn({"S3_ENDPOINT_URL": url, **keys}, {})


@contextmanager
def _gcs(folder: pathlib.Path) -> Iterator[StandIn]:
    del folder  # the emulator keeps all in memory
    with servers.gcs_server("my-bucket") as url:
        yield StandIn({"STORAGE_EMULATOR_HOST": url}, {})


@contextmanager
def _azure(folder: pathlib.Path) -> Iterator[StandIn]:
    del folder  # Azurite makes its own
    from azure.storage.blob import BlobServiceClient

    with servers.azure_server() as connection:
        with BlobServiceClient.from_connection_string(connection) as service:
            service.create_container("my-container")
        yield StandIn({"AZURE_STORAGE_CONNECTION_STRING": connection}, {})


@contextmanager
def _hub(folder: pathlib.Path) -> Iterator[StandIn]:
    with http_server(str(folder), handler=dialects.Hub) as url:
        yield StandIn({"HF_ENDPOINT": url, "HF_TOKEN": "token"}, {})


@contextmanager
def _databricks(folder: pathlib.Path) -> Iterator[StandIn]:
    with http_server(str(folder), handler=dialects.Databricks) as url:
        yield StandIn({"DATABRICKS_HOST": url, "DATABRICKS_TOKEN": "token"}, {})


@contextmanager
def _sftp(folder: pathlib.Path) -> Iterator[StandIn]:
    from devtools.sftpserver import sftp_server

    with sftp_server(str(folder)) as server:
        known_hosts = folder.parent / "known_hosts"
        known_hosts.write_text(server.known_hosts)
        yield StandIn(
            {
                "COMPOSER_SFTP_KEY_FILE": os.path.abspath(server.key),
                "COMPOSER_SFTP_KNOWN_HOSTS_FILE": str(known_hosts),
            },
            {"sftp://anna@my-host/": f"sftp://{server.user}@127.0.0.1:{server.port}/"},
        )


#: Prefix of an address in the docs, and the local server that replaces it.
CLOUDS = {
    "s3://my-bucket": _s3,
    "gs://my-bucket": _gcs,
    "azure://my-container": _azure,
    "hf://datasets/my-org/": _hub,
    "dbfs:/Volumes/main/default/my-volume": _databricks,
    "sftp://anna@my-host/": _sftp,
}


@contextmanager
def stand_ins(text: str, folder: pathlib.Path) -> Iterator[StandIn]:
    """Run a server for each cloud that a text names, with its files in a folder below ``folder``.

    Raises `servers.ServerMissing` if the program of a server is not installed.
    """
    combined = StandIn({}, {})
    with contextlib.ExitStack() as stack:
        for number, (address, serve) in enumerate(CLOUDS.items()):
            if address in text:
                place = folder / str(number) / "files"
                place.mkdir(parents=True)
                stand_in = stack.enter_context(serve(place))
                combined.variables.update(stand_in.variables)
                combined.addresses.update(stand_in.addresses)
        yield combined
