"""Every public argument and every attribute that can be assigned has an effect, or raises.

For each name there is a check, which gives what a user observes without a change and with it. A
name without a check fails the test, so a new argument needs one.
"""

import contextlib
import inspect
import itertools
import multiprocessing
import os
import threading
import warnings

import numpy as np
import pytest
import torch

from devtools.httpserver import FolderHandler, http_server
from mds import (
    LocalDataset,
    MDSWriter,
    Packing,
    Schedule,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    World,
)
from mds._dataset.stream import streams_registry
from mds.errors import EncodingError, MdsError
from mds.events import Fetched, subscribe
from mds.formats import TextLines

pytestmark = pytest.mark.slow

MANY = 3_000  # samples, two in a shard
SAMPLES = 96  # of the folder "train"; "val" has half of them


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with datasets: compressed shards with digests, pickles, pictures, and lines."""
    root = tmp_path_factory.mktemp("effects")
    columns = {"id": "int", "tokens": "ndarray:int32", "vector": "ndarray:float32:4"}
    for name, count in (("train", SAMPLES), ("val", SAMPLES // 2), ("other", SAMPLES)):
        with MDSWriter(
            out=str(root / name),
            columns=columns,
            samples_per_shard=8,
            compression="zstd",
            hashes=["xxh3_64"],
        ) as writer:
            for number in range(count):
                sample = {
                    "id": number + 1000 * (name == "other"),
                    "tokens": np.arange(number % 5 + 1, dtype=np.int32),
                    "vector": np.full(4, number, np.float32),
                }
                writer.write(sample)
    with MDSWriter(
        out=str(root / "large"), columns={"id": "int", "data": "bytes"}, samples_per_shard=2
    ) as writer:
        for number in range(16):
            writer.write({"id": number, "data": bytes(10_000)})
    tokens = {"vector": "ndarray:int32"}
    with MDSWriter(out=str(root / "plain"), columns={"id": "int", **tokens}) as writer:
        for number in range(8):
            writer.write({"id": number, "vector": np.full(4, number, np.int32)})
    with MDSWriter(out=str(root / "pickles"), columns={"id": "int", "thing": "pkl"}) as writer:
        writer.write({"id": 0, "thing": {1, 2}})
    with MDSWriter(out=str(root / "pictures"), columns={"id": "int", "picture": "png"}) as writer:
        from PIL import Image

        writer.write({"id": 0, "picture": Image.new("RGB", (4, 4))})
    (root / "lines").mkdir()
    (root / "lines" / "a.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    return root


def outcome(observe):
    """Return what a check observes, or the class of the error that it raises."""
    try:
        return observe()
    except MdsError as error:
        return type(error)


def ids(dataset):
    """Return the ids of an epoch of a dataset."""
    return [int(sample["id"]) for sample in dataset]


class DatasetChecks:
    """One method for each argument of StreamingDataset: what is observed without it and with it."""

    def __init__(self, root, folder, monkeypatch):
        self.root, self.folder, self.monkeypatch = root, folder, monkeypatch
        self._caches = itertools.count()

    def cache(self):
        return str(self.folder / f"cache-{next(self._caches)}")

    def dataset(self, name="train", **arguments):
        place = {} if "streams" in arguments else {"local": str(self.root / name)}
        return StreamingDataset(**{"batch_size": 4, **place, **arguments})

    def streams(self, **arguments):
        return [
            Stream(local=str(self.root / "train"), **arguments),
            Stream(local=str(self.root / "other"), **arguments),
        ]

    def order(self, **arguments):
        """The ids of two epochs on the second of two ranks."""
        dataset = self.dataset(**{"topology": (1, 2), **arguments})
        return ids(dataset), ids(dataset)

    def orders(self, name, value, **others):
        return self.order(**others), self.order(**others, **{name: value})

    def check_allow_unsafe_types(self):
        make = lambda **a: outcome(lambda: self.dataset("pickles", **a)[0]["thing"])
        return make(), make(allow_unsafe_types=True)

    def check_batch_size(self):
        size = lambda **a: len(next(iter(StreamingDataLoader(self.dataset(**a))))["id"])
        return size(columns=["id"]), size(columns=["id"], batch_size=8)

    def check_batching_method(self):
        return self.orders("batching_method", "stratified", streams=self.streams())

    def check_cache_limit(self):
        def kept(**arguments):
            remote = str(self.root / "large")
            dataset = self.dataset(remote=remote, local=self.cache(), **arguments)
            assert len(ids(dataset)) == 16
            return dataset.stats()["used_bytes"] > 100 << 10

        return kept(), kept(cache_limit="100kb")

    def check_columns(self):
        return sorted(self.dataset()[0]), sorted(self.dataset(columns=["id"])[0])

    def check_copy(self):
        write = lambda **a: self.dataset(**a)[0]["vector"].flags.writeable
        return write(), write(copy=False)

    def check_download_retry(self):
        return self.from_failing_server(download_retry=0), self.from_failing_server()

    def check_download_timeout(self):
        return self.from_slow_server(), self.from_slow_server(download_timeout=0.2)

    def from_failing_server(self, **arguments):
        """Read a dataset whose server fails at the first request for each shard."""
        failed = set()

        class Failing(FolderHandler):
            def do_GET(self):
                if self.path.endswith(".zstd") and self.path not in failed:
                    failed.add(self.path)
                    self.end(503)
                else:
                    super().do_GET()

        return self.read_from(Failing, **arguments)

    def from_slow_server(self, **arguments):
        """Read a dataset whose server keeps its first shard until the reader has ended."""
        ended = threading.Event()

        class Slow(FolderHandler):
            def do_GET(self):
                if self.path.endswith(".zstd") and "download_timeout" in arguments:
                    ended.wait(60)
                super().do_GET()

        with contextlib.ExitStack() as stack:
            stack.callback(ended.set)
            return self.read_from(Slow, ended.set, download_retry=0, **arguments)

    def read_from(self, handler, at_end=lambda: None, **arguments):
        with http_server(str(self.root / "train"), handler=handler) as url:
            try:
                return outcome(
                    lambda: self.dataset(remote=url, local=self.cache(), **arguments)[0]["id"]
                )
            finally:
                at_end()

    def check_epoch_size(self):
        return len(ids(self.dataset())), len(ids(self.dataset(epoch_size=20)))

    def check_remainder(self):
        return self.orders("remainder", "short", topology=(2, 5))

    def check_format(self):
        read = lambda **a: outcome(lambda: self.dataset("lines", **a)[0])
        return read(), read(format=TextLines())

    def check_images(self):
        kind = lambda **a: type(self.dataset("pictures", **a)[0]["picture"])
        return kind(), kind(images="array")

    def check_keep_zip(self):
        def files(**arguments):
            cache = self.cache()
            dataset = self.dataset(remote=str(self.root / "train"), local=cache, **arguments)
            assert dataset[0]["id"] == 0
            return any(name.endswith(".zstd") for _, _, names in os.walk(cache) for name in names)

        return files(), files(keep_zip=True)

    def check_local(self):
        return len(self.dataset()), len(self.dataset(local=str(self.root / "val")))

    def check_num_canonical_nodes(self):
        return self.orders("num_canonical_nodes", 4, shuffle=True)

    def check_on_error(self):
        def fail(sample):
            if sample["id"] == 5:
                raise EncodingError("broken")
            return sample

        read = lambda **a: outcome(lambda: ids(self.dataset(**a).map(fail)))
        return read(), read(on_error="skip")

    def check_packing(self):
        def batch(**arguments):
            dataset = self.dataset("plain", columns=["vector"], **arguments)
            return sorted(next(iter(StreamingDataLoader(dataset))))

        return batch(), batch(packing=Packing(8, column="vector"))

    def check_partition_algo(self):
        def resume(**arguments):
            """Resume on two nodes what three canonical nodes began."""
            shared = {"num_canonical_nodes": 3, **arguments}
            three = self.dataset(topology=World(3, 1, 1, 0), batch_size=2, **shared)
            next(iter(three))
            dataset = self.dataset(topology=World(2, 1, 1, 0), batch_size=3, **shared)
            dataset.load_state_dict(three.state_dict(36))
            return outcome(lambda: ids(dataset))

        return resume(), resume(partition_algo="orig")

    def check_predownload(self):
        return self.is_fetched_ahead(1), self.is_fetched_ahead(MANY)

    def is_fetched_ahead(self, predownload, *, assigned=False):
        """Return whether all shards arrive while the second sample is the last that was taken.

        There are more shards than the library fetches ahead without being asked.
        """
        arguments = {} if assigned else {"predownload": predownload}
        remote = self.folder / "many"
        if not remote.exists():
            with MDSWriter(out=str(remote), columns={"id": "int"}, size_limit=200) as writer:
                for number in range(MANY):
                    writer.write({"id": number})
        dataset = self.dataset(remote=str(remote), local=self.cache(), **arguments)
        if assigned:
            dataset.predownload = predownload
        arrived, all_arrived = [], threading.Event()

        def note(event):
            if isinstance(event, Fetched):
                arrived.append(event.url)
                if len(set(arrived)) >= dataset.num_shards:
                    all_arrived.set()

        with subscribe(note):
            iterator = iter(dataset)
            for _ in range(2):
                next(iterator)
            if predownload == MANY:
                all_arrived.wait(60)
            iterator.close()
        return all_arrived.is_set()

    def check_remote(self):
        remotes = [str(self.root / name) for name in ("train", "val")]
        return [ids(self.dataset(remote=remote, local=self.cache())) for remote in remotes]

    def check_replication(self):
        return self.orders("replication", 2)

    def check_sampling_granularity(self):
        return self.orders("sampling_granularity", 8, streams=self.streams(choose=20))

    def check_sampling_method(self):
        return self.orders("sampling_method", "fixed", streams=self.streams(choose=20))

    def check_schedule(self):
        streams = dict(zip("ab", self.streams(), strict=True))
        schedule = Schedule({0: {"a": 0.75, "b": 0.25}})
        return self.orders("schedule", schedule, streams=streams)

    def check_shuffle(self):
        return self.orders("shuffle", True)

    def check_shuffle_algo(self):
        return self.orders("shuffle_algo", "naive", shuffle=True)

    def check_shuffle_block_size(self):
        return self.orders("shuffle_block_size", 16, shuffle=True, num_canonical_nodes=1)

    def check_shuffle_seed(self):
        return self.orders("shuffle_seed", 7, shuffle=True)

    def check_split(self):
        read = lambda **a: outcome(lambda: len(self.dataset(local=str(self.root), **a)))
        return read(), read(split="val")

    def check_storage_options(self):
        options = {"part_size": 0}
        read = lambda **a: outcome(
            lambda: ids(self.dataset(remote=str(self.root / "train"), local=self.cache(), **a))
        )
        return read(), read(storage_options=options)

    def check_stream_config(self):
        return len(ids(self.dataset())), len(ids(self.dataset(stream_config={"repeat": 2})))

    def check_stream_name(self):
        class Half(Stream):
            def __init__(self, **arguments):
                super().__init__(**arguments, repeat=0.5)

        self.monkeypatch.setitem(streams_registry._classes, "half", Half)
        return len(ids(self.dataset())), len(ids(self.dataset(stream_name="half")))

    def check_streams(self):
        return len(ids(self.dataset())), len(ids(self.dataset(streams=self.streams())))

    def check_topology(self):
        return self.order(), self.order(topology=(0, 2))

    def check_validate_hash(self):
        read = lambda **a: outcome(lambda: self.dataset(**a)[0]["id"])
        return read(), read(validate_hash="sha1")  # of which the index has no digests


def named_arguments(kind):
    """Return the arguments with names; the place is tested by tests/unit/dataset/test_place.py."""
    return [name for name in inspect.signature(kind).parameters if name != "place"]


ARGUMENTS = named_arguments(StreamingDataset)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument_of_a_dataset_has_an_effect(name, data, tmp_path, monkeypatch):
    """A user observes something else with the argument than without it."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "user-cache"))
    without, changed = getattr(DatasetChecks(data, tmp_path, monkeypatch), f"check_{name}")()
    assert without != changed


class StreamChecks(DatasetChecks):
    """One method for each argument of Stream; most are also arguments of a dataset."""

    def dataset(self, name="train", **arguments):
        own = set(inspect.signature(Stream).parameters)
        place = {"local": str(self.root / name)}
        stream = {**place, **{key: value for key, value in arguments.items() if key in own}}
        others = {key: value for key, value in arguments.items() if key not in own}
        streams = others.pop("streams", [Stream(**stream)])
        return super().dataset(streams=streams, **others)

    def check_choose(self):
        return self.share(choose=10)

    def check_proportion(self):
        return self.share(proportion=0.25)

    def check_repeat(self):
        return self.share(repeat=2)

    def share(self, **weight):
        """Count the samples of each of two streams, of which one has a weight."""

        def counts(first, second):
            streams = [
                Stream(local=str(self.root / name), **weight)
                for name, weight in (("train", first), ("other", second))
            ]
            drawn = ids(StreamingDataset(streams=streams, batch_size=4))
            return sum(number < 1000 for number in drawn), len(drawn)

        rest = {"proportion": 0.75} if "proportion" in weight else {}
        return counts({}, {}), counts(weight, rest)


@pytest.mark.parametrize("name", named_arguments(Stream))
def test_every_argument_of_a_stream_has_an_effect(name, data, tmp_path, monkeypatch):
    """A user observes something else with the argument than without it."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "user-cache"))
    without, changed = getattr(StreamChecks(data, tmp_path, monkeypatch), f"check_{name}")()
    assert without != changed


class LocalChecks(DatasetChecks):
    """One method for each argument of LocalDataset, which are arguments of a dataset as well."""

    def dataset(self, name="plain", **arguments):
        return LocalDataset(**{"local": str(self.root / name), **arguments})


@pytest.mark.parametrize("name", [*inspect.signature(LocalDataset).parameters])
def test_every_argument_of_a_local_dataset_has_an_effect(name, data, tmp_path, monkeypatch):
    """A user observes something else with the argument than without it."""
    without, changed = getattr(LocalChecks(data, tmp_path, monkeypatch), f"check_{name}")()
    assert without != changed


class LoaderChecks:
    """One method for each argument of StreamingDataLoader: what is observed without and with it."""

    def __init__(self, root):
        self.root = root

    def loader(self, *, packing=None, remainder="repeat", **arguments):
        columns = ["vector"] if packing else ["id"]
        dataset = StreamingDataset(
            local=str(self.root / ("plain" if packing else "train")),
            batch_size=None if "batch_size" in arguments else 5,
            columns=columns,
            packing=packing,
        )
        return StreamingDataLoader(dataset, **arguments)

    def batches(self, **arguments):
        return [batch["id"].tolist() for batch in self.loader(**arguments)]

    def check_dataset(self):
        other = StreamingDataset(local=str(self.root / "val"), batch_size=5)
        return len(self.loader()), len(StreamingDataLoader(other))

    def check_batch_size(self):
        return self.batches(), self.batches(batch_size=7)

    def check_shuffle(self):
        return self.batches(), outcome(lambda: self.batches(shuffle=True))

    def check_sampler(self):
        return self.batches(), outcome(lambda: self.batches(sampler=range(5)))

    def check_batch_sampler(self):
        return self.batches(), outcome(lambda: self.batches(batch_sampler=[[1, 2]]))

    def check_num_workers(self):
        processes = lambda **a: self.pids(collate_fn=pid_of, **a) == {os.getpid()}
        return processes(), processes(num_workers=2)

    def pids(self, **arguments):
        return set(self.loader(**arguments))

    def check_collate_fn(self):
        return self.batches(), list(self.loader(collate_fn=len))

    def check_pin_memory(self):
        """Without an accelerator torch warns that there is nothing to pin for."""

        def observe(**arguments):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                batch = next(iter(self.loader(**arguments)))
            return batch["id"].is_pinned() or len(caught)

        return observe(), observe(pin_memory=True)

    def check_drop_last(self):
        return self.batches(), self.batches(drop_last=True)

    def check_timeout(self):
        def wait(**arguments):
            loader = self.loader(num_workers=1, collate_fn=wait_for_ever, **arguments)
            try:
                next(iter(loader))
            except RuntimeError as error:
                return "timed out" in str(error)

        return None, wait(timeout=0.5)

    def check_worker_init_fn(self):
        started = lambda **a: set(
            self.loader(num_workers=1, worker_type="processes", collate_fn=mark_of_worker, **a)
        )
        return started(), started(worker_init_fn=mark_worker)

    def check_multiprocessing_context(self):
        method = lambda **a: set(self.loader(num_workers=1, collate_fn=start_method, **a))
        return method(multiprocessing_context="fork"), method(multiprocessing_context="spawn")

    def check_generator(self):
        def drawn(**arguments):
            torch.manual_seed(3)
            self.batches(**arguments)
            return torch.rand(()).item()

        return drawn(), drawn(generator=torch.Generator())

    def check_prefetch_factor(self):
        def ready(**arguments):
            """Count the batches that are made before the first but one is taken."""
            made, wanted = [], threading.Event()

            def collate(samples):
                made.append(1)
                if len(made) == 8:
                    wanted.set()
                return samples

            loader = self.loader(
                num_workers=1, worker_type="threads", collate_fn=collate, **arguments
            )
            iterator = iter(loader)
            next(iterator)
            if "prefetch_factor" in arguments:
                wanted.wait(60)
            count = len(made)
            del iterator
            return count

        # One batch was taken, and one more may be waiting for room.
        return ready() <= 4, ready(prefetch_factor=7) <= 4

    def check_persistent_workers(self):
        def processes(**arguments):
            loader = self.loader(num_workers=1, collate_fn=pid_of, **arguments)
            return set(loader) == set(loader)

        return processes(), processes(persistent_workers=True)

    def check_pin_memory_device(self):
        """Torch reads this argument where there is a device to pin memory for."""
        passed_on = lambda **a: self.loader(**a)._passed_on()["pin_memory_device"]
        return passed_on(), passed_on(pin_memory_device="cpu")

    def check_in_order(self):
        """Torch hands a batch out before that of a slower worker."""
        passed_on = lambda **a: self.loader(num_workers=2, **a)._passed_on()["in_order"]
        return passed_on(), passed_on(in_order=False)

    def check_microbatches(self):
        steps = lambda **a: self.loader(**a).steps_per_epoch
        return steps(), steps(microbatches=2)

    def check_worker_type(self):
        kind = lambda **a: self.pids(num_workers=1, collate_fn=pid_of, **a) == {os.getpid()}
        return kind(), kind(worker_type="threads")


PACKING = Packing(8, column="vector")
_marks = []


def pid_of(samples):
    """Collate a batch to the process that makes it."""
    return os.getpid()


def wait_for_ever(samples):
    """Collate nothing, until the process is ended."""
    threading.Event().wait()


def mark_worker(worker):
    """Remember in a worker process that it was started."""
    _marks.append(worker)


def mark_of_worker(samples):
    """Collate a batch to what its worker process remembers."""
    return tuple(_marks)


def start_method(samples):
    """Collate a batch to the kind of process that makes it."""
    return type(multiprocessing.current_process()).__name__


LOADER_ARGUMENTS = [
    name
    for signature in (StreamingDataLoader.__init__, torch.utils.data.DataLoader.__init__)
    for name in inspect.signature(signature).parameters
    if name not in {"self", "args", "kwargs"}
]


@pytest.mark.parametrize("name", dict.fromkeys(LOADER_ARGUMENTS))
def test_every_argument_of_a_loader_has_an_effect(name, data):
    """A user observes something else with the argument than without it."""
    without, changed = getattr(LoaderChecks(data), f"check_{name}")()
    assert without != changed


# Attributes that change the order of the next iteration: a value, and what else is needed.
ORDER_ATTRIBUTES = {
    "batching_method": ("stratified", {"streams": 2}),
    "remainder": ("short", {"topology": (2, 5)}),
    "num_canonical_nodes": (4, {"shuffle": True}),
    "sampling_granularity": (8, {"streams": 2, "choose": 20}),
    "sampling_method": ("fixed", {"streams": 2, "choose": 20}),
    "shuffle": (True, {}),
    "shuffle_algo": ("naive", {"shuffle": True}),
    "shuffle_block_size": (16, {"shuffle": True, "num_canonical_nodes": 1}),
    "shuffle_seed": (7, {"shuffle": True}),
    "replication": (2, {}),
}
# Attributes whose assignment would come too late.
FIXED_ATTRIBUTES = {
    "allow_unsafe_types": True,
    "cache_limit": "1gb",
    "epoch_size": 20,
    "initial_physical_nodes": 2,
    "streams": [],
    "topology": (0, 2),
}
# Attributes with a test of their own below, and names that a subclass may take for itself.
OTHER_ATTRIBUTES = {"batch_size", "next_epoch", "packing", "partition_algo", "predownload"}
FREE_ATTRIBUTES = {"class_names", "columns", "descriptions", "schema"}


def assignable(kind):
    """Return the public attributes of an object that Python lets a user assign."""
    names = [name for name in dir(kind) if not name.startswith("_")]
    static = {name: inspect.getattr_static(type(kind), name, None) for name in names}
    return {
        name
        for name, each in static.items()
        if not callable(each) and not (isinstance(each, property) and each.fset is None)
    }


def test_every_attribute_of_a_dataset_is_known(data):
    """An attribute that can be assigned is in one of the tables, and so has a test."""
    dataset = StreamingDataset(local=str(data / "train"), batch_size=4)
    known = {*ORDER_ATTRIBUTES, *FIXED_ATTRIBUTES, *OTHER_ATTRIBUTES, *FREE_ATTRIBUTES}
    assert assignable(dataset) == known


@pytest.fixture
def checks(data, tmp_path, monkeypatch):
    """The checks of arguments, which make datasets."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "user-cache"))
    return DatasetChecks(data, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ORDER_ATTRIBUTES)
def test_an_attribute_of_the_order_acts_like_the_argument(name, checks):
    """The next iteration is that of a dataset that was made with the value."""
    value, others = ORDER_ATTRIBUTES[name]
    arguments = {"topology": (1, 2), **others}
    if "streams" in arguments:
        choose = arguments.pop("choose", None)
        arguments["streams"] = checks.streams(**({"choose": choose} if choose else {}))
    dataset = checks.dataset(**arguments)
    setattr(dataset, name, value)
    changed = ids(dataset), ids(dataset)
    without, made_with = checks.orders(name, value, **arguments)
    assert changed == made_with
    assert changed != without


def test_other_attributes_of_a_dataset_have_an_effect(checks):
    """The batch size, the epoch, the window of downloads and packs follow an assignment."""
    dataset = checks.dataset(columns=["id"])
    dataset.batch_size = 8
    assert len(next(iter(StreamingDataLoader(dataset)))["id"]) == 8
    shuffled = checks.dataset(shuffle=True)
    first, second = ids(shuffled), ids(shuffled)
    shuffled.next_epoch = 0
    assert (ids(shuffled), ids(shuffled)) == (first, second)
    assert checks.is_fetched_ahead(MANY, assigned=True)
    packed = checks.dataset("plain", columns=["vector"])
    packed.packing = PACKING
    assert "cu_seqlens" in next(iter(StreamingDataLoader(packed)))
    strict = checks.dataset(topology=World(2, 1, 1, 0), num_canonical_nodes=3)
    strict.partition_algo = "orig"
    with pytest.raises(MdsError):
        ids(strict)


@pytest.mark.parametrize("name", FIXED_ATTRIBUTES)
def test_an_attribute_that_comes_too_late_is_refused(name, checks):
    """The error names the attribute, the value and the argument; the dataset is as it was."""
    dataset = checks.dataset()
    before = getattr(dataset, name)
    with pytest.raises(
        AttributeError, match=rf"{name} = .* Write StreamingDataset\(\.\.\., {name}="
    ):
        setattr(dataset, name, FIXED_ATTRIBUTES[name])
    assert getattr(dataset, name) == before
    assert len(ids(dataset)) == SAMPLES


@pytest.mark.parametrize("name", named_arguments(Stream))
def test_an_attribute_of_a_stream_in_use_is_refused(name, checks):
    """The stream that was given to the dataset stays free, and can be used once more."""
    stream = Stream(local=str(checks.root / "train"))
    dataset = StreamingDataset(streams=[stream], batch_size=4)
    with pytest.raises(AttributeError, match=f"Stream.{name} = 1 would have no effect"):
        setattr(dataset.streams[0], name, 1)
    stream.repeat = 2
    assert len(StreamingDataset(streams=[stream], batch_size=4)) == 2 * SAMPLES
    assert len(dataset.limit(10)) == 10


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shuffle", "yes"),
        ("batch_size", 0),
        ("shuffle_seed", -1),
        ("remainder", "all"),
        ("packing", 0),
    ],
)
def test_an_assigned_value_is_checked_like_an_argument(name, value, checks):
    """A value that the constructor refuses is refused in an assignment too."""
    dataset = checks.dataset()
    before = getattr(dataset, name)
    with pytest.raises(MdsError) as assigned:
        setattr(dataset, name, value)
    with pytest.raises(MdsError) as given:
        checks.dataset(**{name: value})
    assert str(assigned.value) == str(given.value)
    assert getattr(dataset, name) == before


@pytest.mark.parametrize("name", ["collate_fn", "worker_type", "batch_size", "drop_last"])
def test_an_attribute_of_a_loader_that_comes_too_late_is_refused(name, data):
    """Torch refuses its own attributes, and the loader those that it reads when it is made."""
    loader = LoaderChecks(data).loader()
    with pytest.raises((AttributeError, ValueError), match=name):
        setattr(loader, name, None)
    assert len(list(loader)) == len(loader)
