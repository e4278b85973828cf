"""The binary copy of an index: used when it is right, replaced when it is not."""

import functools
import json
import os
import pathlib

import numpy as np
import pytest
import xxhash

from mds.index import Index
from mds.index import binary_copy as sidecars

# Of however small an index.
read_index = functools.partial(sidecars.read_index, min_copied_bytes=0)


@pytest.fixture
def place(make_shard, tmp_path):
    """An index of 50 shards of two schemas, and where its sidecar goes."""
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
    first = read_index(str(path), str(sidecar))
    calls = counted(monkeypatch)
    again = read_index(str(path), str(sidecar))
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
    read_index(str(path), str(sidecar))
    text = path.read_text()
    path.write_text(text.replace('"samples": 101', '"samples": 109'))
    assert len(path.read_text()) == len(text)
    assert 109 in read_index(str(path), str(sidecar)).samples
    assert 109 in sidecars.load(str(sidecar), *sidecars._digest(str(path))).samples
    path.write_text(json.dumps({"shards": [make_shard()], "version": 2}))
    assert len(read_index(str(path), str(sidecar))) == 1


def test_damaged_sidecars_are_replaced(place):
    """A flipped bit or a cut anywhere in the sidecar changes nothing but the time it takes."""
    path, sidecar = place
    read_index(str(path), str(sidecar))
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
        assert read_index(str(path), str(sidecar)).to_json() == text
        assert sidecar.read_bytes() == good


def test_a_place_that_cannot_be_written(place, tmp_path):
    """Without a place for the sidecar the index is read all the same."""
    path, _ = place
    (tmp_path / "file").write_text("")
    assert len(read_index(str(path), str(tmp_path / "file" / "index.bin"))) == 50
    (tmp_path / "folder").mkdir()
    assert len(read_index(str(path), str(tmp_path / "folder"))) == 50
    assert os.listdir(tmp_path / "folder") == []


def test_nothing_is_left_beside_the_sidecar(place):
    """The sidecar appears under its name alone, and a small index has none."""
    path, sidecar = place
    read_index(str(path), str(sidecar))
    assert os.listdir(sidecar.parent) == ["index.bin"]


def test_small_indexes_have_no_sidecar(place):
    """An index that is parsed in a moment is not copied."""
    path, sidecar = place
    assert len(sidecars.read_index(str(path), str(sidecar))) == 50
    assert not sidecar.exists()


def test_every_golden_index_survives_its_sidecar(tmp_path):
    """All formats, hashes and compressions are in the sidecar."""
    golden = pathlib.Path(__file__).parents[2] / "golden" / "shards"
    for number, path in enumerate(sorted(golden.rglob("index.json"))):
        sidecar = str(tmp_path / f"{number}.bin")
        read_index(str(path), sidecar)
        again = sidecars.load(sidecar, *sidecars._digest(str(path)))
        assert again is not None
        assert again.to_json() == path.read_bytes()


def forge(good, change):
    """A sidecar whose header or columns were changed, with a right digest over it."""
    length = int.from_bytes(good[16:20], "little")
    header = json.loads(good[20 : 20 + length])
    body = bytearray(good[20 + length :])
    change(header, body)
    text = json.dumps(header).encode()
    text += b" " * (-(20 + len(text)) % 64)
    rest = len(text).to_bytes(4, "little") + text + bytes(body)
    return good[:8] + xxhash.xxh3_64_intdigest(rest).to_bytes(8, "little") + rest


def numbers(name, at, value):
    """Change one number of a column."""

    def change(header, body):
        (column,) = [column for column in header["columns"] if column[0] == name]
        size = np.dtype(column[1]).itemsize
        start = column[2] + size * (at % column[3])
        body[start : start + size] = np.array([value], column[1]).tobytes()

    return change


def renamed(old, new):
    """Change the bytes of names."""

    def change(header, body):
        del header
        assert len(old) == len(new)
        assert old in body
        body[:] = body.replace(old, new)

    return change


def told(**changes):
    return lambda header, body: header.update(changes)


def of_column(name, place, value):
    def change(header, body):
        del body
        (column,) = [column for column in header["columns"] if column[0] == name]
        column[place] = value

    return change


LIES = {
    **{f"count_{n}_{v}": of_column(n, 3, v) for n in ("samples", "names", "name_ends", "digests")
       for v in (0, 49, 51, -1, 10**6, 2**62, 2**64, None, 1.5, True)},
    **{f"place_{v}": of_column("raw_size", 2, v) for v in (-8, 10**9, 2**63, "0", None)},
    **{f"dtype_{v}": of_column("samples", 1, v)
       for v in ("<f8", "|O", "<i4", "nope", None, "<i8,<i8")},
    **{f"{n}_{v}": numbers(n, 3, v) for n in ("samples", "raw_size", "zip_size", "raw_meta_size")
       for v in (-1, 2**62, 2**37, -(2**63))},
    "samples_beyond_bytes": numbers("samples", 3, 5000),
    "zip_of_none": numbers("zip_size", 3, 7),
    "raw_over_4_gib": numbers("raw_size", 3, 2**32),
    **{f"schema_{v}": numbers("schema_of", 3, v) for v in (-1, 2, 2**31 - 1)},
    **{f"ends_{at}_{v}": numbers("name_ends", at, v) for at in (0, 3, -1)
       for v in (-1, 0, 2**62, -(2**63))},
    "no_columns": told(columns=[]),
    "columns_text": told(columns="samples"),
    "columns_number": told(columns=7),
    "schemas_none": told(schemas=[]),
    "schemas_other": told(schemas=["{}"]),
    "schemas_text": told(schemas=["["]),
    "schemas_deep": told(schemas=["[" * 100_000]),
    "schemas_number": told(schemas=3),
    "version_text": told(version="1"),
    **{f"name_{new!r}": renamed(b"shard.00001.mds", new) for new in (
        b"../../.ssh/id_a", b"/etc/passwd.mds", b".mds/index.mds1", b"shard\\00001.mds",
        b"shard.00001.md/", b"shard.\x000001.mds", b"shard.00001.\xff\xff\xff", b"shard//0001.mds",
        b"x/./y0000001.md", b"shard.00001.\x1bds", b"a/INDEX.JSON/xx", b"\x00hard.00001.mds")},
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_forged_sidecar_is_replaced(place, lie):
    """Numbers and names of a sidecar are checked, whatever its digest says; it is made anew."""
    path, sidecar = place
    read_index(str(path), str(sidecar))
    good = sidecar.read_bytes()
    sidecar.write_bytes(forge(good, LIES[lie]))
    assert sidecars.load(str(sidecar), *sidecars._digest(str(path))) is None
    assert read_index(str(path), str(sidecar)).to_json() == path.read_bytes()
    assert sidecar.read_bytes() == good


def test_strange_names_survive_their_sidecar(make_shard, tmp_path):
    """Names that no quick look can judge are judged one by one, and come back."""
    shards = [make_shard(i, zipped=True) for i in range(3)]
    shards[1]["raw_data"]["basename"] = "\u00fc/.hidden/" + "x" * 230
    path = tmp_path / "index.json"
    path.write_text(json.dumps({"shards": shards, "version": 2}))
    first = read_index(str(path), str(tmp_path / "s"))
    again = sidecars.load(str(tmp_path / "s"), *sidecars._digest(str(path)))
    assert list(again) == list(first)


def test_no_pipe_link_or_giant_is_read_as_a_sidecar(place, tmp_path):
    """What is in the sidecar's place and is no such file delays nothing and is never followed."""
    path, sidecar = place
    read_index(str(path), str(sidecar))
    good = sidecar.read_bytes()
    size, digest = sidecars._digest(str(path))
    os.rename(sidecar, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", sidecar)
    assert sidecars.load(str(sidecar), size, digest) is None
    os.unlink(sidecar)
    os.mkfifo(sidecar)
    assert len(read_index(str(path), str(sidecar))) == 50
    assert sidecar.read_bytes() == good
    with open(sidecar, "wb") as file:
        file.truncate(1 << 40)
    assert len(read_index(str(path), str(sidecar))) == 50
    assert sidecar.read_bytes() == good
