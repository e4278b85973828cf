"""Servers of this machine in place of the clouds that a page of the docs names.

A page speaks of `my-bucket` and the like. What leads it to the servers (variables of the
environment, and other addresses where there is no such variable) follows from its text.
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
    """What leads a page to a server: variables to set, and addresses to write for others."""

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
    del folder  # Azurite has one of its own
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
        known = folder.parent / "known_hosts"
        known.write_text(server.known_hosts)
        yield StandIn(
            {
                "COMPOSER_SFTP_KEY_FILE": os.path.abspath(server.key),
                "COMPOSER_SFTP_KNOWN_HOSTS_FILE": str(known),
            },
            {"sftp://anna@my-host/": f"sftp://{server.user}@127.0.0.1:{server.port}/"},
        )


#: How an address on a page begins, and the server that stands for it.
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
    """Servers for the clouds that a text names, each in a folder of its own below ``folder``.

    Raises `servers.ServerMissing` where the program of one is not installed.
    """
    whole = StandIn({}, {})
    with contextlib.ExitStack() as stack:
        for number, (address, serve) in enumerate(CLOUDS.items()):
            if address in text:
                place = folder / str(number) / "files"
                place.mkdir(parents=True)
                found = stack.enter_context(serve(place))
                whole.variables.update(found.variables)
                whole.addresses.update(found.addresses)
        yield whole
