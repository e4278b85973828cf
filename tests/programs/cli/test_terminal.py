"""What the commands print where there is no terminal, run as programs."""

import json
import math
import os
import subprocess
import sys

import pytest

from mds import MDSWriter


def run_command(*arguments, **environment):
    command = [sys.executable, "-m", "mds", *arguments]
    found = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, check=False, env=found)


@pytest.fixture
def dataset(tmp_path):
    """Two samples with what is hard to print."""
    out = str(tmp_path / "out")
    with MDSWriter(out=out, columns={"f": "float64", "t": "str", "j": "json"}) as writer:
        writer.write({"f": 0.5, "t": "é ☃", "j": {"a": [1.5]}})
        writer.write({"f": math.nan, "t": "", "j": {"a": [math.inf]}})
    return out


def test_a_log_of_ascii_alone_takes_every_text(dataset):
    """What it has no letter for is shown by its number, and tables are drawn with dashes."""
    done = run_command("head", dataset, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\xe9 \u2603" in done.stdout


def test_numbers_are_shown_as_numbers(dataset):
    """Not as numpy spells them."""
    shown = run_command("head", dataset).stdout.decode()
    assert " 0.5\n" in shown
    assert "float64(" not in shown


def test_json_is_json(dataset):
    """Nan and infinity, for which JSON has no word, are null."""
    lines = run_command("head", "--json", dataset).stdout.splitlines()
    strict = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert strict[0] == {"f": 0.5, "t": "é ☃", "j": {"a": [1.5]}}
    assert strict[1] == {"f": None, "t": "", "j": {"a": [None]}}
    (facts,) = json.loads(run_command("info", "--json", dataset).stdout)["datasets"]
    assert facts["samples_per_shard"] == {"smallest": 2, "middle": 2, "largest": 2}


def test_one_slash_of_a_url_is_told():
    """A slash that is missing makes no folder of it."""
    done = run_command("head", "s3:/bucket/data")
    assert done.returncode == 2
    assert b"write s3:// with two slashes" in done.stderr
