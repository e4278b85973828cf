"""A state has the same keys at any time, and every way of saving it keeps all of it."""

import io
import json

import numpy as np
import pytest
import torch

from mds import MDSWriter, Packing, Schedule, StreamingDataLoader, StreamingDataset
from mds.errors import StateError

pytestmark = pytest.mark.filterwarnings("ignore:milestones of the schedule take effect")

NAMES = ("web", "code")
SCHEDULE = Schedule({0: {"web": 0.75, "code": 0.25}, 6: {"web": 0.25, "code": 0.75}})
PACKING = Packing(64, window=48)
CASES = {
    "samples": {},
    "schedule": {"schedule": SCHEDULE},
    "packs": {"packing": PACKING},
    "packed schedule": {"packing": PACKING, "schedule": SCHEDULE},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two streams of 300 documents, whose tokens are the number of their document."""
    folder = tmp_path_factory.mktemp("streams")
    for first, name in zip((0, 300), NAMES, strict=True):
        with MDSWriter(
            str(folder / name), {"tokens": "ndarray:uint16"}, lengths="tokens", size_limit=4000
        ) as writer:
            for number in range(first, first + 300):
                writer.write({"tokens": np.full(20 + number // 300, number, np.uint16)})
    return folder


def make_loader(folder, case):
    """A loader of which no epoch has begun."""
    streams = {name: str(folder / name) for name in NAMES}
    dataset = StreamingDataset(streams, batch_size=8, shuffle=True, **CASES[case])
    return StreamingDataLoader(dataset, collate_fn=None if "packing" in CASES[case] else list)


def numbers_of(batch):
    """Numbers of the documents of a batch, in their order."""
    tokens = batch["tokens"] if isinstance(batch, dict) else [s["tokens"][0] for s in batch]
    return [int(token) for token in tokens]


def shape_of(state):
    """The keys of a state with the types of their values."""
    return {key: type(value) for key, value in state.items()}


@pytest.mark.parametrize("case", CASES)
def test_keys_and_types_never_change_and_nothing_is_lost(folder, case):
    """Before, in the middle, after edits and at the end; as JSON and in a file of torch.save."""
    loader = make_loader(folder, case)
    shape = shape_of(loader.state_dict())
    assert set(shape.values()) == {int, str, bool}
    batches = iter(loader)
    for _ in range(3):
        next(batches)
        assert shape_of(loader.state_dict()) == shape == shape_of(loader.dataset.state_dict())
    loader.dataset.edits.replace_samples([3, 450], reason="noise")
    loader.dataset.edits.skip_steps(range(4, 6))
    if "schedule" in CASES[case]:
        loader.dataset.edits.set_weights({"web": 1, "code": 1}, at_step=9)
    next(batches)
    state = loader.state_dict()
    assert shape_of(state) == shape
    rest = [numbers_of(batch) for batch in batches]
    assert shape_of(loader.state_dict()) == shape
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    for copy in (json.loads(json.dumps(state)), torch.load(file, weights_only=True)):
        resumed = make_loader(folder, case)
        resumed.load_state_dict(copy)
        assert resumed.state_dict() == {**state, "order_hash": ""}
        assert [numbers_of(batch) for batch in resumed] == rest


@pytest.mark.parametrize("case", CASES)
def test_a_state_without_any_one_of_its_keys_is_refused(folder, case):
    """Its name is in the message."""
    loader = make_loader(folder, case)
    next(iter(loader))
    state = loader.state_dict()
    for key in state:
        with pytest.raises(StateError, match=f"has no .*{key}"):
            loader.load_state_dict({name: state[name] for name in state if name != key})
