"""Names that public code replaces from outside: a replacement has the effect that it has in 0.13.

Every test does what a client does, by the same assignment, and looks at the samples.
"""

import functools
import pickle

import numpy as np
import pytest
import streaming
import torch
from streaming import StreamingDataset
from streaming.base import batching, distributed, partition, shuffle
from torch.utils.data import DataLoader

from mds.errors import ConfigError, SealedNameError
from tests.unit.compat.user_code import reversed_work


def numbers_of(dataset):
    return [sample["n"] for sample in dataset]


@pytest.fixture
def four_ranks(monkeypatch):
    """Rank 1 of four, on two nodes."""
    names = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)


# ------------------------------------------------------------------ ranks


@pytest.mark.parametrize("place", ["distributed", "dataset"])
def test_rank_getters_decide_the_world(place, numbers, four_ranks, monkeypatch):
    """A node of a larger job reads all of its shards: the getters give the ranks of the node."""
    module = getattr(streaming.base, place)
    assert len(numbers_of(StreamingDataset(local=numbers, batch_size=10))) == 50
    monkeypatch.setattr(module, "get_rank", lambda: 0)
    monkeypatch.setattr(module, "get_world_size", lambda: 2)
    dataset = StreamingDataset(local=numbers, batch_size=10)
    assert len(dataset) == len(numbers_of(dataset)) == 100
    assert streaming.base.world.World.detect().num_ranks == 2
    assert dataset._unique_rank_world.num_nodes == 1
    monkeypatch.undo()


def test_getters_count_while_a_dataset_is_made(numbers, four_ranks):
    """A trainer replaces all of them, makes a dataset for itself alone, and puts them back."""
    single = {
        "get_rank": lambda: 0,
        "get_world_size": lambda: 1,
        "get_local_rank": lambda: 0,
        "get_local_world_size": lambda: 1,
    }
    before = {name: getattr(distributed, name) for name in single}
    for name, function in single.items():
        setattr(distributed, name, function)
    alone = StreamingDataset(local=numbers, batch_size=10)
    for name, function in before.items():
        setattr(distributed, name, function)
    assert len(numbers_of(alone)) == 200
    assert len(numbers_of(pickle.loads(pickle.dumps(alone)))) == 200
    assert len(numbers_of(StreamingDataset(local=numbers, batch_size=10))) == 50


def test_topology_goes_before_getters(numbers, monkeypatch):
    """What is passed to a dataset counts more than what was replaced."""
    monkeypatch.setattr(distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(distributed, "get_local_world_size", lambda: 4)
    assert len(StreamingDataset(local=numbers, batch_size=10)) == 50
    assert len(StreamingDataset(local=numbers, batch_size=10, topology=(0, 2))) == 100
    monkeypatch.setattr(distributed, "get_rank", lambda: 4)
    with pytest.raises(ConfigError, match=r"get_rank\(\) is 4, get_world_size\(\) is 4"):
        StreamingDataset(local=numbers, batch_size=10)


class NoGroup:
    """Stands for torch.distributed where code hides the process group."""

    @staticmethod
    def is_available():
        return False


def test_a_hidden_process_group_is_not_used(monkeypatch):
    """`dist` of the module is what its collectives look at."""
    calls = []

    class Group(NoGroup):
        is_available = is_initialized = staticmethod(lambda: True)
        barrier = staticmethod(lambda: calls.append("barrier"))

    assert distributed.dist is torch.distributed
    monkeypatch.setattr(distributed, "dist", Group)
    distributed.barrier()
    monkeypatch.setattr(distributed, "dist", NoGroup)
    distributed.barrier()
    assert calls == ["barrier"]


@pytest.mark.parametrize("name", ["barrier", "broadcast", "all_gather", "maybe_init_dist"])
def test_collectives_are_harmless(name):
    """Datasets call none, so a trainer may replace them: a warning says that it has no effect."""
    with pytest.warns(UserWarning, match=f"{name} has no effect"):
        setattr(distributed, name, lambda *_: None)


# ------------------------------------------------------------------ the order


@pytest.mark.parametrize("name", ["packed", "random", "device_per_stream"])
def test_batching_methods_are_called(name, numbers, monkeypatch):
    """A function in the registry makes the order, under a new name or that of a built-in one."""
    monkeypatch.setitem(batching.batching_methods, name, reversed_work)
    dataset = StreamingDataset(local=numbers, batch_size=10, batching_method=name, shuffle=True)
    assert dataset.batching_method == name
    assert numbers_of(dataset) == list(range(199, -1, -1))
    loader = DataLoader(dataset, batch_size=10, num_workers=2)
    assert torch.cat([batch["n"] for batch in loader]).tolist() == list(range(200))
    resumed = StreamingDataset(local=numbers, batch_size=10, batching_method=name, shuffle=True)
    resumed.load_state_dict({**dataset.state_dict(150, True), "epoch": 0})
    assert numbers_of(resumed) == list(range(49, -1, -1))
    with pytest.raises(ValueError):
        StreamingDataset(local=numbers, batch_size=10, batching_method="other")


def test_a_batching_method_may_be_set_later(numbers, monkeypatch):
    """Code names its function after the dataset was made."""
    monkeypatch.setitem(batching.batching_methods, "packed", reversed_work)
    dataset = StreamingDataset(local=numbers, batch_size=10)
    dataset.batching_method = "packed"
    assert numbers_of(dataset) == list(range(199, -1, -1))
    dataset.batching_method = "random"
    assert numbers_of(dataset) == list(range(200))


def test_a_batching_method_may_build_on_ours(numbers, monkeypatch):
    """A function of a user's own changes what the built-in one returns."""
    built_in = batching.random.generate_work_random_batching
    monkeypatch.setitem(
        batching.batching_methods, "random", lambda *given: built_in(*given)[..., ::-1]
    )
    ids = numbers_of(StreamingDataset(local=numbers, batch_size=10))
    assert ids[:10] == list(range(9, -1, -1))
    assert sorted(ids) == list(range(200))


def test_generate_work_is_called(numbers, monkeypatch):
    """The dataset module's copy is the one that datasets call, in `_get_work` too."""
    monkeypatch.setattr(
        streaming.base.dataset, "generate_work", lambda method, *given: reversed_work(*given)
    )
    dataset = StreamingDataset(local=numbers, batch_size=10)
    assert dataset._get_work(0, 0).tolist() == numbers_of(dataset) == list(range(199, -1, -1))
    monkeypatch.setattr(streaming.base.dataset, "generate_work", lambda *_: np.arange(4))
    with pytest.raises(ConfigError, match=r"<lambda> returned int64 of shape \(4,\)"):
        list(dataset)


def test_shuffles_are_called(numbers, monkeypatch):
    """A function in the registry shuffles, with every batching method and after a resume."""

    def backwards(sizes, num_canonical_nodes, seed, epoch, block_size=1 << 18):
        return np.arange(np.sum(sizes))[::-1]

    for name in ("mine", "py1e"):
        with monkeypatch.context() as patch:
            patch.setitem(shuffle.algos, name, backwards)
            for method in ("random", "per_stream"):
                dataset = StreamingDataset(
                    local=numbers,
                    batch_size=10,
                    shuffle=True,
                    shuffle_algo=name,
                    batching_method=method,
                )
                assert numbers_of(dataset) == list(range(199, -1, -1))
            dataset.load_state_dict({**dataset.state_dict(150, True), "epoch": 0})
            assert numbers_of(dataset) == list(range(49, -1, -1))
    usual = StreamingDataset(local=numbers, batch_size=10, shuffle=True)
    assert numbers_of(usual)[:3] != [199, 198, 197]
    with pytest.raises(ValueError):
        StreamingDataset(local=numbers, batch_size=10, shuffle=True, shuffle_algo="mine")
    monkeypatch.setitem(shuffle.algos, "mine", lambda sizes, *_: np.zeros(np.sum(sizes), int))
    broken = StreamingDataset(local=numbers, batch_size=10, shuffle=True, shuffle_algo="mine")
    with pytest.raises(ConfigError, match="not each of 0 to 199 once"):
        list(broken)


def test_functions_of_random_batching_are_called(numbers, monkeypatch):
    """`get_shuffle` and `get_partitions` are looked up in `batching.random`."""
    calls = []

    def get_shuffle(algo, sizes, *rest):
        calls.append((algo, int(np.sum(sizes)), len(rest)))
        return np.arange(np.sum(sizes))[::-1]

    monkeypatch.setattr(batching.random, "get_shuffle", get_shuffle)
    dataset = StreamingDataset(local=numbers, batch_size=10, shuffle=True)
    assert numbers_of(dataset) == list(range(199, -1, -1))
    assert calls == [("py1e", 200, 4)]

    def get_partitions(algo, num_samples, *rest):
        return partition.get_partitions(algo, num_samples // 2, *rest)

    monkeypatch.setattr(batching.random, "get_partitions", get_partitions)
    assert numbers_of(StreamingDataset(local=numbers, batch_size=10)) == list(range(100))


@pytest.mark.parametrize("name", ["mine", "relaxed"])
def test_partitions_are_called(name, numbers, monkeypatch):
    """A function in the registry partitions, under a new name or that of a built-in one."""

    def get_partitions(num_samples, *_):
        return np.arange(num_samples)[::-1].reshape(1, 1, 1, -1, 10)

    monkeypatch.setitem(partition.algos, name, get_partitions)
    dataset = StreamingDataset(local=numbers, batch_size=10, partition_algo=name)
    assert dataset.partition_algo == name
    assert numbers_of(dataset) == list(range(199, -1, -1))
    other = StreamingDataset(
        local=numbers, batch_size=10, partition_algo=name, batching_method="per_stream"
    )
    with pytest.raises(SealedNameError, match=r"batching_methods\['per_stream'\] instead"):
        list(other)


class Resamples(StreamingDataset):
    """Takes every sample of the first half twice."""

    def resample_streams(self, epoch, stream_id=None):
        sizes, ids = super().resample_streams(epoch, stream_id)
        return sizes, ids // 2


def test_resampling_is_called(numbers):
    """An override of `resample_streams` decides which samples the places of an epoch have."""
    assert numbers_of(Resamples(local=numbers, batch_size=10)) == [n // 2 for n in range(200)]
    sizes, ids = StreamingDataset(local=numbers, batch_size=10).resample_streams(0)
    assert sizes.sum() == len(ids) == 200
    assert ids.tolist() == list(range(200))


@pytest.mark.parametrize("algo", ["py1e", "py2s", "naive"])
@pytest.mark.parametrize("options", [{}, {"epoch_size": 130}, {"epoch_size": 450}])
def test_replaced_parts_that_do_the_same_keep_the_order(numbers, algo, options, monkeypatch):
    """The order made of parts equals that of the plan."""
    made = {"local": numbers, "batch_size": 10, "shuffle": True, "shuffle_algo": algo, **options}
    expected = numbers_of(StreamingDataset(**made))
    monkeypatch.setattr(batching.random, "get_shuffle", functools.partial(shuffle.get_shuffle))
    assert numbers_of(StreamingDataset(**made)) == expected


def test_a_loop_of_its_own(numbers):
    """Code iterates by `_resume_incr_epoch` and `_get_work`, over several epochs and a resume."""

    class Loops(StreamingDataset):
        def __iter__(self):
            epoch, sample_in_epoch = self._resume_incr_epoch()
            self.begun = epoch, sample_in_epoch
            assert self._unique_rank_world.num_ranks == self._parallel_rank_world.num_ranks == 1
            for number in self._get_work(epoch, sample_in_epoch):
                if number != -1:
                    yield self[number]

    dataset = Loops(local=numbers, batch_size=10, shuffle=True)
    usual = StreamingDataset(local=numbers, batch_size=10, shuffle=True)
    for epoch in range(2):
        assert numbers_of(dataset) == numbers_of(usual)
        assert dataset.begun == (epoch, 0)
    state = {**usual.state_dict(150, True), "epoch": 1}
    dataset.load_state_dict(state)
    usual.load_state_dict(state)
    assert numbers_of(dataset) == numbers_of(usual)
    assert dataset.begun == (1, 150)


def test_a_replaced_method_is_called(numbers, monkeypatch):
    """`get_item`, `_get_work` and `prepare_shard` may be set on the class itself."""
    prepared = []
    original = StreamingDataset.prepare_shard

    def prepare_shard(self, shard_id, blocking=True):
        prepared.append(shard_id)
        return original(self, shard_id, blocking)

    monkeypatch.setattr(StreamingDataset, "prepare_shard", prepare_shard)
    dataset = StreamingDataset(local=numbers, batch_size=10)
    assert len(numbers_of(dataset)) == 200
    assert prepared == list(range(dataset.num_shards))
    get_item = StreamingDataset.get_item
    monkeypatch.setattr(
        StreamingDataset, "get_item", lambda self, *given: {"n": -get_item(self, *given)["n"]}
    )
    assert numbers_of(StreamingDataset(local=numbers, batch_size=10))[-1] == -199
    monkeypatch.setattr(StreamingDataset, "_get_work", lambda *_: np.arange(3))
    assert numbers_of(StreamingDataset(local=numbers, batch_size=10)) == [0, -1, -2]
