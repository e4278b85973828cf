"""Datasets that several tasks write, in a folder and in a real object store."""

import json
import os

import pyarrow as pa
import pytest
from click.testing import CliRunner

from devtools import servers
from mds import LocalDataset, MDSWriter, StreamingDataset, merge_index
from mds._cli import main
from mds.errors import ConfigError, WriterError
from mds.writers._parts import PartedDataset

SCHEMA = pa.schema([("id", pa.int64())])


def plan(out, mode="error", storage_options=None, **options):
    options = {"compression": None, "hashes": ["xxh3_64"], "size_limit": 200, **options}
    parted = PartedDataset.plan("Sink", out, mode, None, storage_options, options)
    return parted.with_schema(SCHEMA)


def batch(*numbers):
    return pa.record_batch([pa.array(numbers)], schema=SCHEMA)


def broken():
    """A task that dies after some shards."""
    yield batch(*range(100))
    raise ZeroDivisionError


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Options of a real S3 server, and the folder of its bucket."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    folder = tmp_path / "s3"
    (folder / "bucket").mkdir(parents=True)
    context = servers.s3_server(str(folder), auth="access,secret")
    try:
        endpoint = context.__enter__()
    except servers.ServerMissing as missing:
        pytest.skip(str(missing))
    yield {"endpoint_url": endpoint}, folder / "bucket" / "data"
    context.__exit__(None, None, None)


def run(out, folder, options, read):
    """Tasks that are run twice, die or stay empty; then an append and an overwrite."""
    parted = plan(out, storage_options=options)
    parts = [parted.write(task, [batch(task)]) for task in (1, 0, 11)]
    with pytest.raises(ZeroDivisionError):
        parted.write(2, broken())
    parts += [parted.write(2, [batch(2, 3)]), parted.write(3, []), parted.write(4, [batch()])]
    parted.write(0, [batch(0)])  # an attempt that the engine does not report
    assert not (folder / "index.json").exists()
    parted.publish(parts)
    assert read() == [0, 1, 2, 3, 11]  # in the order of the tasks
    named = sorted(filter(None, parts))
    assert sorted(name for name in os.listdir(folder) if name.startswith("part-")) == named

    more = plan(out, "append", options)
    more.publish([more.write(0, [batch(20)])])
    assert read() == [0, 1, 2, 3, 11, 20]
    more.publish([])  # an engine without rows
    assert read() == [0, 1, 2, 3, 11, 20]

    more.abort()  # an engine that fails afterwards
    assert read() == [0, 1, 2, 3, 11, 20]

    lost = plan(out, "overwrite", options)
    lost.write(0, [batch(1)])
    lost.abort()
    assert read() == [0, 1, 2, 3, 11, 20]

    (folder / "foreign").mkdir()
    (folder / "foreign" / "shard.00000.mds").write_bytes(b"of another dataset")
    again = plan(out, "overwrite", options)
    again.publish([again.write(0, [batch(5)])])
    assert read() == [5]
    assert len([name for name in os.listdir(folder) if name.startswith("part-")]) == 1
    assert (folder / "foreign" / "shard.00000.mds").exists()


def test_a_folder(tmp_path):
    """Only the attempts that count stay."""
    folder = tmp_path / "out"
    run(str(folder), folder, None, lambda: [s["id"] for s in LocalDataset(str(folder))])


def test_an_object_store(server, tmp_path):
    """The same in S3, where no folder can be locked or renamed."""
    options, folder = server
    caches = iter(range(100))

    def read():
        dataset = StreamingDataset(
            "s3://bucket/data",
            local=str(tmp_path / f"cache{next(caches)}"),
            storage_options=options,
        )
        return dataset.to_arrow_reader().read_all()["id"].to_pylist()

    run("s3://bucket/data", folder, options, read)


def test_a_dataset_in_the_meantime_is_not_replaced(tmp_path):
    """Two jobs that begin in an empty folder: the second to end raises, and is deleted."""
    out = tmp_path / "out"
    first, second = plan(str(out)), plan(str(out))
    parts = [first.write(0, [batch(1)])], [second.write(0, [batch(2)])]
    second.publish(parts[1])
    with pytest.raises(WriterError, match="another program wrote a dataset"):
        first.publish(parts[0])
    first.abort()
    assert [sample["id"] for sample in LocalDataset(str(out))] == [2]
    assert [name for name in os.listdir(out) if name.startswith("part-")] == parts[1]


def test_clean_removes_what_a_dead_job_wrote(tmp_path):
    """The folders of a job whose driver died, and not those that the index names."""
    out = tmp_path / "out"
    first, dead = plan(str(out)), plan(str(out))
    part = first.write(0, [batch(1)])
    lost = sorted(dead.write(task, [batch(2)]) for task in range(2))
    first.publish([part])
    shown = CliRunner().invoke(main, ["clean", str(out), "--json"])
    assert json.loads(shown.output)["leftovers"]["parts"] == lost
    assert CliRunner().invoke(main, ["clean", str(out), "--remove"]).exit_code == 0
    assert [name for name in os.listdir(out) if name.startswith("part-")] == [part]
    assert [sample["id"] for sample in LocalDataset(str(out))] == [1]


def test_a_wrong_index_deletes_nothing_else(tmp_path):
    """Overwriting deletes files with the names of shards only."""
    out = tmp_path / "out"
    first = plan(str(out))
    first.publish([first.write(0, [batch(1)])])
    index = json.loads((out / "index.json").read_text())
    info = index["shards"][0]["raw_data"]
    (out / "photo.jpg").write_bytes((out / info["basename"]).read_bytes())
    index["shards"][0]["raw_data"] = {**info, "basename": "photo.jpg"}
    (out / "index.json").write_text(json.dumps(index))
    second = plan(str(out), "overwrite")
    second.publish([second.write(0, [batch(2)])])
    assert (out / "photo.jpg").exists()


def test_an_appended_column_must_fit(tmp_path):
    """Rows with other columns or encodings are refused before anything is written."""
    out = str(tmp_path / "out")
    first = plan(out)
    first.publish([first.write(0, [batch(1)])])
    parted = PartedDataset.plan("Sink", out, "append", {"id": "int32"}, None, {})
    with pytest.raises(ConfigError, match=r"column 'id' is 'int' .* but 'int32' in the rows"):
        parted.with_schema(SCHEMA)
    with pytest.raises(ConfigError, match=r"column 'x' is 'missing' .* but 'str' in the rows"):
        plan(out, "append").with_schema(SCHEMA.append(pa.field("x", pa.string())))


def test_an_append_takes_the_encodings_of_the_schema(tmp_path):
    """Where shards differ, that is the encoding of the first one."""
    for name, encoding in (("a", "int32"), ("b", "int64")):
        with MDSWriter(str(tmp_path / name), {"id": encoding}) as writer:
            writer.write({"id": 1})
    merge_index(str(tmp_path))
    appended = plan(str(tmp_path), "append")
    assert appended.columns == LocalDataset(str(tmp_path)).schema == {"id": "int32"}
