"""Datasets go from this library to mosaicml-streaming and back, for every encoding and compression.

Needs a Python with mosaicml-streaming 0.13 in an environment of its own, since its pins are not
ours: python -m venv other && other/bin/pip install mosaicml-streaming==0.13.0, and then
MDS_INCUMBENT_PYTHON=other/bin/python.
"""

import contextlib
import importlib.util
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from devtools import incumbent
from mds import MDSWriter

SIDE = pathlib.Path(__file__).with_name("side.py")

pytestmark = incumbent.NEEDED


def load_side():
    spec = importlib.util.spec_from_file_location("side", SIDE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


side = load_side()
CASES = dict(side.cases())
# What Pillow or a compressor encodes loses something, or is compared by what each side reads.
LOSSY = {"encoding jpeg", "encoding list[jpeg]", "encoding jpeg_array", "encoding jpegarray"}


def run(python, library, *arguments):
    command = [python, str(SIDE), library, *map(str, arguments)]
    with incumbent.alone() if library == "streaming" else contextlib.nullcontext():
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return json.loads(results[0].removeprefix("RESULT")) if results else None


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """Written here, read there and here."""
    folder = tmp_path_factory.mktemp("ours")
    run(sys.executable, "mds", "write", folder / "data")
    there = run(incumbent.PYTHON, "streaming", "read", folder / "data", folder / "there")
    return there, run(sys.executable, "mds", "read", folder / "data", folder / "here")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Written there, read here and there."""
    folder = tmp_path_factory.mktemp("theirs")
    run(incumbent.PYTHON, "streaming", "write", folder / "data")
    here = run(sys.executable, "mds", "read", folder / "data", folder / "here")
    return here, run(incumbent.PYTHON, "streaming", "read", folder / "data", folder / "there")


@pytest.mark.parametrize("direction", ["ours", "theirs"])
@pytest.mark.parametrize("case", CASES)
def test_both_read_the_same(case, direction, request):
    """Both libraries read the same values, and those are the ones that were written."""
    reader, writer = request.getfixturevalue(direction)
    assert reader[case] == writer[case]
    if case not in LOSSY:
        wanted = [side.describe(sample) for sample in side.samples(case, CASES[case][2])]
        assert reader[case] == json.loads(json.dumps(wanted))


def test_our_own_encodings_are_refused_there(tmp_path):
    """A reader that does not know an encoding says so, rather than give something else."""
    values = {
        "bool": True,
        "tensor": np.zeros((0, 2), bool),
        "list[str]": ["a"],
        "optional[int]": None,
    }
    for name, value in values.items():
        out = str(tmp_path / "data" / name)
        with MDSWriter(out=out, columns={"x": name}) as writer:
            writer.write({"x": value})
    found = run(incumbent.PYTHON, "streaming", "read", tmp_path / "data", tmp_path / "cache")
    assert {name: type(found[name]) for name in values} == dict.fromkeys(values, str)
