"""Standard input as a source, and what a shell needs to complete commands."""

import pytest
from click.testing import CliRunner

from mds._cli import convert, main


def pipe(data, *arguments):
    return CliRunner().invoke(convert, ["-", *arguments], input=data)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Add --format"),
        (["--format", "jsonl", "--resume"], "into a file first"),
        (["--format", "jsonl", "--engine", "spark"], "into a file first"),
    ],
)
def test_a_pipe_that_cannot_be_converted_is_told(tmp_path, arguments, words):
    """It has no name, and it is there once."""
    done = pipe(b'{"a": 1}\n', str(tmp_path / "out"), *arguments)
    assert done.exit_code == 2
    assert words in done.output


def test_an_empty_pipe_is_told(tmp_path):
    """A command in front of it failed, most likely."""
    done = pipe(b"", str(tmp_path / "out"), "--format", "jsonl")
    assert done.exit_code == 2
    assert "standard input is empty" in done.output


def test_mds_convert_is_a_command_of_mds(tmp_path):
    """The same options and the same output under both names."""
    helps = [
        CliRunner().invoke(command, [*name, "--help"], prog_name="x").output.split("\n", 1)[1]
        for command, name in ((convert, []), (main, ["convert"]))
    ]
    assert helps[0] == helps[1]
