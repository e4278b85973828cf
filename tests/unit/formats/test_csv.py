"""Records of tables of cells, and JSON documents, are read in place."""

import csv
import dataclasses
import gzip
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mds
from mds import StreamingDataset
from mds.errors import ConfigError, FormatError, RecordError
from mds.formats import Block, Csv, JsonLines
from mds.formats._columns import as_columns
from mds.formats._facts import ShardPlace
from mds.formats._records import cut_records, pieces_of_records, record_bounds
from mds.formats._source import Files, parse_place
from mds.storage import open_store

TEXTS = st.lists(st.sampled_from(["a", "\n", '"', '""', ",", '"\n', ',"', "b"]), max_size=40).map(
    "".join
)


def rows_of(path, **settings):
    """Samples of a table, without NumPy."""
    dataset = StreamingDataset(path, format=Csv(**settings))
    return [
        {n: v.item() if isinstance(v, np.generic) else v for n, v in each.items()}
        for each in dataset
    ]


@given(st.lists(st.lists(st.text('a,"\n', max_size=5), min_size=2, max_size=2), max_size=20))
def test_records_are_those_that_the_csv_module_writes(rows):
    """Whatever is in the cells: quotes, separators, line ends."""
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerows(rows)
    data = file.getvalue().encode()
    begins, ends = record_bounds(data, ",")
    found = [
        next(csv.reader([data[begin:end].decode()], strict=True))
        for begin, end in zip(begins, ends, strict=True)
    ]
    assert found == rows


@given(TEXTS, st.integers(1, 9), st.sampled_from([None, 1, 5]))
def test_records_do_not_depend_on_chunks(text, step, size):
    """Also with quotes at wrong places, which are characters like others."""
    data = text.encode()
    begins, ends = record_bounds(data, ",")
    chunks = [data[start : start + step] for start in range(0, len(data), step)]
    pieces = list(pieces_of_records(chunks, 0, ","))
    assert b"".join(piece[1] for piece in pieces) == data
    found = [offset + begin for offset, _, begins, _ in pieces for begin in begins.tolist()]
    assert found == begins.tolist()
    ranges = list(cut_records(pieces, size))
    assert ranges == list(cut_records(pieces_of_records([data], 0, ","), size))
    assert sum(each.lines for each in ranges) == len(ends)
    for each in ranges[:-1]:
        assert each.end in ends
        assert each.end - each.start >= size


@pytest.mark.parametrize("settings", [{}, {"no_header": True}])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_byte_order_mark_comes_before_the_first_cell(tmp_path, mark, settings):
    """A newline inside of the quotes of this cell ends no record."""
    table, out = tmp_path / "a.csv", str(tmp_path / "out")
    table.write_text(f'{mark}"first\nname",n\nx,1\n"y\n",2\n', encoding="utf-8")
    first, second = ("column_0", "column_1") if settings else ("first\nname", "n")
    header = [{first: "first\nname", second: "n"}] if settings else []
    values = (("x", "1"), ("y\n", "2")) if settings else (("x", 1), ("y\n", 2))
    expected = [*header, *({first: a, second: b} for a, b in values)]
    assert rows_of(str(table), **settings) == expected
    mds.convert(str(table), out, **settings)
    assert [*StreamingDataset(out, batch_size=1)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"Name (last, first, middle)";id\nx;1\n', {"Name (last, first, middle)": "x", "id": 1}),
        ('"x|y|z",c\na,b\n', {"x|y|z": "a", "c": "b"}),
        ('id,"text; more; ""more"";\n;;"\n1,a\n', {"id": 1, 'text; more; "more";\n;;': "a"}),
        ('a;5" disk,b;c\n1;2;3\n', {"a": 1, '5" disk,b': 2, "c": 3}),
    ],
)
def test_separators_in_quotes_do_not_count(tmp_path, text, expected):
    """The separator is the most frequent one of the header outside of quotes."""
    (tmp_path / "a.csv").write_text(text)
    assert rows_of(str(tmp_path)) == [expected]


def test_a_number_too_large_for_a_float_is_text(tmp_path):
    """A column takes all cells from which its type was inferred; a later cell names the remedy."""
    (tmp_path / "a.csv").write_text("x\n1e400\n0.5\n")
    assert rows_of(str(tmp_path)) == [{"x": "1e400"}, {"x": "0.5"}]
    (tmp_path / "a.csv").write_text("x\n" + "0.5\n" * 100_000 + "1e400\n" + "0.5\n" * 100_000)
    with pytest.raises(FormatError, match=r"line 100002.*encodings=\{'x': 'str'\}"):
        rows_of(str(tmp_path))


def test_a_quote_inside_a_cell_is_a_character(tmp_path):
    """Only a quote at the beginning of a cell opens a quoted one."""
    (tmp_path / "a.csv").write_text('id,size\n1,5"\n2,"7"" long"\n3,6"x"y\n')
    assert [row["size"] for row in rows_of(tmp_path)] == ['5"', '7" long', '6"x"y']


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_types_of_cells_are_those_of_a_conversion(tmp_path, name):
    """Numbers, codes with leading zeros, missing values: in place, converted, and kept."""
    text = 'i,f,code,m,t\n1,0.5,007,3,"a\nb"\n2,1,012,NA,\n'
    data = gzip.compress(text.encode()) if name.endswith("gz") else text.encode()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(data)
    expected = [
        {"i": 1, "f": 0.5, "code": "007", "m": 3, "t": "a\nb"},
        {"i": 2, "f": 1.0, "code": "012", "m": None, "t": ""},
    ]
    assert rows_of(tmp_path / "data", null="NA") == expected
    mds.convert(tmp_path / "data", tmp_path / "out", null="NA")
    assert list(StreamingDataset(tmp_path / "out")) == expected


def test_a_header_is_that_of_its_file(tmp_path):
    """Columns may be in another order; one that a file lacks is None there."""
    (tmp_path / "a.csv").write_text("id,text\n1,a\n")
    (tmp_path / "b.csv").write_text("text;id;more\nb;2.5;x\n")
    (tmp_path / "c.csv").write_text("")
    (tmp_path / "d.csv").write_text("other\n")
    assert rows_of(tmp_path, missing="null") == [
        {"id": 1.0, "more": None, "text": "a"},
        {"id": 2.5, "more": "x", "text": "b"},
    ]
    with pytest.raises(FormatError, match=r"a\.csv: there is no column 'more', but b\.csv has one"):
        rows_of(tmp_path, missing="error")


def test_files_without_a_header(tmp_path):
    """The first record is a sample, and columns have numbers."""
    (tmp_path / "a.tsv").write_text("1\tone\n2\ttwo\n")
    expected = [{"column_0": 1, "column_1": "one"}, {"column_0": 2, "column_1": "two"}]
    assert rows_of(tmp_path / "a.tsv", no_header=True) == expected
    assert rows_of(tmp_path / "a.tsv", no_header="true") == expected
    with pytest.raises(ConfigError, match="no_header= must be True or False"):
        Csv(no_header="no")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a,b,a\n1,2,3\n", "line 1: two columns have the name 'a'"),
        ("é,b\n1,2\n".encode("cp1252"), "line 1: byte 0xe9 is not UTF-8: give --encoding"),
        (b'a,"b"c\n1,2\n', "line 1: this is not the header of a table: quotes or line ends"),
        (b"a,b\n1,2\n3\n", "line 3: 1 value for 2 columns"),
        (b'a,b\n1,"x\ny"\n3,"z\n', "line 4: quotes or line ends are wrong: unexpected end"),
        (b"a,b\n1,2\n\n3,\xf6\n", "line 4: byte 0xf6 is not UTF-8: give --encoding"),
        (
            b"a,b\n" + b"1,2\n" * 300 + b"x,2\n",
            "line 302, column 'a' \\(int\\): expected a whole number",
        ),
        (
            b"a,b\n" + b"1,2\n" * 300 + b"007,2\n",
            "line 302, column 'a' \\(int\\): str '007' would become 7",
        ),
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_what_is_wrong_with_a_table_is_told_by_its_line(tmp_path, data, words, ending):
    """Broken records are problems, of which the others of their file know nothing."""
    folder, cache = tmp_path / "data", tmp_path / "cache"
    folder.mkdir()
    (folder / f"a.csv{ending}").write_bytes(gzip.compress(data) if ending else data)
    with pytest.raises(FormatError, match=rf"a\.csv{ending}, {words}"):
        list(StreamingDataset(folder, local=cache))
    if "line 1:" not in words:
        dataset = StreamingDataset(folder, local=cache, on_error="skip")
        assert len(list(dataset)) == dataset.num_samples - 1 >= 1


def test_an_uncounted_table_is_cut_between_records(tmp_path):
    """The pieces have all records, each once, and the columns are those of a counted plan."""
    rows = [[n, f'line {n}\n"quoted"{"x" * 900}', "z" if n > 2000 else n] for n in range(9000)]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text", "late"], *rows])
    kind, files = Csv(), Files(open_store(str(tmp_path)))
    file = kind.find(parse_place(str(tmp_path), kind.endings), files).files[0]
    counted, uncounted = kind.plan_file(file, files), kind.plan_uncounted(file, files)
    assert counted.columns == uncounted.columns == {"id": "int", "text": "str", "late": "str"}
    assert counted.note == uncounted.note
    assert sum(counted.samples) == len(rows)
    ((start, end),) = uncounted.spans
    shard = ShardPlace(file, (start, end), -1, uncounted.note, as_columns(uncounted.columns))
    pieces = list(kind.cut(shard, files, 1_000_003))
    assert 8 <= len(pieces) <= 9
    blocks = [[*kind.blocks(piece, files)] for piece in pieces]
    assert all(isinstance(block, Block) for piece in blocks for block in piece)
    counts = [sum(len(block.sizes) for block in piece) for piece in blocks]
    assert sum(counts) == len(rows)
    # A record of this file is two lines.
    assert kind.location_of(pieces[1], 0, files).endswith(f"a.csv, line {2 * counts[0] + 2}")
    whole = dataclasses.replace(shard, samples=-1)
    assert sum(len(block.sizes) for block in kind.blocks(whole, files)) == len(rows)


def test_all_records_of_a_small_table(tmp_path):
    """Values have the types of their columns, and a key that a record lacks is None."""
    (tmp_path / "a.csv").write_text("id,x,code\n1,0.5,007\n2,1,8\n")
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n\n{"id": 2, "x": [1]}\n')
    files = Files(open_store(str(tmp_path)))
    tables = {}
    for kind in (Csv(), JsonLines()):
        (file,) = kind.find(parse_place(str(tmp_path), kind.endings), files).files
        tables[kind.name] = kind.all_records(file, files)
    columns, records = tables["csv"]
    assert columns == {"id": "int", "x": "float64", "code": "str"}
    assert records == [{"id": 1, "x": 0.5, "code": "007"}, {"id": 2, "x": 1.0, "code": "8"}]
    columns, records = tables["jsonl"]
    assert columns == {"id": "int", "x": "json"}
    assert records == [{"id": 1, "x": None}, {"id": 2, "x": [1]}]


# ---------------------------------------------------------------------- JSON documents


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"v": 1}, {"v": 2}]', [{"v": 1}, {"v": 2}]),
        ('[\n{"v": 1},\n{"v": 2}\n]\n', [{"v": 1}, {"v": 2}]),
        ('\ufeff{\n "v": 1\n}', [{"v": 1}]),
        ('{"v": 1}\n{"v": 2}\n', [{"v": 1}, {"v": 2}]),
        ('{"v": 1}', [{"v": 1}]),
    ],
)
@pytest.mark.parametrize("ending", [".json", ".jsonl", ".json.gz", ".json.xz"])
def test_a_file_of_lines_or_one_document_is_known_by_its_content(tmp_path, text, expected, ending):
    """A list of objects, an object over several lines, or an object on each line."""
    import lzma

    pack = {"gz": gzip.compress, "xz": lzma.compress}.get(ending.rpartition(".")[2], bytes)
    (tmp_path / f"a{ending}").write_bytes(pack(text.encode()))
    assert list(StreamingDataset(tmp_path / f"a{ending}", local=tmp_path / "c")) == expected


def test_a_broken_item_of_a_document_is_told_by_its_number(tmp_path):
    """The other items are read; a file that is no JSON is one problem."""
    (tmp_path / "a.json").write_text('[{"v": 1}, 2, {"v": "x", "w": 1}]')
    (tmp_path / "b.json").write_text('[{"v": 1}')
    dataset = StreamingDataset(tmp_path, local=tmp_path / "c", on_error="skip")
    assert list(dataset) == [{"v": 1, "w": None}, {"v": "x", "w": 1}]
    first, second = (each.reason for each in dataset.skipped)
    assert "a.json, item 2: expected an object with the columns as keys, got 2" in first
    assert "b.json: this is not JSON: " in second


def test_json_files_beside_lines_describe_them(tmp_path):
    """They are left out and counted; alone they are data."""
    (tmp_path / "a.jsonl").write_text('{"v": 1}\n')
    (tmp_path / "stats.json").write_text('{"lines": 1}\n')
    dataset = StreamingDataset(tmp_path)
    assert list(dataset) == [{"v": 1}]
    assert "stats.json" in str(dataset.explain())


@pytest.mark.parametrize(("name", "kind"), [("a.log", "lines"), ("data", "csv"), ("x.y", "jsonl")])
def test_files_of_other_endings_are_read_if_the_format_is_named(tmp_path, name, kind):
    """A file that is named is taken, and a folder without files of the usual endings."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text('{"v": 1}\n{"v": 2}\n')
    expected = 1 if kind == "csv" else 2
    for source in (tmp_path / "data" / name, tmp_path / "data"):
        assert len(list(StreamingDataset(source, format=kind))) == expected


@pytest.mark.parametrize("text", ["x", "[" * 99_999])
def test_a_cell_that_is_no_json_is_a_problem_of_its_record(tmp_path, text):
    """Also one that is nested too deeply; the error names the encoding that holds it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text(f"c\n[1]\n{text}\n")
    kind = Csv(encodings={"c": "json"})
    words = r"a\.csv, line 3, column 'c' \(json\): expected JSON, got .*encodings=\{'c': 'str'\}"
    dataset = StreamingDataset(str(tmp_path / "data"), format=kind, batch_size=1)
    assert dataset[0] == {"c": [1]}
    with pytest.raises(FormatError, match=words):
        dataset[1]
    with pytest.raises(RecordError, match=words):
        mds.convert(tmp_path / "data", tmp_path / "out", format=kind)
