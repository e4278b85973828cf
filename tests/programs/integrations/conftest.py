"""A check that the tests of Ray Data and Spark share."""

import json
import pathlib
import subprocess
import sys

import pytest

JOB = pathlib.Path(__file__).with_name("engine_job.py")


@pytest.fixture
def check_killed_job(tmp_path):
    """A function that copies so many MB with an engine, whose workers die meanwhile."""

    def check(engine, megabytes):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(JOB), engine, str(tmp_path), str(megabytes), "2"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        facts = json.loads((tmp_path / "facts.json").read_text())
        assert facts["write"]["killed"]
        assert facts["read"]["killed"]
        assert len(set(facts["digests"])) == 1
        assert facts["unnamed"] == []

    return check
