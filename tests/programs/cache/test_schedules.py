"""Random schedules of jobs that read several datasets through one folder.

A few run with all other tests; ``MDS_FAULTS=long`` runs 300.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCHEDULES = 300 if os.environ.get("MDS_FAULTS") == "long" else 3


def test_datasets_on_one_folder_never_give_each_others_samples(tmp_path):
    """Processes, threads, limits, restarts, kills, spellings, splits: no sample is wrong."""
    program = os.path.join(os.path.dirname(__file__), "schedules.py")
    done = subprocess.run(
        [sys.executable, program, "0", str(SCHEDULES), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600 + 30 * SCHEDULES,
        check=False,
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[3])},
    )
    wrong = re.findall(r"AssertionError: sample .*", done.stderr)
    assert not wrong, wrong[:10]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"{SCHEDULES} schedules, 0 failed" in done.stdout
