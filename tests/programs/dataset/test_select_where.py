"""select(where=...): decided beforehand, once on a node, and batches are full."""

import subprocess
import sys

import pytest

from mds import StreamingDataset

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


def test_a_kept_selection_is_of_the_files_as_they_are_now(tmp_path, monkeypatch):
    """Other files of as many samples in the same place are judged anew."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "user-cache"))
    chosen = []
    for first in (0, 100):
        path = tmp_path / "data" / "part.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f'{{"id": {first + number}}}\n' for number in range(10)))
        dataset = StreamingDataset(path.parent, batch_size=2)
        part = dataset.select(where=lambda sample: sample["id"] > 107, key="high")
        chosen.append([sample["id"] for sample in part])
    assert chosen == [[], [108, 109]]
