"""A loader that fails in the middle of an epoch keeps its promises; see `failures.py`."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAMS = os.path.join(os.path.dirname(__file__), "failures.py")
TREE = os.path.dirname(os.path.dirname(os.path.dirname(PROGRAMS)))


def test_a_failure_in_the_middle_of_an_epoch_loses_no_sample():
    """Whatever raises, the state is exact, the next epoch complete, and nothing stays behind."""
    command = [sys.executable, PROGRAMS, "--count", "14", "--seed", "0"]
    path = os.pathsep.join(filter(None, [TREE, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout == "14 programs, 0 failures\n"
