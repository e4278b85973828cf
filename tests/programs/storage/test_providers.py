"""One translation of errors and one meaning of the timeout, whatever the provider."""

import os
import re

import pytest

from devtools import dialects
from devtools.httpserver import http_server
from devtools.proxy import Fault, FaultProxy
from mds.errors import (
    DeniedError,
    NotFoundError,
    StalledError,
    StoreError,
    TransientError,
    UnauthenticatedError,
)
from mds.storage import RetryPolicy, open_store
from mds.testing._store_contract import noise

DATA = noise(200_000)


def open_http(proxy, name, monkeypatch, options):
    return f"{proxy}/{name}", {}


def open_s3(proxy, name, monkeypatch, options):
    return f"s3://bucket/{name}", {"endpoint_url": proxy}


def open_gs(proxy, name, monkeypatch, options):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy)
    return f"gs://bucket/{name}", {}


def open_hmac(proxy, name, monkeypatch, options):
    keys = {"gcs_key": "access", "gcs_secret": "secret"}
    return f"gs://bucket/{name}", {"endpoint_url": proxy, **keys}


def open_azure(proxy, name, monkeypatch, options):
    facts = dict(part.split("=", 1) for part in options.strip(";").split(";"))
    account = {"account_name": facts["AccountName"], "account_key": facts["AccountKey"]}
    return f"azure://container/{name}", {"endpoint": f"{proxy}/{facts['AccountName']}", **account}


def open_oci(proxy, name, monkeypatch, options):
    return f"oci://bucket@namespace/{name}", {"config_file": options, "endpoint": proxy}


def open_hub(proxy, name, monkeypatch, options):
    return f"hf://datasets/org/name/{name}", {"endpoint": proxy, "token": "token"}


def open_volume(proxy, name, monkeypatch, options):
    return f"dbfs:/Volumes/c/s/v/{name}", {"host": proxy, "token": "token"}


def open_dbfs(proxy, name, monkeypatch, options):
    return f"dbfs:/{name}", {"host": proxy, "token": "token"}


SERVERS = {
    "http": ("web", open_http),
    "s3": ("s3", open_s3),
    "gs": ("gcs", open_gs),
    "gs-hmac": ("s3", open_hmac),
    "azure": ("azure", open_azure),
    "oci": (dialects.Oci, open_oci),
    "hf": (dialects.Hub, open_hub),
    "volume": (dialects.Databricks, open_volume),
    "dbfs": (dialects.Databricks, open_dbfs),
}


class Behind:
    """A provider's store with the object 'there', and the proxy before its server."""

    def __init__(self, proxy, url, options):
        self.proxy, self.url, self.options = proxy, url, options
        self.open().put("there", DATA)
        # What the provider learned about the object before the faults shall not help it.
        proxy.seen.requests.clear()

    def open(self, *, timeout=20, attempts=1):
        options = {"part_connections": 1, **self.options}
        policy = RetryPolicy(attempts, 0, first_wait=0.01)
        return open_store(self.url, options=options, retry=policy, timeout=timeout)


@pytest.fixture(params=list(SERVERS))
def behind(request, name, monkeypatch, tmp_path):
    """Every provider in turn."""
    server, opens = SERVERS[request.param]
    if request.param == "oci":
        pytest.importorskip("oci", reason='pip install "mds-streaming[oci]"')
    with _server(request, server, tmp_path) as (url, extra), FaultProxy(url) as proxy:
        yield Behind(proxy, *opens(proxy.url, name, monkeypatch, extra))


class _server:
    def __init__(self, request, server, tmp_path):
        self.request, self.server, self.tmp_path = request, server, tmp_path
        self.context = None

    def __enter__(self):
        if isinstance(self.server, str):
            facts = self.request.getfixturevalue(self.server)
            if self.server == "azure":
                url = re.search(r"BlobEndpoint=(http://[^/]+)", facts)[1]
                return url, facts
            return (facts[0] if isinstance(facts, tuple) else facts), None
        self.context = http_server(str(self.tmp_path / "served"), handler=self.server)
        extra = None
        if self.server is dialects.Oci:
            extra = str(dialects.oci_config(self.tmp_path))
        return self.context.__enter__(), extra

    def __exit__(self, *error):
        if self.context is not None:
            self.context.__exit__(*error)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, UnauthenticatedError),
        (403, DeniedError),
        (404, NotFoundError),
        (429, TransientError),
        (500, TransientError),
        (503, TransientError),
    ],
)
def test_errors_are_judged_alike(behind, status, kind):
    """The same trouble is the same error, reading and writing, and names the object."""
    behind.proxy.add(Fault("status", match="", status=status, times=None))
    with pytest.raises(kind, match=r"(get|head) .*there") as caught:
        behind.open().get("there")
    assert type(caught.value) is kind
    if status != 404 and not (kind is TransientError and behind.url.startswith("hf://")):
        # huggingface_hub has a patience of its own with commits.
        with pytest.raises(kind, match=r"put .*there"):
            behind.open().put("there", b"x")


def test_other_errors_are_told_and_not_swallowed(behind):
    """A status that nobody expects is an error, not an empty object."""
    behind.proxy.add(Fault("status", match="", status=418, times=None))
    for act in (lambda s: s.get("there"), lambda s: s.head("there"), lambda s: s.put("x", b"1")):
        with pytest.raises(StoreError) as caught:
            act(behind.open())
        assert not isinstance(caught.value, TransientError)


@pytest.mark.slow
def test_the_timeout_means_the_same(behind, tmp_path):
    """A transfer that stands still for the timeout is noticed, before and in the body."""
    for after in (0, 50_000):
        behind.proxy.clear()
        behind.proxy.add(Fault("stall", match="^GET (?!.*status)", after=after, times=None))
        with pytest.raises(StalledError, match="there"):
            behind.open(timeout=0.3).get_file("there", str(tmp_path / "x"), len(DATA))
    behind.proxy.cut()


@pytest.mark.parametrize("kind", ["cut", "reset", "drop"])
def test_broken_connections_are_mended(behind, tmp_path, kind):
    """The file is whole after the line broke."""
    behind.proxy.add(Fault(kind, match="^GET", after=60_000, times=1))
    behind.open(attempts=5).get_file("there", str(tmp_path / "x"), len(DATA))
    assert (tmp_path / "x").read_bytes() == DATA
    assert os.listdir(tmp_path).count("x") == 1
