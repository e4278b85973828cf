"""Standard input as a source, and what a shell needs to complete commands, in processes."""

import os
import subprocess
import sys

import pytest

from mds import LocalDataset

CONVERT = [sys.executable, "-c", "from mds._cli import convert; convert()"]


@pytest.mark.parametrize(
    ("kind", "data", "samples"),
    [
        ("jsonl", b'{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ("csv", b"a,b\n1,x\n", [{"a": 1, "b": "x"}]),
        ("lines", b"x\ny\n", [{"text": "x"}, {"text": "y"}]),
    ],
)
def test_what_comes_through_a_pipe_is_converted(tmp_path, kind, data, samples):
    """As a file of it would be, in a process of its own; nothing is left of it."""
    out = str(tmp_path / "out")
    done = subprocess.run(
        [*CONVERT, "-", out, "--format", kind],
        input=data,
        capture_output=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(LocalDataset(out)) == samples
    assert b"standard input: " in done.stderr
    assert os.listdir(tmp_path) == ["out"]


def test_a_shell_completes_commands_and_options(monkeypatch):
    """What the script asks for is answered."""
    for words, found in (("mds ", "verify"), ("mds convert --enc", "--encoding")):
        environment = {"_MDS_COMPLETE": "bash_complete", "COMP_WORDS": words}
        environment["COMP_CWORD"] = str(len(words.split(" ")) - 1)
        done = subprocess.run(
            [sys.executable, "-c", "from mds._cli import main; main(prog_name='mds')"],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            check=False,
        )
        assert f"plain,{found}" in done.stdout, done
