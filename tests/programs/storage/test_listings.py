"""Listings of several pages, each object once, by servers that tell a page at a time."""

import json
import re

import pytest

from devtools import servers
from devtools.httpserver import FolderHandler, http_server
from devtools.proxy import FaultProxy
from mds.storage import open_store

KEYS = [f"{number:03}" for number in range(10)]
FEW = 4  # objects of a page, as many as a server likes


class GooglePages(FolderHandler):
    """Lists ten objects in three answers, as Google Cloud Storage does."""

    def do_GET(self):
        at = int((re.search(r"pageToken=(\d+)", self.path) or [0, 0])[1])
        items = [
            {"name": f"many/{key}", "size": "1", "generation": "7"} for key in KEYS[at : at + FEW]
        ]
        more = {"nextPageToken": str(at + FEW)} if at + FEW < len(KEYS) else {}
        body = json.dumps({"items": items, **more}).encode()
        self.end(200, body, Content_Type="application/json")


class AzurePages(FolderHandler):
    """The same as Azure does."""

    def do_GET(self):
        at = int((re.search(r"marker=(\d+)", self.path) or [0, 0])[1])
        facts = "<Content-Length>1</Content-Length><Etag>7</Etag><BlobType>BlockBlob</BlobType>"
        blobs = "".join(
            f"<Blob><Name>many/{key}</Name><Properties>{facts}</Properties></Blob>"
            for key in KEYS[at : at + FEW]
        )
        more = at + FEW if at + FEW < len(KEYS) else ""
        body = (
            f"<EnumerationResults ContainerName='container'><Blobs>{blobs}</Blobs>"
            f"<NextMarker>{more}</NextMarker></EnumerationResults>"
        )
        self.end(200, body.encode(), Content_Type="application/xml")


@pytest.mark.parametrize("handler", [GooglePages, AzurePages])
def test_every_page_is_asked_for(tmp_path, monkeypatch, handler):
    """Ten objects in three requests, in order, each once."""
    with http_server(str(tmp_path), handler=handler) as url, FaultProxy(url) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        account = {"account_name": "me", "account_key": "a2V5", "endpoint": f"{proxy.url}/me"}
        store = (
            open_store("gs://bucket/many", options={"anonymous": True})
            if handler is GooglePages
            else open_store("azure://container/many", options=account)
        )
        found = [(info.key, info.size) for info in store.list()]
        assert proxy.count("^GET .*(prefix=|marker=)") == 3
    assert found == [(key, 1) for key in KEYS]


def test_listings_of_thousands(tmp_path):
    """Each of 2,100 objects once, in requests of a thousand."""
    (tmp_path / "bucket" / "many").mkdir(parents=True)
    for number in range(2100):
        (tmp_path / "bucket" / "many" / f"{number:05}").write_bytes(b"x")
    try:
        with (
            servers.s3_server(str(tmp_path), etags=False) as endpoint,
            FaultProxy(endpoint) as proxy,
        ):
            store = open_store("s3://bucket/many", options={"endpoint_url": proxy.url})
            keys = [info.key for info in store.list()]
            pages = proxy.count("^GET")
    except servers.ServerMissing as error:
        pytest.skip(str(error))
    assert sorted(keys) == [f"{number:05}" for number in range(2100)]
    assert pages == 3
