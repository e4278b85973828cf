"""The binary copy of an index: used when it is right, replaced when it is not."""

import json
import os
import pathlib

import numpy as np
import pytest

from mds.index import Index
from mds.index import sidecar as sidecars


@pytest.fixture
def place(make_shard, tmp_path, monkeypatch):
    """An index of 50 shards of two schemas, and where its sidecar goes."""
    monkeypatch.setattr(sidecars, "_WORTHWHILE", 0)
    shards = [make_shard(i, zipped=i >= 30, hashes=["sha1", "xxh64"]) for i in range(50)]
    path = tmp_path / "index.json"
    path.write_text(json.dumps({"shards": shards, "version": 2}, sort_keys=True))
    return path, tmp_path / "cache" / "index.bin"


def counted(monkeypatch):
    """The number of texts that were parsed, as a list that grows."""
    calls = []
    parse = Index.parse.__func__

    def counting(cls, data, where="index.json"):
        calls.append(where)
        return parse(cls, data, where)

    monkeypatch.setattr(Index, "parse", classmethod(counting))
    return calls


def test_the_second_start_parses_nothing(place, monkeypatch):
    """The table comes from the sidecar, equal to the last byte of its JSON."""
    path, sidecar = place
    first = Index.read(str(path), str(sidecar))
    calls = counted(monkeypatch)
    again = Index.read(str(path), str(sidecar))
    assert calls == []
    assert again.to_json() == first.to_json() == path.read_bytes()
    assert list(again) == list(first)
    assert again.schemas == first.schemas
    assert again.fingerprint() == first.fingerprint()
    assert all(np.array_equal(getattr(again, n), getattr(first, n)) for n in Index.COLUMNS)
    assert not again.samples.flags.writeable


def test_another_index_makes_another_sidecar(place, make_shard):
    """A changed index is never answered from the old sidecar, even at the same size."""
    path, sidecar = place
    Index.read(str(path), str(sidecar))
    text = path.read_text()
    path.write_text(text.replace('"samples": 101', '"samples": 109'))
    assert len(path.read_text()) == len(text)
    assert 109 in Index.read(str(path), str(sidecar)).samples
    assert 109 in sidecars.load(str(sidecar), *sidecars._digest(str(path))).samples
    path.write_text(json.dumps({"shards": [make_shard()], "version": 2}))
    assert len(Index.read(str(path), str(sidecar))) == 1


def test_damaged_sidecars_are_replaced(place):
    """A flipped bit or a cut anywhere in the sidecar changes nothing but the time it takes."""
    path, sidecar = place
    Index.read(str(path), str(sidecar))
    good, text = sidecar.read_bytes(), path.read_bytes()
    rng = np.random.default_rng(0)
    for number in range(80):
        data = bytearray(good)
        at = int(rng.integers(len(data))) if number > 30 else number
        if number % 2:
            data[at] ^= 1 << int(rng.integers(8))
        else:
            del data[at:]
        sidecar.write_bytes(data)
        assert Index.read(str(path), str(sidecar)).to_json() == text
        assert sidecar.read_bytes() == good


def test_a_place_that_cannot_be_written(place, tmp_path):
    """Without a place for the sidecar the index is read all the same."""
    path, _ = place
    (tmp_path / "file").write_text("")
    assert len(Index.read(str(path), str(tmp_path / "file" / "index.bin"))) == 50
    (tmp_path / "folder").mkdir()
    assert len(Index.read(str(path), str(tmp_path / "folder"))) == 50
    assert os.listdir(tmp_path / "folder") == []


def test_nothing_is_left_beside_the_sidecar(place):
    """The sidecar appears under its name alone, and a small index has none."""
    path, sidecar = place
    Index.read(str(path), str(sidecar))
    assert os.listdir(sidecar.parent) == ["index.bin"]


def test_small_indexes_have_no_sidecar(place, monkeypatch):
    """An index that is parsed in a moment is not copied."""
    path, sidecar = place
    monkeypatch.setattr(sidecars, "_WORTHWHILE", 256 << 10)
    assert len(Index.read(str(path), str(sidecar))) == 50
    assert not sidecar.exists()


def test_every_golden_index_survives_its_sidecar(tmp_path, monkeypatch):
    """All formats, hashes and compressions are in the sidecar."""
    monkeypatch.setattr(sidecars, "_WORTHWHILE", 0)
    golden = pathlib.Path(__file__).parent.parent / "golden" / "shards"
    for number, path in enumerate(sorted(golden.rglob("index.json"))):
        sidecar = str(tmp_path / f"{number}.bin")
        Index.read(str(path), sidecar)
        again = sidecars.load(sidecar, *sidecars._digest(str(path)))
        assert again is not None
        assert again.to_json() == path.read_bytes()
