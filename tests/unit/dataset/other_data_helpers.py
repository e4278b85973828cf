"""Helpers of the tests of other data, in this folder and in tests/programs/dataset."""

import json

from mds import MDSWriter, StreamingDataset


def write(out, first, **options):
    """Write 40 samples without digests."""
    options = {"size_limit": 200, "exist_ok": True, "hashes": [], **options}
    with MDSWriter(out=out, columns={"x": "int"}, **options) as writer:
        for number in range(40):
            writer.write({"x": first + number})


def state_of(place, cache, **options):
    dataset = StreamingDataset(remote=place, local=str(cache), batch_size=4, **options)
    return dataset, json.loads(json.dumps(dataset.state_dict(8, True)))
