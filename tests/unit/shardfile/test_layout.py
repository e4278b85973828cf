"""The bytes of shards: what FORMAT.md shows is what is written, and what is broken is refused."""

import itertools
import pathlib
import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mds import MDSWriter
from mds._shardfile.layout import (
    MAX_SIZE,
    config_bytes,
    empty_shard_size,
    header_size,
    pack_header,
    pack_meta,
    parse_meta_offsets,
    parse_offsets,
    shard_name,
    split_sample,
)
from mds.errors import ShardError, WriterError

FORMAT = pathlib.Path(__file__).parents[3] / "FORMAT.md"


def pack_shard(samples, config):
    """Return a whole shard."""
    return b"".join([pack_header([len(sample) for sample in samples], config), *samples])


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", FORMAT.read_text(encoding="utf-8"), re.DOTALL)


def test_the_example_of_the_specification(tmp_path):
    """The shard and the index that FORMAT.md spells out in hex are what a writer makes."""
    columns = {"text": "str", "id": "uint16"}
    with MDSWriter(out=str(tmp_path / "out"), columns=columns, hashes=["xxh64"]) as writer:
        writer.write({"id": 1, "text": "a"})
        writer.write({"id": 258, "text": "é!"})
    rows = [row.split("  ")[0] for block in blocks("hex") for row in block.splitlines()]
    header, samples = (bytes.fromhex("".join(part)) for part in (rows[:4], rows[4:]))
    config = blocks("json config")[0].strip().encode()
    shard = (tmp_path / "out" / "shard.00000.mds").read_bytes()
    assert shard == header + config + samples
    index = (tmp_path / "out" / "index.json").read_text()
    assert index == blocks("json index")[0].strip()


@given(st.lists(st.binary(max_size=20), max_size=20), st.binary(max_size=30))
def test_samples_are_found_again(samples, config):
    """Offsets of a packed shard cut it into its samples, whatever they are."""
    data = pack_shard(samples, config)
    head = data[: header_size(len(samples))]
    for given_bytes in (data, head):
        offsets = parse_offsets(given_bytes, len(samples), len(data), "a shard")
        assert [data[a:b] for a, b in itertools.pairwise(offsets)] == samples
    assert len(data) == empty_shard_size(config) + sum(4 + len(sample) for sample in samples)


@given(st.data())
def test_damaged_headers_are_refused_or_harmless(data):
    """Whatever stands in a header, offsets that come back lie inside the file and never fall."""
    whole = bytearray(pack_shard([b"abc", b"", b"defgh"], b"{}"))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, 19))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    size = data.draw(st.sampled_from([len(cut), len(whole)]))
    try:
        offsets = parse_offsets(cut, 3, size, "a shard").tolist()
    except ShardError:
        return
    assert header_size(3) <= offsets[0]
    assert offsets == sorted(offsets)
    assert offsets[-1] == size


def test_what_is_wrong_is_said():
    """Each kind of broken header has its own sentence, with the file and the numbers."""
    good = pack_shard([b"abc", b"defgh"], b"{}")
    with pytest.raises(ShardError, match="here has 2 samples, but the index says 3"):
        parse_offsets(good, 3, len(good), "here")
    with pytest.raises(ShardError, match="here: 9 bytes cannot hold the offsets of 2"):
        parse_offsets(good[:9], 2, len(good), "here")
    with pytest.raises(ShardError, match="ends at byte 26, but here at 25"):
        parse_offsets(good, 2, 25, "here")
    falling = struct.pack("<4I", 2, 18, 30, 26) + good[16:]
    with pytest.raises(ShardError, match="sample 1 begins at byte 30 and ends at 26"):
        parse_offsets(falling, 2, 26, "here")
    early = struct.pack("<4I", 2, 12, 21, 26) + good[16:]
    with pytest.raises(ShardError, match="inside the header of 16 bytes"):
        parse_offsets(early, 2, 26, "here")


def test_no_offset_ever_wraps():
    """A shard of 4 GiB is refused before a byte of it is written; one byte less is not."""
    config = b"{}"
    room = MAX_SIZE - 1 - header_size(2) - len(config)
    header = pack_header([room - 5, 5], config)
    assert struct.unpack_from("<I", header, 12) == (MAX_SIZE - 1,)
    with pytest.raises(WriterError, match="size_limit"):
        pack_header([room - 5, 6], config)
    with pytest.raises(WriterError, match="4294967296"):
        pack_meta([MAX_SIZE - 10], 10, config)


def test_meta_files_begin_where_the_header_line_ends():
    """Offsets of a meta file are into the data file; the last one must be its size."""
    meta = pack_meta([3, 4], 6, b"{}")
    assert parse_meta_offsets(meta, 2, 13, "meta").tolist() == [6, 9, 13]
    with pytest.raises(ShardError, match="the data file at 12"):
        parse_meta_offsets(meta, 2, 12, "meta")


def test_offsets_do_not_hold_the_file():
    """Offsets are a copy: a mapped file can be closed while somebody has them."""
    buffer = bytearray(pack_shard([b"abc"], b"{}"))
    view = memoryview(buffer)
    offsets = parse_offsets(view, 1, len(buffer), "x")
    view.release()
    buffer.clear()
    assert offsets.dtype == np.uint32
    assert offsets.tolist() == [14, 17]


@given(st.binary(max_size=30), st.lists(st.none() | st.integers(0, 9), max_size=4))
def test_a_sample_is_cut_exactly_or_not_at_all(data, sizes):
    """The values of a sample make up all of its bytes, or it is refused."""
    try:
        values = split_sample(memoryview(data), sizes, sizes.count(None))
    except ShardError:
        return
    assert b"".join(values) == data[4 * sizes.count(None) :]
    assert list(map(len, values)) == [
        len(v) if s is None else s for v, s in zip(values, sizes, strict=True)
    ]


def test_names_and_configurations():
    """Names have five digits and grow beyond; configurations are sorted ASCII."""
    assert shard_name(7, "mds.zstd") == "shard.00007.mds.zstd"
    assert shard_name(1234567, "csv.meta") == "shard.1234567.csv.meta"
    assert config_bytes({"b": "é", "a": None}) == b'{"a": null, "b": "\\u00e9"}'
