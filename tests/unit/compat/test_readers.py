"""Readers of single shards through the door, on top of the library's own."""

import json
import os

import pytest
from streaming import (
    CSVWriter,
    JSONWriter,
    MDSWriter,
    StreamingDataset,
    TSVWriter,
    XSVWriter,
)
from streaming.base.array import Array
from streaming.base.format import reader_from_json
from streaming.base.format.base.reader import FileInfo, Reader
from streaming.base.format.mds import encodings
from streaming.base.format.mds.reader import MDSReader

from mds.errors import UnsafeTypeError

WRITERS = {
    "mds": (MDSWriter, {}),
    "json": (JSONWriter, {}),
    "csv": (CSVWriter, {}),
    "tsv": (TSVWriter, {}),
    "xsv": (XSVWriter, {"separator": "|"}),
}


class Trap:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def entry_of(out):
    with open(os.path.join(out, "index.json")) as file:
        return json.load(file)["shards"][0]


@pytest.fixture(params=WRITERS)
def shard(request, tmp_path):
    """The reader of a shard of 9 samples in each format."""
    kind, options = WRITERS[request.param]
    with kind(columns={"n": "int", "s": "str"}, out=str(tmp_path), **options) as writer:
        for n in range(9):
            writer.write({"n": n, "s": "x" * n})
    return reader_from_json(str(tmp_path), None, entry_of(tmp_path))


def test_a_shard_is_an_array_of_samples(shard):
    """It is indexed in every way, counted and iterated."""
    assert isinstance(shard, (Array, Reader))
    assert (len(shard), shard.size, shard.samples, shard.split) == (9, 9, 9, "")
    assert shard[3] == {"n": 3, "s": "xxx"}
    assert shard[-1]["n"] == 8
    assert [s["n"] for s in shard[2:4]] == [2, 3]
    assert [s["n"] for s in shard] == list(range(9))
    assert shard.decode_sample(shard.get_sample_data(5)) == shard[5]
    with pytest.raises(IndexError):
        shard[9]
    shard.validate(False)


def test_files_of_a_shard(shard):
    """Its files with their sizes; `evict` removes them and tells the bytes."""
    sizes = [
        os.path.getsize(os.path.join(shard.dirname, raw.basename)) for raw, _ in shard.file_pairs
    ]
    assert shard.get_raw_size() == sum(sizes) == shard.get_max_size()
    assert shard.get_zip_size() is None
    assert shard.get_persistent_size(True) == sum(sizes)
    assert isinstance(shard.raw_data, FileInfo)
    shard[0]
    assert shard.evict() == sum(sizes)
    assert os.listdir(shard.dirname) == ["index.json"]
    with pytest.raises(FileNotFoundError):
        shard[0]


@pytest.fixture
def packed(tmp_path):
    """A compressed shard, with the entry of its index."""
    with MDSWriter(columns={"n": "int"}, out=str(tmp_path / "z"), compression="zstd") as writer:
        for n in range(100):
            writer.write({"n": n})
    return entry_of(tmp_path / "z")


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("files", [(), ("raw_data",), ("zip_data",), ("raw_data", "zip_data")])
def test_what_is_half_there_goes(packed, tmp_path, files, keeps):
    """Raw files without kept compressed ones go, and compressed ones that are left over."""
    for kind in files:
        (tmp_path / packed[kind]["basename"]).write_bytes(b"x" * packed[kind]["bytes"])
    reader = reader_from_json(str(tmp_path), "", packed)
    listing = {str(tmp_path / name) for name in os.listdir(tmp_path)}
    left = {
        ("raw_data",): () if keeps else ("raw_data",),
        ("raw_data", "zip_data"): files if keeps else ("raw_data",),
    }.get(files, files)
    assert reader.set_up_local(listing, keeps) == sum(packed[kind]["bytes"] for kind in left)
    there = {name for name in os.listdir(tmp_path) if name != "z"}
    assert there == {packed[kind]["basename"] for kind in left}


def test_sizes_of_a_compressed_shard(packed, tmp_path):
    """Raw, compressed, both while it is unpacked, and what stays."""
    reader = reader_from_json(str(tmp_path), "", packed)
    raw, zipped = packed["raw_data"]["bytes"], packed["zip_data"]["bytes"]
    assert (reader.get_raw_size(), reader.get_zip_size()) == (raw, zipped)
    assert reader.get_max_size() == raw + zipped == reader.get_persistent_size(True)
    assert reader.get_persistent_size(False) == raw


def test_entries_that_make_no_sense(packed, tmp_path):
    """Errors have the builtin types of old, and are ValueErrors."""
    for change, error in (
        ({"version": 3}, AssertionError),
        ({"format": "x"}, KeyError),
        ({"surplus": 1}, TypeError),
    ):
        with pytest.raises(error):
            reader_from_json(str(tmp_path), "", {**packed, **change})
    with pytest.raises(KeyError):
        reader_from_json(str(tmp_path), "", {k: v for k, v in packed.items() if k != "version"})
    unsafe = reader_from_json(
        str(tmp_path), "", {**packed, "column_encodings": ["pkl"], "column_sizes": [None]}
    )
    with pytest.raises(ValueError, match="pickles"):
        unsafe.validate(False)
    unsafe.validate(True)


def test_pickles_are_loaded_only_if_they_are_allowed(tmp_path):
    """By `validate`, and by the dataset whose shards are read; what a pickle runs has not run."""
    with MDSWriter(columns={"x": "optional[pkl]"}, out=str(tmp_path / "data")) as writer:
        writer.write({"x": Trap(str(tmp_path / "sprung"))})
    reader = reader_from_json(str(tmp_path / "data"), "", entry_of(tmp_path / "data"))
    data = reader.get_sample_data(0)
    for load in (lambda: reader[0], lambda: reader.get_item(0), lambda: reader.decode_sample(data)):
        with pytest.raises(UnsafeTypeError, match=r"Call validate\(True\) of this reader"):
            load()
    with pytest.raises(UnsafeTypeError, match=r"Write mds\.encodings\.parse_encoding"):
        encodings.mds_decode("optional[pkl]", data[4:])
    with pytest.raises(UnsafeTypeError):
        StreamingDataset(local=str(tmp_path / "data"), batch_size=1)
    assert not (tmp_path / "sprung").exists()
    reader.validate(True)
    assert reader[0] == {"x": None}
    (tmp_path / "sprung").rmdir()
    dataset = StreamingDataset(local=str(tmp_path / "data"), batch_size=1, allow_unsafe_types=True)
    shard = dataset.shards[0]
    assert shard[0] == {"x": None}
    (tmp_path / "sprung").rmdir()
    assert shard.decode_sample(shard.get_sample_data(0)) == {"x": None}


def test_nothing_outside_of_the_folder_is_removed(packed, tmp_path):
    """A name that climbs out of the folder is refused before anything is done to it."""
    (tmp_path / "precious").write_bytes(b"x")
    (tmp_path / "in").mkdir()
    climbing = {**packed["raw_data"], "basename": "../precious"}
    reader = MDSReader(
        str(tmp_path / "in"), "", ["int"], ["n"], [8], None, [], FileInfo(**climbing), 1, None, None
    )
    with pytest.raises(ValueError):
        reader.evict()
    assert (tmp_path / "precious").exists()
