"""select(where=...): decided beforehand, once on a node, and batches are full."""

import subprocess
import sys

import pytest

RANK = """
import os, sys
from mds._dataset.samples import Samples
def where(sample):
    with open(sys.argv[2], "a") as file: file.write("x")
    return sample["id"] % 2 == 0
print(len(Samples(local=sys.argv[1], batch_size=5).select(where=where)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_ranks_of_a_launcher_evaluate_once(make, tmp_path):
    """Three processes started side by side by one parent: a hundred calls in all."""
    calls = tmp_path / "calls"
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, make(), calls], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [rank.communicate(timeout=600)[0] for rank in ranks] == [b"50\n"] * 3
    assert len(calls.read_text()) == 100
