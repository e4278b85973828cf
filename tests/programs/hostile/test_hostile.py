"""Strangers' indexes, shards, servers and cache files cannot harm the user who reads them."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = pathlib.Path(__file__).with_name("program.py")
IS_LONG = os.environ.get("MDS_FAULTS") == "long"
INPUTS = 20_000 if IS_LONG else 200
HOURS = 3


@pytest.mark.parametrize("first", [0])
def test_hostile_inputs_touch_nothing_and_end_in_our_errors(first):
    """No file of the user is touched, no stray exception, no hang, nothing over two seconds."""
    done = subprocess.run(
        [sys.executable, PROGRAM, "--inputs", str(INPUTS), "--first", str(first)],
        capture_output=True,
        text=True,
        timeout=HOURS * 3600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    counts = json.loads(done.stdout.splitlines()[-2].partition(" slowest")[0])
    errors = counts.pop("errors")
    assert sum(counts.values()) == INPUTS
    assert errors > INPUTS // 4, "most of these inputs are refused"
