"""Subclasses of users: what 0.13 calls of theirs is called, or they are told what is not."""

import functools
import importlib
import inspect
import itertools
import os
import pathlib
import pickle
import warnings
from collections import Counter
from unittest import mock

import numpy as np
import pytest
import streaming
import torch
from streaming import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from torch.utils.data import DataLoader

import mds
from mds.compat import _overrides as overrides
from mds.compat._names import MODULES
from mds.errors import SealedNameError
from mds.plan._state import KEYS
from tests.unit.compat.user_code import Unscrambles


class AsksForItem(StreamingDataset):
    """Public code calls `.item()` on the number that it is given."""

    def __getitem__(self, idx):
        sample = super().__getitem__(idx)
        return {"n": sample["n"], "id": idx.item() if not isinstance(idx, int) else -1}


class GetsItem(StreamingDataset):
    """The same in `get_item`, whose number is what `__getitem__` passed on."""

    def get_item(self, idx):
        return super().get_item(idx)["n"] + 1000 * isinstance(idx, np.int64)


@pytest.mark.parametrize("workers", [0, 2])
def test_numbers_are_numpys(numbers, workers):
    """Iteration gives both methods numbers of NumPy; those of a caller stay as they are."""
    loader = DataLoader(AsksForItem(local=numbers, batch_size=10), 10, num_workers=workers)
    found = torch.cat([batch["id"] for batch in loader]).tolist()
    assert sorted(found) == list(range(200))
    assert sorted(GetsItem(local=numbers, batch_size=10)) == list(range(1000, 1200))
    dataset = GetsItem(local=numbers, batch_size=10)
    assert dataset[5] == 5
    assert dataset[np.int64(5)] == 1005
    assert dataset[np.array([1, 2])] == [1001, 1002]
    assert AsksForItem(local=numbers, batch_size=10)[3]["id"] == -1


class Backwards(StreamingDataset):
    """A curriculum: the same ids, from the last one on."""

    def _get_work(self, epoch, sample_in_epoch):
        self.asked = epoch, sample_in_epoch
        return super()._get_work(epoch, sample_in_epoch)[::-1]


def test_get_work_is_called(numbers):
    """Each worker's ids are those that `_get_work` gives, also after a state is loaded."""
    dataset = Backwards(local=numbers, batch_size=10)
    assert [sample["n"] for sample in dataset] == list(range(199, -1, -1))
    assert dataset.asked == (0, 0)
    loader = DataLoader(dataset, batch_size=10, num_workers=2)
    assert sorted(torch.cat([b["n"] for b in loader]).tolist()) == list(range(200))
    again = Backwards(local=numbers, batch_size=10)
    again.load_state_dict(
        StreamingDataset(local=numbers, batch_size=10).state_dict(50, True) | {"epoch": 0}
    )
    assert [sample["n"] for sample in again] == list(range(199, 49, -1))
    assert again.asked == (0, 50)


def test_get_work_alone_gives_this_workers_ids(numbers):
    """Called from outside it gives the ids that iteration would."""
    dataset = StreamingDataset(local=numbers, batch_size=8, shuffle=True)
    ids = dataset._get_work(0, 0)
    assert [int(i) for i in ids if i >= 0] == [sample["n"] for sample in dataset]


class Packing(StreamingDataLoader):
    """Counts the samples of a batch in a way of its own."""

    def _get_batch_size(self, batch):
        return 3 * super()._get_batch_size(batch)


def test_get_batch_size_is_called(numbers):
    """A loader's state counts what its subclass says."""
    loader = Packing(StreamingDataset(local=numbers, batch_size=10), batch_size=10)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    assert loader.num_samples_yielded == 60
    assert loader.state_dict()["sample_in_epoch"] == 60
    assert loader._get_batch_size({"a": [1, 2]}) == 6
    assert loader._get_batch_size(torch.zeros(4, 2)) == 12
    assert loader._get_batch_size([[1, 2, 3]]) == 9
    with pytest.raises(ValueError):
        loader._get_batch_size({})


class Downloads(Stream):
    """Notes what it downloads."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.names = []

    def _download_file(self, from_basename, to_basename=None):
        self.names.append(from_basename)
        return super()._download_file(from_basename, to_basename)


class Prepares(Stream):
    """Notes the shards that it prepares."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.bytes = 0

    def prepare_shard(self, shard):
        self.bytes += (size := super().prepare_shard(shard))
        return size


def test_a_stream_that_downloads_in_its_own_way(numbers, tmp_path):
    """The index and the shards go through `_download_file`, each once."""
    stream = Downloads(remote=numbers, local=str(tmp_path / "local"))
    dataset = StreamingDataset(streams=[stream], batch_size=10)
    assert [sample["n"] for sample in dataset] == list(range(200))
    assert stream.names[0] == "index.json"
    shards = [f"shard.{i:05}.mds" for i in range(dataset.num_shards)]
    assert sorted(set(stream.names[1:])) == shards


def test_a_stream_that_prepares_shards(numbers, tmp_path):
    """`prepare_shard` is called with a reader, and tells the bytes that came."""
    stream = Prepares(remote=numbers, local=str(tmp_path / "local"))
    dataset = StreamingDataset(streams=[stream], batch_size=10)
    assert len(list(dataset)) == 200
    assert stream.bytes == sum(shard.get_raw_size() for shard in dataset.shards)


def test_shards_one_by_one(secret, tmp_path):
    """Called from outside the methods bring the files of single shards."""
    from streaming.base.world import World

    stream = Unscrambles(remote=secret, local=str(tmp_path / "local"))
    shards = stream.get_shards(World.detect(), False)
    usage = np.zeros(len(shards), np.int64)
    stream.set_up_local(shards, usage)
    assert usage.tolist() == [0] * len(shards)
    size = stream.prepare_shard(shards[2])
    assert size == shards[2].get_raw_size()
    assert stream.prepare_shard(shards[2]) == 0
    assert shards[2][0]["n"] > 0
    stream.set_up_local(shards, usage)
    assert usage.tolist() == [0, 0, size, *[0] * (len(shards) - 3)]
    assert stream.get_index_size() == os.path.getsize(tmp_path / "local" / "index.json")


def test_weights_are_told_to_streams(numbers):
    """`apply_weights` derives what each stream was not told."""
    streams = [Stream(local=numbers, proportion=1), Stream(local=numbers, proportion=3)]
    assert Stream.apply_weights(streams, np.array([20, 20]), None, 1) == 40
    assert [(s.proportion, s.repeat, s.choose) for s in streams] == [
        (0.25, 0.5, 10),
        (0.75, 1.5, 30),
    ]
    assert (streams[0]._proportion, streams[0]._repeat) == (1, None)


@pytest.mark.parametrize("name", ["_prepare_thread", "on_exception", "evict_shard"])
def test_harmless_overrides_are_a_warning(name):
    """An override that cannot change a sample warns when its class is made."""
    with pytest.warns(UserWarning, match=f"Mine overrides {name}.*Use"):
        type("Mine", (StreamingDataset,), {name: lambda self: None})


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (StreamingDataset, "_each_sample_id"),
        (StreamingDataset, "_resume_incr_epoch"),
        (StreamingDataset, "_share_work"),
        (Stream, "get_shards"),
        (Stream, "apply_weights"),
        (MDSWriter, "_process_file"),
        (MDSWriter, "_write_index"),
    ],
)
def test_overrides_that_are_not_called_are_refused(base, name):
    """An override that would change samples raises when its class is made, and when it is set."""
    sentence = f"Mine overrides {name}.*Use"
    with pytest.raises(SealedNameError, match=sentence):
        type("Mine", (base,), {name: lambda self: None})
    mine = type("Mine", (base,), {})
    with pytest.raises(SealedNameError, match=sentence):
        setattr(mine, name, lambda self: None)


def test_what_is_called_is_not_warned_of():
    """The usual subclasses are made without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type("Mine", (StreamingDataset,), {"__getitem__": None, "_get_work": None})
        type("Mine", (Stream,), {"prepare_shard": None})


def test_shards_are_readers(numbers, tmp_path):
    """`dataset.shards[i]` is the reader of a shard, which fetches what it is asked for."""
    dataset = StreamingDataset(remote=numbers, local=str(tmp_path / "local"), batch_size=4)
    first, second = dataset.shards[0], dataset.shards[1]
    assert second[0]["n"] == len(first) == dataset.samples_per_shard[0]
    assert second is dataset.shards[1]
    assert second.column_names == ["n", "text", "value"]
    assert second.column_encodings == ["int", "str", "float64"]
    assert second.column_sizes == [8, None, 8]
    assert second.raw_data.basename == "shard.00001.mds"
    assert sum(shard.samples for shard in dataset.shards) == 200
    assert [len(shard) for shard in dataset.shards[-2:]] == dataset.samples_per_shard[-2:].tolist()


def test_errors_have_the_builtin_types_of_old(numbers, tmp_path):
    """Five errors whose types code catches."""
    with pytest.raises(RuntimeError):
        StreamingDataset(local=str(tmp_path / "nowhere"), batch_size=1)
    with pytest.raises(FileExistsError):
        Stream()
    (tmp_path / "index.json").write_text("")
    with pytest.raises(ValueError, match=r"index\.json") as caught:
        StreamingDataset(local=str(tmp_path), batch_size=1)
    assert type(caught.value).__mro__[2].__name__ == "FormatError"
    assert "JSONDecodeError" in [kind.__name__ for kind in type(caught.value).__mro__]
    (tmp_path / "index.json").write_text('{"version": 2, "shards": []}')
    with pytest.raises(RuntimeError):
        StreamingDataset(local=str(tmp_path), batch_size=1)
    os.unlink(os.path.join(numbers, "shard.00000.mds"))
    with pytest.raises(ValueError):
        StreamingDataset(local=numbers, batch_size=1)[0]
    with pytest.raises(IndexError):
        StreamingDataset(local=numbers, batch_size=1).evict_shard(999)
    with pytest.raises(ValueError):
        StreamingDataset(local=numbers, batch_size=1, replication=2)


def test_what_is_accepted_there_is_accepted_with_a_warning(numbers):
    """An algorithm that is not used, a text for a truth, a digest of what is not fetched."""
    with pytest.warns(UserWarning, match="shuffle_algo 'other'"):
        StreamingDataset(local=numbers, batch_size=1, shuffle_algo="other")
    with pytest.warns(UserWarning, match="shuffle='yes' is taken for True"):
        assert StreamingDataset(local=numbers, batch_size=1, shuffle="yes").shuffle
    with pytest.warns(UserWarning, match="validate_hash='sha1' is left out"):
        assert StreamingDataset(local=numbers, batch_size=1, validate_hash="sha1")[3]["n"] == 3
    with pytest.warns(UserWarning, match="predownload < batch_size"):
        StreamingDataset(local=numbers, batch_size=8, predownload=1)


NAMES = [(module, name) for module, names in MODULES.items() for name in names]


@pytest.fixture(autouse=True)
def _fresh_warnings():
    """Each test hears the warnings that are given once a process."""
    overrides._warned.clear()


def is_settable(name, owner):
    """Whether a member of a class is one that code would replace."""
    value = inspect.getattr_static(owner, name)
    is_special = name.startswith("__") and name not in ("__getitem__", "__iter__")
    return not is_special and not name.startswith("_abc_") and callable(value)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_is_live_sealed_or_harmless(module):
    """A name that is set takes effect where users look it up, raises, or warns and stays."""
    if module == "streaming.base.converters":
        pytest.importorskip(
            "pyspark", reason='pyspark is not installed: pip install "mds-streaming[spark]"'
        )
    for name in MODULES[module]:
        check_name(module, name)


def check_name(module, name):
    """Set one name, look at the effect, and put the original back."""
    place = importlib.import_module(module)
    before, replacement = getattr(place, name), object()
    if overrides.is_live(module, name):
        setattr(place, name, replacement)
        assert getattr(place, name) is overrides.replacement(module, name) is replacement
        setattr(place, name, before)
        assert overrides.replacement(module, name) is None
        return
    if name in overrides.HARMLESS:
        with pytest.warns(UserWarning, match=f"{name} has no effect"):
            setattr(place, name, replacement)
    else:
        with pytest.raises(SealedNameError, match=f"{name} would have no effect"):
            setattr(place, name, replacement)
        with pytest.raises(SealedNameError):
            delattr(place, name)
    assert getattr(place, name) is before
    setattr(place, name, before)  # a test puts the original back


CLASSES = sorted(
    {
        value
        for module, name in NAMES
        if module != "streaming.base.converters"
        for value in [getattr(importlib.import_module(module), name)]
        if isinstance(value, type) and type(value) is overrides.Sealed
    },
    key=lambda kind: f"{kind.__module__}.{kind.__name__}",
)


@pytest.mark.parametrize("kind", CLASSES)
def test_methods_of_classes_are_sealed(kind):
    """A method that is set on a class of the door raises, and stays what it was."""
    for name in filter(lambda name: is_settable(name, kind), dir(kind)):
        before = inspect.getattr_static(kind, name)
        if name in getattr(kind, "_live", ()):
            continue
        with pytest.raises(SealedNameError, match=f"{kind.__name__}.{name} would have no effect"):
            setattr(kind, name, lambda *_: None)
        assert inspect.getattr_static(kind, name) is before


def test_clients_of_stores_are_sealed():
    """A client of the caller's own is refused where mds would fetch with another one."""
    from streaming.base.storage.download import GCSDownloader, S3Downloader
    from streaming.base.storage.upload import DatabricksUploader

    def client(*_):
        return None

    for kind, name in (
        (S3Downloader, "_create_s3_client"),
        (GCSDownloader, "_create_gcs_client"),
        (DatabricksUploader, "_create_workspace_client"),
    ):
        with pytest.raises(SealedNameError, match=rf"{name} would have no effect.*register_store"):
            setattr(kind, name, client)
    with pytest.raises(SealedNameError, match="Mine overrides _create_s3_client"):
        type("Mine", (S3Downloader,), {"_create_s3_client": client})
    own = {"_create_s3_client": client, "_download_file_impl": client}
    assert type("Mine", (S3Downloader,), own)().download("s3://bucket/key", "absent") is None


def test_a_world_is_one_of_the_librarys():
    """The door's World has all its attributes, and equals that of the library."""
    from streaming.base.world import World

    world = World(2, 2, 1, 3)
    assert world == mds.World(2, 2, 1, 3)
    assert world.to_json() == mds.World(2, 2, 1, 3).to_json()
    assert pickle.loads(pickle.dumps(world)) == world
    assert World.detect() == mds.World.detect()


REGISTRIES = [
    "compression._algorithms",
    "compression._families",
    "format._readers",
    "format.json.encodings._encodings",
    "format.xsv.encodings._encodings",
    "hashing._hashes",
    "storage.download.DOWNLOADER_MAPPINGS",
    "storage.upload.UPLOADERS",
]


@pytest.mark.parametrize("path", REGISTRIES)
def test_registries_are_sealed(path):
    """Every way to replace an entry of a registry raises, and reading still works."""
    registry = functools.reduce(getattr, path.split("."), streaming.base)
    before = dict(registry)
    key = next(iter(registry))
    for change in (
        lambda: registry.__setitem__(key, None),
        lambda: registry.update({key: None}),
        lambda: registry.__ior__({key: None}),
        lambda: registry.pop(key),
        lambda: registry.__delitem__(key),
        registry.popitem,
    ):
        with pytest.raises(SealedNameError, match="would have no effect"):
            change()
    with pytest.raises(SealedNameError), mock.patch.dict(registry, {key: None}):
        pass
    assert registry == before


def test_a_patch_of_a_test_raises_and_leaves_nothing():
    """`unittest.mock` and `monkeypatch` hear the same error, and the name stays."""
    from streaming.base import distributed, util

    before = util.retry
    with pytest.raises(SealedNameError), mock.patch.object(util, "retry"):
        pass
    with pytest.raises(SealedNameError, match=r"topology=\(rank, world_size\)"):
        streaming.base.world.World = object
    with pytest.raises(SealedNameError), mock.patch.object(StreamingDataset, "state_dict"):
        pass
    with pytest.raises(SealedNameError):
        streaming.base.distributed = distributed.__class__("streaming.base.other")
    assert util.retry is before
    with pytest.raises(SealedNameError, match="_partition would have no effect"):
        streaming.base.shuffle.py2s._partition = print
    streaming.base.dataset._mark_of_a_patch = True
    assert streaming.base.dataset._mark_of_a_patch


def test_objects_refuse_what_is_looked_up_on_classes(numbers):
    """A method, a reader or a downloader that is set on one object would not be called."""
    dataset = StreamingDataset(local=numbers, batch_size=10)
    for name in ("_get_work", "get_item", "prepare_shard", "_each_sample_id"):
        with pytest.raises(SealedNameError, match=name):
            setattr(dataset, name, lambda *_: None)
    with pytest.raises(SealedNameError, match=r"dataset\.shards\[0\]"):
        dataset.shards[0] = dataset.shards[1]
    with pytest.raises(AttributeError, match="epoch_size is fixed"):
        dataset.epoch_size = 20
    assert len(dataset) == len(list(dataset)) == 200
    with pytest.raises(AttributeError, match=r"_share_work through mds.*_get_work"):
        dataset._share_work()
    stream = Stream(local=numbers)
    with pytest.raises(SealedNameError, match="_downloader"):
        stream._downloader = None
    with pytest.raises(SealedNameError, match="proportion"):
        del stream.proportion


class LooksLikeAStream:
    """Has the attributes of a Stream and is none."""

    remote, local, split = None, "folder", ""


def test_what_is_no_stream_is_refused(numbers):
    """An object with the attributes of a Stream is refused by the name of its class."""
    with pytest.raises(ValueError, match=r"streams\[0\] is a LooksLikeAStream; derive"):
        StreamingDataset(streams=[LooksLikeAStream()], batch_size=1)


def test_writers_refuse_what_the_index_would_not_have(tmp_path):
    """A format, keys of an index and an uploader of one's own are refused by name."""
    with pytest.raises(SealedNameError, match=r"Packed\.format = 'packed'.*JointWriter"):
        type("Packed", (MDSWriter,), {"format": "packed"})
    with MDSWriter(columns={"n": "int"}, out=str(tmp_path / "out"), size_limit=50) as writer:
        for n in range(9):
            writer.write({"n": n})
        with pytest.raises(SealedNameError, match="an entry of shards"):
            writer.shards[-1]["mine"] = 1
        with pytest.raises(SealedNameError, match="cloud_writer"):
            writer.cloud_writer = None
        with pytest.raises(SealedNameError, match="Derive a class"):
            writer.encode_joint_shard = lambda: b""
        with pytest.raises(AttributeError, match="has no _reset_cache through mds"):
            writer._reset_cache()
        with pytest.raises(AttributeError, match=r"has no executor through mds.*max_workers="):
            writer.executor.submit(print)
        with pytest.raises(SealedNameError, match="_write_index of one MDSWriter"):
            writer._write_index = print
        with pytest.warns(UserWarning, match="event of one MDSWriter has no effect"):
            writer.event = None
    assert len(StreamingDataset(local=str(tmp_path / "out"), batch_size=1)) == 9


def test_small_differences(numbers, tmp_path, monkeypatch):
    """Empty texts and lists, paths, truths and the world of construction are taken as there."""
    for given in ({"streams": []}, {"streams": (), "remote": ""}, {"remote": ""}):
        assert len(StreamingDataset(local=numbers, batch_size=1, **given)) == 200
    with pytest.raises(ValueError, match="there is nothing to read"):
        StreamingDataset(streams=[], batch_size=1)
    folder, split = pathlib.Path(numbers).parent, pathlib.Path("numbers")
    dataset = StreamingDataset(local=str(folder), split=split, batch_size=1)
    assert [s["n"] for s in dataset[[True, False]]] == [1, 0]
    assert dataset[True] == LocalDataset(numbers)[True] == dataset[1]
    assert Stream(local=str(folder), split=split).split == "numbers"
    assert dataset.epoch_seed_change is False
    assert inspect.getsourcefile(streaming) == streaming.__file__
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert len(dataset) == len(list(dataset)) == 200
    assert len(StreamingDataset(local=numbers, batch_size=1)) == 100
    assert len(StreamingDataset(local=numbers, batch_size=1, topology=(0, 4))) == 50


def iterate(folder, method, rank, ranks, monkeypatch, state=None, stop=None):
    """The samples that a rank of a world sees, and its dataset."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))
    dataset = StreamingDataset(
        streams=[Stream(local=f"{folder}/{name}") for name in "abc"],
        batch_size=4,
        batching_method=method,
        shuffle=True,
        num_canonical_nodes=2,
    )
    if state is not None:
        dataset.load_state_dict(state)
    return [sample["n"] for sample in itertools.islice(dataset, stop)], dataset


@pytest.fixture(scope="module")
def three_datasets(tmp_path_factory):
    """A folder with the datasets a, b and c, which have samples of their own."""
    folder = tmp_path_factory.mktemp("three")
    for first, (name, samples) in [(0, ("a", 50)), (100, ("b", 30)), (200, ("c", 70))]:
        with MDSWriter(columns={"n": "int"}, out=f"{folder}/{name}", size_limit=200) as writer:
            for n in range(first, first + samples):
                writer.write({"n": n})
    return folder


@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (4, 1)])
def test_batches_by_stream_go_on_with_other_ranks(
    method, before, after, three_datasets, monkeypatch
):
    """The epoch goes on as that of a state of 0.13, and a warning counts what is lost."""
    run = functools.partial(iterate, three_datasets, method, monkeypatch=monkeypatch)
    whole, seen = Counter(), Counter()
    for rank in range(before):
        ids, dataset = run(rank, before)
        whole.update(ids)
        seen.update(ids[:8])
    state = {**dataset.state_dict(8 * before, True), "epoch": 0}
    rest, messages = Counter(), []
    for rank in range(after):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ids, _ = run(rank, after, state=state)
        messages += [str(w.message) for w in caught if "misses" in str(w.message)]
        theirs = {name: state[name] for name in KEYS}
        assert run(rank, after, state=theirs)[0] == ids
        rest.update(ids)
    twice, never = (seen + rest) - whole, whole - (seen + rest)
    (message,) = messages  # of the first rank
    assert f"repeats {twice.total()} samples and misses {never.total()}," in message
    dataset.shuffle = False
    with pytest.raises(ValueError, match="shuffle was True"):
        dataset.load_state_dict(state)
