"""Streams and their registry."""

import subprocess
import sys

from mds import Stream, StreamingDataset
from mds.dataset.stream import streams_registry


def test_a_stream_class_of_the_callers_serves_a_dataset(make):
    """Registered under a name, by call or as a decorator, with arguments of its own."""

    @streams_registry.register("half")
    class Half(Stream):
        def __init__(self, *, share=0.5, **kwargs):
            super().__init__(repeat=share, **kwargs)

    dataset = StreamingDataset(
        local=make(), stream_name="half", stream_config={"share": 0.25}, batch_size=4
    )
    assert type(dataset.streams[0]) is Half
    assert len(list(dataset)) == 25
    assert "half" in streams_registry.get_all()


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
