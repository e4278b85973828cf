"""Streams and their registry."""

import subprocess
import sys

from mds import StreamingDataset


def test_samples_without_torch(make):
    """The same order and the same samples, for whoever brings another framework."""
    code = f"""
import sys
from mds import Samples
ids = [s["id"] for s in Samples(local={make()!r}, batch_size=4, shuffle=True)]
assert "torch" not in sys.modules
print(*ids)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    dataset = StreamingDataset(local=make(), batch_size=4, shuffle=True)
    assert [int(i) for i in out.stdout.split()] == [s["id"] for s in dataset]
