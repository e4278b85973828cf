"""What is S3's own: where the endpoint and the rights come from, and one client per process."""

import os
import pickle
import subprocess
import sys

import pytest

from devtools import servers
from devtools.proxy import Fault, FaultProxy
from mds._process import fork_safe as process
from mds.errors import ConfigError, UnauthenticatedError
from mds.storage import RetryPolicy, open_store
from mds.testing._store_contract import noise

ONCE = RetryPolicy(1)


@pytest.fixture
def proxy(s3):
    """A proxy before the S3 server, which sees the headers."""
    with FaultProxy(s3) as proxy:
        yield proxy


def test_the_endpoint_of_the_environment_is_used(proxy, name, monkeypatch):
    """S3_ENDPOINT_URL works as it always did."""
    monkeypatch.setenv("S3_ENDPOINT_URL", proxy.url)
    store = open_store(f"s3://bucket/{name}")
    store.put("x", b"1")
    assert store.get("x") == b"1"
    assert proxy.count() > 0


def test_two_endpoints_in_one_process(s3, tmp_path, name, monkeypatch):
    """Options go before the environment, so two S3 stores can be mixed."""
    (tmp_path / "bucket").mkdir()
    with servers.s3_server(str(tmp_path)) as other:
        monkeypatch.setenv("S3_ENDPOINT_URL", s3)
        one = open_store(f"s3://bucket/{name}")
        two = open_store(f"s3://bucket/{name}", options={"endpoint_url": other})
        one.put("x", b"one")
        two.put("x", b"two")
        assert (one.get("x"), two.get("x")) == (b"one", b"two")


def test_credentials_of_the_options_go_before_the_environment(tmp_path, name):
    """Each dataset may have its own keys; wrong ones are told as such, at once."""
    (tmp_path / "bucket").mkdir()
    with servers.s3_server(str(tmp_path), auth="mine,very-secret") as url:
        keys = {"aws_access_key_id": "mine", "aws_secret_access_key": "very-secret"}
        store = open_store(f"s3://bucket/{name}", options={"endpoint_url": url, **keys})
        store.put("x", b"1")
        assert store.get_range("x", 0, 1) == b"1"
        keys["aws_secret_access_key"] = "wrong"
        stranger = open_store(f"s3://bucket/{name}", options={"endpoint_url": url, **keys})
        with pytest.raises(UnauthenticatedError, match="Credentials"):
            stranger.get("x")


def test_reading_costs_no_import_of_boto3(proxy, name):
    """The SDK below it makes the client, in two thirds of the time; large uploads take boto3."""
    open_store(f"s3://bucket/{name}", options={"endpoint_url": proxy.url}).put("x", b"1")
    script = (
        "import sys; from mds.storage import open_store;"
        "store = open_store(sys.argv[1], options={'endpoint_url': sys.argv[2]});"
        "print(store.get('x'), store.head('x').size, {'boto3', 's3transfer'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", script, f"s3://bucket/{name}", proxy.url]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert told == "b'1' 1 set()\n"


def test_data_without_credentials_are_read_unsigned(proxy, name, monkeypatch):
    """Public data need no keys; without any, requests go unsigned and say so nowhere else."""
    signed = open_store(f"s3://bucket/{name}", options={"endpoint_url": proxy.url})
    signed.put("x", b"public")
    assert "authorization" in proxy.seen.headers[-1]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    options = {"endpoint_url": proxy.url, "region_name": "eu-west-1"}  # another client
    unsigned = open_store(f"s3://bucket/{name}", options=options)
    assert unsigned.get("x") == b"public"
    assert "authorization" not in proxy.seen.headers[-1]
    proxy.add(Fault("status", match="", status=403, times=None))
    with pytest.raises(UnauthenticatedError, match="credentials"):
        open_store(f"s3://bucket/{name}", options=options).get("x")


def test_a_signature_that_is_turned_down_as_malformed_is_left_away(proxy, name):
    """Status 400 to our signature and to that of the SDK has it tried unsigned, once."""
    store = open_store(f"s3://bucket/{name}", options={"endpoint_url": proxy.url}, retry=ONCE)
    store.put("x", b"public")
    proxy.add(Fault("status", status=400, times=2))
    assert store.get("x") == b"public"
    assert "authorization" not in proxy.seen.headers[-1]


def test_requester_pays(proxy, name, monkeypatch):
    """For the buckets that the environment names, or as the options say."""
    monkeypatch.setenv("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "other, bucket")
    by_name = open_store(f"s3://bucket/{name}", options={"endpoint_url": proxy.url})
    by_name.put("x", b"1")
    by_name.get("x")
    list(by_name.list())
    assert {seen.get("x-amz-request-payer") for seen in proxy.seen.headers} == {"requester"}
    proxy.seen.headers.clear()
    options = {"endpoint_url": proxy.url, "requester_pays": False}
    open_store(f"s3://bucket/{name}", options=options).get("x")
    assert "x-amz-request-payer" not in proxy.seen.headers[-1]


def test_canned_acl(proxy, name, monkeypatch):
    """Of uploads: S3_CANNED_ACL, or the option."""
    monkeypatch.setenv("S3_CANNED_ACL", "public-read")
    open_store(f"s3://bucket/{name}", options={"endpoint_url": proxy.url}).put("x", b"1")
    options = {"endpoint_url": proxy.url, "acl": "private"}
    open_store(f"s3://bucket/{name}", options=options).put("x", b"1")
    acls = [seen["x-amz-acl"] for seen in proxy.seen.headers if "x-amz-acl" in seen]
    assert acls == ["public-read", "private"]


def test_checksums_are_asked_for_on_amazon_only(proxy, name):
    """Other stores reject their headers on upload, or answer a range with those of the whole."""
    store = open_store(f"s3://bucket/{name}", options={"endpoint_url": proxy.url})
    store.put("x", noise(1000))
    store.get_range("x", 5, 500)
    assert not [k for seen in proxy.seen.headers for k in seen if "checksum" in k]
    wanted = {"endpoint_url": proxy.url, "checksums": True}
    open_store(f"s3://bucket/{name}", options=wanted).put("x", noise(1000))
    assert [k for seen in proxy.seen.headers for k in seen if "checksum" in k]
    amazon = open_store("s3://bucket", options={"region_name": "us-east-1"})
    config = amazon.inner.inner._client().meta.config
    assert config.request_checksum_calculation == "when_supported"
    assert config.max_pool_connections >= 64


def test_large_files_go_up_in_parts(proxy, name, tmp_path):
    """Above a size an upload has several parts, and is seen when it is complete."""
    data = noise(11 << 20)
    (tmp_path / "large").write_bytes(data)
    store = open_store(f"s3://bucket/{name}", options={"endpoint_url": proxy.url})
    amazon = store.inner.inner
    amazon.multipart_from, amazon.upload_part_size = 6 << 20, 5 << 20
    store.put_file("large", str(tmp_path / "large"))
    assert proxy.count("^PUT .*partNumber") == 3
    assert store.get("large") == data


def test_one_client_per_process_and_settings(s3, name):
    """Stores with the same settings share it; it is made when it is first needed."""
    options = {"endpoint_url": s3, "region_name": "eu-north-1"}
    before = len(process._objects)
    stores = [open_store(f"s3://bucket/{name}/{n}", options=options) for n in range(5)]
    assert len(process._objects) == before
    for store in stores:
        store.put("x", b"1")
    clients = {id(store.inner.inner._client()) for store in stores}
    assert len(clients) == 1
    assert b"botocore" not in pickle.dumps(stores[0])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_makes_its_own_client(s3, name):
    """And leaves the one that it inherited alone."""
    store = open_store(f"s3://bucket/{name}", options={"endpoint_url": s3})
    store.put("x", b"1")
    mine = store.inner.inner._client()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        good = store.inner.inner._client() is not mine and store.get("x") == b"1"
        os.write(writing, b"y" if good else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == b"y"
    os.close(reading)
    os.close(writing)
    assert store.inner.inner._client() is mine


def test_a_url_without_a_bucket_is_refused():
    """The error says what to write."""
    with pytest.raises(ConfigError, match="s3://bucket/prefix"):
        open_store("s3:///data")


def test_an_option_that_nobody_knows_is_refused():
    """With the one that was meant."""
    with pytest.raises(ConfigError, match="Did you mean 'endpoint_url'"):
        open_store("s3://bucket", options={"endpoint_ulr": "http://x"})
