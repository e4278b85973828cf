"""Lines are found wherever chunks end, and what is wrong with one is told by its number."""

import bz2
import collections
import gzip
import itertools
import json
import lzma
import os
from codecs import BOM_UTF8

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import mds
from mds import StreamingDataset
from mds.errors import ConfigError, FormatError, SourceError
from mds.formats import JsonLines, TextLines
from mds.formats._columns import as_columns
from mds.formats._dataset import reads_of
from mds.formats._facts import ShardPlace
from mds.formats._newlines import LineRange, Probe, bounded, cut_lines, line_bounds
from mds.formats._registry import find_recorded_format
from mds.formats._source import Files, parse_place
from mds.formats._unpack import unpacked
from mds.storage import open_store

TEXTS = st.lists(st.sampled_from([b"a", b"\n", b" ", b"\r", b"\t", b"bc"]), max_size=60).map(
    b"".join
)


def lines_of(data, *, skips_blank):
    """Lines by Python's own means."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return [line for line in lines if line and not (skips_blank and line.isspace())]


@given(TEXTS, st.booleans())
def test_lines_are_those_of_python(data, skips_blank):
    """Begin and end of each line, with or without those of white space."""
    begins, ends = line_bounds(data, skips_blank=skips_blank)
    found = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
    assert found == lines_of(data, skips_blank=skips_blank)


@given(TEXTS, st.integers(1, 9), st.sampled_from([None, 1, 3, 10]), st.booleans())
def test_stretches_do_not_depend_on_chunks(data, step, size, skips_blank):
    """A stretch ends with the first line that ends ``size`` bytes behind its start."""
    expected, start, end, lines = [], 0, 0, 0
    for line in lines_of(data, skips_blank=False):
        end += len(line)
        lines += not (skips_blank and line.isspace())
        if size is not None and line.endswith(b"\n") and end - start >= size:
            expected.append(LineRange(start, end, lines))
            start, lines = end, 0
    if end > start:
        expected.append(LineRange(start, end, lines))
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    assert cut_lines(chunks, size, skips_blank=skips_blank) == expected


@pytest.mark.parametrize("size", [None, 1, 5 << 20])
@pytest.mark.parametrize("step", [1 << 18, 3 << 19, 1 << 30])
def test_lines_of_megabytes_make_the_same_stretches(size, step):
    """Whether their content is kept or not, also at the end of the file and after blanks."""
    long, blank = b"x" * (3 << 20), b" " * (2 << 20)
    data = b"\n".join([b"a", long, blank, blank + b"y", b"b", long, long])
    for end in b"", b"\n":
        whole = [data + end]
        chunks = [whole[0][at : at + step] for at in range(0, len(whole[0]), step)]
        stretches = cut_lines(chunks, size, skips_blank=True)
        assert stretches == cut_lines(whole, size, skips_blank=True)
        assert sum(each.lines for each in stretches) == 6


@given(TEXTS, st.integers(1, 9), st.sampled_from([None, 1, 3, 10]))
def test_a_byte_order_mark_is_no_part_of_its_line(data, step, size):
    """The first line is blank if nothing else is on it; later ones are not."""
    marked = BOM_UTF8 + data + b"\n" + BOM_UTF8
    lines = lines_of(marked, skips_blank=True)
    is_blank = not lines[0].removeprefix(BOM_UTF8).strip()
    expected = lines[is_blank:]
    for offset, expected_lines in ((0, expected), (1, lines)):
        begins, ends = line_bounds(marked, offset, skips_blank=True)
        bounds = zip(begins, ends, strict=True)
        assert [marked[begin:end] for begin, end in bounds] == expected_lines
    chunks = [marked[at : at + step] for at in range(0, len(marked), step)]
    stretches = cut_lines(chunks, size, skips_blank=True)
    assert stretches == cut_lines([marked], size, skips_blank=True)
    assert sum(each.lines for each in stretches) == len(expected)


@pytest.mark.parametrize("step", [1 << 18, 3 << 19, 1 << 30])
def test_a_blank_line_of_megabytes_behind_a_byte_order_mark(step):
    """It is no sample, however the bytes come."""
    data = BOM_UTF8 + b" " * (3 << 20) + b"\na\n"
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    assert cut_lines(chunks, None, skips_blank=True) == [LineRange(0, len(data), 1)]


def test_a_first_line_of_megabytes_is_probed():
    """However long the first line is, it is looked at."""
    for end in (b"\nshort\n", b""):
        probe, line = Probe(), b"x" * (3 << 20)
        for _ in probe.watch([line[:99], line[99:] + end]):
            pass
        assert [len(line) for _, line in probe.lines(skips_blank=True)][:1] == [
            (3 << 20) + bool(end)
        ]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("step", [1, 777, 1 << 20])
def test_packed_data_may_have_several_members(ending, step):
    """What parallel compressors and `cat` make of several files is one file of lines."""
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}[ending]
    packed = (
        pack(b"one\n" * 1000) + pack(b"") + pack(b"two\n") + bytes(20 if ending == ".gz" else 0)
    )
    chunks = [packed[at : at + step] for at in range(0, len(packed), step)]
    assert b"".join(unpacked(chunks, ending, "x")) == b"one\n" * 1000 + b"two\n"


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_packed_data_that_are_cut_short_or_damaged_are_told(ending):
    """A file that ends early is no shorter file."""
    noise = np.random.default_rng(0).bytes(50_000)
    pack = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}
    packed = pack[ending](noise)
    with pytest.raises(FormatError, match=r"x: the compressed data end too early"):
        list(unpacked([packed[:-5]], ending, "x"))
    with pytest.raises(FormatError, match=r"x: the compressed data are damaged"):
        list(unpacked([packed[:9000] + bytes(100) + packed[9100:]], ending, "x"))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_packed_data_come_in_pieces_of_a_bounded_size(ending):
    """A few bytes that become many are not in memory at once."""
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}[ending]
    sizes = [len(piece) for piece in unpacked([pack(bytes(20 << 20))], ending, "x")]
    assert sum(sizes) == 20 << 20
    assert max(sizes) <= 1 << 18


# ---------------------------------------------------------------------- datasets


def write(folder, name, records, end="\n"):
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(record) + end for record in records)
    (folder / name).write_text(text)


def of(place, tmp_path, kind=None, **more):
    return StreamingDataset(
        remote=str(place), local=str(tmp_path / "cache"), batch_size=2, format=kind, **more
    )


@pytest.mark.parametrize("packed", [False, True])
def test_values_are_those_of_a_converted_copy(tmp_path, packed):
    """A column has one type, whether lines are parsed in place or in the cache."""
    folder = tmp_path / "data"
    records = [
        {"i": i, "f": i / 2, "t": "é" * i, "l": [i], "n": None if i % 2 else i} for i in range(9)
    ]
    write(folder, "a.jsonl", records)
    if packed:
        data = (folder / "a.jsonl").read_bytes()
        (folder / "a.jsonl").unlink()
        (folder / "a.jsonl.zst").write_bytes(zstandard.compress(data))
    dataset = of(folder, tmp_path, "jsonl")
    found = list(dataset)
    assert found == records
    assert {name: type(value) for name, value in found[3].items()} == {
        "i": int, "f": np.float64, "t": str, "l": list, "n": type(None),
    }  # fmt: skip
    cached = list((tmp_path / "cache").glob("shard*.mds"))
    assert bool(cached) == packed, "plain lines on this disk are read where they lie"


def test_a_mixture_of_kinds_is_json(tmp_path):
    """A column with other kinds of values in another file takes them all."""
    folder = tmp_path / "data"
    write(folder, "a.jsonl", [{"x": 1, "y": 1}])
    write(folder, "b.jsonl", [{"x": "one", "y": 1.5}])
    assert list(of(folder, tmp_path, "jsonl")) == [{"x": 1, "y": 1.0}, {"x": "one", "y": 1.5}]


def test_a_column_that_a_file_lacks_is_told_or_null(tmp_path):
    """It is None, left out by name, or an error."""
    folder = tmp_path / "data"
    write(folder, "a.jsonl", [{"x": 1, "y": 2}])
    write(folder, "b.jsonl", [{"x": 3}])
    with pytest.raises(FormatError, match=r"b\.jsonl: there is no column 'y'"):
        of(folder, tmp_path, JsonLines(missing="error"))
    found = of(folder, tmp_path, JsonLines(missing="null"))
    assert list(found) == [{"x": 1, "y": 2}, {"x": 3, "y": None}]
    assert list(of(folder, tmp_path, "jsonl", columns=["x"])) == [{"x": 1}, {"x": 3}]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_lines_that_do_not_fit_are_told_by_their_number(tmp_path, name):
    """A late key, another type, no object, no JSON: the file and the number of the line."""
    many = [{"x": i} for i in range(300)]
    for line, words in [
        ('{"x": 1, "late": 2}', r"the key 'late', which the records at the beginning do not"),
        ('{"x": "text"}', r"column 'x' \(int\): expected a whole number, got str 'text'"),
        ('{"x": "\xf6"}', r"column 8: byte 0xf6 is not UTF-8; .*encoding='cp1252'"),
        ("{}", r"there is no column 'x'"),
        ("[1]", r"expected an object with the columns as keys, got \[1\]"),
        ('{"x": ', r"column 6: Expecting value"),
        ("[" * 99_999, r"nested too deeply"),
    ]:
        folder = tmp_path / f"data{len(os.listdir(tmp_path))}"
        folder.mkdir()
        text = "".join(json.dumps(record) + "\n" for record in many)
        # Blank lines are no samples, but they are counted.
        data = b"\n \n" + text.encode() + line.encode("latin-1") + b"\n"
        (folder / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        dataset = StreamingDataset(remote=str(folder), local=str(folder / "cache"), batch_size=2)
        assert dataset[299] == {"x": 299}
        with pytest.raises(FormatError, match=rf"a\.jsonl.*, line 303[,:].*{words}"):
            dataset[300]


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("a.jsonl", "\n{}\n{}\n", "line 2"),
        ("a.jsonl", "{}\n" * 300 + '{"late": 1}\n', "line 1"),
        ("a.json", "{}", "line 1"),
        ("a.json", "[{}, {}]", "item 1"),
        ("a.json", "[\n{}\n]", "item 1"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_record_without_keys_and_columns_is_no_sample(tmp_path, name, text, place, on_error):
    """In place it was a sample without columns, and a conversion called the file empty."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / name).write_text(text)
    words = rf"{name}, {place}: the record has no keys, so it has no columns\. Write its keys"
    with pytest.raises(FormatError, match=words):
        StreamingDataset(local=str(folder), batch_size=1, on_error=on_error)
    with pytest.raises(FormatError, match=words):
        of(folder.as_uri(), tmp_path, "jsonl", on_error=on_error)
    with pytest.raises(SourceError, match=words):
        mds.convert(folder, tmp_path / "out", on_error=on_error)


def test_a_record_without_keys_has_columns_of_other_origin(tmp_path):
    """Those of other records and of folders, and those that the user names."""
    cases = (
        ({"a.jsonl": '{"x": 1}\n{}\n'}, {}, [{"x": 1}, {"x": None}]),
        ({"lang=en/a.jsonl": "{}\n"}, {}, [{"lang": "en"}]),
        ({"a.jsonl": "{}\n"}, {"x": "optional[int]"}, [{"x": None}]),
        ({"a.json": "[{}]"}, {"x": "optional[int]"}, [{"x": None}]),
    )
    for number, (texts, encodings, expected) in enumerate(cases):
        folder, out = tmp_path / str(number), tmp_path / f"out{number}"
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(text)
        kind = JsonLines(encodings=encodings or None)
        mds.convert(folder, out, format=kind)
        for dataset in (
            StreamingDataset(local=str(folder), format=kind, batch_size=1),
            StreamingDataset(local=str(out), batch_size=1),
        ):
            assert list(dataset) == expected


def test_columns_that_are_named_allow_others(tmp_path):
    """A key that comes late is no error where the columns are named, be they all known ones."""
    write(tmp_path / "data", "a.jsonl", [{"x": i} for i in range(300)] + [{"x": 300, "late": 2}])
    assert of(tmp_path / "data", tmp_path, "jsonl", columns=["x"])[300] == {"x": 300}


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json"])
@pytest.mark.parametrize("blank", [b"", b"\n", b" \r\n\t\n\n"])
def test_a_file_of_a_byte_order_mark_has_no_samples(tmp_path, name, blank):
    """As an empty one: in place, through the cache and converted, beside other files and alone."""
    folder = tmp_path / "data"
    folder.mkdir()
    data = BOM_UTF8 + blank
    (folder / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(ConfigError, match="there are no samples in"):
        StreamingDataset(local=str(folder), batch_size=1)
    with pytest.raises(SourceError, match=r"no records to convert\. It is empty"):
        mds.convert(folder, tmp_path / "out")
    write(folder, "b.json" if name == "a.json" else "b.jsonl", [{"x": 1}])
    mds.convert(folder, tmp_path / "out")
    for dataset in (
        StreamingDataset(local=str(folder), batch_size=1),
        of(folder.as_uri(), tmp_path, "jsonl"),
        StreamingDataset(local=str(tmp_path / "out"), batch_size=1),
    ):
        assert list(dataset) == [{"x": 1}]


def test_a_record_may_follow_the_line_of_a_byte_order_mark(tmp_path):
    """Lines are counted as an editor counts them."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(BOM_UTF8 + b'\n{"x": 1}\n{"x"\n')
    dataset = StreamingDataset(local=str(folder), batch_size=1)
    assert dataset[0] == {"x": 1}
    with pytest.raises(FormatError, match=r"a\.jsonl, line 3, column 5"):
        dataset[1]


def test_a_shard_size_cuts_lines_into_shards(tmp_path):
    """The settings say how long a stretch is; it is an order of its own."""
    folder = tmp_path / "data"
    write(folder, "a.jsonl", [{"x": i} for i in range(100)])
    assert of(folder, tmp_path, "jsonl").num_shards == 1
    assert of(folder, tmp_path, JsonLines(shard_size="100b")).num_shards == 10
    for wrong in (0, -1):
        with pytest.raises(ConfigError, match="must be a positive number of bytes"):
            JsonLines(shard_size=wrong)


def test_text_is_a_sample_a_line(tmp_path):
    """Empty lines are samples too; an ending of Windows is none of the text."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_bytes("one\n\ntwo\r\ndrei é".encode())
    texts = [sample["text"] for sample in of(folder, tmp_path, TextLines())]
    assert texts == ["one", "", "two", "drei é"]


def test_notes_for_people_beside_data_are_no_data(tmp_path, monkeypatch):
    """A .txt beside other files does not make a folder one of text."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "mine"))
    folder = tmp_path / "data"
    write(folder, "a.jsonl", [{"x": 1}])
    (folder / "README.txt").write_text("about")
    assert list(StreamingDataset(local=str(folder), batch_size=1)) == [{"x": 1}]


def test_late_keys_are_told_beside_keys_of_any_name(tmp_path):
    """A zero character or half a surrogate in a key does not hide a key that comes late."""
    for number, name in enumerate(["a\0b", "\ud800", "", "é"]):
        folder = tmp_path / f"t{number}"
        folder.mkdir()
        lines = [{name: i} for i in range(300)] + [{name: 1, "late": 2}]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "a.jsonl").write_text(text)
        dataset = StreamingDataset(remote=str(folder), local=str(tmp_path / f"c{number}"))
        assert dataset[7] == {name: 7}
        with pytest.raises(FormatError, match=r"a\.jsonl, line 301: it has the key 'late'"):
            dataset[300]


def test_a_line_of_gigabytes_is_refused_before_it_is_held():
    """A few bytes of gzip may be a line without end: it is refused by its place."""
    size = 1 << 24
    long = itertools.repeat(b" " * size)
    chunks = itertools.chain([b"a\nb"], itertools.islice(long, 63), [b"\n"], long)
    with pytest.raises(FormatError, match=rf"x\.jsonl: the line at byte {4 + 63 * size:,} "):
        collections.deque(bounded(chunks, "x.jsonl"), maxlen=0)
    with pytest.raises(FormatError, match="at byte 7 has more"):
        collections.deque(bounded(long, "x.jsonl", 7), maxlen=0)


def test_states_and_indexes_of_lines_keep_the_name_text():
    """`lines` was called `text`: what was written before says so, and digests must not change."""
    kind = find_recorded_format("text")
    assert (kind, kind.name, kind.recorded_name()) == (TextLines, "lines", "text")
    assert reads_of(TextLines())[0] == "text"
    assert find_recorded_format("jsonl") is JsonLines


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("hf", r"mds.convert\(source, out, format='hf'\) converts such files"),
        ("json", "write format='jsonl'"),
        ("webdataset", "write format='tar'"),
        ("line", "write format='lines'"),
        ("jsonls", "Did you mean 'jsonl'"),
    ],
)
def test_words_for_formats(word, words, tmp_path):
    """A word of another library, or of the converter, is refused with what to write."""
    with pytest.raises(ConfigError, match=words):
        StreamingDataset(local=str(tmp_path), batch_size=1, format=word)


@pytest.mark.parametrize("line", [b'{"id": 0, "text": "bro', b"nonsense", b"[1, 2]"])
def test_broken_lines_are_errors_when_they_are_read(tmp_path, line):
    """They can be left out wherever they are, also among those by which columns are inferred."""
    lines = [b'{"id": %d}' % number for number in range(20)]
    lines[0] = lines[13] = line
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    dataset = StreamingDataset(tmp_path, on_error="skip")
    assert [sample["id"] for sample in dataset] == [*range(1, 13), *range(14, 20)]
    assert [each.sample for each in dataset.skipped] == [0, 13]
    with pytest.raises(FormatError, match=r"a\.jsonl, line 1[,:] "):
        StreamingDataset(tmp_path)[0]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([line] * 3) + b"\n")
    with pytest.raises(FormatError, match=r"a\.jsonl, line 1[,:] "):
        StreamingDataset(tmp_path, on_error="skip")


@pytest.mark.parametrize("more", [{}, {"t": "b"}])
@pytest.mark.parametrize("cache_limit", [None, "1mb"])
def test_a_broken_line_does_not_break_its_shard_in_the_cache(tmp_path, more, cache_limit):
    """The others are read, and the error of this one has its line, whatever the columns."""
    records = [{"id": number, **more} for number in range(300)]
    lines = [json.dumps(record) for record in records]
    lines[1:1] = ["nonsense"]
    lines.append(json.dumps({"id": "x", **more}))
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write("\n".join(lines).encode())
    cache = tmp_path / "cache"
    dataset = StreamingDataset(tmp_path, local=cache, on_error="skip", cache_limit=cache_limit)
    for _ in range(2):
        assert list(dataset) == records
    with pytest.raises(FormatError, match=r"a\.jsonl\.gz, line 2, column 1: Expecting value"):
        StreamingDataset(tmp_path, local=cache)[1]
    with pytest.raises(
        FormatError, match=r"a\.jsonl\.gz, line 302, column 'id' \(int\): expected a whole"
    ):
        StreamingDataset(tmp_path, local=cache, columns=["id"])[301]


def test_the_other_files_are_read_if_no_line_of_one_is_a_record(tmp_path):
    """It says nothing about the columns, and each of its lines is an error."""
    (tmp_path / "a.jsonl").write_text("nonsense\n[2]\n")
    (tmp_path / "b.jsonl").write_text('{"id": 0}\n')
    dataset = StreamingDataset(tmp_path, on_error="skip")
    assert list(dataset) == [{"id": 0}]
    assert [each.sample for each in dataset.skipped] == [0, 1]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst", ".bz2", ".xz"])
@pytest.mark.parametrize("kind", ["jsonl", "lines"])
def test_compression_is_known_by_the_content(tmp_path, kind, ending):
    """Whatever a file is called: its first bytes say whether it is compressed."""
    pack = {
        "": bytes, ".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress,
        ".xz": lzma.compress,
    }[ending]  # fmt: skip
    plain = {"jsonl": ".jsonl", "lines": ".txt"}[kind]
    data = pack(b'{"x": 1}\n{"x": 2}\n')
    expected = (
        [{"x": 1}, {"x": 2}] if kind == "jsonl" else [{"text": '{"x": 1}'}, {"text": '{"x": 2}'}]
    )
    for number, name in enumerate([f"a{plain}{ending}", f"a{plain}", f"a{plain}.gz"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_bytes(data)
        dataset = StreamingDataset(remote=folder, local=tmp_path / f"cache{number}", format=kind)
        assert list(dataset) == expected


def test_text_may_have_another_encoding(tmp_path):
    """The setting is the one that `mds.convert` has."""
    (tmp_path / "a.jsonl").write_bytes('{"é": "ö"}\n'.encode("cp1252"))
    assert list(StreamingDataset(tmp_path, format=JsonLines(encoding="cp1252"))) == [{"é": "ö"}]
    (tmp_path / "a.txt").write_bytes("1 €\n".encode("cp1252"))
    assert list(StreamingDataset(tmp_path, format=TextLines(encoding="CP1252"))) == [
        {"text": "1 €"}
    ]
    with pytest.raises(ConfigError, match=r"its lines do not end with the byte 0x0a"):
        JsonLines(encoding="utf-16")
    with pytest.raises(ConfigError, match=r"Python has no such text encoding"):
        TextLines(encoding="cp")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_an_uncounted_plan_has_the_columns_of_a_counted_one(tmp_path, name):
    """Both look at the same lines, and pieces of any size have all lines, each once."""
    records = [{"x": i if i < 2000 else "late", "y": i, "z": "z" * 990} for i in range(9000)]
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    assert len(data) > 8 << 20
    (tmp_path / name).write_bytes(gzip.compress(data, 1) if name.endswith("gz") else data)
    kind, files = JsonLines(), Files(open_store(str(tmp_path)))
    file = kind.find(parse_place(str(tmp_path), kind.endings), files).files[0]
    counted, uncounted = kind.plan_file(file, files), kind.plan_uncounted(file, files)
    assert counted.columns == uncounted.columns == {"x": "json", "y": "int", "z": "str"}
    assert counted.note == uncounted.note
    columns = as_columns(uncounted.columns)
    ((start, end),), (samples,) = uncounted.spans, uncounted.samples
    shard = ShardPlace(file, (start, end), samples, uncounted.note, columns)
    pieces = list(kind.cut(shard, files, 1_000_003))
    assert len(pieces) == (1 if name.endswith("gz") else -(-len(data) // 1_000_003))
    counts = [sum(len(block.sizes) for block in kind.blocks(piece, files)) for piece in pieces]
    assert sum(counts) == len(records)
    row = counts[0] - 1
    assert kind.location_of(pieces[0], row, files).endswith(f"{name}, line {row + 1}")
    if len(pieces) > 1:
        assert kind.location_of(pieces[1], 5, files).endswith(f"{name}, line {counts[0] + 6}")
