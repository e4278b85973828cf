"""Tars, lines and plain files: the order, the samples and the states of their copy in MDS."""

import random

import numpy as np
import pytest
from file_kinds import KINDS, name_of

from mds import StreamingDataLoader, StreamingDataset
from mds.storage._memory import MemoryStore
from mds.writers.convert import convert


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__[6:])
def trio(request, tmp_path_factory):
    """Files on this disk, the same far away, and their copy in MDS."""
    root = tmp_path_factory.mktemp("trio")
    (root / "files").mkdir()
    kind = request.param(root / "files")
    convert(str(root / "files"), str(root / "copy"), format=kind, keep_shards=True)
    store = MemoryStore(f"memory://{root.name}")
    for path in (root / "files").iterdir():
        store.put(path.name, path.read_bytes())
    near = {"remote": str(root / "files"), "local": str(root / "near"), "format": kind}
    far = {"remote": store.url, "local": str(root / "far"), "format": kind}
    return {"near": near, "far": far, "copy": {"local": str(root / "copy")}}


def same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert type(value) is type(other[name])
        assert np.array_equal(np.asarray(value), np.asarray(other[name]))


def test_samples_are_those_of_the_copy(trio):
    """Shard by shard as many, sample by sample the same values and types, one by one and many."""
    near, far, copy = (StreamingDataset(**place, batch_size=4) for place in trio.values())
    assert near.samples_per_shard.tolist() == copy.samples_per_shard.tolist()
    assert far.samples_per_shard.tolist() == copy.samples_per_shard.tolist()
    assert len(copy.samples_per_shard) >= 5
    for number, (a, b, c) in enumerate(zip(near, far, copy, strict=True)):
        assert name_of(a) == number
        same(a, c)
        same(b, c)
    for number in (7, -1, 0, 40):
        same(near[number], copy[number])
        same(far[number], copy[number])


@pytest.mark.filterwarnings("ignore:Shuffle block size was smaller")
@pytest.mark.parametrize("algo", ["py1e", "py1br", "py1s", "py2s", "naive", "seekable"])
def test_the_order_is_that_of_the_copy(trio, algo):
    """Epoch by epoch the same samples in the same places, with and without a limit."""
    for nodes, seed, block, size in ((1, 1, 20, None), (4, 7, 50, 60), (2, 9, 31, 300)):
        found = []
        for place in trio.values():
            dataset = StreamingDataset(
                **place, batch_size=4, shuffle=True, shuffle_algo=algo, shuffle_seed=seed,
                num_canonical_nodes=nodes, shuffle_block_size=block, epoch_size=size,
            )  # fmt: skip
            found.append([[name_of(sample) for sample in dataset] for _ in range(2)])
        assert found[0] == found[1] == found[2]


def test_a_limit_holds_and_changes_nothing(trio, tmp_path):
    """Under a limit of a part of what is decoded the samples are the same ones."""
    whole = StreamingDataset(**trio["copy"], batch_size=4, shuffle=True, shuffle_seed=3)
    place = {**trio["far"], "local": str(tmp_path / "few")}
    some = StreamingDataset(**place, batch_size=4, shuffle=True, shuffle_seed=3, cache_limit="6mb")
    for _ in range(2):
        assert [name_of(s) for s in some] == [name_of(s) for s in whole]
    assert some.stats()["used_bytes"] <= 6 << 20


def run(place, world, state, steps, **settings):
    """What the ranks of a world get, step by step, from a state on; and the state then."""
    loaders = []
    for rank in range(world):
        dataset = StreamingDataset(**place, topology=(rank, world), **settings)
        loader = StreamingDataLoader(dataset, batch_size=settings["batch_size"])
        if state is not None:
            loader.load_state_dict(state)
        loaders.append(loader)
    out, iterators = [], [iter(loader) for loader in loaders]
    for _ in range(steps):
        batches = [next(iterator, None) for iterator in iterators]
        if batches[0] is None:
            break
        names = [batch["cls"].tolist() if "cls" in batch else batch["text"] for batch in batches]
        out.append(sorted(int(each) for some in names for each in some))
    return out, loaders[0].state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("begin", ["near", "far", "copy"])
def test_states_go_across_at_every_step_and_in_other_worlds(trio, begin):
    """A run that stops at any step goes on from other data with what is left."""
    settings = {"shuffle": True, "shuffle_seed": 4, "num_canonical_nodes": 2, "batch_size": 4}
    whole, _ = run(trio[begin], 2, None, 1000, **settings)
    rng = random.Random(2)
    for step in range(1, len(whole)):
        head, state = run(trio[begin], 2, None, step, **settings)
        assert head == whole[:step]
        other = trio[rng.choice(sorted(trio.keys() - {begin}))]
        rest, _ = run(other, 2, state, 1000, **settings)
        assert rest == whole[step:]
        ranks = rng.choice((1, 4))
        rest, _ = run(other, ranks, state, 1000, **{**settings, "batch_size": 8 // ranks})
        assert rest[:-1] == whole[step : step + len(rest) - 1]
