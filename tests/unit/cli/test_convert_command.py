"""mds-convert as people meet it: what it says, in terminals and logs, and how it ends."""

import json
import os
import re

import pytest
from click.testing import CliRunner

from mds._cli import convert, main


@pytest.fixture
def texts(tmp_path):
    """A folder of three documents."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.txt").write_text(f"document [{i}]\x1b[31m é")
    return str(folder)


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "out")


def run(*arguments):
    return CliRunner().invoke(convert, arguments, catch_exceptions=False)


def test_plan_and_summary_are_shown(texts, out):
    """Before: what was recognised, columns and encodings. After: samples, shards, bytes, rate."""
    result = run(texts, out, "--compression", "zstd")
    assert result.exit_code == 0
    assert "text documents, 3 files" in result.stderr
    assert re.search(r"path +str +'0\.txt'", result.stderr)
    assert "shards of up to 64.0 MB; zstd; xxh3_64; 1 process" in result.stderr
    assert re.search(r"3 samples in 1 shard, \d+ B, \d+ B compressed", result.stdout)
    assert "samples/s" in result.stdout
    assert f"mds head {out}" in result.stdout
    assert f"mds.StreamingDataset(local='{out}')" in result.stdout


def test_dry_run_writes_nothing(texts, out):
    """--dry-run stops after the plan."""
    result = run(texts, out, "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "text documents" in result.stderr
    assert not os.path.exists(out)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere", "OUT"], 2, "Error: nowhere: there is no such file or folder"),
        (
            ["TEXTS", "OUT", "--encodings", "text"],
            2,
            "encodings='text' has no encoding. Write NAME",
        ),
        (["TEXTS", "OUT", "--frob"], 2, "No such option"),
        (["TEXTS"], 2, "Missing argument 'OUT'"),
        (["TEXTS", "TEXTS/0.txt"], 2, "inside the source"),
    ],
)
def test_errors_are_a_sentence_and_an_exit_code(texts, out, arguments, code, words):
    """No traceback: what is wrong, on standard error, with 2."""
    given = [each.replace("OUT", out).replace("TEXTS", texts) for each in arguments]
    result = run(*given)
    assert result.exit_code == code
    assert words in result.stderr
    assert result.stdout == ""


def test_bad_record_is_told_with_its_line(tmp_path, out):
    """The command stops at a bad line and names it; with --on-error skip it lists it."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a"\n{"a": 2}\n')
    result = run(str(path), out)
    assert result.exit_code == 2
    assert f"{path}, line 2, column 5: Expecting ':' delimiter" in result.stderr
    assert "--on-error skip" in result.stderr
    result = run(str(path), out, "--on-error", "skip")
    assert result.exit_code == 0
    assert f"Left out: {path}, line 2, column 5" in result.stderr
    assert "1 record left out" in result.stdout


def test_options_reach_the_conversion(texts, out):
    """Splits, hashes, columns and workers of the command line are those of `convert`."""
    result = run(
        texts, out, "--split", "train=0.5,val=0.5", "--hash", "sha1", "--hash", "xxh64",
        "--encodings", "text:bytes", "--drop", "path", "--num-workers", "2", "--size-limit", "1kb",
        "--limit", "2",
    )  # fmt: skip
    assert result.exit_code == 0
    with open(os.path.join(out, "train", "index.json")) as file:
        (shard,) = json.load(file)["shards"] or [None]
    assert shard["hashes"] == ["sha1", "xxh64"]
    assert (shard["column_names"], shard["column_encodings"]) == (["text"], ["bytes"])
    assert shard["size_limit"] == 1024


def test_command_of_the_group_is_the_same(texts, out):
    """`mds convert` is mds-convert, and help names every option with what it does."""
    assert CliRunner().invoke(main, ["convert", texts, out]).exit_code == 0
    shown = CliRunner().invoke(main, ["convert", "--help"]).output
    for option in (
        "--split",
        "--num-workers",
        "--resume",
        "--tokenizer",
        "--on-error",
        "--dry-run",
    ):
        assert option in shown


@pytest.mark.parametrize(
    ("old", "new"), [("--as", "--format"), ("--only", "--columns"), ("--as=csv", "--format")]
)
def test_options_of_before_are_refused_with_those_of_today(texts, out, old, new):
    """An old spelling is wrong usage, and the error has the new one."""
    result = run(texts, out, old, "text")
    assert result.exit_code == 2
    assert f"No such option '{old.partition('=')[0]}'." in result.stderr
    assert new in result.stderr.partition("No such option")[2]
