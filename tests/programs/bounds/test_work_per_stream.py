"""How much one more stream adds to a second start: calls, opened files, looks at files, objects."""

import json

import pytest
from limits import run

from mds import MDSWriter

#: Most per stream, a little above what was counted when this was written.
MOST = {"calls": 480, "open": 2, "stat": 9, "objects": 22}

COUNT = """
import collections, gc, json, sys
from mds import StreamingDataset, Stream
def start(count):
    streams = [Stream(remote=f"{sys.argv[1]}/{n % 4}", local=f"{sys.argv[2]}/{n}")
               for n in range(count)]
    return StreamingDataset(streams=streams, batch_size=4)
def count(streams):
    counts = collections.Counter()
    def note(frame, event, function):
        if event == "call":
            counts["calls"] += 1
        elif event == "c_call" and function.__module__ == "posix":
            counts["stat" if function.__name__ in ("stat", "lstat") else function.__name__] += 1
    gc.collect()
    gc.disable()
    before = len(gc.get_objects())
    sys.setprofile(note)
    dataset = start(streams)
    sys.setprofile(None)
    counts["objects"] = len(gc.get_objects()) - before
    gc.enable()
    assert dataset.num_streams == streams
    return counts
start(60)  # the first start
start(60)
few, many = count(20), count(60)
print(json.dumps({name: (many[name] - few[name]) / 40 for name in many}))
"""


@pytest.mark.parametrize("hashes", [None, []])
def test_a_stream_takes_few_calls_and_files(tmp_path, hashes):
    for number in range(4):
        out = str(tmp_path / str(number))
        with MDSWriter(out=out, columns={"x": "int"}, hashes=hashes) as writer:
            for value in range(number + 1):
                writer.write({"x": value})
    counts = json.loads(run(COUNT, tmp_path, tmp_path / "cache", descriptors=64))
    assert all(counts.get(name, 0) <= most for name, most in MOST.items()), counts
    assert counts["open"] > 1, counts  # the note of each folder, and the copy of its index
