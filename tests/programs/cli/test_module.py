"""The commands as a program."""

import subprocess
import sys

from tests.unit.cli.test_inspect_commands import dataset, run

__all__ = ["dataset"]


def test_module_runs_as_a_command(dataset):
    """`python -m mds` is `mds`, and a pipe that is closed early is no error to look at."""
    command = [sys.executable, "-m", "mds", "head", dataset, "-n", "25", "--json"]
    whole = subprocess.run(command, capture_output=True, check=True, timeout=600)
    assert len(whole.stdout.splitlines()) == 25
    shell = " ".join(command) + " | head -1"
    cut = subprocess.run(shell, shell=True, capture_output=True, check=True, timeout=600)
    assert b"Traceback" not in cut.stderr


def test_verify_finds_nothing_in_a_whole_dataset(dataset):
    """Exit code 0 and a line that says what was read."""
    result = run("verify", dataset)
    assert result.exit_code == 0
    assert "25 samples in" in result.stdout
    assert "no faults" in result.stdout
    assert run("verify", dataset, "--num-workers", "2", "--quiet").output == ""
