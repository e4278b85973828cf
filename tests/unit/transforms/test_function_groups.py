"""Results of map_batches cross several batches at once where they are views of one memory."""

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from mds import MDSWriter, StreamingDataLoader, StreamingDataset
from mds._iteration.rows import TensorPool
from mds._loader.batches import Batches
from mds._loader.messages import BatchGroup, BatchList, join_batches
from mds.errors import FunctionError

SAMPLES, SIZE, WIDTH = 210, 4, 16


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """Rows of numbers that go on from row to row."""
    out = str(tmp_path_factory.mktemp("tokens"))
    columns = {"tokens": f"ndarray:int32:{WIDTH}", "n": "int64"}
    with MDSWriter(out=out, columns=columns, samples_per_shard=50) as writer:
        for n in range(SAMPLES):
            row = np.arange(n * WIDTH, (n + 1) * WIDTH, dtype=np.int32)
            writer.write({"tokens": row, "n": n})
    return out


def cut(columns):
    """Views of what was gathered, changed in place."""
    tokens = columns["tokens"]
    tokens += 1
    return {"inputs": tokens[:, :-1], "labels": tokens[:, 1:], "n": columns["n"]}


def as_tensors(columns):
    """The same as torch's tensors."""
    tokens = torch.from_numpy(columns["tokens"])
    tokens += 1
    return {"inputs": tokens[:, :-1], "labels": tokens[:, 1:], "n": columns["n"]}


def anew(columns):
    """Arrays of its own, of another type."""
    wide = columns["tokens"].astype(np.int64) + 1
    return {"inputs": wide[:, :-1], "labels": wide[:, 1:].copy(), "n": columns["n"] * 1.0}


def fewer(columns):
    """Every second row alone."""
    return {"n": columns["n"][::2]}


def with_texts(columns):
    """A column that is no tensor."""
    return {"n": columns["n"], "text": [str(n) for n in columns["n"].tolist()]}


def swapped(columns):
    """Rows in another order, so that they do not follow each other in memory."""
    return {"inputs": columns["tokens"][::-1], "n": columns["n"]}


def fails_on_77(columns):
    if 77 in columns["n"]:
        raise KeyError("what it says")
    return columns


def messages(folder, function):
    dataset = StreamingDataset(local=folder, batch_size=SIZE).map_batches(function)
    # By a clock that stands still: what takes long goes alone.
    batches = Batches(dataset, SIZE, False, default_collate, clock=lambda: 0.0)
    return batches.begin_epoch(0, 1, -7, TensorPool())


@pytest.mark.parametrize("function", [cut, as_tensors, anew])
def test_eight_batches_travel_as_one(tokens, function):
    """The first ones alone or in twos and fours, as without a function."""
    sizes = [len(m.infos) if isinstance(m, BatchGroup) else 1 for m in messages(tokens, function)]
    assert sizes[:4] == [1, 2, 4, 8]
    assert sum(sizes) == -(-SAMPLES // SIZE)
    assert sizes[-1] == 0  # the last message says that there are no more


@pytest.mark.parametrize("function", [fewer, with_texts])
def test_what_is_no_rows_of_tensors_goes_batch_by_batch(tokens, function):
    """In lists; nothing is lost."""
    found = [*messages(tokens, function)]
    assert all(isinstance(message, BatchList) for message in found[:-1])
    assert sum(len(message.items) for message in found[:-1]) == -(-SAMPLES // SIZE)


@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.parametrize("function", [cut, as_tensors, anew, fewer, with_texts, swapped])
def test_batches_are_those_without_workers(tokens, function, workers):
    """Value by value, in the same order, and they may be written to."""
    dataset = StreamingDataset(local=tokens, batch_size=SIZE, shuffle=True, shuffle_seed=4)
    wanted = {}
    for batch in StreamingDataLoader(dataset.map_batches(function)):
        for row, n in enumerate(batch["n"].tolist()):
            wanted[n] = {name: values[row] for name, values in batch.items()}
    dataset = StreamingDataset(local=tokens, batch_size=SIZE, shuffle=True, shuffle_seed=4)
    loader = StreamingDataLoader(dataset.map_batches(function), num_workers=2, worker_type=workers)
    steps = 0
    for batch in loader:
        steps += 1
        for row, n in enumerate(batch["n"].tolist()):
            for name, values in batch.items():
                if name in wanted[n]:
                    assert torch.equal(
                        torch.as_tensor(values[row] if name != "text" else int(values[row])),
                        torch.as_tensor(
                            wanted[n][name] if name != "text" else int(wanted[n][name])
                        ),
                    ), (n, name)
        batch["n"][:] = -1
    assert steps == -(-SAMPLES // SIZE)


def test_batches_before_an_error_come(tokens):
    """Those that were gathered together with the one that fails, too."""
    dataset = StreamingDataset(local=tokens, batch_size=SIZE).map_batches(fails_on_77)
    seen = []
    with pytest.raises(FunctionError, match="what it says"):
        seen.extend(
            int(n)
            for batch in StreamingDataLoader(dataset, num_workers=1, worker_type="processes")
            for n in batch["n"]
        )
    assert seen == [*range(76)]


def test_views_are_joined_without_a_copy():
    """The columns of a message lie where the batches lay; others are copied while small."""
    source = torch.arange(6 * 8, dtype=torch.int32).view(6, 8)
    array = source.numpy()
    pieces = [{"x": array[at : at + 2, 1:]} for at in range(0, 6, 2)]
    joined = join_batches([2, 2, 2], pieces, [source])
    assert joined["x"].data_ptr() == source.data_ptr() + 4
    assert torch.equal(joined["x"], source[:, 1:])
    turned = [{"x": array[at : at + 2, 1:]} for at in (2, 0, 4)]
    copied = join_batches([2, 2, 2], turned, [source])
    assert torch.equal(copied["x"], source[[2, 3, 0, 1, 4, 5], 1:])
    large = [{"x": np.zeros((2, 1 << 20), np.int32)} for _ in range(2)]
    assert join_batches([2, 2], large, []) is None


@pytest.mark.parametrize(
    "pieces",
    [
        [{"x": np.zeros((2, 3))}, {"y": np.zeros((2, 3))}],
        [{"x": np.zeros((2, 3))}, {"x": np.zeros((2, 4))}],
        [{"x": np.zeros((2, 3))}, {"x": np.zeros((2, 3), np.float32)}],
        [{"x": np.zeros((2, 3))}, {"x": np.zeros((1, 3))}],
        [{"x": np.zeros(())}, {"x": np.zeros(())}],
        [{"x": np.array(["a", "b"])}, {"x": np.array(["a", "b"])}],
        [{"x": torch.zeros(2, 3).to_sparse()}, {"x": torch.zeros(2, 3).to_sparse()}],
        [{}, {}],
        [np.zeros(2), np.zeros(2)],
        [{"x": np.zeros((2, 3))}],
    ],
)
def test_batches_that_differ_are_left_alone(pieces):
    """In names, shapes, types or rows; and what is no column of numbers."""
    assert join_batches([2] * len(pieces), pieces, []) is None
