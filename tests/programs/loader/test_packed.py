"""Batches of packs: what they hold, in every world, through every stop and start."""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from mds import Packing, StreamingDataLoader, StreamingDataset
from mds._cache.order_files import PackFile
from mds._iteration.node_order import EPOCH_TIME, NodeOrder
from mds.errors import StateError
from mds.world import World
from tests.unit.loader import packed_helpers
from tests.unit.loader.packed_helpers import CAPACITY, COUNT, document, make, packs_of, run

# Fixtures of both halves of these tests.
corpus = packed_helpers.corpus

# torch warns of more workers than this machine has cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


WORLDS = [(ranks, workers) for ranks in (1, 2, 3, 4, 6, 8) for workers in (0, 1, 3)]


@pytest.mark.parametrize("is_mapped", [False, True])
def test_documents_end_to_end_with_separators(corpus, is_mapped):
    """Each pack but the last of a window is full, and each document ends with the separator."""
    packing = Packing(CAPACITY, packer="concat", separator=60_001)
    settings = {"packing": packing, "columns": ["tokens", "name"], "shuffle": False}
    dataset = make(corpus, batch_size=1, num_canonical_nodes=1, **settings)
    loader = StreamingDataLoader(dataset.map(dict) if is_mapped else dataset)
    stream = []
    for batch in loader:
        tokens, labels = batch["tokens"].tolist(), batch["labels"]
        assert len(tokens) == CAPACITY or len(stream) + len(tokens) == total_tokens(1)
        firsts = batch["cu_seqlens"][:-1].long()
        assert labels[firsts].tolist() == [-100] * len(firsts)
        labels[firsts] = batch["tokens"][firsts]
        assert labels.tolist() == tokens
        stream += tokens
    expected = [n for i in range(COUNT) for n in [*document(i)["tokens"].tolist(), 60_001]]
    assert stream == expected


def total_tokens(extra):
    """Tokens of all documents, with so many more for each."""
    return sum(len(document(i)["tokens"]) + extra for i in range(COUNT))


@pytest.mark.parametrize("packer", ["greedy", "concat"])
def test_packers_resume_in_other_worlds(corpus, packer):
    """From the middle of an epoch, on other ranks and workers."""
    packing = Packing(CAPACITY, packer=packer, overflow="split")

    def pieces(**world):
        # A rank without a pack in the last step has a token of padding.
        rows, states = run(corpus, packing=packing, **world)
        return [[piece for piece in row if piece != (0,)] for row in rows], states

    rows, states = pieces()
    assert pieces(ranks=2, workers=3)[0] == rows
    middle = len(rows) // 2
    assert pieces(ranks=4, workers=1, state=states[middle])[0] == rows[middle + 1 :]
    with pytest.raises(StateError, match="packing"):
        run(corpus, state=states[middle])


@pytest.mark.parametrize("world", WORLDS[1::2], ids=str)
def test_every_world_has_the_same_global_batches(corpus, world):
    """Of any number of ranks and workers; the loaders are real ones, the workers threads."""
    expected, states = run(corpus)
    rows, others = run(corpus, *world)
    # Places without a pack, on ranks that have none at the end, are one token of padding.
    assert [[p for p in row if p != (0,)] for row in rows] == [
        [p for p in row if p != (0,)] for row in expected
    ]
    names = ("epoch", "sample_in_epoch", "cursor", "unit", "dataset", "order")
    assert [[s[n] for n in names] for s in others] == [[s[n] for n in names] for s in states]


def test_any_step_leads_on_in_any_other_world(corpus):
    """Nothing is lost and nothing comes twice, whatever world goes on."""
    expected, states = run(corpus)
    assert len(expected) > 8
    for step, state in enumerate(states[:-1]):
        world = WORLDS[(step * 5 + 3) % len(WORLDS)]
        rows, _ = run(corpus, *world, state=state)
        assert [[p for p in row if p != (0,)] for row in rows] == [
            [p for p in row if p != (0,)] for row in expected[step + 1 :]
        ]


@pytest.mark.slow
def test_many_stops_each_in_another_world(corpus):
    """One epoch after the other, a step or two at a time."""
    rng = np.random.default_rng(5)
    expected, stops = [], 0
    loader = StreamingDataLoader(make(corpus))
    while len(expected) < (400 if os.environ.get("MDS_FAULTS") == "long" else 60):
        expected += [sorted(packs_of(batch)) for batch in loader]
    state, seen = None, []
    while stops < (200 if os.environ.get("MDS_FAULTS") == "long" else 25):
        ranks, workers = WORLDS[int(rng.integers(len(WORLDS)))]
        rows, states = run(corpus, ranks, workers, state, steps=int(rng.integers(1, 3)))
        seen += rows
        if states:
            state = states[-1]
        else:  # the state was that of the end of an epoch
            state = StreamingDataLoader(make(corpus)), state
            loader, at = state
            loader.load_state_dict(at)
            assert list(loader) == []
            state = next(_after_next(loader, seen))
        stops += 1
    assert [[p for p in row if p != (0,)] for row in seen] == [
        [p for p in row if p != (0,)] for row in expected[: len(seen)]
    ]


def _after_next(loader, seen):
    for batch in loader:
        seen.append(sorted(packs_of(batch)))
        yield loader.state_dict()


def test_the_length_of_a_loader_is_that_of_the_epoch(corpus):
    """Steps of the epoch, with and without the last short one."""
    loader = StreamingDataLoader(make(corpus))
    short = StreamingDataLoader(make(corpus), drop_last=True)
    assert len(loader) == len(list(loader))
    assert len(loader) - 3 < len(short) == len(list(short)) < len(loader)  # two have empty places
    for ranks in (2, 8):
        counts = {
            len(list(StreamingDataLoader(make(corpus, (ranks, r)), drop_last=True)))
            for r in range(ranks)
        }
        assert counts == {len(short)}


@pytest.mark.parametrize("place", range(4))
def test_the_workers_of_a_node_know_what_all_of_them_read(corpus, place):
    """In this epoch and the next, document by document: what eviction goes by."""
    world, expected = World(2, 2, 2, place), []
    for epoch in (0, 1):
        for rank in (0, 1):
            for worker in (0, 1):
                dataset = make(corpus, topology=world, batch_size=6)
                packs = dataset._dataset_run.order.epoch_plan(epoch, world)
                ids = np.concatenate([*packs.blocks(world.node, rank, worker)])
                expected += [(epoch * EPOCH_TIME + at, i) for at, i in enumerate(ids.tolist())]
    dataset = make(corpus, topology=world, batch_size=6)
    order = NodeOrder(dataset._dataset_run.order.epoch_plan(0, world), dataset._shards)
    times, samples = map(np.concatenate, zip(*order.pieces(), strict=True))
    assert sorted(zip(times.tolist(), samples.tolist(), strict=True)) == sorted(expected)
    assert (np.diff(times) >= 0).all()
    other = make(corpus, topology=world, batch_size=6, packing=Packing(200, overflow="split"))
    assert (
        NodeOrder(other._dataset_run.order.epoch_plan(0, world), other._shards).team != order.team
    )


def test_packs_under_a_limit_know_when_shards_are_needed_next(corpus, tmp_path, monkeypatch):
    """Before the first batch eviction is told of all documents of the epoch and of the next one."""
    told = []

    class Listened(NodeOrder):
        """The order of a node, which notes what it is asked for."""

        def __init__(self, *given):
            super().__init__(*given)
            self.told = []
            told.append(self.told)

        def pieces(self):
            for piece in super().pieces():
                self.told.append(piece)
                yield piece

    monkeypatch.setattr("mds._iteration.node_order.NodeOrder", Listened)
    size = sum(path.stat().st_size for path in pathlib.Path(corpus).glob("shard*"))
    settings = {"shuffle": True, "shuffle_algo": "seekable", "num_canonical_nodes": 4,
                "shuffle_block_size": 60, "batch_size": 24,
                "packing": Packing(CAPACITY, overflow="split")}  # fmt: skip
    dataset = StreamingDataset(
        remote=corpus, local=str(tmp_path), cache_limit=size // 2, **settings
    )
    plain = StreamingDataLoader(StreamingDataset(local=corpus, **settings))
    loader, limited = StreamingDataLoader(dataset), []
    for epoch in range(3):
        for step, batch in enumerate(loader):
            limited.append(packs_of(batch))
            if not step:
                times, samples = map(np.concatenate, zip(*told[epoch], strict=True))
                for at in (epoch, epoch + 1):
                    of = (times >= at * EPOCH_TIME) & (times < (at + 1) * EPOCH_TIME)
                    assert {*samples[of].tolist()} == {*range(COUNT)}
                assert set(np.unique(times // EPOCH_TIME)) == {epoch, epoch + 1}
    assert len(told) == 3
    assert limited == [packs_of(batch) for _ in range(3) for batch in plain]


@pytest.mark.slow
def test_a_process_that_stands_still_keeps_nobody_from_counting(tmp_path):
    """Stopped while it counts, it still has the lock."""
    file = PackFile("1" * 32, np.array([1]), str(tmp_path))
    script = (
        "import sys, time\n"
        "from mds.storage._locks import lock_within\n"
        "lock = lock_within(sys.argv[1], 0x1111111, 0)\n"
        "print('locked', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"locked\n"
            holder.send_signal(signal.SIGSTOP)
            found = []
            waiter = threading.Thread(
                target=lambda: found.append(file.ensure(lambda: [np.array([7])])), daemon=True
            )
            waiter.start()
            waiter.join(60)
            assert [c.tolist() for counts in found for c in counts] == [[7]]
        finally:
            holder.kill()
