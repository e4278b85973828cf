"""torchdata's StatefulDataLoader: a run resumes exactly, or the state is refused."""

import itertools
import json
import pickle
import warnings

import pytest
import torch.distributed.checkpoint as dcp
from torch.utils.data import IterableDataset

from mds import Schedule, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, StateError
from tests.unit.loader import packed_helpers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    stateful = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="needs torchdata: pip install torchdata"
    )

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]
# A fixture.
corpus = packed_helpers.corpus


def stateful_loader(dataset, workers, batch_size=4, **options):
    """A stateful loader whose batches are lists of samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return stateful.StatefulDataLoader(
            dataset, batch_size=batch_size, num_workers=workers, collate_fn=list, **options
        )


def numbers_of(batch):
    """The numbers of the samples of a batch, or the tokens of its packs."""
    return [s["id"] if "id" in s else s["tokens"].tolist() for s in batch]


class Doubled(IterableDataset):
    """A wrapper with a state, as users write them."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        for sample in self.dataset:
            yield {"id": sample["id"] * 2}

    def state_dict(self):
        return {"inner": self.dataset.state_dict()}

    def load_state_dict(self, state):
        self.dataset.load_state_dict(state["inner"])


KINDS = {
    "samples": lambda make, corpus: StreamingDataset(local=make(), batch_size=4, shuffle=True),
    "filtered": lambda make, corpus: StreamingDataset(
        local=make(), batch_size=4, shuffle=True
    ).filter(lambda sample: sample["id"] % 5),
    "wrapped": lambda make, corpus: Doubled(
        StreamingDataset(local=make(), batch_size=4, shuffle=True)
    ),
    "scheduled": lambda make, corpus: StreamingDataset(
        {"a": make(), "b": make()},
        batch_size=4,
        shuffle=True,
        schedule=Schedule({0: {"a": 3, "b": 1}, 9: {"a": 1, "b": 3}}),
    ),
    "stratified": lambda make, corpus: StreamingDataset(
        {"a": make(), "b": make()}, batch_size=4, shuffle=True, batching_method="stratified"
    ),
    "packs": lambda make, corpus: packed_helpers.make(corpus, batch_size=4),
}


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": 2},
        {"workers": 3, "snapshot_every_n_steps": 4},
        {"workers": 2, "snapshot_every_n_steps": 3, "persistent_workers": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_resume_law_with_torchdata(make, corpus, kind, options):
    """After any batch of the second epoch, a new loader gives the rest and the third epoch."""

    def loader():
        return stateful_loader(KINDS[kind](make, corpus), **options)

    run = loader()
    epochs = [[numbers_of(batch) for batch in run] for _ in range(3)]
    run = loader()
    assert [numbers_of(batch) for batch in run] == epochs[0]
    for begin, stop in [(0, 0), (0, 1), (1, 4), (4, 11), (11, len(epochs[1]))]:
        # Each resumed run goes on to the next stop, and hands its state on.
        batches = iter(run)
        got = [numbers_of(next(batches)) for _ in range(stop - begin)]
        assert got == epochs[1][begin:stop]
        state = json.loads(json.dumps(run.state_dict()))
        run = loader()
        run.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert [numbers_of(batch) for batch in run] == []  # the end of the epoch was not seen
    assert [numbers_of(batch) for batch in run] == epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["samples", "wrapped", "packs"])
@pytest.mark.parametrize("when", ["before the first batch", "after the last one"])
def test_states_at_the_ends_with_torchdata(make, corpus, kind, workers, when):
    """An epoch that has not begun comes whole, and the next one after an epoch that has ended."""
    run = stateful_loader(KINDS[kind](make, corpus), workers)
    epochs = [[numbers_of(batch) for batch in run] for _ in range(3)]
    run = stateful_loader(KINDS[kind](make, corpus), workers)
    if when == "after the last one":
        assert len(list(run)) == len(epochs.pop(0))
    state = run.state_dict()
    run = stateful_loader(KINDS[kind](make, corpus), workers)
    run.load_state_dict(state)
    for expected in epochs[:2]:
        assert [numbers_of(batch) for batch in run] == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["samples", "wrapped", "packs"])
def test_a_distributed_checkpoint_keeps_the_state(make, corpus, kind, workers, tmp_path):
    """torch.distributed.checkpoint loads into the keys of the state of a fresh loader."""

    def run():
        return stateful_loader(KINDS[kind](make, corpus), workers)

    saved, loaded = run(), run()
    batches = iter(saved)
    for _ in range(5):
        next(batches)
    dcp.save({"loader": saved}, checkpoint_id=tmp_path)
    dcp.load({"loader": loaded}, checkpoint_id=tmp_path)
    assert [numbers_of(b) for b in loaded] == [numbers_of(b) for b in batches]


def steps_of(loaders):
    """The samples of each step of all ranks, sorted."""
    parts = [[numbers_of(batch) for batch in loader] for loader in loaders]
    return [sorted(itertools.chain(*batches)) for batches in zip(*parts, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "ranks", "batch_size"),
    [(0, 1, 4), (0, 4, 4), (0, 1, 8), (0, 4, 2), (2, 1, 8), (2, 4, 2), (3, 4, 2)],
)
@pytest.mark.parametrize("kind", ["samples", "stratified", "packs"])
def test_other_ranks_with_torchdata(make, corpus, kind, workers, ranks, batch_size):
    """The state of any rank leads to the same rest of the run on other ranks."""

    def loaders(world, size, state=None):
        for rank in range(world):
            options = {"topology": (rank, world), "batch_size": size}
            if kind == "packs":
                dataset = packed_helpers.make(corpus, **options)
            else:
                batching = "stratified" if kind == "stratified" else "random"
                options |= {"batching_method": batching, "shuffle": True}
                options |= {"shuffle_block_size": 64, "num_canonical_nodes": 2}
                dataset = StreamingDataset({"a": make(), "b": make()}, **options)
            loader = stateful_loader(dataset, workers, size)
            if state is not None:
                loader.load_state_dict(state)
            yield loader

    before = [*loaders(2, 4)]
    batches = [iter(loader) for loader in before]
    for _ in range(5):
        for iterator in batches:
            next(iterator)
    state = before[1].state_dict()
    rest = steps_of(batches)
    following = steps_of(before)
    if kind == "stratified" and ranks * batch_size != 2 * 4:
        with pytest.raises(StateError, match="does not fit this run"):
            steps_of(loaders(ranks, batch_size, state))
        return
    after = [*loaders(ranks, batch_size, state)]
    # The last step is filled up for the ranks. With packs, the last ones have empty places: packs
    # of padding on several ranks, which one rank passes over.
    full = next((i for i, step in enumerate(rest) if [0] in step), len(rest) - 1)
    assert full >= len(rest) - 4
    if ranks * batch_size == 2 * 4:
        found = steps_of(after)
        assert found[:full] == rest[:full]
        assert steps_of(after)[:full] == following[:full]
    else:
        found = steps_of(after)
        flat = [number for step in rest[:full] for number in step]
        got = [number for step in found for number in step]
        assert sorted(got[: len(flat) // 16 * 16]) == sorted(flat[: len(flat) // 16 * 16])
    if kind == "packs":
        packs = [
            sorted(pack for pack in itertools.chain(*steps) if pack != [0])
            for steps in (found, rest)
        ]
        assert packs[0] == packs[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "change", "message"),
    [
        ((2, 2), {"topology": (0, 4)}, "ranks 2 then and 4 now.*same global batch"),
        ((3, 2), {}, "workers 3 then and 2 now.*same num_workers.*StreamingDataLoader"),
        ((2, 2), {"epoch_size": 50}, "does not fit this run: dataset choose"),
        ((0, 0), {"shuffle": False}, "does not fit this run: order shuffle"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(make, workers, change, message):
    """A worker's state counts its own samples, which would be others in this run.

    Torchdata waits ten seconds for workers that raise an error when they begin.
    """

    def loader(number, **options):
        arguments = {"topology": (0, 2), "batch_size": 4, "shuffle": True, **options}
        dataset = StreamingDataset(local=make(), **arguments)
        dataset = Doubled(dataset) if workers == (3, 2) else dataset
        return stateful_loader(dataset, number, arguments["batch_size"])

    run = loader(workers[0])
    batches = iter(run)
    for _ in range(3):
        next(batches)
    other = loader(workers[1], **change)
    other.load_state_dict(run.state_dict())
    with pytest.raises(StateError, match=message):
        list(other)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_keeps_the_seed_and_the_edits(make, workers):
    """Of the state, in all epochs that follow."""

    def dataset(seed):
        return StreamingDataset(local=make(), batch_size=4, shuffle=True, shuffle_seed=seed)

    data = dataset(1)
    data.edits.replace_samples([5, 6, 7])
    data.edits.skip_steps(range(8, 10))
    run = stateful_loader(data, workers)
    batches = iter(run)
    for _ in range(5):
        next(batches)
    resumed = stateful_loader(dataset(2), workers)
    resumed.load_state_dict(run.state_dict())
    assert [numbers_of(b) for b in resumed] == [numbers_of(b) for b in batches]
    assert list(resumed.dataset.edits) == list(data.edits)
    assert [numbers_of(b) for b in resumed] == [numbers_of(b) for b in run]


def test_the_state_of_a_worker_is_no_state_of_all(make):
    """It is refused where the others are unknown."""
    data = StreamingDataset(local=make(), batch_size=4)
    run = stateful_loader(Doubled(data), 2)
    batches = iter(run)
    next(batches)
    state = run.state_dict()["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
    with pytest.raises(StateError, match=r"in a worker process.*StreamingDataLoader"):
        StreamingDataLoader(data).load_state_dict(state["inner"])


def test_ranks_have_no_state_inside_a_step_of_packs(corpus):
    """With a batch size of the loader that is not the dataset's."""
    run = stateful_loader(packed_helpers.make(corpus, (2, 0), batch_size=4), 0, 2)
    batches = iter(run)
    next(batches)
    with pytest.raises(ConfigError, match="no position is between its packs"):
        run.state_dict()


@pytest.mark.slow
def test_workers_have_no_state_in_a_step_that_they_share(corpus):
    """A dataset keeps the batches of a step that another loader was given."""

    def loader(workers):
        data = packed_helpers.make(corpus, batch_size=4)
        StreamingDataLoader(data, microbatches=2)
        return stateful_loader(data, workers)

    expected = [numbers_of(batch) for batch in loader(0)]
    run, resumed = loader(0), loader(0)
    batches = iter(run)
    got = [numbers_of(next(batches)) for _ in range(3)]  # one step, and half of the next
    resumed.load_state_dict(run.state_dict())
    assert got + [numbers_of(batch) for batch in resumed] == expected
    with pytest.raises(ConfigError, match="with microbatches=2 has no position,"):
        iter(loader(2))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("path", [(2, 2), (2, 1), (2, 4)], ids=str)
def test_a_filtered_state_of_another_rank_is_refused(make, workers, path):
    """Ranks took different numbers of samples, so a state is exact on its own rank alone."""
    place = make()

    def loaders(ranks):
        return [
            stateful_loader(
                StreamingDataset(
                    local=place, batch_size=8 // ranks, shuffle=True, topology=(rank, ranks)
                ).filter(lambda sample: sample["id"] % 7 != 3),
                workers,
                batch_size=8 // ranks,
            )
            for rank in range(ranks)
        ]

    before = loaders(path[0])
    iterators = [iter(loader) for loader in before]
    seen = [n for each in iterators for _ in range(3) for n in numbers_of(next(each))]
    states = [loader.state_dict() for loader in before]
    *_, last = loaders(path[1])
    last.load_state_dict(states[path[1] == 1])  # of a single rank, that of the other rank
    with pytest.raises(StateError, match="behind a filter"):
        next(iter(last))
    own = loaders(path[0])
    for loader, state in zip(own, states, strict=True):
        loader.load_state_dict(state)
    seen += [n for loader in own for batch in loader for n in numbers_of(batch)]
    samples = len(StreamingDataset(local=place, batch_size=1))
    assert {*seen} == {n for n in range(samples) if n % 7 != 3}
