"""What a batch takes is told by phase, by a clock of the test's own, in few readings of it."""

import itertools

import numpy as np
import pytest

from mds import MDSWriter, StreamingDataLoader, StreamingDataset
from mds._iteration.rows import BatchParts, join_samples, timed
from mds._loader.batches import Batches
from mds._loader.worker_batches import MessageSender
from mds._process.stopwatch import (
    COLLATE,
    DECODE,
    FUNCTIONS,
    PHASES,
    Stopwatch,
    TransferSeconds,
    TransferTimes,
    running_watch,
)
from mds.report._account import WaitAccount
from mds.storage._wrappers import Wrapper

SAMPLES, SIZE = 96, 8
MOST_READINGS = 16  # a batch


class Clock:
    """Time that goes on when the test says so; readings are counted."""

    def __init__(self):
        self.now = 0.0
        self.readings = 0

    def __call__(self):
        self.readings += 1
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset of 12 shards."""
    out = str(tmp_path_factory.mktemp("data"))
    columns = {"n": "int", "x": "ndarray:float32:4"}
    with MDSWriter(out=out, columns=columns, samples_per_shard=8) as writer:
        for n in range(SAMPLES):
            writer.write({"n": n, "x": np.full(4, n, np.float32)})
    return out


def seconds_of(made):
    return dict(zip(PHASES, made[:-1], strict=True))


def phases(**given):
    return {**dict.fromkeys(PHASES, 0), **given}


def test_each_phase_has_what_passed_before_its_reading(clock):
    """Decoding, functions and collating are told apart by the readings between them."""
    watch = Stopwatch(clock)
    watch.start()
    clock.now += 3
    watch.charge(DECODE)
    clock.now += 5
    watch.charge(FUNCTIONS)
    clock.now += 7
    watch.charge(COLLATE)
    assert seconds_of(watch.take()) == phases(decode=3, functions=5, collate=7)
    assert clock.readings == 4


def test_what_is_taken_begins_anew(clock):
    """Time between two batches belongs to neither."""
    watch = Stopwatch(clock)
    for _ in range(2):
        watch.start()
        clock.now += 2
        watch.charge(COLLATE)
        assert seconds_of(watch.take())["collate"] == 2
        clock.now += 100


def test_a_wait_is_not_decoding(clock):
    """A wait for bytes is divided as the transfers were, and taken out of what goes on."""
    watch = Stopwatch(clock)
    watch.start()
    assert running_watch() is watch
    clock.now += 10
    watch.add_wait(8.0, (1.0, 2.0, 1.0))
    watch.charge(DECODE)
    found = seconds_of(watch.take())
    assert running_watch() is None
    assert found == phases(request=2, transfer=4, unpack=2, decode=2)


def test_a_shard_that_has_to_be_fetched_is_waited_for(folder, tmp_path):
    """A reader that asks for it itself waits too, as where another thread was sent for it."""
    dataset = StreamingDataset(remote=folder, local=str(tmp_path / "cache"), batch_size=SIZE)
    watch = Stopwatch()
    watch.start()
    dataset._cache.hold(0)
    dataset._cache.release(0)
    fetched = seconds_of(watch.take())
    assert fetched["request"] + fetched["transfer"] > 0
    assert dataset.stats()["waits"] == 1
    watch.start()
    dataset._cache.hold(0)
    dataset._cache.release(0)
    assert seconds_of(watch.take()) == phases()
    watch.take()
    dataset._cache.hold(1)  # by a thread that makes no batches
    dataset._cache.release(1)
    assert dataset.stats()["waits"] == 1


def test_a_wait_without_transfers_is_one_for_bytes(clock):
    """Another process may have fetched what was waited for."""
    watch = Stopwatch(clock)
    watch.start()
    watch.add_wait(3.0, (0.0, 0.0, 0.0))
    assert seconds_of(watch.take())["transfer"] == 3


def test_functions_of_one_sample_stand_for_all(clock):
    """Of a batch of ten one sample's functions took 2; the rest of 50 was decoding."""
    watch = Stopwatch(clock)
    watch.start()
    assert watch.is_armed
    watch.begin_sample()
    assert not watch.is_armed
    clock.now += 1
    watch.leave_functions()
    clock.now += 40
    watch.resume_functions()
    clock.now += 1
    watch.end_sample()
    clock.now += 8
    watch.charge(DECODE)
    found = seconds_of(watch.take(10))
    assert (found["functions"], found["decode"]) == (20, 30)


def test_a_third_of_a_batch_is_decoded_before_its_functions(clock, folder):
    """So functions are told from decoding in few readings, however many samples there are."""
    sizes = []

    def decode(rows):
        rows.values = [0] * rows.size
        clock.now += 2 * rows.size
        return rows

    def call(rows):
        sizes.append(rows.size)
        clock.now += 3 * rows.size
        return rows

    watch = Stopwatch(clock)
    parts = BatchParts(lambda: 100, parts=3)
    chunks = parts.cut(250)
    stage = timed(map(decode, chunks), watch, DECODE)
    stage = timed(map(call, stage), watch, FUNCTIONS)
    batches = join_samples(stage)
    watch.start()
    batch = next(batches)
    assert (batch.first, batch.size, len(batch.values)) == (0, 100, 100)
    assert sizes == [34, 34, 32]
    assert seconds_of(watch.take()) == phases(decode=200, functions=300)
    assert clock.readings == 7
    assert [(b.first, b.size) for b in batches] == [(100, 100), (200, 50)]


def test_one_slow_sample_among_quick_ones_is_right_on_average(clock):
    """Of ten batches of ten samples one met the slow sample, of 10; all took 10."""
    watch, account = Stopwatch(clock), WaitAccount()
    for number in range(10):
        watch.start()
        watch.begin_sample()
        clock.now += 10 * (number == 3)
        watch.end_sample()
        clock.now += 10 * (number != 3)
        watch.charge(DECODE)
        account.add(clock.now - 10, clock.now, watch.take(10))
    assert account.making_seconds["functions"] == 100
    assert account.making_seconds["decode"] == 0
    assert account.charged["functions"] == account.waited == 90


class _Late:
    """A store whose requests and bytes take time."""

    def __init__(self, clock):
        self.clock, self.acts = clock, []

    def stream(self):
        self.clock.now += 5
        return self

    def on_close(self, act):
        self.acts.append(act)


def test_requests_are_told_from_their_bytes(clock):
    """Until the answer, then until the body is closed; decompression is part of the latter."""
    times, store = TransferTimes(clock), _Late(clock)
    asked = times.clock()
    body = store.stream()
    body.on_close(times.answered(asked))
    clock.now += 7
    body.acts.pop()()
    times.add(0.0, 0.0, unpack=3.0)
    assert times.now() == TransferSeconds(5, 7, 3, 1)
    assert times.now().shares == (5, 4, 3)
    assert times.now().since(TransferSeconds(1, 1, 1, 1)) == (4, 6, 2, 0)


def test_every_request_of_a_dataset_is_counted(folder, tmp_path):
    """What is fetched through a store of the library is timed, in whichever thread."""
    from mds._process.stopwatch import TIMES
    from mds.storage._memory import MemoryStore
    from mds.storage._retry import Retrying

    before = TIMES.now()
    store = Retrying(Wrapper(MemoryStore("memory://requests")))
    store.put("key", b"12345")
    assert store.get("key") == b"12345"
    store.get_file("key", str(tmp_path / "file"), 5)
    assert TIMES.now().since(before).requests == 2


# ------------------------------------------------------------------ in a loader


def read(clock, seconds):
    """A function that takes so long."""

    def act(value):
        clock.now += seconds
        return value

    return act


def collate_in(clock, seconds):
    def collate(samples):
        clock.now += seconds
        return [sample["n"] for sample in samples]

    return collate


class SlowItems(StreamingDataset):
    """A class of a caller's that changes samples."""

    clock = Clock()

    def __getitem__(self, at):
        sample = super().__getitem__(at)
        type(self).clock.now += 2
        return sample


def dataset_of(folder, kind=StreamingDataset):
    return kind(local=folder, shuffle=True, batch_size=SIZE)


def loader_of(dataset, clock, **options):
    class TimedLoader(StreamingDataLoader):
        _clock = staticmethod(clock)

    return TimedLoader(dataset, batch_size=SIZE, **options)


def test_without_workers_all_is_waited_for(folder, clock):
    """Function and collate function have their part of each batch, the trainer its own."""
    loader = loader_of(
        dataset_of(folder).map(read(clock, 2)), clock, collate_fn=collate_in(clock, 5)
    )
    for _ in loader:
        clock.now += 9
    waits = loader._loader_state.count.waits
    batches = SAMPLES // SIZE
    assert waits.batches == batches
    assert waits.first == SIZE * 2 + 5
    assert waits.waited == (batches - 1) * (SIZE * 2 + 5)
    assert waits.worked == (batches - 1) * 9
    assert waits.charged["functions"] == (batches - 1) * SIZE * 2
    assert waits.charged["collate"] == (batches - 1) * 5
    assert loader.report().cause == "functions"


def test_a_class_of_the_callers_is_told_from_decoding(folder):
    """What ``__getitem__`` does beside asking for the sample is the caller's code."""
    loader = loader_of(dataset_of(folder, SlowItems), SlowItems.clock)
    list(loader)
    waits = loader._loader_state.count.waits
    assert waits.making_seconds["functions"] == SAMPLES * 2
    assert waits.making_seconds["decode"] == 0


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_workers_tell_what_their_batches_took(folder, workers):
    """Phases come with the batches; in a process the clock is that process's own."""
    clock = Clock()
    loader = loader_of(
        dataset_of(folder).map(read(clock, 2)),
        clock,
        collate_fn=collate_in(clock, 5),
        num_workers=1,
        worker_type=workers,
    )
    assert sorted(itertools.chain(*loader)) == [*range(SAMPLES)]
    made = loader._loader_state.count.waits.making_seconds
    assert made["functions"] == SAMPLES * 2
    assert made["collate"] == SAMPLES // SIZE * 5


def keep(sample):
    return sample["n"] >= 0


DATASETS = {
    "columns": dataset_of,
    "map": lambda folder: dataset_of(folder).map(dict).map(dict),
    "filter": lambda folder: dataset_of(folder).filter(keep).map(dict),
    "class": lambda folder: dataset_of(folder, SlowItems).map(dict),
    "map_batches": lambda folder: dataset_of(folder).map_batches(dict).map_batches(dict),
    "map, then map_batches": lambda folder: dataset_of(folder).map(dict).map_batches(dict),
}


@pytest.mark.parametrize("how", ["here", "thread", "process"])
@pytest.mark.parametrize("kind", DATASETS)
def test_a_batch_takes_few_readings(folder, kind, how, clock):
    """At most 16, those of the trainer included, whatever makes the batch and wherever."""
    dataset = DATASETS[kind](folder)
    if how == "process":  # what a worker process does, in this one
        made = Batches(dataset, SIZE, False, _default_collate(), clock).begin_epoch(0, 1, -5)
        sent = [*MessageSender(0, None, clock).send(made)]
        assert sent
        clock.readings += 2 * (SAMPLES // SIZE)  # of the trainer
    else:
        options = {"num_workers": 1, "worker_type": "threads"} if how == "thread" else {}
        loader = loader_of(dataset, clock, **options)
        assert sum(len(batch["n"]) for batch in loader) == SAMPLES
    batches = SAMPLES // SIZE
    assert batches < clock.readings <= MOST_READINGS * batches


def _default_collate():
    from torch.utils.data import default_collate

    return default_collate
