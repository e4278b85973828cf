"""The binary copy of an index: used when it is right, replaced when it is not."""

import functools
import json
import os
import pathlib

import numpy as np
import pytest
import xxhash

from mds._index import table
from mds._index.table import Index

# Of however small an index.
read_index = functools.partial(table.read_index, min_copied_bytes=0)


@pytest.fixture
def place(make_shard, tmp_path):
    """An index of 50 shards of two schemas, and where its copy goes."""
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
    """The table comes from the copy, equal to the last byte of its JSON."""
    path, table_copy = place
    first = read_index(str(path), str(table_copy))
    calls = counted(monkeypatch)
    again = read_index(str(path), str(table_copy))
    assert calls == []
    assert again.to_json() == first.to_json() == path.read_bytes()
    assert list(again) == list(first)
    assert again.schemas == first.schemas
    assert again.fingerprint() == first.fingerprint()
    assert all(np.array_equal(getattr(again, n), getattr(first, n)) for n in Index.COLUMNS)
    assert not again.samples.flags.writeable


def test_another_index_makes_another_copy(place, make_shard):
    """A changed index is never answered from the old copy, even at the same size."""
    path, table_copy = place
    read_index(str(path), str(table_copy))
    text = path.read_text()
    path.write_text(text.replace('"samples": 101', '"samples": 109'))
    assert len(path.read_text()) == len(text)
    assert 109 in read_index(str(path), str(table_copy)).samples
    assert 109 in table.load_copy(str(table_copy), *table._digest(str(path))).samples
    path.write_text(json.dumps({"shards": [make_shard()], "version": 2}))
    assert len(read_index(str(path), str(table_copy))) == 1


def test_damaged_copies_are_replaced(place):
    """A flipped bit or a cut anywhere in the copy changes nothing but the time it takes."""
    path, table_copy = place
    read_index(str(path), str(table_copy))
    good, text = table_copy.read_bytes(), path.read_bytes()
    rng = np.random.default_rng(0)
    for number in range(80):
        data = bytearray(good)
        at = int(rng.integers(len(data))) if number > 30 else number
        if number % 2:
            data[at] ^= 1 << int(rng.integers(8))
        else:
            del data[at:]
        table_copy.write_bytes(data)
        assert read_index(str(path), str(table_copy)).to_json() == text
        assert table_copy.read_bytes() == good


def test_a_place_that_cannot_be_written(place, tmp_path):
    """Without a place for the copy the index is read all the same."""
    path, _ = place
    (tmp_path / "file").write_text("")
    assert len(read_index(str(path), str(tmp_path / "file" / "index.bin"))) == 50
    (tmp_path / "folder").mkdir()
    assert len(read_index(str(path), str(tmp_path / "folder"))) == 50
    assert os.listdir(tmp_path / "folder") == []


def test_nothing_is_left_beside_the_table_copy(place):
    """The copy appears under its name alone, and a small index has none."""
    path, table_copy = place
    read_index(str(path), str(table_copy))
    assert os.listdir(table_copy.parent) == ["index.bin"]


def test_small_indexes_have_no_table_copy(place):
    """An index that is parsed in a moment is not copied."""
    path, table_copy = place
    assert len(table.read_index(str(path), str(table_copy))) == 50
    assert not table_copy.exists()


def test_every_golden_index_survives_its_table_copy(tmp_path):
    """All formats, hashes and compressions are in the copy."""
    golden = pathlib.Path(__file__).parents[2] / "golden" / "shards"
    for number, path in enumerate(sorted(golden.rglob("index.json"))):
        table_copy = str(tmp_path / f"{number}.bin")
        read_index(str(path), table_copy)
        again = table.load_copy(table_copy, *table._digest(str(path)))
        assert again is not None
        assert again.to_json() == path.read_bytes()


def forge(good, change):
    """A copy whose header or columns were changed, with a right digest over it."""
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
def test_a_forged_table_copy_is_replaced(place, lie):
    """Numbers and names of a copy are checked, whatever its digest says; it is made anew."""
    path, table_copy = place
    read_index(str(path), str(table_copy))
    good = table_copy.read_bytes()
    table_copy.write_bytes(forge(good, LIES[lie]))
    assert table.load_copy(str(table_copy), *table._digest(str(path))) is None
    assert read_index(str(path), str(table_copy)).to_json() == path.read_bytes()
    assert table_copy.read_bytes() == good


def test_strange_names_survive_their_table_copy(make_shard, tmp_path):
    """Names that no quick look can judge are judged one by one, and come back."""
    shards = [make_shard(i, zipped=True) for i in range(3)]
    shards[1]["raw_data"]["basename"] = "\u00fc/.hidden/" + "x" * 230
    path = tmp_path / "index.json"
    path.write_text(json.dumps({"shards": shards, "version": 2}))
    first = read_index(str(path), str(tmp_path / "s"))
    again = table.load_copy(str(tmp_path / "s"), *table._digest(str(path)))
    assert list(again) == list(first)


def test_no_pipe_link_or_giant_is_read_as_a_table_copy(place, tmp_path):
    """What is in the copy's place and is no such file delays nothing and is never followed."""
    path, table_copy = place
    read_index(str(path), str(table_copy))
    good = table_copy.read_bytes()
    size, digest = table._digest(str(path))
    os.rename(table_copy, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", table_copy)
    assert table.load_copy(str(table_copy), size, digest) is None
    os.unlink(table_copy)
    os.mkfifo(table_copy)
    assert len(read_index(str(path), str(table_copy))) == 50
    assert table_copy.read_bytes() == good
    with open(table_copy, "wb") as file:
        file.truncate(1 << 40)
    assert len(read_index(str(path), str(table_copy))) == 50
    assert table_copy.read_bytes() == good
