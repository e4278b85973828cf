"""Other data with an index of the same bytes: without digests, its server and time count."""

import contextlib
import os
import pickle
import shutil
import threading
from email.utils import formatdate

import numpy as np
import pytest

from devtools import servers
from devtools.proxy import FaultProxy
from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset
from mds.errors import NotFoundError, UnreachableError
from mds.storage import open_store
from tests.programs.storage.conftest import started

BLOCKS = 12


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory):
    """Endpoints and buckets of two S3 servers."""
    with contextlib.ExitStack() as stack:
        places = []
        for name in ("one", "two"):
            folder = tmp_path_factory.mktemp(name)
            (folder / "bucket").mkdir()
            context = servers.s3_server(str(folder))
            places.append((started(context), folder / "bucket"))
            stack.callback(context.__exit__, None, None, None)
        yield places


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def write(folder, first, hashes=()):
    """Write blocks of 64 tokens of one value each; the index has the same bytes for all values."""
    shutil.rmtree(folder, ignore_errors=True)
    columns = {"tokens": "ndarray:int32"}
    with MDSWriter(str(folder), columns, size_limit=1000, hashes=list(hashes)) as writer:
        for number in range(BLOCKS):
            writer.write({"tokens": np.full(64, first + number, np.int32)})
    return (folder / "index.json").read_bytes()


def set_time(path, seconds, endpoint=""):
    """Set the time of a file; servers report whole seconds. Wait until a server has noticed."""
    os.utime(path, (seconds, seconds))
    if endpoint:
        store = open_store(f"s3://bucket/{path.parent.name}", options={"endpoint_url": endpoint})
        expected = formatdate(seconds, usegmt=True)

        def is_noticed():
            with contextlib.suppress(NotFoundError):
                return store.head(path.name).revision == expected
            return False

        while not is_noticed():
            threading.Event().wait(0.1)


def read(url, **options):
    """Return the first tokens, and the number of shards that were fetched.

    Of a distant dataset, the first rows come alone, an eighth of ``predownload``. With one row of
    the three of a shard, every shard is read as a whole before the end.
    """
    options = {"download_retry": 0, "download_timeout": 5.0, **options}
    dataset = StreamingDataset(url, batch_size=4, predownload=8, **options)
    values = sorted(int(sample["tokens"][0]) for sample in dataset)
    assert values == list(range(values[0], values[0] + BLOCKS))
    return values[0], dataset.stats()["fetched_shards"]


@pytest.mark.parametrize("way", ["environment", "sdk"])
def test_one_url_on_two_servers(two_servers, folder, monkeypatch, request, way):
    """Without digests, each server gives its own data, whatever the cache has."""
    url = f"s3://bucket/{request.node.name}"
    variable = {"environment": "S3_ENDPOINT_URL", "sdk": "AWS_ENDPOINT_URL"}[way]
    indexes = []
    for first, (endpoint, bucket) in zip((0, 1000), two_servers, strict=True):
        indexes.append(write(bucket / request.node.name, first))
        set_time(bucket / request.node.name / "index.json", 1_700_000_000, endpoint)
    assert indexes[0] == indexes[1]
    seen = []
    for endpoint, _ in (*two_servers, two_servers[0]):
        monkeypatch.setenv(variable, endpoint)
        seen.append(read(url, local=folder)[0])
    assert seen == [0, 1000, 0]


def test_one_url_on_two_servers_with_digests(two_servers, folder, monkeypatch):
    """With digests, the index says which data are the same, and a mirror needs no new download."""
    for endpoint, bucket in two_servers:
        write(bucket / "mirrored", 0, ["xxh3_64"])
        set_time(bucket / "mirrored" / "index.json", 1_700_000_000, endpoint)
    seen = []
    for endpoint, _ in two_servers:
        monkeypatch.setenv("S3_ENDPOINT_URL", endpoint)
        seen.append(read("s3://bucket/mirrored", local=folder))
    assert seen == [(0, BLOCKS // 3), (0, 0)]
    write(two_servers[1][1] / "mirrored", 1000, ["xxh3_64"])
    set_time(two_servers[1][1] / "mirrored" / "index.json", 1_700_000_001, endpoint)
    assert read("s3://bucket/mirrored", local=folder) == (1000, BLOCKS // 3)


@pytest.mark.parametrize("kind", ["path", "http", "s3"])
def test_data_that_were_written_again_in_the_same_place(
    two_servers, web, folder, monkeypatch, kind
):
    """Another time of the index is another dataset, and a start costs one request as before."""
    name = f"again-{kind}"
    place = {"path": web[1], "http": web[1], "s3": two_servers[0][1]}[kind] / name
    server = {"path": "", "http": web[0], "s3": two_servers[0][0]}[kind]
    first_index = write(place, 0)
    endpoint = server if kind == "s3" else ""
    set_time(place / "index.json", 1_700_000_000, endpoint)
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(server)) if server else None
        url = {"path": str(place), "http": f"{proxy and proxy.url}/{name}"}.get(kind)
        if kind == "s3":
            url = f"s3://bucket/{name}"
            monkeypatch.setenv("S3_ENDPOINT_URL", proxy.url)
        assert read(url, local=folder) == (0, BLOCKS // 3)
        before = proxy and proxy.count()
        assert read(url, local=folder) == (0, 0)
        if proxy:
            assert proxy.count() == before + 1
        assert write(place, 1000) == first_index
        set_time(place / "index.json", 1_700_000_001, endpoint)
        assert read(url, local=folder) == (1000, BLOCKS // 3)
        assert read(url, local=folder) == (1000, 0)


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    """URL and folder of a web server."""
    from devtools.httpserver import http_server

    folder = tmp_path_factory.mktemp("web")
    with http_server(str(folder)) as url:
        yield url, folder


@pytest.mark.parametrize("change", ["renamed", "link"])
def test_an_index_of_the_same_size_and_time_that_is_another_file(tmp_path, folder, change):
    """As ``cp -p`` leaves it, and a link that leads elsewhere."""
    for name, first in (("one", 0), ("two", 1000)):
        write(tmp_path / name, first)
        set_time(tmp_path / name / "index.json", 1_700_000_000)
    remote = tmp_path / "remote"
    if change == "link":
        remote.symlink_to(tmp_path / "one")
    else:
        shutil.copytree(tmp_path / "one", remote)
    assert read(str(remote), local=folder)[0] == 0
    if change == "link":
        remote.unlink()
        remote.symlink_to(tmp_path / "two")
    else:
        for path in (tmp_path / "two").iterdir():
            os.replace(path, remote / path.name)
    assert read(str(remote), local=folder)[0] == 1000


def test_a_start_without_the_remote(two_servers, folder, monkeypatch, caplog):
    """The cache of this server is read; without digests, that of another one is an error."""
    closed = f"http://127.0.0.1:{servers.free_port()}"
    for name, hashes in (("bare", []), ("digests", ["xxh3_64"])):
        write(two_servers[0][1] / name, 0, hashes)
        set_time(two_servers[0][1] / name / "index.json", 1_700_000_000, two_servers[0][0])
        with FaultProxy(two_servers[0][0]) as proxy:
            monkeypatch.setenv("S3_ENDPOINT_URL", proxy.url)
            assert read(f"s3://bucket/{name}", local=f"{folder}-{name}")[0] == 0
        assert read(f"s3://bucket/{name}", local=f"{folder}-{name}") == (0, 0)
        assert "verified index" in caplog.text
        monkeypatch.setenv("S3_ENDPOINT_URL", closed)
    assert read("s3://bucket/digests", local=f"{folder}-digests") == (0, 0)
    with pytest.raises(UnreachableError, match="filled from another endpoint") as caught:
        read("s3://bucket/bare", local=f"{folder}-bare")
    assert f"give only local='{folder}-bare'" in str(caught.value)
    local = StreamingDataset(local=f"{folder}-bare", batch_size=4)
    assert min(int(sample["tokens"][0]) for sample in local) == 0


def test_lengths_are_those_of_the_data(tmp_path, folder):
    """Kept lengths, and the headers of shards in the cache, belong to the data of the note."""

    def write_documents(lengths, seconds):
        shutil.rmtree(tmp_path / "remote", ignore_errors=True)
        columns = {"tokens": "ndarray:int32"}
        with MDSWriter(str(tmp_path / "remote"), columns, size_limit=None, hashes=[]) as writer:
            for length in lengths:
                writer.write({"tokens": np.full(length, length, np.int32)})
        set_time(tmp_path / "remote" / "index.json", seconds)
        return (tmp_path / "remote" / "index.json").read_bytes()

    def packs():
        dataset = StreamingDataset(
            str(tmp_path / "remote"),
            local=folder,
            packing=Packing(64, column="tokens"),
            batch_size=1,
        )
        loader = StreamingDataLoader(dataset)
        return {int(n) for batch in loader for n in np.unique(batch["tokens"])} - {0}

    indexes = [write_documents([10, 20, 30, 40], 1_700_000_000)]
    assert packs() == {10, 20, 30, 40}
    indexes.append(write_documents([5, 25, 35, 35], 1_700_000_001))
    assert indexes[0] == indexes[1]
    assert packs() == {5, 25, 35}


def test_files_of_another_inode_are_planned_again(tmp_path, folder):
    """Two files of one size and time, of which a link names first one and then the other."""
    (tmp_path / "files").mkdir()
    for name, first in (("one", 10), ("two", 80)):
        lines = "".join(f'{{"id": {first + number}}}\n' for number in range(10))
        (tmp_path / f"{name}.jsonl").write_text(lines)
        set_time(tmp_path / f"{name}.jsonl", 1_700_000_000)
    link = tmp_path / "files" / "part.jsonl"
    link.symlink_to(tmp_path / "one.jsonl")
    place = str(tmp_path / "files")

    def ids(**options):
        return [sample["id"] for sample in StreamingDataset(place, batch_size=2, **options)]

    assert ids() == ids(local=folder) == [*range(10, 20)]
    link.unlink()
    link.symlink_to(tmp_path / "two.jsonl")
    assert ids() == ids(local=folder) == [*range(80, 90)]


def test_the_endpoint_of_a_store(two_servers, monkeypatch):
    """It is told where the URL leaves it open, through wrappers and pickles."""
    assert open_store("s3://bucket/x").endpoint == ""
    assert open_store("/data").endpoint == ""
    assert open_store("gs://bucket/x").endpoint == ""
    store = open_store("s3://bucket/x", options={"endpoint_url": two_servers[0][0]})
    assert store.endpoint == pickle.loads(pickle.dumps(store)).endpoint == two_servers[0][0]
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example")
    assert open_store("hf://datasets/org/name").endpoint == "https://mirror.example"
    monkeypatch.setenv("AZURE_ACCOUNT_NAME", "anna")
    assert open_store("azure://container/x").endpoint == "https://anna.blob.core.windows.net"
    key = "DefaultEndpointsProtocol=https;AccountName=ben;AccountKey=AAAA"
    store = open_store("azure://container/x", options={"connection_string": key})
    assert store.endpoint == "https://ben.blob.core.windows.net"
    assert open_store("sftp://host/x").endpoint == "sftp://host:22"
    assert open_store("https://host/x").endpoint == ""
