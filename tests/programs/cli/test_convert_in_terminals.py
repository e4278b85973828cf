"""mds-convert in processes of its own: in terminals, in logs, and when Ctrl-C stops it."""

import json
import os
import pty
import random
import re
import select
import shlex
import subprocess
import sys

import pytest

from mds import MDSWriter
from tests.unit.cli.test_convert_command import out, run, texts

pytestmark = pytest.mark.slow

__all__ = ["out", "texts"]

CONVERT = [sys.executable, "-c", "from mds._cli import convert; convert()"]


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


@pytest.mark.parametrize("columns", [40, 100])
def test_ctrl_c_says_how_to_go_on(tmp_path, out, columns):
    """An interrupted conversion ends with 130 and the command that resumes it, which works.

    Lines end between words, with a backslash as a shell needs it.
    """
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"i": i, "t": "x" * 500}) + "\n" for i in range(30_000)))
    arguments = [str(path), out, "--size-limit", "1mb", "--compression", "zstd:12"]
    shown, code = in_terminal([*CONVERT, *arguments], columns, press=(b"samples", b"\x03"))
    assert code == 130
    assert "Traceback" not in shown
    *_, again = shown.replace("\r", "").replace("\\\n", "").strip().splitlines()
    assert "--resume" in again
    words = {str(path), out, "--size-limit", "--compression", "zstd:12"}
    assert words <= {*shown.split()}, shown
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


def test_ctrl_c_before_anything_is_finished(tmp_path, out):
    """Nothing is kept, so nothing is promised."""
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"i": i, "t": "x" * 500}) + "\n" for i in range(30_000)))
    arguments = [str(path), out, "--tokenizer", "bytes", "--num-workers", "1"]
    shown, code = in_terminal([*CONVERT, *arguments], 300, press=(b"process", b"\x03"))
    assert code == 130
    is_kept = os.path.exists(os.path.join(out, ".mds-convert", "plan.json"))
    assert ("Finished work is kept" in shown) == is_kept, shown


def test_long_errors_break_between_words(tmp_path):
    """A command at the end is on lines of its own that a shell can read."""
    folder = tmp_path / "a folder with a long name" / "parts"
    for part in "01":
        with MDSWriter(out=str(folder / part), columns={"n": "int"}) as writer:
            writer.write({"n": 1})
    shown, code = in_terminal([*CONVERT, str(folder), str(tmp_path / "out")], 40)
    assert code == 2
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown).partition("Error:")[2]
    prose, _, command = shown.rpartition("  mds")
    assert {"there", "datasets", "parts", "merge"} <= {*re.findall(r"\w+", prose)}
    assert all(len(line) <= 40 or " " not in line.strip() for line in prose.splitlines())
    assert shlex.split("mds" + command.replace("\\\n", "")) == ["mds", "merge", str(folder)]


@pytest.mark.parametrize("moment", [b"JSON lines", b" samples"])
def test_interrupt_is_not_a_traceback_for_processes(tmp_path, out, moment):
    """Ctrl-C with several processes: one sentence, and no process prints anything."""
    path = tmp_path / "x.jsonl"
    draw = random.Random(0)  # texts that take seconds to compress
    rows = ({"i": i, "t": draw.randbytes(250).hex()} for i in range(30_000))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    script = tmp_path / "script.py"
    script.write_text("from mds._cli import convert\nif __name__ == '__main__':\n    convert()\n")
    arguments = [
        str(path),
        out,
        "--num-workers",
        "2",
        "--size-limit",
        "1mb",
        "--compression",
        "zstd:19",
    ]
    # So wide that the line with the path and the moment is not folded.
    shown, code = in_terminal(
        [sys.executable, str(script), *arguments], 400, press=(moment, b"\x03")
    )
    result = code, "Traceback" in shown, shown.lower().count("interrupted")
    assert result == (130, False, 1), shown
