"""One dataset object may be used in several ways at once; `uses.py` has the programs."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAMS = os.path.join(os.path.dirname(__file__), "uses.py")


def test_every_use_of_a_shared_dataset_gives_the_right_samples():
    """Random programs of access, iterations, loaders, threads, copies and forks never differ."""
    command = [sys.executable, PROGRAMS, "--count", "16", "--seed", "0"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout == "16 programs, 0 failures\n"
