"""Writers through the door: the attributes and methods that preparation scripts of 0.13 use."""

import inspect
import json
import os
import struct
from functools import partial

import numpy as np
import pytest
from PIL import Image
from streaming import (
    CSVWriter,
    JSONWriter,
    MDSWriter,
    StreamingDataset,
    TSVWriter,
    XSVWriter,
)
from streaming.base.format.base.writer import JointWriter, SplitWriter, Writer
from streaming.base.format.mds.encodings import mds_encode
from streaming.base.storage import CloudUploader
from streaming.vision.convert.base import convert_image_class_dataset

import mds
from mds.errors import SealedNameError

KINDS = {
    "mds": (MDSWriter, {}),
    "json": (JSONWriter, {}),
    "csv": (CSVWriter, {}),
    "tsv": (TSVWriter, {}),
    "xsv": (XSVWriter, {"separator": "|"}),
}


@pytest.fixture(params=KINDS)
def writer(request, tmp_path):
    """A writer of each format, which is finished at the end."""
    kind, options = KINDS[request.param]
    made = kind(columns={"b": "str", "a": "int"}, out=str(tmp_path), size_limit=400, **options)
    yield made
    made.finish()


def test_what_is_under_way(writer):
    """The samples of the shard being filled, its size, and the entries of the full ones."""
    assert isinstance(writer, Writer)
    assert writer.new_samples == []
    assert writer.shards == []
    sample = {"a": 1, "b": "xyz"}
    writer.write(sample)
    assert writer.new_samples == [writer.encode_sample(sample)]
    before = writer.new_shard_size
    writer.write(sample)
    assert writer.new_shard_size > before
    for _ in range(80):
        writer.write(sample)
    full = len(writer.shards)
    assert full
    assert writer.shards[0]["raw_data"]["basename"].startswith("shard.00000.")
    writer.flush_shard()
    assert len(writer.shards) == full + 1


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    ("encoding", "value", "stored"),
    [
        ("int32", 1.5, np.int32(1)),
        ("uint8", 3.7, np.uint8(3)),
        ("int32", np.float32(2.7), np.int32(2)),
        ("float32", 1e300, np.float32("inf")),
        ("float32", np.float64(1e300), np.float32("inf")),
        ("float16", 70000, np.float16("inf")),
        ("float32", None, np.float32("nan")),
        ("int32", "7", np.int32(7)),
        ("str_int", b"3", b"3"),
        ("str_float", b"?", b"?"),
        ("str", b"\xff", b"\xff"),
        ("json", b"{", b"{"),
        ("ndarray", b"123", b"123"),
        ("pil", b"x", b"x"),
        ("jpeg", b"x", b"x"),
        ("jpeg_array", [b"x"], struct.pack("<2I", 1, 1) + b"x"),
    ],
)
def test_values_are_written_as_0_13_writes_them(tmp_path, encoding, value, stored):
    """Through the door NumPy's conversions and unchecked bytes stay, in writers and functions."""
    with MDSWriter(columns={"x": encoding}, out=str(tmp_path), size_limit=0) as writer:
        row = writer.encode_sample({"x": value})
    data = bytes(stored) if isinstance(stored, bytes) else stored.tobytes()
    assert row.endswith(data)
    assert mds_encode(encoding, value) == data
    with pytest.raises(OverflowError):
        mds_encode("int8", 300)


@pytest.mark.parametrize("nothing", [0, "", None])
def test_nothing_is_not_given(tmp_path, nothing):
    """0 and '' for a length of an epoch and a limit mean what they mean in 0.13."""
    with MDSWriter(columns={"x": "int"}, out=str(tmp_path)) as writer:
        for number in range(5):
            writer.write({"x": number})
    dataset = StreamingDataset(
        local=str(tmp_path), batch_size=1, epoch_size=nothing, cache_limit=nothing
    )
    assert len(list(dataset)) == 5


def test_where_it_goes(writer, tmp_path):
    """The folder, the uploader of its files, and the columns."""
    assert (writer.local, writer.remote, writer.keep_local) == (str(tmp_path), None, False)
    assert isinstance(writer.cloud_writer, CloudUploader)
    assert writer.cloud_writer.local == str(tmp_path)
    assert writer.columns == {"a": "int", "b": "str"}
    if not isinstance(writer, JSONWriter):
        assert writer.column_names == ["a", "b"]
        assert writer.column_encodings == ["int", "str"]


def test_a_shard_as_bytes(writer, tmp_path):
    """The files that a writer encodes of its samples are those that it writes."""
    for n in range(3):
        writer.write({"a": n, "b": "x" * n})
    if isinstance(writer, JointWriter):
        files = [writer.encode_joint_shard()]
    else:
        assert isinstance(writer, SplitWriter)
        files = [*writer.encode_split_shard()]
    writer.finish()
    (shard,) = json.loads((tmp_path / "index.json").read_text())["shards"]
    names = [shard[kind]["basename"] for kind in ("raw_data", "raw_meta") if kind in shard]
    assert [(tmp_path / name).read_bytes() for name in names] == files


@pytest.mark.parametrize("name", KINDS)
def test_the_bytes_are_the_librarys(name, tmp_path):
    """The door without digests and native `hashes=[]` write the same files, of fixed rows too."""
    ours, options = KINDS[name]
    natively = partial(getattr(mds, ours.__name__), hashes=[])
    for kind, out in ((ours, "door"), (natively, "native")):
        columns = {"a": "int", "b": "float" if name != "mds" else "float64"}
        with kind(columns=columns, out=str(tmp_path / out), size_limit=5000, **options) as writer:
            for n in range(2000):
                writer.write({"a": n, "b": n / 2})
    names = sorted(os.listdir(tmp_path / "door"))
    assert names == sorted(os.listdir(tmp_path / "native"))
    for file in names:
        assert (tmp_path / "door" / file).read_bytes() == (tmp_path / "native" / file).read_bytes()


@pytest.mark.parametrize("hashes", [{}, {"hashes": None}])
def test_no_digests_by_default(tmp_path, hashes):
    """None means none through the door, also for pictures of a class dataset."""
    with MDSWriter(columns={"x": "int"}, out=str(tmp_path / "a"), **hashes) as writer:
        writer.write({"x": 1})
    pictures = [(Image.new("RGB", (2, 2)), 0)]
    options = {"progress_bar": False, **hashes}
    convert_image_class_dataset(pictures, str(tmp_path), "b", **options)
    for name in "ab":
        (shard,) = json.loads((tmp_path / name / "index.json").read_text())["shards"]
        assert shard["hashes"] == []
        assert shard["raw_data"]["hashes"] == {}


class Lengths(JointWriter):
    """A format of one's own: a count, and then the samples."""

    format = "lengths"

    def __init__(self, *, out, **options):
        super().__init__(out=out, extra_bytes_per_shard=4, **options)

    def encode_sample(self, sample):
        return struct.pack("<d", sample["x"])

    def encode_joint_shard(self):
        return struct.pack("<I", len(self.new_samples)) + b"".join(self.new_samples)


def test_a_format_of_ones_own(tmp_path):
    """A JointWriter's subclass encodes whole shards; they are described as others are."""
    with Lengths(out=str(tmp_path), size_limit=44, hashes=["sha1"]) as writer:
        for n in range(12):
            writer.write({"x": n})
    shards = json.loads((tmp_path / "index.json").read_text())["shards"]
    assert [shard["samples"] for shard in shards] == [5, 5, 2]
    first = (tmp_path / shards[0]["raw_data"]["basename"]).read_bytes()
    assert np.frombuffer(first[4:]).tolist() == [0, 1, 2, 3, 4]
    assert first[:4] == b"\x05\0\0\0"


def test_a_subclass_that_spells_out_options(tmp_path):
    """A writer of one's own may have defaults of its own, through the door and natively."""
    for base in (MDSWriter, mds.MDSWriter):

        class Packed(base):
            def __init__(self, *, columns, out, compression="zstd", **options):
                super().__init__(columns=columns, out=out, compression=compression, **options)

        assert inspect.signature(Packed).parameters["compression"].default == "zstd"
        with Packed(columns={"a": "int"}, out=str(tmp_path / base.__module__)) as writer:
            writer.write({"a": 1})
        assert (tmp_path / base.__module__ / "shard.00000.mds.zstd").exists()


def test_overrides_that_are_not_called_are_told():
    """A subclass that replaces how files are made is refused, with what to use."""
    with pytest.raises(SealedNameError, match="overrides _process_file"):
        type("Mine", (MDSWriter,), {"_process_file": lambda self: None})


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("int", np.int64(3)),
        ("str_int", np.int64(3)),
        ("str_float", 3),
        ("bytes", bytearray(b"a")),
        ("ndarray", [1, 2]),
        ("ndarray:int32", [1, 2]),
    ],
)
def test_values_are_converted_by_mds_alone(encoding, value, tmp_path):
    """What `mds` writes without loss and 0.13 refuses is refused, by writers and by functions."""
    with (
        MDSWriter(out=str(tmp_path / "x"), columns={"x": encoding}) as writer,
        pytest.raises(AttributeError),
    ):
        writer.write({"x": value})
    with pytest.raises(AttributeError):
        mds_encode(encoding, value)
    with pytest.raises((AttributeError, TypeError)):
        MDSWriter(out=str(tmp_path / "y"), columns={"x": int})
