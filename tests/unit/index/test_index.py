"""The table of shards: what is read, what is written, and what it takes."""

import json
import pathlib
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mds._index.table import Index, read_index
from mds.errors import UnsafeTypeError

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "shards"


def text_of(shards, **style):
    return json.dumps({"shards": shards, "version": 2}, **(style or {"sort_keys": True})).encode()


def raw_of(info):
    """A ShardInfo as the shard object it was made from (mds)."""

    def file(found):
        return found and {
            "basename": found.basename,
            "bytes": found.size,
            "hashes": dict(found.hashes),
        }

    schema = info.schema
    return {
        "column_encodings": [*schema.columns.encodings],
        "column_names": [*schema.columns.names],
        "column_sizes": [*schema.columns.sizes],
        "compression": schema.compression,
        "format": schema.format,
        "hashes": [*schema.hashes],
        "raw_data": file(info.raw),
        "samples": info.samples,
        "size_limit": schema.size_limit,
        "version": schema.version,
        "zip_data": file(info.zip),
    }


@pytest.mark.parametrize("path", sorted(GOLDEN.rglob("index.json")), ids=lambda p: p.parts[-3])
def test_golden_indexes_are_written_as_they_were_read(path):
    """Every index that mosaicml-streaming wrote comes back byte for byte, however it was built."""
    data = path.read_bytes()
    index = read_index(str(path))
    assert index.to_json() == data
    again = Index.build(json.loads(data)["shards"])
    assert again.to_json() == data
    assert again.fingerprint() == index.fingerprint()


def test_columns_and_facts(make_shard):
    """Counts and sizes are numpy columns; a schema is kept once; a shard is made when asked for."""
    shards = [make_shard(i, zipped=i > 2, hashes=["sha1"]) for i in range(6)]
    index = Index.parse(text_of(shards))
    assert len(index) == 6
    assert index.samples.tolist() == [100, 101, 102, 103, 104, 105]
    assert index.samples.dtype == np.int64
    assert index.offsets.tolist() == [0, 100, 201, 303, 406, 510, 615]
    assert index.total_samples == 615
    assert index.raw_size.tolist() == [5000 + i for i in range(6)]
    assert index.zip_size.tolist() == [0, 0, 0, 1003, 1004, 1005]
    assert index.raw_meta_size.tolist() == [0] * 6
    assert index.schema_of.tolist() == [0, 0, 0, 1, 1, 1]
    assert [schema.compression for schema in index.schemas] == [None, "zstd:7"]
    assert index.largest() == 5005 + 1005
    assert [raw_of(info) for info in index] == shards
    assert index.shard(4).files == [(index.shard(4).raw, index.shard(4).zip)]
    assert "6 shards, 615 samples, 2 schemas" in repr(index)
    with pytest.raises(ValueError, match="read-only"):
        index.samples[0] = 1
    for wrong in (6, -1):
        with pytest.raises(IndexError):
            index.shard(wrong)


def test_an_index_without_shards():
    """An empty dataset has an index; nothing in it is not an error here."""
    index = Index.parse(b'{"shards": [], "version": 2}')
    assert (len(index), index.total_samples, index.largest()) == (0, 0, 0)
    assert index.to_json() == b'{"shards": [], "version": 2}'
    assert list(index) == []


STYLES = [
    {"sort_keys": True},
    {"sort_keys": False},
    {"separators": (",", ":")},
    {"indent": 1},
    {"indent": "\t", "ensure_ascii": False},
]
NAMES = st.one_of(
    st.from_regex(r"[a-z0-9_]{1,4}(/[a-z0-9][a-z. -]{0,5}x){0,2}", fullmatch=True),
    st.sampled_from(["ü/shard", ".hidden/shard", "a b", "shard..mds", 'quo"te', "日本"]),
)


@settings(max_examples=80)
@given(data=st.data())
def test_any_way_of_writing_it_gives_the_same_table(make_shard, data):
    """Spaces, order of keys, strange names and mixed schemas change the speed, not the result."""
    shards = []
    for number in range(data.draw(st.integers(0, 12))):
        kind = data.draw(st.integers(0, 2))
        one = make_shard(number, zipped=kind == 1, hashes=["sha1", "xxh64"][:kind])
        one["samples"] = data.draw(st.integers(0, 1200))
        one["raw_data"]["basename"] = f"{number}/{data.draw(NAMES)}"
        shards.append(one)
    index = Index.parse(text_of(shards, **data.draw(st.sampled_from(STYLES))))
    assert [raw_of(info) for info in index] == shards
    assert index.to_json() == text_of(shards)


def test_top_level_keys_in_any_order_and_a_byte_order_mark(make_shard):
    """What is equal as JSON is equal here."""
    one = json.dumps(make_shard())
    for text in (
        f'{{"version":2,"shards":[{one}]}}',
        f' {{"shards": [ {one} ] , "version" : 2 }}\n',
    ):
        assert len(Index.parse(text.encode())) == 1
        assert len(Index.parse(b"\xef\xbb\xbf" + text.encode())) == 1


def test_columns_of_json_shards_are_sorted():
    """An object has no order; the columns of json shards come by name, as all others do."""
    (path,) = (GOLDEN / "json_none").rglob("index.json")
    entry = json.loads(path.read_text())["shards"][0]
    names = sorted(entry["columns"])
    turned = {**entry, "columns": {name: entry["columns"][name] for name in reversed(names)}}
    for file in ("raw_data", "raw_meta"):
        turned[file] = {**entry[file], "basename": "another." + entry[file]["basename"]}
    index = Index.parse(json.dumps({"shards": [entry, turned], "version": 2}).encode())
    assert len(index.schemas) == 1
    assert index.schemas[0].columns.names == tuple(names)


def test_size_limits_for_people(make_shard):
    """A size limit may be a text; it counts as the number that it means."""
    shards = [make_shard(size_limit="64mb"), make_shard(1, size_limit=None)]
    index = Index.parse(text_of(shards))
    assert [schema.size_limit for schema in index.schemas] == [1 << 26, None]


def test_memory_is_that_of_the_columns(make_shard):
    """A shard takes under 160 bytes with its names and digests, hardly more while it is parsed."""
    data = text_of([make_shard(i, zipped=True, hashes=["xxh64"]) for i in range(12_000)])
    Index.parse(
        text_of([make_shard(i, zipped=True, hashes=["xxh64"]) for i in range(3)])
    )  # what is cached, is
    tracemalloc.start()
    try:
        index = Index.parse(data)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index) == 12_000
    assert kept < 12_000 * 160
    assert peak < 12_000 * 400


def test_pickles_are_found_in_every_schema(make_shard):
    """check_safe refuses an index with pickles anywhere, unless they are allowed."""
    bad = make_shard(1, column_encodings=["ndarray:int32:4", "optional[pkl]"])
    index = Index.parse(text_of([make_shard(), bad]))
    with pytest.raises(UnsafeTypeError, match=r"here.*'url' \(optional\[pkl\]\)"):
        index.check_safe(False, "here")
    index.check_safe(True)
    Index.parse(text_of([make_shard()])).check_safe(False)


def test_an_index_travels_to_other_processes(make_shard):
    """A pickled index is the same index."""
    index = Index.parse(text_of([make_shard(i, hashes=["sha1"]) for i in range(9)]))
    again = pickle.loads(pickle.dumps(index))
    assert list(again) == list(index)
    assert again.fingerprint() == index.fingerprint()
    assert again.to_json() == index.to_json()


def test_fingerprints_tell_indexes_apart(make_shard):
    """Two texts have one fingerprint only if they are equal."""
    texts = [text_of([make_shard(i)]) for i in range(3)]
    assert len({Index.parse(text).fingerprint() for text in texts}) == 3
    assert Index.parse(texts[0]).fingerprint() == Index.parse(texts[0]).fingerprint()
