"""Files beside an index.json: bound to it, checked before they are believed, never in the way."""

import json
import os

import numpy as np
import pytest

from mds import MDSWriter, merge_index
from mds._cli.verification import verify
from mds._index.lengths import emit_lengths
from mds._index.sidecar import (
    is_sidecar,
    pack_sidecar,
    parse_sidecar,
    read_sidecar,
    sidecar_name,
    sidecars_of,
    write_sidecar,
)
from mds._index.table import Index
from mds.errors import ConfigError, DeniedError, IndexFileError
from mds.storage import open_store

DIGEST = "0123456789abcdef" * 2


def fill(folder, count=20):
    """A dataset of a few samples; its store and its index."""
    columns = {"x": "ndarray:int32"}
    with MDSWriter(out=str(folder), columns=columns, exist_ok=True, size_limit=200) as writer:
        for i in range(count):
            writer.write({"x": np.zeros(i + 1, np.int32)})
    store = open_store(str(folder))
    return store, Index.parse(store.get("index.json"))


def test_what_is_written_is_read(tmp_path):
    """Kind, version, index and payload, with one line of JSON before the bytes."""
    store, index = fill(tmp_path / "d")
    name = sidecar_name("lengths", "tokens")
    write_sidecar(store, name, "lengths", index.fingerprint(), b"\0\1\n\2", version=1)
    found = read_sidecar(store, name, "lengths", index.fingerprint())
    assert (found.kind, found.version, bytes(found.payload)) == ("lengths", 1, b"\0\1\n\2")
    header, _, payload = (tmp_path / "d" / name).read_bytes().partition(b"\n")
    assert payload == b"\0\1\n\2"
    assert json.loads(header)["index"] == index.fingerprint()
    assert sidecars_of(store) == [name]


def test_none_is_an_answer(tmp_path):
    """A missing file, and the 403 of a store that hides what is missing, are None."""
    store, index = fill(tmp_path / "d")
    assert read_sidecar(store, "index.lengths-x.bin", "lengths", index.fingerprint()) is None

    class Hiding:
        def url_of(self, key):
            return key

        def stream(self, key):
            raise DeniedError(key)

    assert read_sidecar(Hiding(), "index.lengths-x.bin", "lengths", None) is None


def test_names_of_columns_become_names_of_files():
    """Any column has one, none leaves its folder, and no two share one."""
    names = ["tokens", "a/b", "../x", "a b", "a=2Fb", "ä", "a%2Fb", ".", ""]
    made = [sidecar_name("lengths", name) for name in names]
    assert len(set(made)) == len(names)
    assert all(is_sidecar(name) and "/" not in name for name in made)
    with pytest.raises(ConfigError, match="is too long for a sidecar file"):
        sidecar_name("lengths", "x" * 300)
    assert not is_sidecar("index.json")
    assert not is_sidecar("index.html")
    assert not is_sidecar("shard.00000.mds")


GOOD = pack_sidecar("lengths", 1, DIGEST, b"payload")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "does not begin with the header"),
        (b"payload without a line", "does not begin with the header"),
        (b"{}\n", "does not begin with the header"),
        (b"[]\nx", "does not begin with the header"),
        (b"[" * 900 + b"\n", "does not begin with the header"),
        (b"\xff\xfe\n", "does not begin with the header"),
        (b" " * 5000 + GOOD, "does not begin with the header"),
        (GOOD[:-1], "damaged"),
        (GOOD + b"x", "damaged"),
        (GOOD[:-1] + b"D", "damaged"),
        (GOOD.replace(b'"bytes": 7', b'"bytes": 1e9'), "damaged"),
        (GOOD.replace(b'"bytes": 7', b'"bytes": -1'), "damaged"),
        (GOOD.replace(b'"bytes": 7', b'"bytes": true'), "damaged"),
        (GOOD.replace(b'"version": 1', b'"version": 2'), "update mds"),
        (GOOD.replace(b'"version": 1', b'"version": 0'), "version 0"),
        (GOOD.replace(b'"version": 1', b'"version": "1"'), "version '1'"),
        (GOOD.replace(b'"lengths"', b'"columns"'), "kind 'columns'"),
        (GOOD.replace(b'"lengths"', b'["lengths"]'), "kind"),
        (GOOD.replace(DIGEST.encode(), b"f" * 32), "another index.json"),
        (GOOD.replace(DIGEST.encode(), b"../../../etc/passwd"), "kind"),
    ],
)
def test_what_is_not_one_is_refused(data, says):
    """The file, what is wrong with it, and what to do, in a short sentence."""
    with pytest.raises(IndexFileError, match=says) as told:
        parse_sidecar(data, "far/index.lengths-x.bin", "lengths", DIGEST)
    assert "far/index.lengths-x.bin" in str(told.value)
    assert len(str(told.value)) < 400


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    """Reading ends soon after the bytes that are plausible."""
    store, index = fill(tmp_path / "d")
    name = sidecar_name("lengths", "x")
    write_sidecar(store, name, "lengths", index.fingerprint(), bytes(10_000_000))
    came = []
    stream = store.stream

    def counted(key):
        body = stream(key)
        came.append(body)
        return body

    store.stream = counted
    with pytest.raises(IndexFileError, match="more than 1000 bytes"):
        read_sidecar(store, name, "lengths", index.fingerprint(), max_bytes=1000)
    assert came[0]._received < 10_000_000


def test_only_names_of_sidecars_are_written(tmp_path):
    """The index itself and shards cannot be replaced by one."""
    store, index = fill(tmp_path / "d")
    for name in ("index.json", "shard.00000.mds", "../index.x-y.bin"):
        with pytest.raises(ConfigError, match="not a valid name"):
            write_sidecar(store, name, "lengths", index.fingerprint(), b"")


def test_a_new_dataset_in_the_place_has_none_of_the_old_one(tmp_path):
    """exist_ok=True removes them with the index; a user's file of such a name stays."""
    store, index = fill(tmp_path / "d")
    write_sidecar(store, "index.lengths-x.bin", "lengths", index.fingerprint(), b"old")
    (tmp_path / "d" / "index.notes.json").write_text('{"mine": 1}')
    fill(tmp_path / "d", 7)
    assert "index.lengths-x.bin" not in os.listdir(tmp_path / "d")
    assert (tmp_path / "d" / "index.notes.json").read_text() == '{"mine": 1}'


def test_verify_tells_what_is_wrong_with_them(tmp_path):
    """Damage, and one that belongs to another index."""
    store, index = fill(tmp_path / "d")
    good = emit_lengths("x", np.arange(20) + 1)
    write_sidecar(store, "index.lengths-x.bin", "lengths", index.fingerprint(), good)
    assert verify(str(tmp_path / "d")).faults == []
    write_sidecar(store, "index.lengths-y.bin", "lengths", DIGEST, b"of another")
    (tmp_path / "d" / "index.lengths-z.bin").write_bytes(GOOD[:-2])
    faults = verify(str(tmp_path / "d")).faults
    assert len(faults) == 2
    assert "index.lengths-y.bin belongs to another index.json" in faults[0]
    assert "index.lengths-z.bin" in faults[1]


def test_a_merged_index_has_no_sidecars_of_the_index_it_replaced(tmp_path):
    """What belongs to the parts stays beside them."""
    parts = [fill(tmp_path / name) for name in ("a", "b")]
    for store, index in parts:
        write_sidecar(store, "index.lengths-x.bin", "lengths", index.fingerprint(), b"part")
    merge_index(str(tmp_path))
    whole = open_store(str(tmp_path))
    write_sidecar(whole, "index.lengths-x.bin", "lengths", DIGEST, b"stale")
    merge_index(str(tmp_path))
    assert sidecars_of(whole) == []
    assert sidecars_of(parts[0][0]) == ["index.lengths-x.bin"]
