"""What is fed with arbitrary bytes: each target reads or raises one of our errors, nothing else."""

from __future__ import annotations

import json
import struct

import numpy as np

from mds._index.shard_object import FileInfo, ShardInfo, ShardSchema, Stored
from mds._index.table import Index
from mds._readers import make_decoder, open_sparse
from mds._readers.joint import joint_reader
from mds._readers.split import SplitReader
from mds._shardfile.layout import Columns
from mds.encodings import parse_encoding
from mds.errors import MdsError

# Samples that are looked at; a fuzzer's shard has few, or empty ones without end.
FEW = 50
SCHEMAS = [
    ["bytes", "str", "json"],
    ["int", "float32", "ndarray:int16:3"],
    ["ndarray", "ndarray:int32", "int"],
    ["str_int", "str_float", "str_decimal"],
    ["bool", "optional[int64]", "list[str]"],
    ["tensor", "tensor:int64:()", "tensor:bool:2,2"],
    ["pil", "jpeg", "png"],
    ["list[png]", "jpeg_array", "uint8"],
    ["optional[list[ndarray]]", "float16", "bool"],
    [],
]
ALLOWED = (MdsError, IndexError)


def _schema(encodings):
    names = tuple(f"c{number}" for number in range(len(encodings)))
    sizes = tuple(parse_encoding(name).size for name in encodings)
    columns = Columns(names, tuple(encodings), sizes)
    return ShardSchema("mds", columns, None, (), None, None, None, (Stored("raw_data", ()),))


MDS = [_schema(encodings) for encodings in SCHEMAS]
SPLIT = [
    ShardSchema(form, Columns(("a", "b", "c"), ("int", "str", "float"), (None,) * 3), None, (),
                None, end, separator, ())
    for form, end, separator in [("json", "\n", None), ("csv", "\r\n", ","), ("xsv", "\n", "<>")]
]  # fmt: skip


def _read(reader):
    rows = range(min(len(reader), FEW))
    good = []
    for row in rows:
        try:
            reader[row]
            good.append(row)
        except ALLOWED:
            continue
    batch = reader.rows(good)
    for name, values in batch.items():
        assert len(values) == len(good), name
    if len(good) < len(rows):
        try:
            reader.rows(rows)
        except ALLOWED:
            return
        raise AssertionError("rows() gave a sample that reader[i] refused")


def shard(data: bytes) -> None:
    """An mds shard: one byte for the schema, then the file."""
    if len(data) < 5:
        return
    schema, body = MDS[data[0] % len(MDS)], data[1:]
    (count,) = struct.unpack_from("<I", body)
    try:
        _read(joint_reader(schema, count, body, "a shard"))
    except ALLOWED:
        return


def sample(data: bytes) -> None:
    """The bytes of one sample that came by themselves."""
    if not data:
        return
    schema, body = MDS[data[0] % len(MDS)], data[1:]
    try:
        found = make_decoder(schema)(memoryview(body))
    except ALLOWED:
        return
    info = ShardInfo(schema, 9, FileInfo("x", 1, {}))
    assert list(open_sparse(info, {4: body}, "x")[4]) == list(found)


def lines(data: bytes) -> None:
    """A split shard: a byte for the format, u32 bytes of meta, the meta file, the data file."""
    if len(data) < 5:
        return
    schema = SPLIT[data[0] % len(SPLIT)]
    (length,) = struct.unpack_from("<I", data, 1)
    meta, body = data[5 : 5 + length], data[5 + length :]
    if len(meta) < 4:
        return
    (count,) = struct.unpack_from("<I", meta)
    try:
        _read(SplitReader(schema, count, body, meta, "a shard"))
    except ALLOWED:
        return


def index(data: bytes) -> None:
    """The text of an index; what is read is plausible and comes back the same."""
    try:
        found = Index.parse(data)
    except ALLOWED:
        return
    for info in found:
        for raw, zipped in info.files:
            for file in (raw, zipped):
                parts = file.basename.split("/") if file else ["x"]
                assert not {"", ".", ".."} & set(parts), parts
    again = Index.parse(found.to_json())
    assert np.array_equal(again.samples, found.samples)
    assert list(again) == list(found)
    assert [s["samples"] for s in json.loads(data)["shards"]] == found.samples.tolist()


TARGETS = {"shard": shard, "sample": sample, "lines": lines, "index": index}
