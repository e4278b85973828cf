"""Splits, limits, columns, tokens, bad records, and places that are taken."""

import dataclasses
import inspect
import json
import os
import sys
import types

import numpy as np
import pytest
from click.testing import CliRunner
from quickly import convert, prepare

import mds
from mds._cli import convert as command
from mds.errors import ConfigError, RecordError, SourceError
from mds.writers.convert._read_part import hash_fraction
from mds.writers.convert._spec import parse_spec
from mds.writers.convert._tokens import TokenSpec


def numbers(kit, count=2000, name="x.jsonl"):
    return kit.write(name, kit.lines({"n": i, "t": f"text {i % 500}"} for i in range(count)))


def test_split_is_by_shares_and_complete(kit):
    """Every sample is in one split, and shares are kept to a few percent."""
    summary = convert(numbers(kit), kit.out, split="train=0.9,val=0.1")
    train, val = kit.samples(kit.out + "/train"), kit.samples(kit.out + "/val")
    assert sorted(s["n"] for s in train + val) == list(range(2000))
    assert [split.samples for split in summary.splits] == [len(train), len(val)]
    assert 140 < len(val) < 260


def test_split_of_a_sample_does_not_change(kit):
    """The hash that decides is fixed for ever: datasets written years apart split alike."""
    found = [round(hash_fraction(key), 6) for key in ("a", b"a", 1, "photos/1.jpg")]
    assert found == [0.901462, 0.901462, 0.397662, 0.003053]


def test_equal_samples_fall_into_one_split(kit):
    """Without a key the whole sample decides, so that no duplicate is both trained and tested."""
    path = kit.write("x.jsonl", kit.lines({"t": i % 40} for i in range(400)))
    convert(path, kit.out, split={"a": 0.5, "b": 0.5})
    a, b = ({s["t"] for s in kit.samples(f"{kit.out}/{name}")} for name in "ab")
    assert not a & b
    assert a | b == set(range(40))


def test_split_by_key(kit):
    """Samples with one value of the key column stay together, also when it is not written."""
    convert(numbers(kit), kit.out, split="a=0.5,b=0.5", split_key="t", columns="n")
    a, b = ({s["n"] % 500 for s in kit.samples(f"{kit.out}/{name}")} for name in "ab")
    assert a
    assert b
    assert not a & b


@pytest.mark.parametrize("name", ["", "a,b", " s"])
def test_names_in_a_list_are_taken_as_they_are(kit, name):
    """Only a text is a list that is separated by commas, as on a command line."""
    records = [{name: 1, "c": 2}]
    assert kit.encodings(prepare(records, kit.out, columns=[name])) == {name: "int"}
    assert kit.encodings(prepare(records, kit.out, columns=["c", name])) == {
        "c": "int",
        name: "int",
    }
    assert kit.encodings(prepare(records, kit.out, drop=[name])) == {"c": "int"}


def test_columns_are_changed_chosen_and_dropped(kit):
    """Encodings are changed, columns chooses, drop leaves out; unknown names are errors."""
    path = numbers(kit, 10)
    made = prepare(path, kit.out, encodings="n:int16")
    assert kit.encodings(made) == {"n": "int16", "t": "str"}
    assert kit.encodings(prepare(path, kit.out, columns=["t"])) == {"t": "str"}
    assert kit.encodings(prepare(path, kit.out, drop="t")) == {"n": "int"}
    made = prepare(path, kit.out, encodings="n:ndarray:int32:2,3,t:json")
    assert kit.encodings(made) == {"n": "ndarray:int32:2,3", "t": "json"}
    with pytest.raises(ConfigError, match=r"no column 'x'\. The columns are n, t"):
        prepare(path, kit.out, columns="x")
    made = prepare(path, kit.out, drop="x")
    assert "none of the first records has the key 'x'" in made.source.notes
    for options in ({}, {"fill": {"n": 1}}, {"describe": {"n": "a number"}}):
        with pytest.raises(ConfigError, match="no column remains"):
            prepare(path, kit.out, drop="n,t", **options)
    with pytest.raises(ConfigError, match="would write pickles"):
        prepare(path, kit.out, encodings="n:pkl")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "a=0.5,b=0.4"}, "add up to 1, got 0.9"),
        ({"split": "a/b=1"}, "the split name 'a/b' is invalid"),
        ({"split": "a=x"}, "not a split"),
        ({"split": "a=1.5"}, "above 0"),
        ({"encodings": "n"}, "Write NAME:ENCODING"),
        ({"encodings": "n:int7"}, "int7"),
        ({"compression": "zip"}, "no compression 'zip'"),
        ({"hashes": "crc"}, "no hash 'crc'"),
        ({"size_limit": "4gb"}, "less than 4 GiB"),
        ({"size_limit": -5}, "less than 4 GiB"),
        ({"size_limit": float("nan")}, "less than 4 GiB"),
        ({"hashes": "none,md5"}, "'none' cannot be combined"),
        ({"block": 0}, "give a tokenizer"),
        ({"tokenizer": "bytes", "block": 0}, "block=0"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"on_error": "ignore"}, "on_error='ignore': write 'skip'"),
        ({"limit": 0}, "at least 1 sample"),
        ({"engine": "slurm"}, "no engine 'slurm'"),
        ({"format": "video"}, "no format 'video'"),
        ({"split_key": "x", "split": "a=1"}, "is not a column"),
        ({"block": 7, "end_token": "x"}, "give a tokenizer"),
        ({"frob": 1}, "no option 'frob'"),
        ({"tokenizer": "bytes", "text_column": "z"}, "no column 'z'"),
        ({"tokenizer": "bytes", "encodings": {"tokens": "ndarray:uint8:2048"}}, "257 tokens"),
        ({"tokenizer": "bytes", "encodings": {"tokens": "ndarray:int32"}}, "fixed shape"),
    ],
)
def test_options_that_make_no_sense_are_refused(kit, options, words):
    """The error names the option and what it may be, before anything is written."""
    with pytest.raises((ConfigError, ValueError), match=words):
        convert(numbers(kit, 5), kit.out, **options)
    assert not os.path.exists(os.path.join(kit.out, "index.json"))


def test_token_blocks_hold_every_token(kit):
    """Documents follow one another, each with its end token; the last block is filled up, told."""
    texts = ["hello", "", "wörld", "x" * 30]
    for i, text in enumerate(texts):
        kit.write(f"{i}.txt", text)
    summary = convert(str(kit.source), kit.out, tokenizer="bytes", block=8)
    expected = np.concatenate([[*text.encode(), 256] for text in texts])
    tokens = np.concatenate([s["tokens"] for s in kit.samples()])
    missing = -len(expected) % 8
    assert tokens.tolist() == [*expected.tolist(), *[256] * missing]
    assert summary.notes == (f"the last block is filled up with {missing} end tokens",)


def test_notes_of_the_plan_are_in_the_summary(kit):
    """Whoever calls mds.convert sees no plan, so the summary has all notes; --json has them too."""
    kit.write("a.csv", "x;y\n1;2\n")
    source = str(kit.source)
    summary = convert(source, kit.out)
    assert summary.notes == ("the separator is ';'",)
    result = CliRunner().invoke(command, [source, kit.out, "--overwrite", "--json", "-q"])
    assert json.loads(result.output)["notes"] == ["the separator is ';'"]
    result = CliRunner().invoke(command, [source, kit.out, "--overwrite"])
    assert result.output.count("the separator is") == 1


def test_a_summary_is_readable_in_a_terminal_and_a_notebook(kit):
    """It has what was written in words, and names of splits cannot act as HTML."""
    summary = convert(numbers(kit, 20), kit.out, split="train=0.5,val=0.5")
    assert repr(summary).startswith(f"<Summary of {kit.out} in ")
    for split in summary.splits:
        assert f"{split.name}: {split.samples} samples in 1 shard," in repr(summary)
    noted = dataclasses.replace(summary, notes=("<b>",))
    assert "note: &lt;b&gt;" in noted._repr_html_()
    assert noted._repr_html_().startswith("<pre>Summary of ")


def test_progress_is_whole_only_when_the_shards_are_written(kit):
    """What is read is half of the work, and a bar never goes back."""
    reports = []
    summary = convert(numbers(kit), kit.out, size_limit=2000, progress=reports.append)
    sizes = [report.size for report in reports]
    assert sizes == sorted(sizes)
    assert sizes[-1] == reports[-1].whole
    unfinished = [report for report in reports if report.shards < summary.splits[0].shards // 2]
    assert unfinished
    assert all(report.size < report.whole for report in unfinished)


def test_last_tokens_are_dropped_only_when_asked(kit):
    """drop_last leaves the unfinished block out and says how many tokens that were."""
    kit.write("a.txt", "x" * 20)
    summary = convert(
        str(kit.source), kit.out, tokenizer="bytes", block=8, end_token="", drop_last=True
    )
    assert [s["tokens"].tolist() for s in kit.samples()] == [[120] * 8] * 2
    assert summary.notes == ("the last 4 tokens do not fill a block and are dropped",)


def test_column_of_tokens_may_be_narrower(kit):
    """The encoding of the column sets the type of the tokens."""
    kit.write("a.txt", "x" * 7)
    convert(
        str(kit.source), kit.out, tokenizer="bytes", block=8, encodings="tokens:ndarray:uint16:8"
    )
    (sample,) = kit.samples()
    assert sample["tokens"].dtype == np.uint16


def test_tokenizer_of_hugging_face(kit, tmp_path):
    """A tokenizer.json is loaded from its path, its folder is as good."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = {"[UNK]": 0, "</s>": 1, "a": 2, "b": 3}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    kit.write("1.txt", "a b a")
    kit.write("2.txt", "b c")
    for number, name in enumerate([tmp_path / "tokenizer.json", tmp_path]):
        out = f"{kit.out}{number}"
        convert(str(kit.source), out, tokenizer=str(name), block=4)
        assert [s["tokens"].tolist() for s in kit.samples(out)] == [[2, 3, 2, 1], [3, 0, 1, 1]]
    with pytest.raises(ConfigError, match="no token '<end>'"):
        convert(str(kit.source), kit.out, tokenizer=str(tmp_path), end_token="<end>")


def test_bad_records_are_counted_and_listed(kit):
    """With on_error="skip" the good ones are written, the bad ones named with line and column."""
    path = kit.write("x.jsonl", '{"a": 1}\n{"a": \n[1]\n{"a": 2, "b": 3}\n{"a": "x"}\n{"a": 3}\n')
    summary = convert(path, kit.out, on_error="skip", encodings="a:int", drop="b")
    assert [s["a"] for s in kit.samples()] == [1, 2, 3]
    assert summary.bad_count == 3
    assert [line.split("x.jsonl, ")[1][:27] for line in summary.bad] == [
        "line 2, column 6: Expecting",
        "line 3: expected an object ",
        "line 5, column 'a' (int): e",
    ]


def test_key_that_is_no_column_stops_the_conversion(kit):
    """A field that turns up late is not dropped in silence."""
    records = [{"a": 1}] * 1500 + [{"a": 1, "late": 2}]
    path = kit.write("x.jsonl", kit.lines(records))
    with pytest.raises(RecordError, match=r"line 1501: it has the key 'late'.*--drop late"):
        convert(path, kit.out)
    assert not os.path.exists(kit.out) or not os.listdir(kit.out)
    convert(path, kit.out, drop="late")
    assert len(kit.samples()) == 1501


def test_nothing_good_is_an_error(kit):
    """A source of bad records only gives no dataset, not an empty one."""
    path = kit.write("x.jsonl", "{\n[]\n")
    with pytest.raises((SourceError, ConfigError)):
        convert(path, kit.out, on_error="skip")
    assert not os.path.exists(os.path.join(kit.out, "index.json"))


def test_place_that_is_taken_is_left_alone(kit):
    """A folder with a dataset, or with anything, is refused; overwrite replaces only datasets."""
    path = numbers(kit, 50)
    os.makedirs(kit.out)
    mine = os.path.join(kit.out, "mine.txt")
    with open(mine, "w") as file:
        file.write("mine")
    with pytest.raises(FileExistsError, match=r"not empty \(it holds 'mine\.txt'\)"):
        convert(path, kit.out)
    convert(path, kit.out, overwrite=True, size_limit=500)
    with pytest.raises(FileExistsError, match="already has a dataset"):
        convert(path, kit.out)
    convert(path, kit.out, overwrite=True)
    assert sorted(kit.files()) == ["index.json", "mine.txt", "shard.00000.mds"]


def test_output_inside_the_source_is_refused(kit):
    """A second run would read the first one's shards as data."""
    numbers(kit, 5)
    with pytest.raises(ConfigError, match="inside the source"):
        convert(str(kit.source), str(kit.source / "out"))


def test_the_signature_has_every_option_once():
    """With the default that it has when it is not given, and a text in the docstring."""
    parameters = inspect.signature(convert.func).parameters
    spec, tokens = parse_spec(), TokenSpec("bytes")
    defaults = {each.name: getattr(spec, each.name) for each in dataclasses.fields(spec)}
    del defaults["tokens"]
    defaults |= {"tokenizer": None, "end_token": tokens.end, "text_column": tokens.text}
    defaults |= {"block": None, "drop_last": tokens.drop_last}
    defaults |= {"storage_options": None}  # of `prepare`, so that no plan has it
    shown = {name: each.default for name, each in parameters.items()}
    for name in ("source", "out", "progress"):
        del shown[name]
    # None stands for an empty mapping, which a signature cannot have.
    assert {n: defaults[n] if v is None and defaults[n] == {} else v for n, v in shown.items()} == (
        defaults
    )
    for name in parameters:
        assert f"``{name}``" in inspect.getdoc(convert.func)


@pytest.mark.parametrize("kernel", [None, "a kernel"])
def test_a_bar_is_shown_in_a_notebook_alone(tmp_path, monkeypatch, kernel):
    """That is where IPython has a kernel; its terminal has none."""
    shown = []
    page = types.SimpleNamespace(
        HTML=str,
        display=lambda first, *, display_id: (
            shown.append(first) or types.SimpleNamespace(update=shown.append)
        ),
    )
    ipython = types.SimpleNamespace(
        display=page, get_ipython=lambda: types.SimpleNamespace(kernel=kernel)
    )
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    source = tmp_path / "a.csv"
    source.write_text("a,b\n1,x\n2,y\n")
    mds.convert(source, tmp_path / "out")
    if kernel is None:
        assert not shown
        return
    assert shown[0] == "converting"
    assert shown[-1] == '<progress value="12" max="12"></progress> 2 samples, 1 shard'
