"""Steps of the optimizer of several batches: their samples, the state, edits, and refusals."""

import itertools
import json
import pickle

import numpy as np
import pytest
from torch.utils.data import IterableDataset

from mds import (
    LocalDataset,
    MDSWriter,
    Packing,
    RunHistory,
    Schedule,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from mds.errors import ConfigError, StateError
from tests.unit.loader.dataloader_helpers import HOWS, read
from tests.unit.loader.packed_helpers import corpus
from tests.unit.loader.packed_helpers import make as make_packed

__all__ = ["corpus"]

GLOBAL_BATCH = 12


def make_loader(place, parts=1, ranks=1, rank=0, *, how="here", drop_last=False, **order):
    """The loader of a rank, with a global batch of `GLOBAL_BATCH` samples."""
    size = order.pop("batch_size", GLOBAL_BATCH // (ranks * parts))
    dataset = StreamingDataset(
        place, batch_size=size, shuffle=True, topology=(rank, ranks), **order
    )
    return StreamingDataLoader(dataset, microbatches=parts, drop_last=drop_last, **HOWS[how])


def steps_of(loader):
    """The ids of each step of a rank."""
    batches, parts = read(loader), loader.microbatches
    groups = [batches[i : i + parts] for i in range(0, len(batches), parts)]
    return [[*itertools.chain(*group)] for group in groups]


def position_of(state):
    """A state without the hash, which is about one rank and one iteration."""
    return {**state, "order_hash": ""}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_the_batches_of_a_step_are_one_batch_cut(how, parts, make):
    """In the same order, with any kind of workers, in the last step too."""
    folder = make(samples=103)
    loader = make_loader(folder, parts, how=how)
    batches = read(loader)
    whole = read(make_loader(folder))
    assert [*itertools.chain(*batches)] == [*itertools.chain(*whole)]
    assert {len(batch) for batch in batches[:-1]} == {GLOBAL_BATCH // parts}
    assert steps_of(loader) != whole  # the next epoch has its own order
    assert len(loader) == len(batches)
    assert loader.steps_per_epoch == len(whole)


@pytest.mark.parametrize("how", HOWS)
def test_a_state_in_a_step_is_that_of_its_beginning(how, make):
    """Samples whose gradients were not applied come again."""
    folder = make(samples=103)
    whole = read(make_loader(folder))
    loader = make_loader(folder, 3, how=how)
    last = None
    for number, _ in enumerate(loader, 1):
        state, is_end = loader.state_dict(), number % 3 == 0 or number == len(loader)
        if is_end:
            assert position_of(state) == position_of(loader.dataset.state_dict())
            last = state
        elif number > 3:
            assert state == last
        else:
            assert state["sample_in_epoch"] == 0
            assert state["order_hash"] == ""
        resumed = make_loader(folder, 2, 2, how="here")
        resumed.load_state_dict(json.loads(json.dumps(state)))
        step = state["sample_in_epoch"] // GLOBAL_BATCH
        assert state["sample_in_epoch"] in {step * GLOBAL_BATCH, 103}
        if state["sample_in_epoch"] < 103 - GLOBAL_BATCH:
            first = steps_of(resumed)[0]
            assert sorted(first) == sorted(whole[step][::2])
    assert state["sample_in_epoch"] == 103


def test_the_hash_of_a_state_is_that_of_whole_steps(make):
    """As with one batch; that of the loader has all samples that came."""
    folder = make(samples=103)
    whole, divided = make_loader(folder), make_loader(folder, 3)
    batches = iter(divided)
    for number, _ in enumerate(whole):
        for _ in range(3 if number < 8 else 2):  # the last step has 7 samples
            next(batches)
        assert divided.state_dict() == whole.state_dict()
        assert divided.order_hash == whole.order_hash
    next(iter(divided))
    assert divided.order_hash.count == 4
    assert divided.num_samples_yielded == 4


def test_a_state_after_the_loop_begins_the_next_epoch(make):
    """Also if the last step had fewer batches."""
    folder = make(samples=103)
    loader = make_loader(folder, 4)
    read(loader)
    state = loader.state_dict()
    assert state["finished"]
    resumed = make_loader(folder)
    resumed.load_state_dict(state)
    assert read(resumed) == steps_of(loader)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_with_fewer_samples_save_the_same_state(ranks, make):
    """With remainder="short", ranks may have another number of batches in the last step."""
    for samples in range(96, 110):
        for parts in (1, 2):
            loaders = [
                make_loader(make(samples=samples), parts, ranks, rank, remainder="short")
                for rank in range(ranks)
            ]
            for _ in itertools.zip_longest(*loaders):
                states = [position_of(loader.state_dict()) for loader in loaders]
                assert states == states[:1] * ranks
            assert loaders[0].state_dict()["finished"]


@pytest.mark.parametrize("how", HOWS)
def test_drop_last_leaves_out_the_last_step(how, make):
    """As a whole, so the number of batches is a multiple of the parts."""
    for samples in (95, 96, 103, 107, 5):
        folder = make(samples=samples)
        loader = make_loader(folder, 3, how=how, drop_last=True)
        if samples < GLOBAL_BATCH:
            with pytest.raises(ConfigError, match=r"no step of .* Give drop_last=False"):
                steps_of(loader)
            continue
        expected = read(make_loader(folder, drop_last=True))
        assert steps_of(loader) == expected
        assert len(loader) == 3 * len(expected)
        assert loader.steps_per_epoch == len(expected)
        assert loader.state_dict()["finished"]


def test_drop_last_after_a_resume_and_skipped_steps(make):
    """What remains is counted from the position on."""
    folder = make(samples=103)
    loader = make_loader(folder, 3, drop_last=True)
    loader.load_state_dict(make_loader(folder).dataset.state_dict(num_samples=24))
    batches = iter(loader)
    next(batches)
    loader.dataset.edits.skip_steps(range(4, 6))
    assert len([*batches]) == 3 * (8 - 2 - 2) - 1


@pytest.mark.parametrize("remainder", ["mask", "short"])
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("ranks", "parts"), [(1, 1), (2, 1), (4, 3)])
def test_drop_last_leaves_out_an_incomplete_step_on_all_ranks(how, ranks, parts, remainder, make):
    """Also on those ranks whose own batches of the step are full."""
    for samples in (95, 96, 103, 107, 5):
        folder = make(samples=samples)
        ids = []
        for rank in range(ranks):
            loader = make_loader(
                folder, parts, ranks, rank, how=how, drop_last=True, remainder=remainder
            )
            if samples < GLOBAL_BATCH:
                with pytest.raises(ConfigError, match=r"no step of .* Give drop_last=False"):
                    next(iter(loader))
                continue
            batches = [*loader]
            assert all(batch["mask"].all() for batch in batches if remainder == "mask")
            steps = samples // GLOBAL_BATCH
            assert len(loader) == len(batches) == steps * parts
            assert loader.steps_per_epoch == steps
            assert loader.state_dict()["finished"]
            ids += [id_ for batch in batches for id_ in batch["id"].tolist()]
        assert len(ids) == len(set(ids)) == samples // GLOBAL_BATCH * GLOBAL_BATCH


@pytest.mark.parametrize("remainder", ["mask", "short"])
def test_drop_last_counts_complete_steps_from_the_position(remainder, make):
    """After a resume, with skipped steps and with a schedule, which has no padding."""
    folder = make(samples=103)
    loader = make_loader(folder, drop_last=True, remainder=remainder)
    batches = iter(loader)
    next(batches), next(batches)
    resumed = make_loader(folder, drop_last=True, remainder=remainder)
    resumed.load_state_dict(loader.state_dict())
    batches = iter(resumed)
    next(batches)
    resumed.dataset.edits.skip_steps(range(4, 6))
    assert len([*batches]) == 8 - 3 - 2
    scheduled = make_loader(
        None, drop_last=True, remainder=remainder,
        streams={"a": folder, "b": folder}, schedule=Schedule({0: {"a": 1, "b": 2}}),
    )  # fmt: skip
    assert len([*scheduled]) == scheduled.steps_per_epoch > 8


def test_masks_fill_up_the_last_step(make):
    """Every step has all of its batches, and each sample comes once."""
    folder = make(samples=100)
    loaders = [make_loader(folder, 2, 2, rank, remainder="mask") for rank in range(2)]
    ids = []
    for loader in loaders:
        batches = [*loader]
        assert len(batches) == len(loader) == 18
        assert {len(batch["id"]) for batch in batches} == {3}
        ids += [*itertools.chain(*(batch["id"][batch["mask"]].tolist() for batch in batches))]
    assert sorted(ids) == [*range(100)]


METHODS = [
    {"batching_method": "stratified"},
    {"batching_method": "per_stream"},
    {"schedule": Schedule({0: {"a": 1, "b": 1, "c": 2}, 9: {"a": 4, "b": 1, "c": 1}})},
]


@pytest.mark.parametrize("order", METHODS, ids=["stratified", "per_stream", "schedule"])
def test_steps_by_stream_are_those_of_the_global_batch(order, make):
    """Ranks and parts may change; another global batch is refused, and the reason is named."""
    streams = {
        name: Stream(local=make(samples=count, first=first), proportion=share)
        for name, first, count, share in (
            ("a", 0, 37, None if "schedule" in order else 1),
            ("b", 100, 52, None if "schedule" in order else 1),
            ("c", 200, 124, None if "schedule" in order else 2),
        )
    }
    undivided = [read(make_loader(streams, 1, 2, rank, **order)) for rank in range(2)]
    whole = [[*itertools.chain(*batches)] for batches in zip(*undivided, strict=True)]
    loaders = [make_loader(streams, 3, 2, rank, **order) for rank in range(2)]
    batches = [iter(loader) for loader in loaders]
    for step in whole[:5]:
        ids = [i for each in batches for _ in range(3) for i in next(each)["id"].tolist()]
        assert sorted(ids) == sorted(step)
    next(batches[0])
    state = loaders[0].state_dict()
    resumed = make_loader(streams, 4, **order)
    resumed.load_state_dict(state)
    assert [*map(sorted, steps_of(resumed))] == [*map(sorted, whole[5:])]
    other = make_loader(streams, batch_size=GLOBAL_BATCH // 4, **order)
    with pytest.raises(StateError, match=r"global_batch_size was 12 and is 3 .*microbatches of"):
        other.load_state_dict(state)


def test_edits_in_the_middle_of_a_step_hold_from_the_next_one(make):
    """Batches of the step that came already cannot change, and the others go with them."""
    folder = make(samples=103)
    whole = read(make_loader(folder))
    for how, came in itertools.product(HOWS, range(1, 7)):
        loader = make_loader(folder, 3, how=how)
        batches, ids = iter(loader), []
        for _ in range(came):
            ids += next(batches)["id"].tolist()
        begun = -(-came // 3)
        loader.dataset.edits.replace_samples([whole[begun - 1][-1], whole[begun][0]], "bad")
        with pytest.raises(ConfigError, match=f"from {begun} can be skipped"):
            loader.dataset.edits.skip_steps(range(begun - 1, begun + 1))
        loader.dataset.edits.skip_steps(range(begun + 1, begun + 2))
        assert loader.dataset.edits[0].startswith(f"from step {begun}: 2 samples replaced")
        state = loader.state_dict()
        ids += [i for batch in batches for i in batch["id"].tolist()]
        expected = [*whole]
        del expected[begun + 1]
        assert len(ids) == sum(map(len, expected))
        changed = [(a, b) for a, b in zip(ids, itertools.chain(*expected), strict=True) if a != b]
        assert [b for _, b in changed] == [whole[begun][0]]
        # A resume repeats the step that had begun, and then has the same order.
        resumed = make_loader(folder, 4)
        resumed.load_state_dict(state)
        first = came // 3 * GLOBAL_BATCH
        assert [*itertools.chain(*read(resumed))] == ids[first:]


def test_a_run_history_counts_steps_of_the_optimizer(make):
    """``mds run step`` shows the samples of all batches of a step."""
    folder = make(samples=103)
    loaders = [make_loader(folder, 2, 2, rank) for rank in range(2)]
    batches = [iter(loader) for loader in loaders]
    steps = [
        [[*itertools.chain(*(next(each)["id"].tolist() for _ in range(2)))] for each in batches]
        for _ in range(3)
    ]
    next(batches[0])
    history = RunHistory(loaders[0].state_dict())
    assert history.position == (0, 3)
    assert history.steps_per_epoch == loaders[0].steps_per_epoch
    for number, ranks in enumerate(steps):
        rows = history.step(number)
        assert [[row.sample for row in rows if row.rank == rank] for rank in range(2)] == ranks
    assert history.diff(make_loader(folder).state_dict()).step is None


class Doubled(IterableDataset):
    """A class that iterates over a dataset by itself."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        for sample in self.dataset:
            yield {"id": sample["id"] * 2}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_class_that_iterates_gets_the_same_samples(workers, make):
    """Its batches are cut of the same order."""
    folder = make(samples=103)
    dataset = StreamingDataset(folder, batch_size=4, shuffle=True)
    loader = StreamingDataLoader(Doubled(dataset), microbatches=3, num_workers=workers)
    whole = [[2 * i for i in ids] for ids in read(make_loader(folder))]
    assert [*itertools.chain(*read(loader))] == [*itertools.chain(*whole)]
    for number, _ in enumerate(loader):
        if number == 4:
            break
    assert loader.state_dict()["sample_in_epoch"] == GLOBAL_BATCH


def test_functions_draw_the_same_random_numbers(make):
    """Their keys are the places of samples, which the parts do not change."""

    def draw(sample, rng):
        return {"id": sample["id"], "number": int(rng.integers(1 << 40))}

    def numbers(parts, how):
        dataset = StreamingDataset(make(samples=103), batch_size=12 // parts, shuffle=True)
        loader = StreamingDataLoader(dataset.map(draw), microbatches=parts, **HOWS[how])
        return [row for batch in loader for row in batch["number"].tolist()]

    assert numbers(1, "here") == numbers(3, "threads") == numbers(4, "here")


def test_the_size_of_a_batch_may_come_from_the_loader(make):
    """It counts the samples that arrive, in both places."""
    dataset = StreamingDataset(make(samples=100))
    loader = StreamingDataLoader(dataset, batch_size=4, microbatches=np.int64(3))
    assert (dataset.batch_size, loader.batch_size, loader.microbatches) == (4, 4, 3)
    assert "batches of 4, 3 in a step, by no workers" in repr(loader)
    assert "samples times 3 microbatches for each rank; 12 for all ranks" in dataset.explain()
    assert loader.steps_per_epoch == 9
    assert len(next(iter(pickle.loads(pickle.dumps(loader))))["id"]) == 4


@pytest.mark.parametrize("method", ["map", "filter", "map_batches"])
def test_a_loader_of_functions_can_be_pickled(make, method):
    """Although their dataset has a class that no module has; the copy goes on where it was."""
    dataset = getattr(StreamingDataset(make(samples=100), batch_size=4), method)(dict)
    loader = StreamingDataLoader(dataset)
    next(iter(loader))
    copied = pickle.loads(pickle.dumps(loader))
    assert copied.state_dict() == loader.state_dict()
    assert [b["id"].tolist() for b in copied] == [b["id"].tolist() for b in loader]
    assert copied.state_dict() == loader.state_dict()


def test_what_cannot_be_divided_is_refused(make, tmp_path):
    """With the way out."""
    folder = make(samples=100)
    dataset = StreamingDataset(folder, batch_size=12)
    with pytest.raises(
        ConfigError,
        match=r"microbatches=3: batch_size is 4 for the loader but 12 for the dataset.*one of the "
        r"3 batches of a step, so it must be 4 for both, or be given to only one",
    ):
        StreamingDataLoader(dataset, batch_size=4, microbatches=3)
    with pytest.raises(ConfigError, match="batch_size=None makes single samples"):
        StreamingDataLoader(StreamingDataset(folder), batch_size=None, microbatches=3)
    with pytest.raises(ConfigError, match=r"reads a mds.*LocalDataset. Leave it out"):
        StreamingDataLoader(LocalDataset(folder), batch_size=4, microbatches=3)
    for count in (0, -1, 1.5, True, "2"):
        with pytest.raises(ConfigError, match="microbatches"):
            StreamingDataLoader(dataset, microbatches=count)
    loader = StreamingDataLoader(dataset, microbatches=2)
    with pytest.raises(AttributeError, match="microbatches is fixed when"):
        loader.microbatches = 3
    dataset.batch_size = 6
    with pytest.raises(ConfigError, match="batch_size is 12 for the loader but 6 for the dataset"):
        iter(loader)


def test_a_dataset_has_one_number_of_parts(make):
    """The loader that was made last sets it; an earlier one with another number says so."""
    dataset = StreamingDataset(make(samples=100), batch_size=4)
    first, state = StreamingDataLoader(dataset, microbatches=3), dataset.state_dict()
    second = StreamingDataLoader(dataset)
    assert read(second)
    for use in (first.state_dict, lambda: first.load_state_dict(state), lambda: iter(first)):
        with pytest.raises(ConfigError, match="has divided the steps of this dataset into 1"):
            use()
    assert read(StreamingDataLoader(dataset, microbatches=3))


def packed_loader(corpus, parts, ranks, rank, how="here", **settings):
    """The loader of a rank, with a global batch of 24 packs."""
    dataset = make_packed(corpus, (ranks, rank), batch_size=24 // (ranks * parts), **settings)
    return StreamingDataLoader(dataset, microbatches=parts, **HOWS[how])


def documents_of(batches):
    """The documents of batches, in their order; padding is left out."""
    return [
        tuple(batch["tokens"][a:b].tolist())
        for batch in batches
        for a, b in itertools.pairwise(batch["cu_seqlens"].tolist())
        if batch["tokens"][a:b].any()
    ]


@pytest.mark.parametrize("how", HOWS)
def test_packs_are_divided_too(how, corpus):
    """Each step has all of its batches; a state in its middle is that of its beginning."""
    whole = [documents_of([batch]) for batch in packed_loader(corpus, 1, 1, 0)]
    loader = packed_loader(corpus, 3, 1, 0, how)
    states, steps, part = [loader.state_dict()], [], []
    for batch in loader:
        part.append(batch)
        state = loader.state_dict()
        if len(part) < 3:
            assert state == {**states[-1], "epoch": 0}
        else:
            states.append(state)
            steps.append(documents_of(part))
            part = []
    assert (steps, part) == (whole, [])
    assert len(loader) == 3 * len(whole) == 3 * loader.steps_per_epoch
    for done in (1, len(whole) - 2):
        resumed = [packed_loader(corpus, 2, 2, rank) for rank in range(2)]
        for each in resumed:
            each.load_state_dict(states[done])
        for number, batches in enumerate(zip(*resumed, strict=True)):
            part += batches
            if number % 2:
                assert sorted(documents_of(part)) == sorted(whole[done + number // 2])
                part = []


def test_single_packs_have_a_position(corpus):
    """A loop over the dataset itself, after a loader has divided its steps."""
    dataset = packed_loader(corpus, 3, 1, 0).dataset
    packs = [pack["tokens"].tolist() for pack in dataset]
    dataset = packed_loader(corpus, 3, 1, 0).dataset
    for number, _ in enumerate(dataset, 1):
        if number in {1, 7, 8, 9, 16, 24, 25, len(packs) - 1}:
            resumed = packed_loader(corpus, 3, 1, 0).dataset
            resumed.load_state_dict(dataset.state_dict())
            assert [pack["tokens"].tolist() for pack in resumed] == packs[number:]


def test_drop_last_of_packs_leaves_out_the_whole_step(corpus):
    """All ranks leave out the same: the steps with an empty place, which come last."""
    dataset = make_packed(corpus, batch_size=8)
    loader = StreamingDataLoader(dataset, microbatches=3, drop_last=True)
    assert len([*loader]) == len(loader) == 3 * loader.steps_per_epoch
    rows = [
        batch["document_ids"] for batch in StreamingDataLoader(make_packed(corpus, layout="dense"))
    ]
    are_full = [bool((ids >= 0).any(1).all()) for ids in rows]
    assert loader.steps_per_epoch == sum(are_full) < len(are_full) == 13


def test_a_batch_of_a_budget_is_one_part(tmp_path):
    """With budget=, each pack is a batch, and a step has several."""
    with MDSWriter(tmp_path / "data", {"tokens": "ndarray:int32"}, lengths="tokens") as writer:
        for i in range(200):
            writer.write({"tokens": np.full(1 + i % 30, i + 1, np.int32)})
    packing = Packing(budget=64)

    def loaders(ranks, parts):
        return [
            StreamingDataLoader(
                StreamingDataset(
                    tmp_path / "data", batch_size=1, packing=packing, topology=(rank, ranks)
                ),
                microbatches=parts,
            )
            for rank in range(ranks)
        ]

    [alone], both = loaders(1, 4), loaders(2, 2)
    whole = documents_of(alone)
    assert len(alone) == 4 * alone.steps_per_epoch
    assert sorted(documents_of(itertools.chain(*both))) == sorted(whole)
