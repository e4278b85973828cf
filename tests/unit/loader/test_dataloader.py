"""StreamingDataLoader: batches as torch makes them, counted exactly, in processes and threads."""

import dataclasses
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

import mds._readers
from mds import StreamingDataLoader, StreamingDataset
from mds._loader.batches import Batches
from mds._loader.worker_batches import WorkerBatches
from mds.errors import ConfigError, PlanError
from mds.plan._state import Position, ResumePoint
from mds.world import World
from tests.unit.loader.dataloader_helpers import HOWS, Mine, by_stream, read

MANY = {
    "id": "int",
    "text": "str",
    "raw": "bytes",
    "small": "uint8",
    "half": "float16",
    "fixed": "ndarray:int32:2,3",
    "free": "ndarray",
    "meta": "json",
}


def many(i):
    """A sample with a column of each kind."""
    return {
        "id": i,
        "text": f"sample {i}",
        "raw": bytes([i % 256]) * (i % 5),
        "small": np.uint8(i % 256),
        "half": np.float16(i / 2),
        "fixed": np.arange(6, dtype=np.int32).reshape(2, 3) + i,
        "free": np.full(3, i, np.float64),
        "meta": {"number": i, "even": i % 2 == 0},
    }


def same(a, b):
    """Whether two batches are alike in types, dtypes and values."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        return all(same(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        return torch.equal(a, b)
    return a == b


@pytest.mark.parametrize("how", HOWS)
def test_batches_are_those_of_torchs_default_collate(make, how):
    """Every kind of column, to the dtype; gathered by column or not."""
    dataset = StreamingDataset(local=make(columns=MANY, value=many), batch_size=8)
    batches = list(StreamingDataLoader(dataset, **HOWS[how]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about the read-only views that it copies
        got = {int(i): n for n, b in enumerate(batches) for i in b["id"]}
        assert sorted(got) == list(range(100))
        for batch in batches:
            samples = [dataset[int(i)] for i in batch["id"]]
            # Values of json stay as they were written.
            wanted = {**default_collate(samples), "meta": [each["meta"] for each in samples]}
            assert same(wanted, batch)


def test_a_batch_size_given_once_is_enough(make):
    """To the dataset or to the loader."""
    loader = StreamingDataLoader(StreamingDataset(local=make(), batch_size=8))
    assert (loader.batch_size, len(loader), len(read(loader))) == (8, 13, 13)
    dataset = StreamingDataset(local=make())
    assert len(read(StreamingDataLoader(dataset, batch_size=5))) == 20
    with pytest.raises(ConfigError, match="batch_size"):
        StreamingDataLoader(StreamingDataset(local=make()))


class Packed(StreamingDataset):
    """Three samples of the order in one."""

    def __iter__(self):
        group = []
        for sample in super().__iter__():
            group.append(int(sample["id"]))
            if len(group) == 3:
                yield list(group)
                group.clear()


@pytest.mark.parametrize("workers", [0, 1])
def test_packing_counts_what_it_took_from_the_order(make, workers):
    """The position is in samples of the dataset, so the tail begins where packing stopped."""
    loader = StreamingDataLoader(
        Packed(local=make(), batch_size=2), collate_fn=list, num_workers=workers
    )
    assert sum(len(b) for b in loader) == 33
    for _, batch in zip(range(4), loader, strict=False):
        pass
    assert batch == [[18, 19, 20], [21, 22, 23]]
    state = loader.state_dict()
    assert state["sample_in_epoch"] == 24
    resumed = StreamingDataLoader(Packed(local=make(), batch_size=2), collate_fn=list)
    resumed.load_state_dict(state)
    assert next(iter(resumed))[0] == [24, 25, 26]


class Wrapper(IterableDataset):
    """A dataset of the caller's around ours."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return (s for s in self.dataset if s["id"] % 2)


@pytest.mark.filterwarnings("ignore:the position is not exact")  # nothing is held back here
def test_a_filter_around_the_dataset_keeps_the_position(make):
    """What was left out counts as taken from the order."""
    loader = StreamingDataLoader(
        Wrapper(StreamingDataset(local=make(), batch_size=2)), batch_size=2
    )
    for _ in zip(range(3), loader, strict=False):
        pass
    assert loader.state_dict()["sample_in_epoch"] == 12


def test_drop_last_drops_in_each_worker(make):
    """As torch does it with iterable datasets."""
    for options in HOWS.values():
        dataset = StreamingDataset(local=make(), batch_size=8)
        assert all(
            len(b) == 8 for b in read(StreamingDataLoader(dataset, drop_last=True, **options))
        )


def test_threads_are_taken_where_nobody_can_tell(make):
    """And not where the caller's code, or an option about processes, is in play."""

    class Mine(StreamingDataset):
        def __getitem__(self, at):
            return super().__getitem__(at)

    def kind(dataset, **options):
        return StreamingDataLoader(dataset, batch_size=4, num_workers=1, **options)._threaded

    plain, mine = StreamingDataset(local=make()), Mine(local=make())
    assert kind(plain)
    assert not kind(mine)
    assert not kind(plain, collate_fn=list)
    assert not kind(plain, multiprocessing_context="spawn")
    assert not kind(plain, persistent_workers=True)
    assert not kind(plain, worker_type="processes")
    assert kind(mine, worker_type="threads")
    with pytest.raises(ConfigError, match="Wrapper has its own __iter__"):
        kind(Wrapper(plain), worker_type="threads")
    with pytest.raises(ConfigError, match="fibres"):
        kind(plain, worker_type="fibres")
    with pytest.raises(ConfigError, match=r"named worker_type=. Write worker_type='threads'"):
        kind(plain, workers="threads")
    with pytest.raises(ConfigError, match=r"named num_workers=. Write num_workers=4"):
        kind(plain, workers=4)
    with pytest.raises(ConfigError, match=r"Give num_workers= too, or leave worker_type out"):
        StreamingDataLoader(plain, batch_size=4, worker_type="threads")
    with pytest.raises(ConfigError, match=r"Give num_workers= too, or leave worker_type out"):
        StreamingDataLoader(plain, batch_size=4, worker_type="processes")


def test_a_loop_left_early_leaves_no_thread(make):
    """Breaking out of an epoch stops the lanes, and the next epoch is whole."""
    loader = StreamingDataLoader(
        StreamingDataset(local=make(), batch_size=2), num_workers=2, worker_type="threads"
    )
    for _ in loader:
        break
    assert sorted(i for b in read(loader) for i in b) == list(range(100))
    del _
    for thread in threading.enumerate():
        if thread.name.startswith("mds-loader"):
            thread.join(60)
            assert not thread.is_alive()


def test_an_error_in_a_worker_reaches_the_loop_with_its_words(make):
    """Whatever the kind of worker."""

    class Bad(StreamingDataset):
        def get_item(self, sample_id, retry=7):
            if sample_id == 30:
                raise ValueError("sample 30 is bad")
            return super().get_item(sample_id)

    for options in ({}, {"num_workers": 1}):
        with pytest.raises(ValueError, match="sample 30 is bad"):
            read(StreamingDataLoader(Bad(local=make(), batch_size=4), **options))


@pytest.mark.parametrize("kind", [StreamingDataset, Mine])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_order_hash_is_that_of_the_plan_at_every_step(make, kind, workers):
    """What arrived is what was planned, and a run can prove it; through a resume too."""
    dataset = kind(local=make(), batch_size=8, shuffle=True)
    loader = StreamingDataLoader(dataset, num_workers=workers)
    plan = dataset._dataset_run.order.plan(
        ResumePoint(Position(0)), dataset._dataset_run.world(max(workers, 1))
    )
    for step, _ in enumerate(loader, 1):
        assert loader.order_hash == plan.order_hash(step)
        if step == 5:
            state = loader.state_dict()
    assert state["order_hash"] == str(plan.order_hash(5))
    resumed = StreamingDataLoader(kind(local=make(), batch_size=8, shuffle=True))
    resumed.load_state_dict(state)
    for _ in resumed:
        pass
    resumed.order_hash.merge(plan.order_hash(5))
    assert resumed.order_hash == plan.order_hash(plan.steps)


def test_messages_are_few(make):
    """A worker that makes forty batches sends far fewer messages."""
    batches = Batches(
        StreamingDataset(local=make(samples=400), batch_size=10), 10, False, default_collate
    )
    sent = WorkerBatches(batches, 1)
    worker = DataLoader(sent, batch_size=None, num_workers=1, collate_fn=lambda m: m)
    messages = [len([*message.batches()]) for message in worker]
    assert messages == [1, 2, 4, 8, 8, 8, 8, 1, 0]


def test_a_process_alone_gathers_few_times(make, monkeypatch):
    """Forty batches in a handful of gathers, the first of which makes a single batch."""
    sizes = []

    def gather(readers, shards, rows, **options):
        sizes.append(len(rows))
        return mds._readers.gather.gather(readers, shards, rows, **options)

    monkeypatch.setattr("mds._iteration.rows.gather", gather)
    loader = StreamingDataLoader(StreamingDataset(local=make(samples=400), batch_size=10))
    assert [len(batch["id"]) for batch in loader] == [10] * 40
    assert sizes == [10, 20, 40, 80, 80, 80, 80, 10]


@pytest.mark.parametrize("how", ["plain", "map", "keyed", "subclass"])
def test_samples_of_a_batch_are_let_go_before_the_next(make, how):
    """Decoded images are large: those of two batches are never in memory together."""

    class Own(StreamingDataset):
        def __getitem__(self, at):
            return super().__getitem__(at)

    seen = []

    def collate(samples):
        seen.extend(weakref.ref(sample["free"]) for sample in samples)
        return [sample["id"] for sample in samples]

    kind = Own if how == "subclass" else StreamingDataset
    dataset = kind(local=make(columns=MANY, value=many), batch_size=8)
    if how == "map":
        dataset = dataset.map(dict)
    elif how == "keyed":
        dataset = dataset.map(lambda sample, rng: dict(sample))
    for number, batch in enumerate(StreamingDataLoader(dataset, collate_fn=collate)):
        assert len(seen) == 8 * number + len(batch)
        assert not [sample for sample in seen if sample() is not None]


@dataclasses.dataclass
class Ids:
    """Function that cannot be hashed, like the data collators of transformers."""

    kind: str

    def __call__(self, values):
        if self.kind == "collate_fn":
            return {"id": default_collate([sample["id"] for sample in values])}
        return values["id"] % 2 == 0 if self.kind == "filter" else {"id": values["id"]}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", ["collate_fn", "map", "map_batches", "filter"])
def test_functions_need_no_hash(make, kind, how):
    dataset, settings = StreamingDataset(local=make(), batch_size=4), dict(HOWS[how])
    if kind == "collate_fn":
        settings["collate_fn"] = Ids(kind)
    else:
        dataset = getattr(dataset, kind)(Ids(kind))
    loader = StreamingDataLoader(dataset, **settings)
    ids = sorted(number for batch in loader for number in batch["id"].tolist())
    assert ids == list(range(0, dataset.num_samples, 2 if kind == "filter" else 1))
    assert loader.report().cause


@pytest.mark.parametrize("is_in_bundles", [True, False])
def test_a_batch_is_let_go_before_the_next(make, monkeypatch, is_in_bundles):
    """Its memory is there for the next one: whoever makes batches holds none of them."""
    given = []

    def gather(*args, **options):
        assert not [batch for batch in given if batch() is not None]
        return mds._readers.gather.gather(*args, **options)

    monkeypatch.setattr("mds._iteration.rows.gather", gather)
    more = {} if is_in_bundles else {"columns": MANY, "value": many}
    for batch in StreamingDataLoader(StreamingDataset(local=make(**more), batch_size=8)):
        given.append(weakref.ref(batch["id"]))
        del batch
    assert len(given) == 13


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("worker_init_fn", print),
        ("multiprocessing_context", "spawn"),
        ("persistent_workers", True),
        ("timeout", 5),
    ],
)
def test_what_is_about_processes_is_refused_beside_threads(make, name, value):
    """It would have no effect, which nobody would notice."""
    dataset = StreamingDataset(local=make(), batch_size=4)
    with pytest.raises(ConfigError, match=f"{name}=.*would have no effect"):
        StreamingDataLoader(dataset, num_workers=2, worker_type="threads", **{name: value})
    loader = StreamingDataLoader(dataset, num_workers=2, **{name: value})
    assert "2 processes" in repr(loader)


def test_a_length_that_no_epoch_has_is_named_once(make):
    """The length is that of mosaicml-streaming, and a warning names the number of batches."""
    loader = by_stream(make, "stratified", 0, 1)
    steps = sum(1 for _ in loader)
    with pytest.warns(UserWarning, match=f"is 18, .* has {steps} batches: .*steps_per_epoch"):
        assert len(loader) == 18 > steps
    assert len(loader) == 18


def test_a_loader_has_a_length_before_a_state_makes_its_order_possible(make):
    """Canonical nodes that do not fit these nodes may come to fit by what a state brings."""
    dataset = StreamingDataset(
        local=make(), batch_size=4, num_canonical_nodes=4, topology=World(3, 1, 1, 0)
    )
    loader = StreamingDataLoader(dataset)
    assert len(loader) == 9
    with pytest.raises(PlanError, match="num_canonical_nodes 4 does not fit 3"):
        loader.steps_per_epoch  # noqa: B018 - a property


class WithNames(StreamingDataset):
    """A class of a user with attributes of everyday names."""

    def __init__(self, **arguments):
        self._source = self._name = self._state = self._run = "web"
        super().__init__(**arguments)
        self._run = self._world = self._order = self._epoch = 1


class LoaderWithNames(StreamingDataLoader):
    """A loader of a user with such attributes."""

    def __init__(self, *args, **arguments):
        self._state = self._count = self._run = self._source = "web"
        super().__init__(*args, **arguments)
        self._inner = 1


def test_attributes_of_the_user_may_have_everyday_names(make):
    """They do not meet those of this library."""
    loader = LoaderWithNames(WithNames(local=make(), batch_size=8), num_workers=2)
    assert sorted(i for batch in loader for i in batch["id"].tolist()) == [*range(100)]
    assert loader.dataset.state_dict()["finished"]
    assert (loader._state, loader.dataset._source, loader.dataset._order) == ("web", "web", 1)
