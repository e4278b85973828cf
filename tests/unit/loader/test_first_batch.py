"""Faults that show with the first batch of an epoch: no batch at all, lists, packs that differ."""

import itertools
import os

import numpy as np
import pytest

from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, FunctionError, PlanError
from mds.plan import register_packer
from mds.plan._packers import find_packer
from mds.transforms import pad

# torch warns of more workers than this machine has cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def place(tmp_path):
    """Return the folder of 20 documents of 1 to 5 tokens."""
    columns = {"id": "int", "tokens": "ndarray:int32"}
    with MDSWriter(str(tmp_path / "data"), columns, hashes=[]) as writer:
        for number in range(20):
            tokens = np.full(number % 5 + 1, number, np.int32)
            writer.write({"id": number, "tokens": tokens})
    return str(tmp_path / "data")


@pytest.fixture(autouse=True)
def _no_packers(monkeypatch):
    monkeypatch.setattr("mds.plan._packers._packers.entries", {})


# ------------------------------------------------------------------ no batch at all


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("options", "workers"),
    [({"batch_size": 16}, 0), ({"batch_size": 8, "remainder": "mask"}, 0), ({"batch_size": 8}, 2)],
    ids=["repeat", "mask", "workers"],
)
def test_drop_last_that_leaves_nothing_is_an_error_on_all_ranks(place, rank, options, workers):
    """Otherwise a training would end without a step."""
    dataset = StreamingDataset(place, columns=["id"], topology=(rank, 2), **options)
    dataset = dataset.limit(12)
    loader = StreamingDataLoader(dataset, drop_last=True, num_workers=workers)
    with pytest.raises(ConfigError, match=r"has no step of .* on each of 2 ranks.*drop_last=False"):
        list(loader)
    assert list(StreamingDataLoader(dataset, num_workers=workers))


def test_drop_last_of_packs_and_of_microbatches(place):
    """A step has all packs of all ranks, and all batches of the optimizer."""
    packing = Packing(8, column="tokens")
    dataset = StreamingDataset(place, batch_size=64, packing=packing, remainder="mask")
    with pytest.raises(ConfigError, match="no step of 64 samples or packs on each of 1 rank"):
        list(StreamingDataLoader(dataset, drop_last=True))
    dataset = StreamingDataset(place, batch_size=8, columns=["id"])
    with pytest.raises(ConfigError, match="8 samples or packs 4 times on each"):
        list(StreamingDataLoader(dataset, drop_last=True, microbatches=4))


def test_a_resume_after_the_last_full_batch_is_no_error(place):
    """The epoch had steps; what is left of it has none."""
    dataset = StreamingDataset(place, batch_size=8, columns=["id"])
    loader = StreamingDataLoader(dataset, drop_last=True)
    batches = iter(loader)
    next(batches)
    next(batches)
    state = loader.state_dict()
    resumed = StreamingDataLoader(
        StreamingDataset(place, batch_size=8, columns=["id"]), drop_last=True
    )
    resumed.load_state_dict(state)
    assert list(resumed) == []
    assert len(list(resumed)) == 2


def test_an_empty_selection_is_no_error(place):
    """There is nothing to leave out."""
    dataset = StreamingDataset(place, batch_size=8, columns=["id"]).select([])
    assert list(StreamingDataLoader(dataset, drop_last=True)) == []


# ------------------------------------------------------------------ lists of tensors


@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_of_different_lengths_give_advice_once(place, caplog, workers):
    """It names pad() and ragged()."""
    loader = StreamingDataLoader(StreamingDataset(place, batch_size=4), num_workers=workers)
    assert isinstance(next(iter(loader))["tokens"], list)
    list(loader)
    (line,) = [text for text in caplog.messages if "different shapes" in text]
    assert "collate_fn=pad('tokens') or ragged('tokens')" in line


def test_a_column_function_gives_no_advice(place, caplog):
    """Nor do columns that fit."""
    padded = StreamingDataLoader(StreamingDataset(place, batch_size=4), collate_fn=pad("tokens"))
    ids = StreamingDataLoader(StreamingDataset(place, batch_size=4, columns=["id"]))
    for loader in (padded, ids):
        list(loader)
    assert not caplog.messages


# ------------------------------------------------------------------ packers


def packed(place, packer, workers=0, kind="auto"):
    """Return the ids of all documents of an epoch, sorted."""
    register_packer("own", packer)
    dataset = StreamingDataset(
        place, batch_size=2, packing=Packing(16, column="tokens", packer="own")
    )
    loader = StreamingDataLoader(dataset, num_workers=workers, worker_type=kind)
    return sorted({token for batch in loader for token in batch["tokens"].tolist()})


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda _: None, "returned None"),
        (lambda n: (np.arange(n), n, 1), "returned"),
        (np.arange, "returned"),
        (lambda n: (np.arange(n), 10**15), "1,000,000,000,000,000 packs for 20 documents"),
        (lambda n: (np.arange(n), None), "and None for 20 documents"),
        (lambda n: (np.arange(n), float(n)), "and 20.0 for 20 documents"),
        (lambda n: (np.arange(n), str(n)), "and '20' for 20 documents"),
        (lambda n: (np.arange(n) * 1.0, n), "returned float64"),
        (lambda n: (x for x in (np.arange(n), n)), "returned"),
    ],
)
def test_a_packer_that_returns_something_else_is_refused(place, result, words):
    """The message says what came, and what must come."""
    with pytest.raises(PlanError, match="packer 'own' returned") as error:
        packed(place, lambda sizes, room: result(len(sizes)))
    assert words in str(error.value)
    assert "It must return the pack of each document" in str(error.value)


@pytest.mark.parametrize(
    "packer",
    [
        lambda sizes, room: (np.arange(len(sizes)), np.int64(len(sizes))),
        lambda sizes, room: ([*range(len(sizes))], len(sizes)),
        lambda sizes, room: (np.arange(len(sizes), dtype=np.uint8), len(sizes)),
        lambda sizes, room: [np.arange(len(sizes)), len(sizes)],
        lambda sizes, room: (sizes.fill(1), (np.arange(len(sizes)), len(sizes)))[1],
    ],
    ids=["int64", "list", "uint8", "pair", "changes sizes"],
)
def test_a_packer_may_return_any_whole_numbers(place, packer):
    """Counts of NumPy, lists; and what it does to its arguments has no effect."""
    assert packed(place, packer) == [*range(20)]


@pytest.mark.parametrize(
    ("workers", "kind"), [(0, "auto"), (2, "threads"), (2, "processes")], ids=str
)
def test_a_packer_that_is_not_deterministic_is_refused(place, workers, kind):
    """Two workers would have other packs, and documents would be lost."""
    random = np.random.default_rng(0)

    def pairs(sizes, room):
        del room
        return random.permutation(len(sizes)) // 2, len(sizes) // 2

    with pytest.raises(PlanError, match="packed the same documents in two ways"):
        packed(place, pairs, workers, kind)


def test_a_packer_that_differs_between_processes_is_refused(place):
    """Each process packs alike every time, but not as the other does."""
    calls = itertools.count()

    def by_process(sizes, room):
        del room
        next(calls)
        return np.random.default_rng(os.getpid()).permutation(len(sizes)) // 2, len(sizes) // 2

    with pytest.raises(PlanError, match="packed the same documents in two ways"):
        packed(place, by_process, 2, "processes")
    assert packed(place, by_process) == [*range(20)]
    assert next(calls) > 2
    assert not find_packer("own").is_built_in


# ------------------------------------------------------------------ functions


def test_a_missing_key_lists_the_keys_of_the_sample(place):
    """A typing error is seen at once."""
    dataset = StreamingDataset(place, batch_size=4)
    with pytest.raises(FunctionError, match=r"KeyError: 'text'\. It has 'id', 'tokens'\."):
        next(iter(dataset.map(lambda sample: sample["text"])))
    with pytest.raises(FunctionError, match=r"KeyError: 'text'\. It has 'id', 'tokens'\."):
        next(iter(StreamingDataLoader(dataset.map_batches(lambda batch: batch["text"]))))
