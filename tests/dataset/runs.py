"""Streams of numbered samples, and loaders that go on from a state; imported by the tests."""

import json

from mds import MDSWriter, StreamingDataLoader


def write_streams(folder, sizes):
    """A stream below ``folder`` for each name and size; numbers go on from one to the next."""
    first = 0
    for name, size in sizes.items():
        with MDSWriter(out=str(folder / name), columns={"id": "int"}, size_limit=400) as writer:
            for number in range(first, first + size):
                writer.write({"id": number})
        first += size
    return folder


def loader_over(dataset, kind="threads", workers=0, state=None):
    """A loader of a dataset, with workers of a kind if any, that goes on from a state if any."""
    settings = {"num_workers": workers, "workers": kind} if workers else {}
    loader = StreamingDataLoader(dataset, **settings)
    if state is not None:
        loader.load_state_dict(as_json(state))
    return loader


def as_json(state):
    """A state as it comes out of a file."""
    return json.loads(json.dumps(state))
