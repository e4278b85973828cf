"""Parquet files are read as they lie: values, requests, damage."""

import datetime as dt
import io
import json
import os
import time

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402
from tables import as_told, every_type, table, write_files  # noqa: E402

from mds import Stream, StreamingDataLoader, StreamingDataset  # noqa: E402
from mds.errors import ConfigError, FormatError, ReplacedError, StateError  # noqa: E402
from mds.formats import Parquet  # noqa: E402
from mds.testing import FormatContract  # noqa: E402
from tests.states import changed, values_of  # noqa: E402


class TestParquet(FormatContract):
    format = Parquet()

    @pytest.fixture
    def folder(self, tmp_path):
        return write_files(tmp_path / "files")

    @pytest.fixture
    def damaged(self, tmp_path):
        whole = (write_files(tmp_path / "whole") / "part-001.parquet").read_bytes()
        path = tmp_path / "broken.parquet"
        path.write_bytes(whole[:200] + bytes(200) + whole[400:])
        return path, "broken.parquet, row group 0"


def of(folder, tmp_path, **more):
    return StreamingDataset(remote=str(folder), local=str(tmp_path / "cache"), batch_size=4, **more)


def test_every_value_is_that_of_the_file(tmp_path):
    """Each type, sliced into row groups and blocks, gives what pyarrow gives of it."""
    (tmp_path / "files").mkdir()
    whole = every_type()
    pq.write_table(whole, tmp_path / "files" / "a.parquet", row_group_size=9)
    dataset = of(tmp_path / "files", tmp_path)
    assert dataset.num_shards == 3
    rows = whole.to_pylist(maps_as_pydicts="strict")
    for number, row in enumerate(rows):
        sample = dataset[number]
        assert sample.keys() == row.keys()
        for name, value in row.items():
            found = sample[name]
            if name == "time_ns":
                assert found == f"1970-01-01T00:00:00.{number:09}"
                continue
            if isinstance(found, np.ndarray):
                assert found.tolist() == as_told(name, value), name
            else:
                assert found == as_told(name, value), name
    kinds = {name: type(dataset[4][name]) for name in rows[0]}
    assert kinds["int32"] is np.int32
    assert kinds["int64"] is int
    assert kinds["some"] is np.int32
    assert dataset[4]["empty_lists"].dtype == np.float32


def test_batches_are_tensors_as_of_mds(tmp_path):
    """Numbers and lists of one length come as tensors, with workers too."""
    import torch

    dataset = of(write_files(tmp_path / "files"), tmp_path)
    batch = next(iter(StreamingDataLoader(dataset, batch_size=4)))
    assert batch["id"].tolist() == [0, 1, 2, 3]
    assert batch["tokens"].shape == (4, 16)
    assert batch["tokens"].dtype == torch.int32
    assert batch["score"].dtype == torch.float32
    assert batch["text"][1].startswith("row 1")


def test_columns_are_fetched_alone(tmp_path):
    """Over the wire come the chunks of the columns wanted, and the footers once."""
    folder = tmp_path / "files"
    folder.mkdir()
    rng = np.random.default_rng(1)
    whole = pa.table({name: rng.random(40_000) for name in "abcd"})
    pq.write_table(whole, folder / "a.parquet", row_group_size=10_000, compression="none")
    dataset = of(folder, tmp_path, columns=["b"])
    assert [sample["b"] for sample in dataset] == whole["b"].to_pylist()
    found = pq.read_metadata(folder / "a.parquet")
    chunks = sum(found.row_group(n).column(1).total_compressed_size for n in range(4))
    assert chunks <= dataset.stats()["fetched_bytes"] <= 1.02 * chunks
    with pytest.raises(ConfigError, match="no column 'z'"):
        of(folder, tmp_path, columns=["z"])


def test_footers_longer_than_the_first_range(tmp_path):
    """A file with thousands of row groups is planned by two ranges."""
    folder = tmp_path / "files"
    folder.mkdir()
    pq.write_table(table(0, 3000), folder / "a.parquet", row_group_size=2)
    assert os.path.getsize(folder / "a.parquet") > 1 << 19
    dataset = of(folder, tmp_path, columns=["id"])
    assert dataset.num_shards == 1500
    assert [dataset[n]["id"] for n in (0, 1, 1500, 2999)] == [0, 1, 1500, 2999]


def test_empty_files_and_row_groups_are_no_shards(tmp_path):
    """They hold no sample, and the order passes them by."""
    folder = write_files(tmp_path / "files", groups=((3, 0, 2), (), (4,)))
    pq.write_table(table(0, 0), folder / "part-0005.parquet")
    dataset = of(folder, tmp_path)
    assert dataset.samples_per_shard.tolist() == [3, 2, 4]
    assert [sample["id"] for sample in dataset] == list(range(9))
    (tmp_path / "nothing").mkdir()
    pq.write_table(table(0, 0), tmp_path / "nothing" / "a.parquet")
    with pytest.raises(ConfigError, match="there are no samples in"):
        StreamingDataset(remote=str(tmp_path / "nothing"), local=str(tmp_path / "c"))


def test_files_may_differ_in_width_and_nulls(tmp_path):
    """Integers take the wider type, a column with nulls somewhere may be None everywhere."""
    folder = tmp_path / "files"
    folder.mkdir()
    for name, values, kind in (
        ("a", [1, 2], pa.int32()),
        ("b", [3, 2**40], pa.int64()),
        ("c", [5, None], pa.int64()),
        ("d", [None, None], pa.null()),
    ):
        pq.write_table(pa.table({"n": pa.array(values, kind)}), folder / f"{name}.parquet")
    found = [sample["n"] for sample in of(folder, tmp_path)]
    assert found == [1, 2, 3, 2**40, 5, None, None, None]
    pq.write_table(pa.table({"n": ["text"]}), folder / "e.parquet")
    with pytest.raises(FormatError, match=r"e.parquet: column 'n' is str, but .* in a.parquet"):
        of(folder, tmp_path)


def test_a_column_that_a_file_does_not_have(tmp_path):
    """It is None there, with a warning; "error" makes it an error that names both files."""
    folder = tmp_path / "files"
    folder.mkdir()
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), folder / "1.parquet")
    pq.write_table(pa.table({"a": [2]}), folder / "2.parquet")
    with pytest.raises(
        FormatError, match=r"2.parquet: there is no column 'b', but 1.parquet has one"
    ):
        of(folder, tmp_path, format=Parquet(missing="error"))
    assert [s["a"] for s in of(folder, tmp_path, columns=["a"])] == [1, 2]
    found = list(of(folder, tmp_path, format=Parquet(missing="null")))
    assert found == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    with pytest.raises(ConfigError, match="missing="):
        Parquet(missing="zero")


def test_folders_of_partitions_and_hidden_files(tmp_path):
    """Files at any depth are found in path order; _metadata and hidden ones are none."""
    root = tmp_path / "files"
    write_files(root / "date=2020-01-02", groups=((2,),))
    write_files(root / "date=2020-01-01", groups=((3,),))
    (root / "_metadata").write_bytes(b"PAR1")
    (root / "_temporary").mkdir()
    (root / "_temporary" / "a.parquet").write_bytes(b"no")
    (root / "date=2020-01-01" / ".part.parquet.crc").write_bytes(b"no")
    assert [s["id"] for s in of(root, tmp_path)] == [0, 1, 2, 0, 1]
    assert [s["id"] for s in of(f"{root}/date=*-02/*.parquet", tmp_path)] == [0, 1]


def test_encodings_can_be_given(tmp_path):
    """An encoding in the place of the one that follows from the type."""
    folder = tmp_path / "files"
    folder.mkdir()
    pq.write_table(pa.table({"x": [[1, None], [2]]}), folder / "a.parquet")
    with pytest.raises(FormatError, match=r"a.parquet, row 0, column 'x': a list holds a null"):
        list(of(folder, tmp_path, format=Parquet(encodings={"x": "tensor:int64"})))
    found = list(of(folder, tmp_path, format=Parquet(encodings={"x": "json"})))
    assert found == [{"x": [1, None]}, {"x": [2]}]


def test_images_and_sound_of_datasets(tmp_path):
    """Columns that `datasets` calls images are images, whether JPEG or PNG."""
    from PIL import Image

    folder = tmp_path / "files"
    folder.mkdir()
    for kind in ("jpeg", "png"):
        files = []
        for shade in (10, 200):
            file = io.BytesIO()
            Image.new("RGB", (8, 6), (shade, shade, shade)).save(file, kind)
            files.append({"bytes": file.getvalue(), "path": None})
        features = {"info": {"features": {"image": {"_type": "Image"}}}}
        whole = pa.table({"image": files}).replace_schema_metadata(
            {"huggingface": json.dumps(features)}
        )
        pq.write_table(whole, folder / f"{kind}.parquet")
    for kind in ("jpeg", "png"):
        dataset = of(folder / f"{kind}.parquet", tmp_path)
        assert dataset[1]["image"].size == (8, 6)
        assert dataset[1]["image"].getpixel((1, 1)) == (200, 200, 200)


WRONG = {
    "empty": (b"", "it has 0 bytes"),
    "text": (b"id,text\n" * 10, "does not end with b'PAR1'"),
    "encrypted": (b"PARE" + bytes(40) + b"PARE", "encrypted"),
    "long footer": (
        b"PAR1" + bytes(40) + b"\xff\xff\xff\x7fPAR1",
        "the footer would have 2147483647",
    ),
    "no footer": (b"PAR1" + bytes(40) + b"\x08\0\0\0PAR1", "the footer cannot be read"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_parquet_is_told(kind, tmp_path):
    """A sentence with the name of the file."""
    data, words = WRONG[kind]
    folder = write_files(tmp_path / "files")
    (folder / "part-0005.parquet").write_bytes(data)
    with pytest.raises(FormatError, match=r"part-0005\.parquet") as caught:
        of(folder, tmp_path)
    assert words in str(caught.value)


def test_a_file_that_changes_behind_a_run_is_told(tmp_path):
    """It is never read half old, half new."""
    folder = write_files(tmp_path / "files")
    dataset = of(folder, tmp_path)
    assert dataset[0]["id"] == 0
    pq.write_table(table(100, 4), folder / "part-001.parquet")
    with pytest.raises(ReplacedError, match=r"part-001.parquet: the file changed"):
        dataset[15]


def test_rows_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    """A row group that decodes to more than a shard may have is an error that says what to do."""
    monkeypatch.setattr("mds.formats._encode.LARGEST_DECODED", 1000)
    folder = write_files(tmp_path / "files", groups=((500,),))
    with pytest.raises(FormatError, match=r"row group 0: it takes more than") as caught:
        list(of(folder, tmp_path))
    assert "fewer rows" in str(caught.value)


def test_dates_of_tables_are_text(tmp_path):
    """As ISO 8601 writes them, with what a time zone says."""
    folder = tmp_path / "files"
    folder.mkdir()
    when = dt.datetime(2021, 5, 6, 7, 8, 9, tzinfo=dt.timezone.utc)
    pq.write_table(pa.table({"when": [when], "day": [when.date()]}), folder / "a.parquet")
    assert of(folder, tmp_path)[0] == {"when": "2021-05-06T07:08:09+00:00", "day": "2021-05-06"}


def test_files_that_agree_in_all_but_their_columns_are_told_apart(tmp_path):
    """Two datasets may have files of one name, size and time; footers are known by their bytes."""
    orders = (["prompt", "answer"], ["answer", "prompt"])
    for folder, names in zip("ab", orders, strict=True):
        (tmp_path / folder).mkdir()
        columns = {name: [f"{folder}-{name}"] * 4 for name in names}
        pq.write_table(pa.table(columns), tmp_path / folder / "0.parquet")
        os.utime(tmp_path / folder / "0.parquet", (1, 1))
    streams = [Stream(local=str(tmp_path / folder)) for folder in "ab"]
    dataset = StreamingDataset(streams=streams, batch_size=1)
    assert [dataset[row] for row in (0, 4)] == [
        {"prompt": f"{folder}-prompt", "answer": f"{folder}-answer"} for folder in "ab"
    ]


@pytest.mark.parametrize(
    ("values", "encoding", "wrong"),
    [
        ([1, 300], "uint8", "300"),
        ([1, -1], "uint16", "-1"),
        ([1.0, 1.7], "int", "1.7"),
        ([1.0, float("nan")], "int", "nan"),
        ([1.0, 1e9], "float16", "1000000000.0"),
        ([[1, 2], [3, 70_000]], "ndarray:uint16", "70000"),
    ],
)
def test_numbers_that_a_type_does_not_hold_are_no_numbers_of_it(tmp_path, values, encoding, wrong):
    """Nothing wraps around, and nothing is cut off."""
    pq.write_table(pa.table({"x": values}), tmp_path / "0.parquet")
    kind = Parquet(encodings={"x": encoding})
    with pytest.raises(FormatError, match=rf"column 'x': {wrong} is not a "):
        list(StreamingDataset(local=str(tmp_path), format=kind, batch_size=1))


def test_a_dataset_whose_files_change_again_and_again_opens_in_one_folder(tmp_path):
    """Also where its table is of a clock that was ahead; every start has what is there."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    for number in range(4):
        pq.write_table(pa.table({"x": [number] * 9}), data / "0.parquet")
        dataset = StreamingDataset(remote=str(data), local=str(cache), batch_size=1)
        assert {int(sample["x"]) for sample in dataset} == {number}
        for noted in cache.glob(".mds/tables/*"):
            os.utime(noted, (time.time() + 3600,) * 2)
    assert not list(cache.glob(".mds/sources/*"))


def test_a_state_of_other_files_is_refused(tmp_path):
    """New and missing files are refused although the order is the same; a moved folder is not."""
    folder = write_files(tmp_path / "files")
    state = of(folder, tmp_path / "a").state_dict(num_samples=4, from_beginning=True)
    folder.rename(tmp_path / "moved")
    of(tmp_path / "moved", tmp_path / "b").load_state_dict(state)
    (tmp_path / "moved" / "part-002.parquet").rename(tmp_path / "moved" / "part-003.parquet")
    with pytest.raises(StateError, match=r"3 files .*new: part-003.*gone: part-002"):
        of(tmp_path / "moved", tmp_path / "b").load_state_dict(state)
    data = values_of(state)["data"]
    data["streams"][0] |= {"pin": "x", "files": None, "kind": 5}
    of(tmp_path / "moved", tmp_path / "c").load_state_dict(changed(state, {"data": data}))


def test_what_it_will_take_is_told_before(tmp_path):
    """`explain()` has the bytes of the files and of what is decoded, and names slow columns."""
    (tmp_path / "files").mkdir()
    pq.write_table(every_type(200), tmp_path / "files" / "a.parquet")
    rows = dict(
        line.split(None, 1) for line in of(tmp_path / "files", tmp_path).explain().splitlines()[1:]
    )
    size = os.path.getsize(tmp_path / "files" / "a.parquet")
    assert rows["parquet"].startswith(f"1 file, {size / 1024:.1f} KB")
    assert "decoded about" in rows["parquet"]
    assert "map, struct  " in rows["slow"]
    plain = of(tmp_path / "files", tmp_path, columns=["int32"]).explain()
    assert "slow columns" not in plain
    assert "1 file, " in plain
    assert f"{size / 1024:.1f} KB" not in plain


def test_times_of_a_day_keep_their_nanoseconds(tmp_path):
    """As text, like timestamps; inside of a list, where they would be lost, they are refused."""
    (tmp_path / "files").mkdir()
    times = pa.array([1, 3_600_000_000_005, 1_500_000_000, 0], pa.time64("ns"))
    pq.write_table(pa.table({"t": times}), tmp_path / "files" / "a.parquet")
    expected = ["00:00:00.000000001", "01:00:00.000000005", "00:00:01.500000", "00:00:00"]
    assert [sample["t"] for sample in of(tmp_path / "files", tmp_path)] == expected
    lists = pa.table({"t": pa.array([[1]], pa.list_(pa.time64("ns")))})
    pq.write_table(lists, tmp_path / "files" / "a.parquet")
    with pytest.raises(FormatError, match=r"row 0, column 't': .* has times in nanoseconds"):
        of(tmp_path / "files", tmp_path)[0]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.list_(pa.timestamp("us")), pa.date32()])
def test_a_time_beyond_what_python_has(tmp_path, kind):
    """It is told with its column and the way out."""
    (tmp_path / "files").mkdir()
    value = 5_000_000 if kind == pa.date32() else 10**18
    column = pa.array([[value] if pa.types.is_list(kind) else value], kind)
    pq.write_table(pa.table({"t": column, "x": [1]}), tmp_path / "files" / "a.parquet")
    with pytest.raises(FormatError, match=r"column 't': .*out of range.*with columns="):
        of(tmp_path / "files", tmp_path)[0]
    assert of(tmp_path / "files", tmp_path, columns=["x"])[0] == {"x": 1}


def test_times_of_96_bits(tmp_path):
    """As Spark and Impala write them: also those that nanoseconds of 64 bits do not hold."""
    (tmp_path / "files").mkdir()
    told = ["2024-01-01T01", "9999-12-31T03", "NaT", "0001-01-02"]
    times = np.array(told, "M8[us]")
    whole = pa.table({"t": pa.array(times, pa.timestamp("us")), "n": [1, 2, 3, 4]})
    pq.write_table(whole, tmp_path / "files" / "a.parquet", use_deprecated_int96_timestamps=True)
    expected = ["2024-01-01T01:00:00.000000000", "9999-12-31T03:00:00", None, "0001-01-02T00:00:00"]
    assert [sample["t"] for sample in of(tmp_path / "files", tmp_path)] == expected
    plain = pa.table({"t": pa.array(times[:1], pa.timestamp("us"))})
    pq.write_table(plain, tmp_path / "files" / "a.parquet", use_deprecated_int96_timestamps=True)
    assert of(tmp_path / "files", tmp_path)[0]["t"] == expected[0]
    whole = pa.table(
        {
            "l": [[None, told] for told in whole["t"].to_pylist()[:2]],
            "s": [{"t": told} for told in whole["t"].to_pylist()[:2]],
        }
    )
    pq.write_table(whole, tmp_path / "files" / "a.parquet", use_deprecated_int96_timestamps=True)
    found = of(tmp_path / "files", tmp_path)
    assert found[0] == {"l": [None, "2024-01-01T01:00:00"], "s": {"t": "2024-01-01T01:00:00"}}
    assert found[1] == {"l": [None, "9999-12-31T03:00:00"], "s": {"t": "9999-12-31T03:00:00"}}
    late = pa.table({"t": pa.array([300_000_000_000_000_000], pa.timestamp("us"))})
    pq.write_table(late, tmp_path / "files" / "a.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(FormatError, match=r"row 0, column 't': .*out of range"):
        of(tmp_path / "files", tmp_path)[0]
