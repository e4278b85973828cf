"""The epoch book: copies of a dataset in workers agree on the epoch, and leave nothing."""

import copy
import itertools
import json
import multiprocessing
import os
import pickle
import re
import signal

import numpy as np
import pytest
import torch.utils.data

from mds import Packing, Stream, StreamingDataLoader, StreamingDataset
from mds._dataset.order_state import SharedEpochCounter
from mds.plan._state import Position, ResumePoint
from tests.states import values_of
from tests.unit.dataset.epochs_helpers import ranks_of, stop_after


def test_workers_of_one_iteration_share_a_turn():
    """The same group gives the same epoch to every worker, once each."""
    book = SharedEpochCounter()
    assert [book.begin_epoch(7, worker).position.epoch for worker in range(3)] == [0, 0, 0]
    assert book.next_epoch == 1


def test_workers_of_iterations_that_begin_together_keep_their_epochs():
    """A worker that arrives after another iteration began reads the epoch of its own iteration."""
    book = SharedEpochCounter()
    assert [book.begin_epoch(7, 0).position.epoch, book.begin_epoch(8, 0).position.epoch] == [0, 1]
    assert [book.begin_epoch(7, 1).position.epoch, book.begin_epoch(8, 1).position.epoch] == [0, 1]
    assert book.next_epoch == 2


def test_a_worker_that_asks_again_begins_the_next_iteration():
    """Persistent workers keep their group; asking twice means another epoch."""
    book = SharedEpochCounter()
    assert [book.begin_epoch(7, w).position.epoch for w in (0, 1)] == [0, 0]
    assert [book.begin_epoch(7, w).position.epoch for w in (1, 0)] == [1, 1]


def test_a_loaded_state_is_the_next_turn_of_every_worker():
    """All workers resume from it, and the epoch after it has no offset."""
    book = SharedEpochCounter()
    book.begin_epoch(1, 0)
    book.load(ResumePoint(Position(5, 64), 1, 0))
    turns = [book.begin_epoch(2, w) for w in (0, 1)]
    assert [t.position.epoch for t in turns] == [5, 5]
    assert all(t.position.place == 64 for t in turns)
    assert book.begin_epoch(3, 0) == ResumePoint(Position(6))
    assert book.next_epoch == 7


def test_a_state_of_an_earlier_epoch_is_honoured():
    """Going back is what the caller asked for."""
    book = SharedEpochCounter()
    for group in range(4):
        book.begin_epoch(group, 0)
    book.load(ResumePoint(Position(1), 1, 0))
    assert book.begin_epoch(9, 0).position.epoch == 1
    assert book.next_epoch == 2


def test_a_state_from_before_the_first_epoch_begins_epoch_0():
    """The state of a run that never began has epoch -1."""
    book = SharedEpochCounter()
    book.load(ResumePoint(Position(-1), 1, 0))
    assert book.begin_epoch(1, 0).position.epoch == 0


def test_copies_by_pickle_count_for_themselves():
    """A pickled copy starts from the same epoch and then goes its own way."""
    book = SharedEpochCounter()
    book.begin_epoch(1, 0)
    twin = pickle.loads(pickle.dumps(book))
    assert twin.next_epoch == 1
    twin.begin_epoch(2, 0)
    assert (book.next_epoch, twin.next_epoch) == (1, 2)
    assert copy.deepcopy(book).next_epoch == 1


def test_ranks_forked_from_one_parent_count_for_themselves():
    """Two ranks made by fork from a process that built the dataset both begin with epoch 0."""
    book = SharedEpochCounter()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def rank():
        queue.put([book.begin_epoch(-1, 0).position.epoch for _ in range(2)])

    for _ in range(2):
        process = context.Process(target=rank)
        process.start()
        process.join()
        assert queue.get() == [0, 1]
    assert book.next_epoch == 0


def test_a_process_killed_while_it_holds_the_lock_blocks_nobody():
    """The kernel drops the lock with its owner."""
    book = SharedEpochCounter()
    pid = os.fork()
    if pid == 0:
        with book._record():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert book.begin_epoch(1, 0).position.epoch == 0


def tokens(i):
    """A document of 1 to 30 tokens."""
    return {"tokens": np.full(1 + i * 7 % 30, i, np.int32)}


def place(state):
    """What a state says of its place."""
    return state["epoch"], state["sample_in_epoch"], state.get("finished", False)


@pytest.mark.parametrize(
    "options",
    [{}, {"drop_last": True}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "threads"}],
)
def test_a_state_saved_after_an_epoch_begins_the_next_one(make, options):
    """Each of its epochs has the batches that the uninterrupted run has, also without full ones."""

    def load():
        dataset = StreamingDataset(local=make(), batch_size=7, shuffle=True)
        return StreamingDataLoader(dataset, **options)

    def epoch(loader):
        return [batch["id"].tolist() for batch in loader]

    whole = load()
    epochs, states = [], []
    for _ in range(3):
        epochs.append(epoch(whole))
        states.append(json.loads(json.dumps(whole.state_dict())))
    assert [s["epoch"] for s in states] == [0, 1, 2]
    for number in range(2):
        resumed = load()
        resumed.load_state_dict(states[number])
        assert [epoch(resumed) for _ in range(2 - number)] == epochs[number + 1 :]


def test_a_dataset_without_a_loader_goes_on_with_the_next_epoch(make):
    """Its own state of an epoch that ended, with a count or without, is that of its end."""
    dataset = StreamingDataset(local=make(), batch_size=4, shuffle=True)
    list(dataset)
    states = [dataset.state_dict(), dataset.state_dict(100)]
    following = [s["id"] for s in dataset]
    for state in states:
        resumed = StreamingDataset(local=make(), batch_size=4, shuffle=True)
        resumed.load_state_dict(state)
        assert [s["id"] for s in resumed] == following
    assert not dataset.state_dict(40)["finished"]


def test_a_state_from_inside_the_loop_has_an_empty_rest_and_says_so(make, caplog):
    """After the last batch, before the loop has ended, nothing is left of the epoch."""
    dataset = StreamingDataset(local=make(), batch_size=4, shuffle=True)
    loader = StreamingDataLoader(dataset)
    batches = iter(loader)
    for _ in range(25):
        next(batches)
    state = loader.state_dict()
    resumed = StreamingDataLoader(StreamingDataset(local=make(), batch_size=4, shuffle=True))
    resumed.load_state_dict(state)
    assert list(resumed) == []
    assert "Epoch 0 has no batches left" in caplog.text
    following = [b["id"].tolist() for b in loader]
    assert [b["id"].tolist() for b in resumed] == following
    # Adapters of trainers begin the next epoch at once, so there is nothing to say.
    caplog.clear()
    resumed.load_state_dict(state)
    assert [b["id"].tolist() for b in resumed._batches_of_epoch()] == following
    assert not caplog.text


def test_the_end_of_an_empty_rest_of_packs_is_the_end_of_the_epoch(make):
    """A state from after an iteration without batches begins the next epoch."""
    packing = Packing(40, column="tokens", overflow="split")
    data = make(60, columns={"tokens": "ndarray:int32"}, value=tokens)

    def load(state=None):
        dataset = StreamingDataset(local=data, batch_size=2, shuffle=True, packing=packing)
        loader = StreamingDataLoader(dataset)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        return loader

    whole = load()
    states = [whole.state_dict() for _ in whole]
    following = [batch["tokens"].tolist() for batch in whole]
    resumed = load(states[-1])
    assert list(resumed) == []
    assert [batch["tokens"].tolist() for batch in load(resumed.state_dict())] == following


def test_an_epoch_of_packs_that_was_skipped_has_a_state_of_packs(make):
    """Its iteration gives no batch, and a state from after it begins the next epoch."""
    packing = Packing(40, column="tokens", overflow="split")
    data = make(60, columns={"tokens": "ndarray:int32"}, value=tokens)

    def load(state=None):
        loader = StreamingDataLoader(StreamingDataset(local=data, batch_size=2, packing=packing))
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        return loader

    whole = load()
    steps = len(list(whole))
    whole.dataset.edits.skip_steps(range(steps, 2 * steps))
    assert list(whole) == []
    state = whole.state_dict()
    assert (state["unit"], state["epoch"], state["finished"]) == ("packs", 1, True)
    resumed = [batch["tokens"].tolist() for batch in load(state)]
    assert len(resumed) == steps
    assert resumed == [batch["tokens"].tolist() for batch in whole]


@pytest.mark.parametrize("options", [{"remainder": "short"}, {"remainder": "mask"}, {}])
def test_ranks_agree_on_the_position_of_every_step(make, options):
    """Also at the end of an epoch, where with "short" some have fewer samples than others."""
    loaders = ranks_of(make, **options)
    iterators = [iter(loader) for loader in loaders]
    for _ in range(4):
        for batches in iterators:
            next(batches)
        assert len({place(loader.state_dict()) for loader in loaders}) == 1
    for batches in iterators:
        next(batches, None)
    assert len({loader.state_dict()["sample_in_epoch"] for loader in loaders}) == 1
    if options.get("remainder") == "short":
        assert {place(loader.state_dict()) for loader in loaders} == {(0, 52, True)}
    for batches in iterators:
        assert next(batches, None) is None
    assert {place(loader.state_dict())[2] for loader in loaders} == {True}


def test_an_edit_after_the_last_step_is_the_same_on_every_rank(make):
    """With remainder="short" ranks without a last batch put the same edit into their states."""
    loaders = ranks_of(make, remainder="short")
    for batches in [iter(loader) for loader in loaders]:
        for _ in range(5):
            next(batches, None)
    for loader in loaders:
        loader.dataset.edits.replace_samples([3])
    assert len({loader.state_dict()["edits"] for loader in loaders}) == 1


def test_ranks_that_iterate_datasets_agree_at_the_end(make):
    """Without a loader, too, all of them count the end of an epoch as that of the largest part."""
    datasets = [loader.dataset for loader in ranks_of(make, remainder="short")]
    for dataset in datasets:
        list(dataset)
    assert {place(dataset.state_dict()) for dataset in datasets} == {(0, 52, True)}


def test_a_packed_epoch_that_ended_is_followed_by_the_next(make):
    """Positions that count packs say in the same way that an epoch has ended."""
    packing = Packing(40, column="tokens", overflow="split")
    columns = {"tokens": "ndarray:int32"}
    data = make(60, columns=columns, value=tokens)

    def load():
        dataset = StreamingDataset(local=data, batch_size=2, shuffle=True, packing=packing)
        return StreamingDataLoader(dataset)

    whole = load()
    list(whole)
    state = json.loads(json.dumps(whole.state_dict()))
    following = [batch["tokens"].tolist() for batch in whole]
    resumed = load()
    resumed.load_state_dict(state)
    assert following
    assert [batch["tokens"].tolist() for batch in resumed] == following


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": np.int64(4)},
        {"shuffle": np.bool_(True)},
        {"shuffle_seed": np.int64(3)},
        {"num_canonical_nodes": np.int32(2)},
        {"shuffle_block_size": np.int64(50)},
        {"sampling_granularity": np.int64(2)},
        {"epoch_size": np.int64(80)},
        {"remainder": np.str_("short")},
        {"replication": np.int64(1)},
        {"topology": (np.int64(0), np.int64(1))},
        {"shuffle_algo": np.str_("py1s")},
        {"partition_algo": np.str_("orig")},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_state_is_plain_where_settings_are_numpy_scalars(make, tmp_path, settings):
    """JSON and torch.load(weights_only=True) take it, and the order is that of Python's numbers."""
    given = {"local": make(), "batch_size": 4, "shuffle": True}
    plain = {
        name: tuple(int(n) for n in value) if name == "topology" else value.item()
        for name, value in settings.items()
    }
    states = []
    for chosen in (settings, plain):
        loader = StreamingDataLoader(StreamingDataset(**{**given, **chosen}))
        next(iter(loader))
        states.append(loader.state_dict())
    assert json.loads(json.dumps(states[0])) == states[1]
    torch.save(states[0], tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == states[1]


@pytest.mark.parametrize(
    "share", [{"proportion": np.float32(1)}, {"repeat": np.float32(1.5)}, {"choose": np.int64(50)}]
)
def test_a_state_is_plain_where_shares_of_streams_are_numpy_scalars(make, share):
    """The data that a state names hold the shares as Python's numbers."""
    dataset = StreamingDataset(streams=[Stream(local=make(), **share)], batch_size=4)
    state = json.loads(json.dumps(dataset.state_dict()))
    (name,) = share
    assert values_of(state)["data"]["streams"][0][name] == share[name].item()


@pytest.mark.parametrize("name", ["capacity", "budget"])
def test_a_state_is_plain_where_packing_has_numpy_scalars(make, name):
    """The packing in a state holds Python's numbers and texts."""
    data = make(60, columns={"tokens": "ndarray:int32"}, value=tokens)
    packing = Packing(**{name: np.int64(40)}, column=np.str_("tokens"))
    dataset = StreamingDataset(local=data, batch_size=1, packing=packing)
    state = json.loads(json.dumps(dataset.state_dict()))
    assert values_of(state)["order"][f"packing_{name}"] == 40


class Ids(torch.utils.data.IterableDataset):
    """A wrapper that gives something for each sample."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        for sample in self.dataset:
            yield sample["id"]


@pytest.mark.parametrize(
    ("ranks", "workers", "is_told"), [(1, 0, False), (2, 0, True), (1, 2, True)]
)
def test_a_wrapper_around_a_filter_is_named_where_places_differ(make, ranks, workers, is_told):
    """Only one rank with one worker is at the place that the state names."""
    dataset = StreamingDataset(local=make(), batch_size=4, topology=(0, ranks))
    kept = dataset.filter(lambda sample: sample["id"] % 5 != 2)
    loader = StreamingDataLoader(Ids(kept), batch_size=4, num_workers=workers)
    first, state, told = stop_after(loader, 6)
    assert [*map(bool, told)] == [True] * is_told
    for message in told:
        assert re.search(r"filter below Ids .*map\(\) or collate_fn", message)
    if not is_told:
        resumed = StreamingDataLoader(Ids(kept), batch_size=4)
        resumed.load_state_dict(state)
        seen = itertools.chain(*first, *(batch.tolist() for batch in resumed))
        assert sorted(seen) == [n for n in range(100) if n % 5 != 2]
