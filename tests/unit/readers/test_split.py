"""Readers of json, csv, tsv and xsv shards."""

import struct

import numpy as np
import pytest

from mds._index.table import Index
from mds._readers import make_decoder, open_reader, open_sparse
from mds.errors import ConfigError, EncodingError, ShardError


def write(folder, lines, *, head=b"", offsets=None, **entry):
    """A split shard of these lines; the offsets are counted unless they are given."""
    data = head + b"".join(lines)
    if offsets is None:
        offsets = np.cumsum([len(head), *map(len, lines)]).tolist()
    meta = struct.pack(f"<I{len(offsets)}I", len(lines), *offsets) + b"{}"
    entry = {
        "version": 2,
        "compression": None,
        "hashes": [],
        "size_limit": None,
        "newline": "\n",
        "samples": len(lines),
        "zip_data": None,
        "zip_meta": None,
        "raw_data": {"basename": "data", "bytes": len(data), "hashes": {}},
        "raw_meta": {"basename": "data.meta", "bytes": len(meta), "hashes": {}},
        **entry,
    }
    (folder / "data").write_bytes(data)
    (folder / "data.meta").write_bytes(meta)
    return Index.build([entry]).shard(0)


def xsv(folder, lines, separator="|", **entry):
    columns = {"column_names": ["a", "b", "c"], "column_encodings": ["int", "str", "float"]}
    return write(
        folder, lines, head=b"a|b|c\n", format="xsv", separator=separator, **columns, **entry
    )


def json_lines(folder, lines, **entry):
    return write(folder, lines, format="json", columns={"a": "int", "b": "str"}, **entry)


def test_xsv_values_have_their_types(tmp_path):
    """Integers, text and floats come back as such; a bool, stored by name, as a bool."""
    lines = [b"1|x|0.5\n", b"-2||nan\n", "True|ü|1e300\n".encode(), b"False| |inf\n"]
    with open_reader(str(tmp_path), xsv(tmp_path, lines)) as reader:
        assert reader[0] == {"a": 1, "b": "x", "c": 0.5}
        assert reader[1]["c"] != reader[1]["c"]
        assert reader[2] == {"a": True, "b": "ü", "c": 1e300}
        assert [reader[2]["a"], reader[-1]["a"]] == [True, False]
        assert type(reader[0]["a"]) is int
        assert bytes(reader.sample_bytes(1)) == lines[1]


def test_columns_of_lines(tmp_path):
    """rows(...) gives arrays of numbers where nothing is lost by that, else lists."""
    lines = [b"1|x|0.5\n", b"2|y|1.5\n", b"True|z|2.5\n", b"99999999999999999999|w|0\n"]
    with open_reader(str(tmp_path), xsv(tmp_path, lines)) as reader:
        batch = reader.rows([1, 0])
        assert batch["a"].tolist() == [2, 1]
        assert batch["a"].dtype == np.int64
        assert batch["c"].dtype == np.float64
        assert batch["b"] == ["y", "x"]
        assert reader.rows([0, 2])["a"] == [1, True]
        assert reader.rows([0, 3])["a"] == [1, 99999999999999999999]


def test_other_separators_and_line_ends(tmp_path):
    """Separator and newline may be several characters; values may hold one of them."""
    info = xsv(tmp_path, [b"1<>a>b<>2.0\r\n"], separator="<>", newline="\r\n")
    with open_reader(str(tmp_path), info) as reader:
        assert reader[0] == {"a": 1, "b": "a>b", "c": 2.0}


def test_json_lines_are_objects_with_their_columns(tmp_path):
    """A line is parsed whole; a projection leaves the other keys out."""
    lines = [b'{"a": 1, "b": "x"}\n', b' {"b": "\\u00fc", "a": 2} \n']
    info = json_lines(tmp_path, lines)
    with open_reader(str(tmp_path), info) as reader:
        assert list(reader) == [{"a": 1, "b": "x"}, {"a": 2, "b": "ü"}]
    with open_reader(str(tmp_path), info, columns=["b"]) as reader:
        assert reader[1] == {"b": "ü"}
        assert list(reader.rows([0])) == ["b"]
    with pytest.raises(ConfigError, match="no column 'z'"):
        open_reader(str(tmp_path), info, columns=["z"])


@pytest.mark.parametrize(
    "line",
    [
        b"1|x\n",
        b"1|x|2.0|3\n",
        b"1|x|2.0",
        b"one|x|2.0\n",
        b"1|x|two\n",
        b"1|\xff|2.0\n",
        b"\n",
        b"",
    ],
)
def test_lines_that_are_no_sample(tmp_path, line):
    """A line with other values than its columns is refused with file and sample."""
    with open_reader(str(tmp_path), xsv(tmp_path, [b"1|x|2.0\n", line])) as reader:
        with pytest.raises(EncodingError, match="data, sample 1: "):
            reader[1]
        with pytest.raises(EncodingError, match="data, sample 1: "):
            reader.rows([0, 1])
        assert reader[0] == {"a": 1, "b": "x", "c": 2.0}


@pytest.mark.parametrize(
    "line", [b"[1, 2]\n", b'{"a": 1}\n', b'{"a": 1, "b": \n', b"\xff\n", b"", b"[" * 100_000]
)
def test_json_lines_that_are_no_sample(tmp_path, line):
    """A line that is no object with the columns is refused with file and sample."""
    with (
        open_reader(str(tmp_path), json_lines(tmp_path, [line])) as reader,
        pytest.raises(EncodingError, match="data, sample 0: "),
    ):
        reader[0]


@pytest.mark.parametrize(
    "offsets", [[6, 5, 14], [6, 14, 13], [6, 14, 2**32 - 1], [7, 14, 15], [0, 0, 0]]
)
def test_offsets_of_lines_are_distrusted(tmp_path, offsets):
    """Offsets that fall or end elsewhere are refused when the first sample is read."""
    info = xsv(tmp_path, [b"1|x|2.0\n", b"1|x|2.0\n"], offsets=offsets)
    with (
        open_reader(str(tmp_path), info) as reader,
        pytest.raises(ShardError, match=r"data\.meta"),
    ):
        reader[0]


def test_lines_that_came_by_themselves(tmp_path):
    """Decoder and sparse reader give of stored lines what the reader gives."""
    info = xsv(tmp_path, [b"1|x|0.5\n", b"2|y|1.5\n"])
    decoder = make_decoder(info.schema, source="a line")
    assert decoder(memoryview(b"7|z|2.5\n")) == {"a": 7, "b": "z", "c": 2.5}
    with pytest.raises(EncodingError, match="a line: "):
        decoder(b"7|z\n")
    some = open_sparse(info, {1: b"2|y|1.5\n"}, "data")
    assert some[1] == {"a": 2, "b": "y", "c": 1.5}
    assert some.rows([1])["a"].tolist() == [2]
    with pytest.raises(IndexError):
        some[0]
