"""Streams of numbered samples, and loaders that go on from a state; imported by the tests."""

import json

from mds import MDSWriter, StreamingDataLoader
from mds._dataset.steps import TrainingSteps
from mds.plan import OrderHash


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
    settings = {"num_workers": workers, "worker_type": kind} if workers else {}
    loader = StreamingDataLoader(dataset, **settings)
    if state is not None:
        loader.load_state_dict(as_json(state))
    return loader


def as_json(state):
    """A state as it comes out of a file."""
    return json.loads(json.dumps(state))


def train(documents_of, loaders, epochs=1, edits=(), stop=None):
    """Sorted documents of each global batch, in a list an epoch, the hashes, and the state.

    ``documents_of`` gives the documents of a batch; ``edits``: what is done after which step.
    """
    found, hashes, steps, made = [], [], 0, set()
    for _ in range(epochs):
        found.append([])
        for batches in zip(*loaders, strict=True):
            found[-1].append(sorted(n for batch in batches for n in documents_of(batch)))
            steps += 1
            for number, (at, change) in enumerate(edits):
                if at == steps and number not in made:
                    made.add(number)
                    assert len({change(loader) for loader in loaders}) == 1
            if steps == stop:
                break
        whole = OrderHash()
        for loader in loaders:
            whole.merge(loader.order_hash)
        hashes.append(str(whole))
        if steps == stop:
            break
    return found, hashes, loaders[0].state_dict()


def steps_of(loader):
    """Return the steps of the run of a loader."""
    return TrainingSteps(loader.dataset._dataset_run.order, loader.dataset._dataset_run.world())
