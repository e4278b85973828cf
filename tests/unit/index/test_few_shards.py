"""Indexes of few shards are parsed in one step, with the result of the walk through their text."""

import json
import random

import pytest

from mds._index import parse
from mds._index.table import Index
from mds.encodings import Encoding, register_encoding
from mds.errors import IndexFileError
from tests.unit.encodings.registered import registered

SHARD = {
    "column_encodings": ["int", "str"],
    "column_names": ["x", "y"],
    "column_sizes": [8, None],
    "compression": None,
    "format": "mds",
    "hashes": ["xxh3_64"],
    "raw_data": {"basename": "shard.00000.mds", "bytes": 999, "hashes": {"xxh3_64": "00" * 8}},
    "samples": 3,
    "size_limit": 1 << 26,
    "version": 2,
    "zip_data": None,
}
SPARE = [
    b"0",
    b"1",
    b"9",
    b'"',
    b",",
    b"}",
    b"{",
    b"]",
    b" ",
    b"\n",
    b"/",
    b"e",
    b"\xff",
    b"",
    b"-",
]


def text_of(**changes):
    return json.dumps({"shards": [{**SHARD, **changes}], "version": 2}).encode()


def outcome(data):
    """Return the table of an index, or the error."""
    try:
        index = Index.parse(data, "index.json")
    except IndexFileError as error:
        return str(error)
    return index.to_json(), index.schemas, [getattr(index, name).tolist() for name in index.COLUMNS]


@pytest.fixture
def walk(monkeypatch):
    """Return the function that parses an index by the walk alone."""

    def outcome_of_walk(data):
        with monkeypatch.context() as patch:
            patch.setattr(parse._Parser, "_matches_single", lambda self: False)
            patch.setattr(parse._Parser, "_few_shards", lambda self: None)
            return outcome(data)

    return outcome_of_walk


@pytest.fixture
def known(monkeypatch):
    """Let indexes like `SHARD` be known."""
    monkeypatch.setattr(parse, "_single", {})
    for samples in (3, 4):
        outcome(text_of(samples=samples))
    assert [*parse._single.values()] != [None]


@pytest.mark.parametrize("seed", range(8))
def test_damaged_texts_have_the_same_outcome(walk, known, seed):
    """Also of the texts that a template matches, and of the errors."""
    rng = random.Random(seed)
    for _ in range(200):
        data = bytearray(text_of(samples=rng.choice([0, 3, 12, 10**9])))
        for _ in range(rng.randrange(3)):
            start = rng.randrange(len(data))
            data[start : start + rng.randrange(3)] = rng.choice(SPARE)
        assert outcome(bytes(data)) == walk(bytes(data)), bytes(data)


def test_white_space_before_the_first_brace_is_no_part_of_a_shard(walk, monkeypatch):
    """Each of the texts is read three times: by the first a schema is seen, by the second known."""
    for begin in (b" ", b"\n", b"\r\n\t "):
        monkeypatch.setattr(parse, "_single", {})
        data = begin + text_of()
        assert [outcome(data) for _ in range(3)] == [walk(data)] * 3
        assert outcome(data.replace(b"shards", b"version", 1)) != outcome(data)


@pytest.mark.parametrize("count", [0, 1, 2, parse.FEW, parse.FEW + 1])
@pytest.mark.parametrize("version", [2, 2.0, True, 3])
def test_any_number_of_shards_has_the_same_outcome(walk, known, count, version):
    def shard(number):
        name = f"shard.{number:05}.mds"
        return {**SHARD, "raw_data": {**SHARD["raw_data"], "basename": name}}

    index = {"shards": [*map(shard, range(count))], "version": version}
    for keys in (["shards", "version"], ["version", "shards"]):
        data = json.dumps({key: index[key] for key in keys}).encode()
        for text in (data, b"\xef\xbb\xbf" + data, data + b"\n", data + b"]", b" " + data):
            assert outcome(text) == walk(text)


class FewEncoding(Encoding):
    size = 8

    def encode(self, value):
        return bytes(value)

    def decode(self, data):
        return data


class WideEncoding(FewEncoding):
    size = 16


@pytest.fixture
def _few():
    with registered({"few": FewEncoding}):
        yield


@pytest.mark.usefixtures("_few")
def test_sizes_are_those_of_an_encoding_that_was_registered_anew(walk, monkeypatch):
    monkeypatch.setattr(parse, "_single", {})
    data = text_of(column_encodings=["few"], column_names=["x"], column_sizes=[8])
    assert not isinstance([outcome(data) for _ in range(3)][-1], str)
    register_encoding("few", WideEncoding, replace=True)
    assert "column_sizes" in outcome(data)
    assert outcome(data) == walk(data)
