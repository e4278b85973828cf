"""The program that compares two versions finds a difference, and none where there is none."""

import pathlib
import runpy
import shutil
import subprocess
import sys

import pytest

import mds

pytestmark = pytest.mark.slow

PROGRAM = pathlib.Path(__file__).with_name("compare_versions.py")
TREE = pathlib.Path(mds.__file__).parents[1]

#: A loader that loses its first batch.
LOSS = """

_whole = StreamingDataLoader.__iter__


def _without_first(self):
    batches = _whole(self)
    next(batches, None)
    yield from batches


StreamingDataLoader.__iter__ = _without_first
"""


def compare(before, after, *options):
    """Return the exit code of the program and what it printed."""
    command = [sys.executable, str(PROGRAM), str(before), str(after), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ["--count", "4"],
        ["--count", "2", "--seed", "1", "--only", "samples", "--no-crossing"],
        ["--count", "1", "--seed", "6", "--processes"],
    ],
)
def test_a_version_gives_the_same_twice(options):
    """A folder and an interpreter with the same version train alike, in one process or several."""
    code, text = compare(TREE, sys.executable, *options)
    assert code == 0, text
    assert f"{options[1]} combinations, " in text
    assert "0 ended by an error of both versions, 0 different" in text


def test_a_difference_is_printed(tmp_path):
    """A version that loses a batch differs, with the place and the settings."""
    shutil.copytree(TREE / "mds", tmp_path / "mds", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "mds" / "_loader" / "dataloader.py").open("a") as file:
        file.write(LOSS)
    code, text = compare(TREE, tmp_path, "--count", "1")
    assert code == 1
    assert text.startswith("seed 0: [0][0][0]")
    assert '"streams": ' in text


def test_only_samples_draws_no_packs_and_no_schedules():
    """The other settings of a seed stay as they are."""
    draw_settings = runpy.run_path(str(PROGRAM))["draw_settings"]
    others = {"packing", "schedule"}
    assert any(others & draw_settings(seed).keys() for seed in range(20))
    for seed in range(20):
        whole, samples = draw_settings(seed), draw_settings(seed, "samples")
        assert not others & samples.keys()
        assert samples.get("filter") == whole.get("filter")
        assert samples["streams"] == whole["streams"]
