"""StreamingDataLoader: batches as torch makes them, counted exactly, in processes and threads."""

import itertools
import json
import threading
from typing import ClassVar

import pytest
from torch.utils.data import DataLoader

from mds import StreamingDataLoader, StreamingDataset
from tests.unit.loader.dataloader_helpers import HOWS, Mine, by_stream, read


def test_threads_and_processes_give_the_same_batches_and_states(make):
    """Order, position and length do not depend on the kind of worker."""
    found = []
    for how in ("processes", "threads"):
        dataset = StreamingDataset(local=make(), batch_size=8, shuffle=True)
        loader = StreamingDataLoader(dataset, num_workers=2, worker_type=how)
        run = []
        for _ in range(2):
            for batch in loader:
                run.append((batch["id"].tolist(), loader.state_dict()["sample_in_epoch"]))
        found.append(run)
    assert found[0] == found[1]


def test_a_plain_torch_loader_counts_epochs_too(make):
    """Fresh and persistent workers: every epoch whole, each in another order."""
    for options in (
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
    ):
        dataset = StreamingDataset(local=make(), batch_size=4, shuffle=True)
        loader = DataLoader(dataset, batch_size=4, collate_fn=list, **options)
        epochs = [[s["id"] for batch in loader for s in batch] for _ in range(3)]
        assert all(sorted(e) == list(range(100)) for e in epochs)
        assert epochs[0] != epochs[1] != epochs[2]
        assert dataset.next_epoch == 3


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
def test_resume_law_of_the_loader(make, how):
    """From the state after any batch, into another way of loading, the tail is the same samples."""

    def fresh(**options):
        dataset = StreamingDataset(local=make(), batch_size=8, shuffle=True)
        return StreamingDataLoader(dataset, **options)

    loader = fresh(**HOWS[how])
    whole = [i for batch in loader for i in batch["id"].tolist()]
    following = read(loader)
    loader = fresh(**HOWS[how])
    states = []
    for batch in loader:
        states.append(loader.state_dict())
    for other in HOWS.values():
        for step in (0, 5, len(states) - 2):
            resumed = fresh(**other)
            resumed.load_state_dict(states[step])
            tail = [i for batch in resumed for i in batch["id"].tolist()]
            assert sorted(tail) == sorted(whole[8 * (step + 1) :])
            assert sorted(i for b in read(resumed) for i in b) == sorted(
                i for b in following for i in b
            )


class Noted(StreamingDataset):
    """Notes in which thread, and by which copy of the dataset, a sample was made."""

    made: ClassVar = []

    def get_item(self, sample_id, retry=7):
        sample = super().get_item(sample_id)
        self.last = sample["id"]
        self.made.append((threading.get_ident(), id(self)))
        assert self.last == sample["id"]
        return {**sample, "twice": 2 * sample["id"]}


@pytest.mark.parametrize("collate", [None, lambda samples: [s["twice"] for s in samples]])
def test_the_callers_code_runs_in_threads_on_the_callers_word(make, collate):
    """Each thread has a copy of the dataset; batches and states are those of processes."""
    runs = []
    for how in ("processes", "threads"):
        dataset = Noted(local=make(), batch_size=4, shuffle=True, num_canonical_nodes=1)
        loader = StreamingDataLoader(dataset, num_workers=2, worker_type=how, collate_fn=collate)
        Noted.made.clear()
        runs.append([(str(batch), loader.state_dict()) for _ in range(2) for batch in loader])
        assert f"2 {how}" in repr(loader)
    assert runs[0] == runs[1]
    assert len(Noted.made) == 200
    assert len({copy for _, copy in Noted.made[:100]}) == 2
    assert len({thread for thread, _ in Noted.made[:100]}) == 2
    assert id(dataset) not in {copy for _, copy in Noted.made}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [StreamingDataset, Mine])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("samples", [100, 30, 3])
def test_exact_with_a_mask_gives_every_rank_as_many_full_batches(make, kind, workers, samples):
    """Each sample counts once over all ranks; the rest is told apart by the mask."""
    counted, steps = [], set()
    for rank in range(3):
        dataset = kind(
            local=make(samples=samples), batch_size=4, remainder="mask", topology=(rank, 3)
        )
        loader = StreamingDataLoader(dataset, num_workers=workers)
        batches = list(loader)
        assert len(loader) == len(batches)
        steps.add(len(batches))
        for batch in batches:
            assert len(batch["id"]) == len(batch["mask"]) == 4
            counted += batch["id"][batch["mask"]].tolist()
    assert len(steps) == 1
    assert sorted(counted) == list(range(samples))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_in_one_message_come_out_one_by_one(make, workers, drop_last):
    """Fixed columns travel several batches together; nobody can tell from what comes out."""
    columns = {"id": "int", "text": "str", "vector": "ndarray:float32:4"}
    data = make(samples=997, columns=columns)

    def run(**options):
        dataset = StreamingDataset(local=data, batch_size=8, shuffle=True, num_canonical_nodes=1)
        loader = StreamingDataLoader(dataset, drop_last=drop_last, **options)
        return [
            (b["id"].tolist(), b["text"], b["vector"].tolist(), loader.state_dict()) for b in loader
        ]

    together = run(num_workers=workers, worker_type="processes")
    assert together == run(num_workers=workers, worker_type="threads")
    if workers == 1:
        assert together == run(num_workers=0)


def global_batches(loaders):
    """The ids of each step of a world, which the ranks share in any way."""
    return [sorted(itertools.chain(*step)) for step in zip(*map(read, loaders), strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
def test_the_steps_of_an_epoch_are_the_batches_that_come(make, method, ranks, drop_last, workers):
    """It is that of a whole epoch, whatever the method leaves out, and stays after a resume."""
    options = {"num_workers": workers, "worker_type": "threads" if workers else "auto"}
    options["drop_last"] = drop_last
    for rank in range(ranks):
        loader = by_stream(make, method, rank, ranks, **options)
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
        count = 2 + sum(1 for _ in batches)
        assert loader.steps_per_epoch == count
        resumed = by_stream(make, method, rank, ranks, **options)
        resumed.load_state_dict(state)
        assert resumed.steps_per_epoch == 2 + len(read(resumed)) == len(read(resumed)) == count


def test_the_steps_follow_arguments_that_change_batches(make):
    """Another batch size in the loader, uneven ranks and single samples are counted."""
    where = make(samples=150)
    for rank in range(4):
        settings = {"local": where, "topology": (rank, 4), "shuffle": True, "shuffle_algo": "py1s"}
        for remainder in ("short", "repeat"):
            for size in (3, 5, None):
                dataset = StreamingDataset(batch_size=3, remainder=remainder, **settings)
                loader = StreamingDataLoader(dataset, batch_size=size)
                assert loader.steps_per_epoch == sum(1 for _ in loader)
                if remainder == "short":
                    assert len(loader) == loader.steps_per_epoch


@pytest.mark.slow
@pytest.mark.parametrize("method", ["stratified", "per_stream"])
def test_batches_by_stream_resume_on_other_ranks(make, method):
    """A run keeps its global batches on any ranks, in later epochs and resumes too."""

    def world(ranks, state):
        loaders = [by_stream(make, method, rank, ranks) for rank in range(ranks)]
        for loader in loaders:
            loader.load_state_dict(state)
        return loaders

    worlds, lengths = (1, 4, 6), set()
    for ranks in worlds:
        loader = by_stream(make, method, 0, ranks)
        lengths.add(loader.steps_per_epoch)
        next(iter(loader))
        first = json.loads(json.dumps(loader.state_dict()))
        undisturbed = world(ranks, first)
        rest, later = global_batches(undisturbed), global_batches(undisturbed)
        for others in worlds:
            loaders = world(others, first)
            assert loaders[0].steps_per_epoch == loader.steps_per_epoch
            iterators = [*map(iter, loaders)]
            step = [next(each) for each in iterators]
            assert sorted(itertools.chain(*(each["id"].tolist() for each in step))) == rest[0]
            second = json.loads(json.dumps(loaders[-1].state_dict()))
            for last in worlds:
                loaders = world(last, second)
                assert global_batches(loaders) == rest[1:]
                assert global_batches(loaders) == later
    assert len(lengths) > 1  # the padding makes a difference


@pytest.mark.slow
@pytest.mark.parametrize("method", ["stratified", "per_stream"])
def test_batches_by_stream_resume_inside_a_batch(make, method):
    """Loops over samples may stop anywhere, in one world after the other."""

    def read_samples(rank, ranks, state, count=None):
        dataset = by_stream(make, method, rank, ranks).dataset
        if state is not None:
            dataset.load_state_dict(state)
        numbers = [sample["id"] for sample in itertools.islice(dataset, count)]
        return numbers, dataset.state_dict()

    for first, *others in itertools.permutations((1, 2, 4, 6), 3):
        whole = [n for rank in range(first) for n in read_samples(rank, first, None)[0]]
        seen, state = [], None
        for ranks, count in ((first, 1), (others[0], 2), (others[1], None)):
            parts = [read_samples(rank, ranks, state, count) for rank in range(ranks)]
            seen += [number for numbers, _ in parts for number in numbers]
            state = parts[0][1]
        assert sorted(seen) == sorted(whole)
