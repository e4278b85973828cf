"""Over a wire: how often files are asked for, what comes, and trouble on the way."""

import contextlib

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402
from tables import table, write_files  # noqa: E402
from together import run_together  # noqa: E402

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


def test_processes_that_start_together_ask_as_often_as_one(wire, tmp_path):
    """One lists and looks at the files; the others take what it found."""
    run_together("fork", 6, of, tmp_path / "c")
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


@pytest.mark.slow
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
    with pytest.raises(MdsError, match=r"s3://bucket/data.*no parquet files"):
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


class TestFootersOfAll:
    """The file ``_metadata`` that Spark and Dask write beside the files."""

    @pytest.fixture
    def place(self, tmp_path):
        """A folder with such a file, of files in folders of their own."""
        folder, found = tmp_path / "s3" / "bucket" / "spark", []
        for number in range(FILES):
            key = f"day={number:02}/x.parquet"
            (folder / key).parent.mkdir(parents=True)
            rows = table(number * 10, 10)
            pq.write_table(rows, folder / key, row_group_size=4, metadata_collector=found)
            found[-1].set_file_path(key)
        pq.write_metadata(found[0].schema.to_arrow_schema(), folder / "_metadata", found)
        return folder

    @pytest.fixture
    def serve(self, tmp_path, monkeypatch):
        """Starts an S3 server of that folder; gives the proxy before it."""
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"):
            monkeypatch.setenv(f"AWS_{name}", "x")
        with contextlib.ExitStack() as stack:

            def start():
                server = stack.enter_context(servers.s3_server(str(tmp_path / "s3")))
                proxy = stack.enter_context(FaultProxy(server))
                monkeypatch.setenv("S3_ENDPOINT_URL", proxy.url)
                return proxy

            yield start

    def test_take_the_place_of_those_of_each_file(self, place, serve, tmp_path):
        """One request for all of them, one to see that they are of the files; same samples."""
        wire, url = serve(), "s3://bucket/spark/**/*.parquet"
        dataset = of(tmp_path / "c", url)
        assert dataset.num_shards == 3 * FILES
        assert wire.count("GET /bucket/.*_metadata") == 1
        assert wire.count("GET /bucket/.*x.parquet") == 1
        asked = wire.count()
        of(tmp_path / "c", url)
        assert wire.count() - asked == 1
        plain = of(tmp_path / "p", str(place / "**" / "*.parquet"))
        assert [str(sample) for sample in dataset] == [str(sample) for sample in plain]

    @pytest.mark.parametrize("what", ["replaced", "new", "no footers"])
    def test_what_does_not_fit_is_ignored_with_a_sentence(
        self, place, serve, tmp_path, caplog, what
    ):
        """Files that changed since, one that came since, and a file that holds something else."""
        paths = sorted(place.glob("*/x.parquet"))
        whole = [pq.read_table(each) for each in paths]
        if what == "replaced":
            for number, each in enumerate(paths):
                whole[number] = table(1000 + number, 10)
                pq.write_table(whole[number], each, row_group_size=7, compression="none")
        elif what == "new":
            (place / "day=99").mkdir()
            pq.write_table(table(5, 3), place / "day=99" / "x.parquet")
            whole.append(table(5, 3))
        else:
            (place / "_metadata").write_bytes(b"PAR1 something else")
        serve()
        dataset = of(tmp_path / "c", "s3://bucket/spark/**/*.parquet")
        ids = {sample["id"] for sample in dataset}
        assert ids == {number for each in whole for number in each["id"].to_pylist()}
        (told,) = [each.getMessage() for each in caplog.records if each.name == "mds.formats"]
        assert ("is not used, and every file is read instead" in told) == (what != "new")
        assert ("is out of date for day=99/x.parquet" in told) == (what == "new")
