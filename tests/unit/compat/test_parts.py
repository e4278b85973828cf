"""Parts of the incumbent that code imports by name: merging, shared memory, algorithms."""

import json
import os

import numpy as np
import pytest
from streaming import MDSWriter
from streaming.base import compression, constant, dataset, partition, shared, shuffle, util
from streaming.base.shared import prefix
from streaming.multimodal import webvid


@pytest.fixture
def parts(tmp_path):
    """Two datasets side by side, as jobs of a preparation write them."""
    for part in ("0", "1"):
        with MDSWriter(columns={"n": "int"}, out=str(tmp_path / "all" / part)) as writer:
            writer.write({"n": int(part)})
    return str(tmp_path / "all")


def shards_of(folder):
    with open(os.path.join(folder, "index.json")) as file:
        return [shard["raw_data"]["basename"] for shard in json.load(file)["shards"]]


def test_merging_by_the_private_functions(parts):
    """A list keeps its order; a root takes all below it; both write the index of the whole."""
    urls = [os.path.join(parts, part, "index.json") for part in ("1", "0")]
    util._merge_index_from_list(urls, parts, keep_local=True)
    assert shards_of(parts) == ["1/shard.00000.mds", "0/shard.00000.mds"]
    os.unlink(os.path.join(parts, "index.json"))
    util._merge_index_from_root(parts, keep_local=True)
    assert shards_of(parts) == ["0/shard.00000.mds", "1/shard.00000.mds"]


def test_merging_nothing_is_a_warning(tmp_path, caplog):
    """No index is an empty answer through the door, and one that was named is a RuntimeError."""
    util.merge_index([], str(tmp_path))
    util.merge_index(str(tmp_path / "nowhere"))
    assert len([r for r in caplog.records if "no index was merged" in r.getMessage()]) == 2
    with pytest.raises(RuntimeError):
        util.merge_index([str(tmp_path / "gone" / "index.json")], str(tmp_path))
    with pytest.raises(ValueError):
        util.merge_index(1, 2)


def test_urls_of_indexes():
    """Keys of a bucket become URLs; files that are no index are left out."""
    keys = ["x/a/index.json", "x/a/shard.00000.mds", "index.json"]
    expected = ["s3://b/x/a/index.json", "s3://b/index.json"]
    assert util._format_remote_index_files("s3://b/x", keys) == expected
    assert util._format_remote_index_files("dbfs:/Volumes/x", ["Volumes/x/a/index.json"]) == [
        "dbfs:/Volumes/x/a/index.json"
    ]
    assert util._not_merged_index("/data/0/index.json", "/data")
    assert not util._not_merged_index("/data/index.json", "/data/")


def test_names_of_shared_memory_are_placeholders():
    """Code imports them and names them in annotations; using one says what to do instead."""
    assert prefix._get_path(7, constant.LOCALS) == "000007_locals"
    assert constant.SHM_TO_CLEAN[0] == constant.LOCALS
    for place, name in (
        (shared, "SharedArray"),
        (shared, "SharedBarrier"),
        (shared, "SharedScalar"),
        (shared, "get_shm_prefix"),
        (shared.memory, "SharedMemory"),
        (prefix, "_check_and_find"),
        (prefix, "_pack_locals"),
        (webvid, "_Iterator"),
        (dataset, "_ShardState"),
    ):
        with pytest.raises(TypeError, match=f"{name} can be imported but not used through mds"):
            getattr(place, name)("name", 1)


@pytest.mark.parametrize("algo", ["naive", "py1br", "py1e", "py1s", "py2s"])
def test_a_function_for_each_shuffle(algo):
    """It gives what `get_shuffle` gives for the name, and is in the table of algorithms."""
    sizes = np.array([5, 9, 3])
    function = getattr(shuffle, f"get_shuffle_{algo}")
    assert shuffle.algos[algo] is function
    expected = shuffle.get_shuffle(algo, sizes, 2, 7, 1, 100)
    assert function(sizes, 2, 7, 1, 100).tolist() == expected.tolist()


def test_an_algorithm_of_ones_own_is_found_by_name(monkeypatch):
    """What code puts into the tables is what their functions call."""
    monkeypatch.setitem(shuffle.algos, "mine", lambda sizes, *_: np.arange(sum(sizes))[::-1])
    assert shuffle.get_shuffle("mine", np.array([2, 1]), 1, 0, 0).tolist() == [2, 1, 0]
    monkeypatch.setitem(partition.algos, "mine", lambda *_: "all")
    assert partition.get_partitions("mine", 1, 1, 1, 1, 1, 1) == "all"
    with pytest.raises(KeyError):
        partition.get_partitions("other", 1, 1, 1, 1, 1, 1)


def test_classes_of_compressions():
    """A class makes what the function of the name makes; `each` names all its levels."""
    made = compression.Zstandard(7)
    assert made.decompress(made.compress(b"abc" * 99)) == b"abc" * 99
    assert made.compress(b"abc" * 99) == compression.compress("zstd:7", b"abc" * 99)
    assert [name for name, _ in compression.Bzip2.each()][:3] == ["bz2", "bz2:1", "bz2:2"]
    assert set(compression._algorithms) == compression.get_compressions()
    with pytest.raises(AssertionError):
        compression.Gzip(99)
