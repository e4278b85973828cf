"""Datasets as a source and a sink of Ray Data, on a real local Ray."""

import os

import numpy as np
import pyarrow as pa
import pytest

from mds import LocalDataset, MDSWriter, StreamingDataset, convert
from mds.errors import ConfigError, WriterError

ray = pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("ray.data", reason="ray is not installed")

from mds.integrations.ray import MDSDatasink, MDSDatasource  # noqa: E402 - ray may be missing

pytestmark = pytest.mark.filterwarnings("ignore")  # ray forks, and leaves files open
COLUMNS = {
    "flag": "bool",
    "id": "int",
    "image": "ndarray:uint8:2,3",
    "meta": "json",
    "note": "optional[str]",
    "raw": "bytes",
    "score": "float32",
    "text": "str",
    "tokens": "ndarray:int32",
}


def sample(number):
    return {
        "flag": number % 2 == 0,
        "id": number,
        "image": np.full((2, 3), number % 256, np.uint8),
        "meta": {"number": [number]},
        "note": None if number % 3 else f"note {number}",
        "raw": b"\0" * (number % 5),
        "score": np.float32(number / 2),
        "text": f"text {number}",
        "tokens": np.arange(1 + number % 4, dtype=np.int32),
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A dataset of 100 samples with columns of all kinds, in many shards."""
    out = str(tmp_path_factory.mktemp("ray") / "data")
    with MDSWriter(out, COLUMNS, size_limit=1000) as writer:
        for number in range(100):
            writer.write(sample(number))
    return out


@pytest.fixture(scope="module", autouse=True)
def _ray():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    yield
    ray.shutdown()


def rows(folder, columns=None, **options):
    return ray.data.read_datasource(MDSDatasource(StreamingDataset(folder), columns), **options)


def ids(folder):
    return sorted(sample["id"] for sample in LocalDataset(folder))


def folders(out):
    return sorted(entry.name for entry in os.scandir(out) if entry.is_dir())


def test_rows_have_the_types_of_arrow(source):
    """A block has the columns, types and values of `to_arrow_reader`."""
    dataset = StreamingDataset(source)
    table = pa.concat_tables(ray.get(rows(source).to_arrow_refs()))
    assert table.equals(dataset.to_arrow_reader().read_all())
    chosen = rows(source, ["text", "id"])
    assert chosen.schema().names == ["text", "id"]
    assert chosen.count() == 100
    part = MDSDatasource(dataset.select([3, 50, 51]), ["id"])
    assert ray.data.read_datasource(part).take_all() == [{"id": 3}, {"id": 50}, {"id": 51}]


def test_a_task_reads_a_group_of_shards(source):
    """There are as many tasks as asked for, of whole shards and of about equal size."""
    dataset = StreamingDataset(source)
    shards = [shard.samples for shard in dataset.shards]
    tasks = MDSDatasource(dataset).get_read_tasks(4)
    counts = [task.metadata.num_rows for task in tasks]
    assert sum(counts) == 100
    assert len(counts) == 4
    assert max(counts) - min(counts) <= 2 * max(shards)
    assert set(np.cumsum(counts)) <= set(np.cumsum(shards))
    assert len(MDSDatasource(dataset).get_read_tasks(1000)) == len(shards)
    raw = sum(shard.raw.size for shard in dataset.shards)
    assert MDSDatasource(dataset, ["text"]).estimate_inmemory_data_size() == raw


def test_a_copy_equals_its_source(source, tmp_path):
    """With the encodings of the source, every value comes back with its type."""
    out = str(tmp_path / "out")
    rows(source).write_datasink(MDSDatasink(out, encodings=StreamingDataset(source).schema))
    copy = LocalDataset(out)
    assert copy.schema == COLUMNS
    for number, values in enumerate(copy):
        for name, expected in sample(number).items():
            np.testing.assert_equal(values[name], expected)
            assert type(values[name]) is type(LocalDataset(source)[number][name])


def test_encodings_follow_from_the_types(tmp_path):
    """The steps before the write decide the columns, also tensors of Ray."""
    out = str(tmp_path / "out")

    def columns(batch):
        count = len(batch["id"])
        return {
            "small": batch["id"].astype(np.int16),
            "image": np.ones((count, 2, 2), np.uint8),
            "ragged": np.array([np.ones((i + 1, 2), np.int32) for i in range(count)], object),
            "list": [[1, 2]] * count,
            "nested": [{"a": [1]}] * count,
            "day": np.full(count, np.datetime64("2026-01-02")),
        }

    ray.data.range(6).map_batches(columns, batch_size=3).write_datasink(MDSDatasink(out))
    dataset = LocalDataset(out)
    assert dataset.schema == {
        "day": "str",
        "image": "ndarray:uint8:2,2",
        "list": "ndarray:int64",
        "nested": "json",
        "ragged": "ndarray:int32",
        "small": "int16",
    }
    assert dataset[1]["ragged"].shape == (2, 2)
    assert dataset[1]["nested"] == {"a": [1]}
    assert dataset[1]["day"].startswith("2026-01-02")


def test_modes(source, tmp_path):
    """A place that is not empty is refused, added to, or replaced when all is written."""
    out, foreign = str(tmp_path / "out"), tmp_path / "out" / "README"
    rows(source, ["id", "note"]).write_datasink(
        MDSDatasink(out, encodings={"note": "optional[str]"})
    )
    with pytest.raises(FileExistsError, match=r"is not empty .*mode='append'"):
        MDSDatasink(out)
    foreign.write_text("by hand")
    # The encodings are those of the dataset there.
    rows(source, ["id", "note"]).limit(10).write_datasink(MDSDatasink(out, mode="append"))
    assert ids(out) == sorted([*range(100), *range(10)])
    assert LocalDataset(out).schema == {"id": "int", "note": "optional[str]"}
    with pytest.raises(ConfigError, match=r"'note' is 'optional\[str\]' .*'missing'"):
        rows(source, ["id"]).write_datasink(MDSDatasink(out, mode="append"))
    old = folders(out)
    rows(source, ["id"]).limit(20).write_datasink(MDSDatasink(out, mode="overwrite"))
    assert ids(out) == [*range(20)]
    assert not set(old) & set(folders(out))
    assert foreign.read_text() == "by hand"


def test_a_failed_job_leaves_what_was_there(source, tmp_path):
    """Its own folders are deleted; a dataset that it would replace stays."""
    out = str(tmp_path / "out")
    with MDSWriter(out, {"id": "int"}) as writer:
        writer.write({"id": 7})
    with pytest.raises(Exception, match="'optional\\[str\\]'"):  # null in a column of text
        rows(source, ["id", "note"]).write_datasink(MDSDatasink(out, mode="overwrite"))
    assert folders(out) == []
    assert ids(out) == [7]
    with pytest.raises(WriterError, match="there are no rows to write"):
        rows(source).filter(lambda row: False).write_datasink(MDSDatasink(str(tmp_path / "no")))


def test_arguments_are_checked_at_once(source, tmp_path):
    """Before Ray starts a task."""
    out = str(tmp_path / "out")
    with pytest.raises(ConfigError, match="takes a StreamingDataset, got LocalDataset"):
        MDSDatasource(LocalDataset(source))
    with pytest.raises(ConfigError, match=r"is a dataset of Ray: .*docs/guides/ray.md"):
        convert(rows(source), out)
    with pytest.raises(ConfigError, match="'txt'"):
        MDSDatasource(StreamingDataset(source), ["txt"])
    with pytest.raises(ConfigError, match="mode"):
        MDSDatasink(out, mode="add")
    with pytest.raises(ConfigError, match="compression"):
        MDSDatasink(out, compression="zip")
    with pytest.raises(ConfigError, match="is a path"):
        MDSDatasink(out, storage_options={"endpoint_url": "http://x"})
    with pytest.raises(ConfigError, match=r"names the column 'idd'.*Did you mean 'id'"):
        rows(source, ["id"]).write_datasink(MDSDatasink(out, encodings={"idd": "int32"}))


def test_a_first_block_of_nulls_needs_an_encoding(tmp_path):
    """Ray gives the types of the first block only, and the message says no more than that."""
    nulls, texts = pa.table({"n": pa.nulls(2)}), pa.table({"n": ["x", "y"]})
    table, out = ray.data.from_arrow([nulls, texts]), str(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"the first rows of column 'n' are null") as caught:
        table.write_datasink(MDSDatasink(out))
    assert "{'n': 'optional[str]'}" in str(caught.value)
    table.write_datasink(MDSDatasink(out, encodings={"n": "optional[str]"}))
    assert [sample["n"] for sample in LocalDataset(out)] == [None, None, "x", "y"]


def test_killed_workers_change_nothing(check_killed_job):
    """A worker dies while it writes and one while it reads: no row is lost or comes twice."""
    check_killed_job("ray", 16)
