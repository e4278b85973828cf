"""Programs in the ways of public code give the same under mosaicml-streaming 0.13 and here."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from devtools import incumbent
from mds.compat.streaming import FOLDER

HERE = pathlib.Path(__file__).parent
STORED = json.loads((HERE / "programs.json").read_text(encoding="utf-8"))


def digests(python, **environment):
    done = subprocess.run(
        [python, "-W", "ignore", str(HERE / "programs.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def ours():
    """The digests through the door."""
    path = os.pathsep.join(filter(None, [FOLDER, os.environ.get("PYTHONPATH")]))
    return digests(sys.executable, PYTHONPATH=path)


@pytest.mark.slow
@pytest.mark.parametrize("program", STORED)
def test_a_program_gives_what_it_gave(ours, program):
    """Samples, orders, files and states are those that 0.13 gave."""
    assert ours[program] == STORED[program]


@incumbent.NEEDED
def test_the_digests_are_those_of_an_installed_one():
    """What is stored is what 0.13 gives where it is installed."""
    with incumbent.alone():
        assert digests(incumbent.PYTHON) == STORED
