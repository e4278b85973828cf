"""Indexes that lie: refused with IndexFileError, which says where."""

import json
import os
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mds._index.parse import parse_index
from mds._index.table import Index
from mds.errors import IndexFileError

# For a long search: MDS_FUZZ_CASES=20000 pytest -k damaged
CASES = int(os.environ.get("MDS_FUZZ_CASES", "300"))
DEEP = "[" * 200_000


def _at(*path, value):
    def change(shards):
        *way, last = path
        place = shards[1]
        for key in way:
            place = place[key]
        place[last] = value

    return change


def _without(*path):
    def change(shards):
        *way, last = path
        place = shards[1]
        for key in way:
            place = place[key]
        del place[last]

    return change


NAMES = [
    *("../shard.mds", "a/../../b", "/etc/passwd", "", ".", "..", "a/", "a//b", "./a", "a/./b"),
    *("a\0b", "a\\b", "\\\\host\\share", "C:/x", "c:x", "a\nb", "\ud800", "index.json", 7, None),
]
COUNTS = [-1, -5, 2.5, 1e3, True, "7", None, [], 2**62, 10**400, float("nan"), float("inf")]
CHANGES = {
    **{f"name_{name!r}": _at("raw_data", "basename", value=name) for name in NAMES},
    **{f"samples_{count!r:.9}": _at("samples", value=count) for count in COUNTS},
    **{f"bytes_{count!r:.9}": _at("raw_data", "bytes", value=count) for count in COUNTS},
    "samples_more_than_bytes": _at("samples", value=5001 // 4),
    **{f"version_{v!r}": _at("version", value=v) for v in (9, 1, "2", 2.0, None, True)},
    **{f"format_{v!r}": _at("format", value=v) for v in ("nope", None, 3, ["mds"], {}, "json")},
    **{f"no_{key}": _without(key) for key in ("version", "format", "samples", "raw_data", "hashes",
        "zip_data", "column_names", "column_sizes", "size_limit", "compression")},
    **{f"no_file_{key}": _without("raw_data", key) for key in ("basename", "bytes", "hashes")},
    "unknown_key": _at("extra", value=1),
    "unknown_file_key": _at("raw_data", "extra", value=1),
    "encoding_unknown": _at("column_encodings", value=["nope", "str"]),
    "encoding_number": _at("column_encodings", value=[1, 2]),
    "columns_uneven": _at("column_encodings", value=["str"]),
    "columns_twice": _at("column_names", value=["a", "a"]),
    "columns_text": _at("column_names", value="ab"),
    "sizes_other": _at("column_sizes", value=[17, None]),
    "sizes_huge": _at("column_sizes", value=[2**60, None]),
    "raw_null": _at("raw_data", value=None),
    "raw_text": _at("raw_data", value="shard.mds"),
    "zip_without_compression": _at("zip_data", value={"basename": "z", "bytes": 1, "hashes": {}}),
    "compression_unknown": _at("compression", value="rar:3"),
    "compression_number": _at("compression", value=3),
    "hashes_text": _at("hashes", value="sha1"),
    "hashes_numbers": _at("hashes", value=[1]),
    "digest_short": _at("raw_data", "hashes", value={"sha1": "abc"}),
    "digest_upper": _at("raw_data", "hashes", value={"sha1": "AB"}),
    "digest_number": _at("raw_data", "hashes", value={"sha1": 5}),
    "digest_list": _at("raw_data", "hashes", value=[]),
    "limit_text": _at("size_limit", value="huge"),
    "limit_negative": _at("size_limit", value=-1),
    "limit_list": _at("size_limit", value=[]),
    "limit_inf": _at("size_limit", value=float("inf")),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_shard_that_makes_no_sense(make_shard, change):
    """What a shard object says is refused unless it is plausible, also beside good ones."""
    shards = [make_shard(0), make_shard(1), make_shard(2)]
    CHANGES[change](shards)
    with pytest.raises(IndexFileError, match=r"the/index\.json, shard 1"):
        Index.parse(json.dumps({"shards": shards, "version": 2}).encode(), "the/index.json")


@pytest.mark.parametrize(
    "text",
    [
        *("", " \n", "[]", "7", "null", "{", "{}", "{}}", DEEP, f'{{"shards": {DEEP}', "\0" * 300),
        *(f'{{"shards": [{DEEP}', f"{{{DEEP}", '{"shards": [{"a": ' + DEEP, "\ufeff", "\xff"),
        *('{"shards": []}', '{"version": 2}', '{"shards": [], "version": 3}'),
        *('{"shards": [], "version": 2, "more": 1}', '{"shards": [], "shards": [], "version": 2}'),
        *('{"shards": {"a": 1}, "version": 2}', '{"shards": null, "version": 2}'),
        *('{"shards": [{"version": 2, "version": 2}], "version": 2}',),
        *('{"shards": [1], "version": 2}', '{"shards": [[]], "version": 2}'),
        *('{"shards": [null], "version": 2}', '{"shards": [], "version": 2} x'),
        *('{"shards": [], "version": "2"}', '{"shards": [], "version": true}'),
        *('{"shards": [,], "version": 2}', '{"shards": [] "version": 2}', "{1: 2}"),
        *('{"shards": [], "version": 2,}', '{"shards": [] , , "version": 2}'),
    ],
    ids=lambda text: repr(text[:24]),
)  # fmt: skip
def test_a_text_that_is_no_index(text):
    """Other JSON and no JSON at all are refused by the file's name."""
    with pytest.raises(IndexFileError, match=r"the/index\.json[:,] "):
        Index.parse(text.encode("utf-8", "surrogateescape"), "the/index.json")


def test_a_repeated_key_is_named():
    """Readers of JSON would differ in which of the two values they take."""
    text = b'{"shards": [{"samples": 1, "version": 2, "version": 3}], "version": 2}'
    with pytest.raises(IndexFileError, match="an object has the key 'version' twice"):
        Index.parse(text, "the/index.json")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_other_encodings_of_text(make_shard, encoding):
    """An index is UTF-8."""
    one = make_shard(column_names=["tokens", "ü"])
    text = json.dumps({"shards": [one], "version": 2}, ensure_ascii=False)
    with pytest.raises(IndexFileError):
        Index.parse(text.encode(encoding))


def test_a_hostile_object_takes_bounded_memory():
    """A value that would grow twentyfold when parsed is refused when it is too long for a shard."""
    data = b"{},{},{},{}," * (1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(IndexFileError):
            parse_index(b'{"shards": [[' + data + b"{}]]}", "index.json", 256 << 10)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data) + (16 << 20)
    finally:
        tracemalloc.stop()


@settings(max_examples=CASES)
@given(data=st.data())
def test_damaged_texts_are_read_or_refused(make_shard, data):
    """Flip bits, cut, repeat or insert: there is a plausible table or IndexFileError."""
    shards = [make_shard(i, zipped=i % 2 == 1, hashes=["xxh64"]) for i in range(4)]
    text = bytearray(json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        how = data.draw(st.integers(0, 3))
        if how == 0:
            text[at] ^= 1 << data.draw(st.integers(0, 7))
        elif how == 1:
            del text[at : at + data.draw(st.integers(1, 400))]
        elif how == 2:
            text[at:at] = text[at : at + data.draw(st.integers(1, 400))]
        else:
            text[at:at] = data.draw(
                st.sampled_from([b"0", b"-", b'"', b"{", b"[[", b"1e9", b"../"])
            )
        if not text:
            break
    try:
        index = Index.parse(bytes(text))
    except IndexFileError:
        return
    assert (index.samples >= 0).all()
    assert (index.raw_size >= 4 + 4 * (index.samples + 1)).all()
    for info in index:
        assert ".." not in info.raw.basename.split("/")
        assert not info.raw.basename.startswith("/")


TWICE = {
    "two_shards": ("x.mds", None, "x.mds", None),
    "raw_and_compressed": ("x.mds", "x.mds", "y.mds", None),
    "raw_of_another": ("x.mds", "y.mds", "y.mds", None),
    "in_a_folder": ("a/x.mds", None, "a/x.mds", None),
    "strange_names": ("\u00fc.mds", None, "\u00fc.mds", None),
    "a_folder": ("a", None, "a/x.mds", None),
    "a_folder_above": ("a/b/c", None, "a", None),
    "a_compressed_folder": ("x.mds", "a", "a/x.mds", None),
}


@pytest.mark.parametrize("names", TWICE.values(), ids=TWICE)
@pytest.mark.parametrize("between", [0, 5000])
def test_every_file_has_a_name_of_its_own(make_shard, names, between):
    """Two files of one name, or a file where a folder is needed, are refused with their shards."""
    shards = [make_shard(i) for i in range(between + 2)]
    for at, raw, packed in ((0, *names[:2]), (-1, *names[2:])):
        shards[at] = make_shard(between + 1, zipped=packed is not None)
        shards[at]["raw_data"]["basename"] = raw
        if packed is not None:
            shards[at]["zip_data"]["basename"] = packed
    with pytest.raises(IndexFileError, match=r"the/index\.json, shard \d+: '.+' is (also )?a file"):
        Index.parse(json.dumps({"shards": shards, "version": 2}).encode(), "the/index.json")
    with pytest.raises(IndexFileError, match=r"is (also )?a file"):
        Index.build(shards)


def test_names_that_differ_in_case_are_two_names(make_shard):
    """A file system that tells cases apart holds both."""
    shards = [make_shard(0), make_shard(1)]
    shards[0]["raw_data"]["basename"] = "A/x.mds"
    shards[1]["raw_data"]["basename"] = "a/X.mds"
    assert len(Index.parse(json.dumps({"shards": shards, "version": 2}).encode())) == 2


RESERVED = [".mds/index.mds", ".MDS/x", "a/.mds/ledger", "INDEX.JSON", ".s.7-0123456789ab.mds-part"]


@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize("kind", ["raw_data", "zip_data"])
def test_our_own_names_are_no_shards(make_shard, name, kind):
    """An index cannot name the files by which the cache keeps its books."""
    shards = [make_shard(i, zipped=True) for i in range(3)]
    shards[1][kind]["basename"] = name
    with pytest.raises(IndexFileError, match="belong to the library"):
        Index.parse(json.dumps({"shards": shards, "version": 2}).encode())


@pytest.mark.parametrize("digits", [20, 4300, 5000, 100_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_numbers_of_thousands_of_digits(make_shard, digits, sign):
    """A number too long for Python to read is an error of the index, at its place."""
    for key, told in (
        ("samples", "101"),
        ("bytes", "5001"),
        ("version", "2"),
        ("size_limit", "67108864"),
    ):
        text = json.dumps({"shards": [make_shard(0), make_shard(1)], "version": 2})
        before, mark, after = text.rpartition(f'"{key}": {told}')
        assert mark
        text = f'{before}"{key}": {sign}{"9" * digits}{after}'
        with pytest.raises(IndexFileError, match=r"the/index\.json"):
            Index.parse(text.encode(), "the/index.json")
