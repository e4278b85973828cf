"""mds-convert as people meet it: what it says, in terminals and logs, and how it ends."""

import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

from mds.cli import convert, main

CONVERT = [sys.executable, "-c", "from mds.cli import convert; convert()"]


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


def in_terminal(arguments, columns=80, press=None):
    """Run a command in a terminal of its own; gives what it printed and its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS=str(columns), LINES="24")
        os.execv(arguments[0], arguments)
    shown = b""
    while select.select([terminal], [], [], 60)[0]:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the other side has closed the terminal
            break
        shown += chunk
        if press and press[0] in shown:
            os.write(terminal, press[1])
            press = None
    os.close(terminal)
    return shown.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


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


def test_log_has_no_control_characters(texts, out):
    """Where nobody watches there is no bar, no colour, and nothing from the data acts."""
    result = subprocess.run([*CONVERT, texts, out], capture_output=True, check=True, timeout=600)
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", result.stdout + result.stderr)
    assert b"%" not in result.stderr


def test_terminal_has_a_bar_that_leaves_no_trace(texts, out):
    """In a terminal progress is drawn and wiped, and the summary stays."""
    shown, code = in_terminal([*CONVERT, texts, out])
    assert code == 0
    assert "3 samples" in shown
    assert "━" in shown
    assert "\x1b[31m" not in shown.split("converting")[0].replace("\x1b[31m━", "")


@pytest.mark.parametrize("columns", [20, 40, 60])
def test_narrow_terminals_fold_and_do_not_break(texts, out, columns):
    """Any width does; no word of the table is lost."""
    shown, code = in_terminal([*CONVERT, texts, out], columns)
    assert code == 0
    assert "str" in shown


def test_ctrl_c_says_how_to_go_on(tmp_path, out):
    """An interrupted conversion ends with 130 and the command that resumes it, which works."""
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"i": i, "t": "x" * 500}) + "\n" for i in range(30_000)))
    arguments = [str(path), out, "--size-limit", "1mb", "--compression", "zstd:12"]
    shown, code = in_terminal([*CONVERT, *arguments], 100, press=(b" samples", b"\x03"))
    assert code == 130
    assert "Traceback" not in shown
    again = next(line for line in shown.splitlines() if "--resume" in line).strip()
    assert not os.path.exists(os.path.join(out, "index.json"))
    result = run(*shlex.split(again)[1:], "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert run(*arguments[:1], out + "2", *arguments[2:], "-q").exit_code == 0
    for name in os.listdir(out + "2"):
        with (
            open(os.path.join(out, name), "rb") as a,
            open(os.path.join(out + "2", name), "rb") as b,
        ):
            assert a.read() == b.read()


def test_dry_run_writes_nothing(texts, out):
    """--dry-run stops after the plan."""
    result = run(texts, out, "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "text documents" in result.stderr
    assert not os.path.exists(out)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere", "OUT"], 1, "Error: nowhere: there is no such file or folder"),
        (["TEXTS", "OUT", "--columns", "text"], 1, "'text' is not a column. Write name:encoding"),
        (["TEXTS", "OUT", "--frob"], 2, "No such option"),
        (["TEXTS"], 2, "Missing argument 'OUT'"),
        (["TEXTS", "TEXTS/0.txt"], 1, "inside the source"),
    ],
)
def test_errors_are_a_sentence_and_an_exit_code(texts, out, arguments, code, words):
    """No traceback: what is wrong, on standard error, with 1 (or 2 for wrong options)."""
    given = [each.replace("OUT", out).replace("TEXTS", texts) for each in arguments]
    result = run(*given)
    assert result.exit_code == code
    assert words in result.stderr
    assert result.stdout == ""


def test_bad_record_is_told_with_its_line(tmp_path, out):
    """The command stops at a bad line and names it; with --skip-bad it lists it and goes on."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a"\n{"a": 2}\n')
    result = run(str(path), out)
    assert result.exit_code == 1
    assert f"{path}, line 2, column 5: Expecting ':' delimiter" in result.stderr
    assert "--skip-bad" in result.stderr
    result = run(str(path), out, "--skip-bad")
    assert result.exit_code == 0
    assert f"Left out: {path}, line 2, column 5" in result.stderr
    assert "1 record left out" in result.stdout


def test_options_reach_the_conversion(texts, out):
    """Splits, hashes, columns and workers of the command line are those of `convert`."""
    result = run(
        texts, out, "--split", "train=0.5,val=0.5", "--hash", "sha1", "--hash", "xxh64", "-c",
        "text:bytes", "--drop", "path", "--workers", "2", "--size-limit", "1kb", "--limit", "2",
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
    for option in ("--split", "--workers", "--resume", "--tokenizer", "--skip-bad", "--dry-run"):
        assert option in shown


@pytest.mark.parametrize("moment", [b"JSON lines", b" samples"])
def test_interrupt_is_not_a_traceback_for_processes(tmp_path, out, moment):
    """Ctrl-C with several processes: one sentence, and no process prints anything."""
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"i": i, "t": "x" * 500}) + "\n" for i in range(30_000)))
    script = tmp_path / "script.py"
    script.write_text("from mds.cli import convert\nif __name__ == '__main__':\n    convert()\n")
    arguments = [str(path), out, "--workers", "2", "--size-limit", "1mb", "--compression", "zstd:9"]
    shown, code = in_terminal(
        [sys.executable, str(script), *arguments], 100, press=(moment, b"\x03")
    )
    result = code, "Traceback" in shown, shown.lower().count("interrupted")
    assert result == (130, False, 1), shown
