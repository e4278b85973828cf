"""Packs without a loader: what they hold, and the state between them."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader

from mds import Packing, StreamingDataLoader
from mds.errors import ConfigError, FunctionError, IterationError
from tests.unit.loader import packed_helpers
from tests.unit.loader.packed_helpers import CAPACITY, make, packs_of

# A fixture.
corpus = packed_helpers.corpus


def tokens_of(packs):
    """Return the tokens of packs as lists."""
    return [pack["tokens"].tolist() for pack in packs]


@pytest.mark.parametrize("remainder", ["repeat", "mask"])
def test_a_pack_is_a_batch_of_one(corpus, remainder):
    """All packs together are all batches together, in their order."""
    batches = list(StreamingDataLoader(make(corpus, remainder=remainder)))
    packs = list(make(corpus, remainder=remainder))
    assert [p for pack in packs for p in packs_of(pack)] == [
        p for batch in batches for p in packs_of(batch)
    ]
    for name in ("labels", "position_ids", "weight"):
        expected = torch.cat([batch[name] for batch in batches])
        assert torch.equal(torch.cat([pack[name] for pack in packs]), expected)
    assert [n for p in packs for n in p["name"]] == [n for b in batches for n in b["name"]]
    for pack in packs:
        assert len(pack["tokens"]) <= CAPACITY
        assert pack["max_seqlen"] == pack["cu_seqlens"].diff().max()
        assert ("mask" in pack) == (remainder == "mask")


def test_a_dense_pack_is_a_row(corpus):
    """The loader of torch stacks rows to the batches of ours, with and without worker processes.

    Before the end of the epoch: a loop over packs passes over empty places, which batches have.
    """
    batches = list(StreamingDataLoader(make(corpus, layout="dense", columns=["tokens"])))
    is_real = [(batch["document_ids"] >= 0).any(1) for batch in batches]
    full = sum(bool(rows.all()) for rows in is_real)
    assert len(batches) - 3 <= full < len(batches)
    packs = list(make(corpus, layout="dense", columns=["tokens"]))
    assert all(value.shape == (CAPACITY,) for pack in packs for value in pack.values())
    for workers in (0, 2):
        dataset = make(corpus, layout="dense", columns=["tokens"])
        stacked = list(DataLoader(dataset, batch_size=24, num_workers=workers))
        for batch, expected in zip(stacked[:full], batches[:full], strict=True):
            assert all(torch.equal(batch[name], rows) for name, rows in expected.items())
        last = [batch["tokens"][rows] for batch, rows in zip(batches, is_real, strict=True)]
        assert torch.equal(torch.cat([b["tokens"] for b in stacked]), torch.cat(last))


def test_a_pack_of_a_budget_is_a_batch(corpus):
    """Its rows are documents."""
    packing = Packing(budget=512, overflow="drop", layout="dense")
    batches = list(StreamingDataLoader(make(corpus, packing=packing, batch_size=1)))
    packs = list(make(corpus, packing=packing, batch_size=1))
    for pack, batch in zip(packs, batches, strict=True):
        assert torch.equal(pack["tokens"], batch["tokens"])


@pytest.mark.parametrize("is_filtered", [False, True])
def test_the_state_is_exact_after_every_pack(corpus, is_filtered):
    """A run goes on with the next pack, in the middle of a step too."""

    def dataset():
        plain = make(corpus)
        return plain.filter(lambda sample: sample["name"] != "n7") if is_filtered else plain

    expected = tokens_of(dataset())
    running = dataset()
    packs = iter(running)
    for count in range(60):
        if count % 7 == 0 or count in (24, 48):
            resumed = dataset()
            resumed.load_state_dict(running.state_dict())
            assert tokens_of(resumed) == expected[count:]
            assert resumed.state_dict()["finished"]
        next(packs)


def test_the_state_after_a_step_is_that_of_a_loader(corpus):
    """It counts packs, so a loader of any number of ranks goes on with it."""
    loader = StreamingDataLoader(make(corpus))
    batches = iter(loader)
    dataset = make(corpus)
    packs = iter(dataset)
    for _ in range(2):
        next(batches)
        for _ in range(24):
            next(packs)
        state = loader.state_dict()
        state["order_hash"] = ""
        assert dataset.state_dict() == state


def test_skipped_steps_do_not_come(corpus):
    """A position between packs counts the skipped ones before it."""
    expected = tokens_of(make(corpus))

    def dataset():
        dataset = make(corpus)
        dataset.edits.skip_steps(range(1, 2))
        return dataset

    running = dataset()
    packs = iter(running)
    got = tokens_of(next(packs) for _ in range(30))
    assert got == expected[:24] + expected[48:54]
    resumed = dataset()
    resumed.load_state_dict(running.state_dict())
    assert tokens_of(resumed) == expected[54:]


@pytest.mark.parametrize("remainder", ["repeat", "short", "mask"])
def test_ranks_get_equally_many(corpus, remainder):
    """The last step is filled with packs of padding, unless ranks may get fewer."""
    parts = [list(make(corpus, (4, rank), remainder=remainder)) for rank in range(4)]
    counts = [len(packs) for packs in parts]
    assert (len({*counts}) == 1) == (remainder != "short")
    padding = [pack for packs in parts for pack in packs if (pack["labels"] == -100).all()]
    documents = [p for packs in parts for pack in packs for p in packs_of(pack)]
    expected = [p for pack in make(corpus) for p in packs_of(pack)]
    assert len(padding) == sum(counts) - len(list(make(corpus)))
    assert all(pack["tokens"].tolist() == [0] for pack in padding)
    assert sorted(documents) == sorted(expected + [(0,)] * len(padding))


def test_ranks_have_no_position_inside_a_step(corpus):
    """A number that lost packs or repeated them would be silent."""
    dataset = make(corpus, (2, 0))
    packs = iter(dataset)
    for _ in range(5):
        next(packs)
    with pytest.raises(ConfigError, match=r"5 of the 12 packs of a step.*batch_size=1"):
        dataset.state_dict()
    for _ in range(7):
        next(packs)
    assert dataset.state_dict()["sample_in_epoch"] == 24


def test_worker_processes_know_their_place_alone(corpus):
    """The main process does not know how far the workers of torch's loader are."""
    dataset = make(corpus, layout="dense", columns=["tokens"])
    batches = iter(DataLoader(dataset, batch_size=24, num_workers=1))
    next(batches)
    with pytest.raises(ConfigError, match="only they know their position") as caught:
        dataset.state_dict()
    assert "num_samples" not in str(caught.value)
    assert len(list(batches)) == 12


@pytest.mark.parametrize("count", [0, 5, 24, 30])
def test_an_iterator_has_a_state_of_its_own(corpus, count):
    """It continues in another iterator, also in the middle of a step of several ranks."""
    packs = iter(make(corpus, (2, 0)))
    for _ in range(count):
        next(packs)
    state = json.loads(json.dumps(packs.state_dict()))
    resumed = iter(make(corpus, (2, 0)))
    next(resumed)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert tokens_of(resumed) == tokens_of(packs)


def test_functions_of_batches_want_a_loader(corpus):
    """A pack is no batch."""
    with pytest.raises(ConfigError, match="StreamingDataLoader"):
        iter(make(corpus).map_batches(dict))


def test_an_error_ends_the_iteration(corpus):
    """Every further `next` raises it again."""

    def fail(sample):
        if sample["name"] == "n8":
            raise ValueError("no")
        return sample

    dataset = make(corpus, shuffle=False).map(fail)
    packs = iter(dataset)
    for _ in range(2):
        with pytest.raises(FunctionError, match="sample 8"):
            list(packs)
    assert not dataset.state_dict()["finished"]


def test_a_program_may_end_in_the_middle(corpus):
    """It reports its own error alone, and nothing of the iteration that it has left open."""
    program = (
        "import mds\n"
        f"packing = mds.Packing({CAPACITY}, overflow='split')\n"
        f"packs = iter(mds.StreamingDataset({corpus!r}, batch_size=8, packing=packing))\n"
        "next(packs)\n"
        "raise KeyError('mine')\n"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.endswith("KeyError: 'mine'\n"), ended.stderr


def test_a_forked_child_does_not_go_on(corpus):
    """The threads that fetch are in the parent."""
    packs = iter(make(corpus))
    next(packs)
    child = os.fork()
    if not child:
        try:
            next(packs)
        except IterationError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    next(packs)
