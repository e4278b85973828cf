"""Over a wire: how often files are asked for, what comes, and trouble on the way."""

import multiprocessing

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402
from tables import table, write_files  # noqa: E402

from devtools import servers  # noqa: E402
from devtools.proxy import Fault, FaultProxy  # noqa: E402
from mds import StreamingDataset  # noqa: E402
from mds.errors import MdsError  # noqa: E402
from mds.storage import open_store  # noqa: E402

FILES = 12


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """The folder of an S3 server with a bucket of Parquet files, and its URL."""
    folder = tmp_path_factory.mktemp("s3")
    write_files(folder / "bucket" / "data", groups=((400, 300),) * FILES)
    with servers.s3_server(str(folder)) as url:
        yield folder, url


@pytest.fixture
def wire(bucket, monkeypatch):
    """A proxy before that server, which S3 goes through."""
    for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("REGION", "x")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with FaultProxy(bucket[1]) as proxy:
        monkeypatch.setenv("S3_ENDPOINT_URL", proxy.url)
        yield proxy


def of(cache, url="s3://bucket/data/*.parquet", **more):
    return StreamingDataset(remote=url, local=str(cache), batch_size=8, **more)


def test_a_start_asks_each_file_once_and_the_next_one_none(wire, tmp_path):
    """A listing and a range of each footer; then a listing alone, in every process."""
    dataset = of(tmp_path / "c")
    assert dataset.num_shards == 2 * FILES
    assert wire.count(r"GET /bucket/data/part") == FILES
    asked = wire.count()
    assert asked <= FILES + 2
    of(tmp_path / "c")
    assert wire.count() - asked <= 2
    assert wire.count(r"GET /bucket/data/part") == FILES


def _start(cache, barrier):
    barrier.wait()
    of(cache)


def test_processes_that_start_together_ask_as_often_as_one(wire, tmp_path):
    """One lists and looks at the files; the others take what it found."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(6)
    jobs = [context.Process(target=_start, args=(tmp_path / "c", barrier)) for _ in range(6)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
        assert job.exitcode == 0
    assert wire.count(r"GET /bucket/data/part") == FILES
    # A process that came to the lock before another one listed lists for itself.
    assert wire.count(r"GET /bucket\?") <= 6


def test_the_bytes_of_one_column_come_and_no_others(bucket, wire, tmp_path):
    """Each row group is a range of its column, once for an epoch of two workers and all others."""
    whole = [sample["id"] for sample in of(tmp_path / "c", columns=["id"])]
    assert sorted(whole)[:700] == list(range(700))
    chunks = 0
    dataset = of(tmp_path / "d", columns=["tokens"])
    before = wire.seen.bytes_sent
    assert sum(len(sample["tokens"]) for sample in dataset) == 16 * 700 * FILES
    came = wire.seen.bytes_sent - before
    found = pq.read_metadata(bucket[0] / "bucket" / "data" / "part-000.parquet")
    for number in range(found.num_row_groups):
        column = [
            found.row_group(number).column(at)
            for at in range(found.num_columns)
            if found.row_group(number).column(at).path_in_schema.startswith("tokens")
        ]
        chunks += sum(each.total_compressed_size for each in column)
    chunks *= FILES  # the files differ in their numbers, and little in their bytes
    assert came <= 1.05 * chunks
    assert dataset.stats()["fetched_bytes"] <= 1.02 * chunks


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", match="GET /bucket/data/part", times=6, status=503),
        Fault("status", match="GET /bucket/data/part", times=6, status=429, retry_after=0),
        Fault("cut", match="GET /bucket/data/part", times=4, after=500),
        Fault("reset", match="GET /bucket/data/part", times=4, after=500),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_trouble_that_passes_is_not_noticed(wire, tmp_path, fault):
    """Refused and broken answers are asked for again, of footers and of row groups."""
    wire.add(fault)
    dataset = of(tmp_path / "c", download_retry=4)
    wire.add(fault)
    assert sum(1 for _ in dataset) == 700 * FILES


def test_a_file_that_is_replaced_in_the_store_is_told(bucket, wire, tmp_path):
    """By its etag, also where its size stays."""
    url = "s3://bucket/changing"
    folder = bucket[0] / "bucket" / "changing"
    write_files(folder, groups=((40,), (40,)), compression="none")
    store = open_store(url)
    while sum(1 for _ in store.list()) < 2:
        continue  # the server looks at its folder once a second
    dataset = of(tmp_path / "c", url=url, format="parquet")
    assert dataset[0]["id"] == 0
    path = folder / "part-001.parquet"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    before = store.head("part-001.parquet").version
    path.write_bytes(data)
    while store.head("part-001.parquet").version == before:
        continue
    with pytest.raises(MdsError, match=r"part-001\.parquet.*changed"):
        dataset[50]


def test_an_object_that_is_no_parquet_and_a_bucket_without_files(wire, tmp_path):
    """Each is a sentence with the URL."""
    with pytest.raises(MdsError, match=r"s3://bucket/data.*no files of parquet"):
        of(tmp_path / "c", url="s3://bucket/data/none*.parquet")
    with pytest.raises(MdsError, match=r"s3://bucket/nothing/a\.parquet"):
        of(tmp_path / "d", url="s3://bucket/nothing/a.parquet")


def test_values_over_the_wire_are_those_of_the_files(wire, tmp_path):
    """Shuffled, with a limit that holds a part of the rows."""
    dataset = of(tmp_path / "c", shuffle=True, cache_limit="200kb", num_canonical_nodes=1)
    found = {}
    for sample in dataset:
        found.setdefault(sample["id"], []).append(sample)
    rows = table(0, 400).to_pylist()
    assert len(found) == 700 * FILES
    for row in rows[::37]:
        (sample,) = found[row["id"]]
        assert sample["text"] == row["text"]
        assert sample["tokens"].tolist() == row["tokens"]
        assert sample["score"] == np.float32(row["score"])
