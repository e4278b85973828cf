"""StreamingDataset as people use it: one process, many samples, subclasses, parts."""

import copy
import json
import os
import pickle
import threading

import numpy as np
import pytest
import torch

from mds import MDSWriter, Schedule, Stream, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, StateError, StoreError
from mds.plan import EpochPlan
from mds.plan._state import KEYS
from mds.world import World


def ids(samples):
    """The numbers of samples."""
    return [int(s["id"]) for s in samples]


def test_an_epoch_has_every_sample_once_and_whole(make):
    """In order without shuffle, in the plan's order with it."""
    data = make()
    plain = list(StreamingDataset(local=data, batch_size=4))
    assert ids(plain) == list(range(100))
    assert plain[7]["text"] == "sample 7"
    assert plain[7]["vector"].tolist() == [7.0] * 4
    shuffled = ids(StreamingDataset(local=data, batch_size=4, shuffle=True))
    assert sorted(shuffled) == list(range(100))
    assert shuffled != list(range(100))


def test_the_order_is_a_function_of_seed_and_epoch(make):
    """Two datasets agree, epochs and seeds differ."""
    first, second = (
        StreamingDataset(local=make(), batch_size=4, shuffle=True, shuffle_seed=3) for _ in "ab"
    )
    one = [ids(first), ids(first)]
    assert one == [ids(second), ids(second)]
    assert one[0] != one[1]
    assert ids(StreamingDataset(local=make(), batch_size=4, shuffle=True)) != one[0]


def test_samples_by_number(make):
    """Integers, negative ones, slices, lists, arrays; and what is none of these."""
    dataset = StreamingDataset(local=make(), batch_size=4)
    assert dataset[17]["id"] == 17
    assert dataset[np.int64(-1)]["id"] == 99
    assert ids(dataset[95:]) == [95, 96, 97, 98, 99]
    assert ids(dataset[[3, 1]]) == [3, 1]
    assert [ids(row) for row in dataset[np.array([[1, 2], [3, 4]])]] == [[1, 2], [3, 4]]
    with pytest.raises(IndexError):
        dataset[100]
    with pytest.raises(ValueError, match="str"):
        dataset["7"]


def test_a_subclass_changes_samples_on_every_way(make):
    """An overridden __getitem__ or get_item is used by iteration, with the sample's number."""

    class ByItem(StreamingDataset):
        def __getitem__(self, at):
            return int(super().__getitem__(at)["id"]) + 1000

    class ByGet(StreamingDataset):
        def get_item(self, sample_id, retry=7):
            return int(super().get_item(sample_id)["id"]) + 2000

    assert list(ByItem(local=make(), batch_size=4)) == list(range(1000, 1100))
    assert list(ByGet(local=make(), batch_size=4)) == list(range(2000, 2100))
    assert ByGet(local=make(), batch_size=4)[5] == 2005


def test_streams_are_filled_in_a_copy(make):
    """The user's Stream stays as it was, and serves another dataset."""
    stream = Stream(local=make())
    dataset = StreamingDataset(streams=[stream], batch_size=4)
    assert (dataset.streams[0].choose, dataset.streams[0].proportion) == (100, 1.0)
    assert stream.choose is stream.proportion is None
    assert len(list(StreamingDataset(streams=[stream], batch_size=4))) == 100


def test_mixing_takes_what_each_stream_was_told(make):
    """By proportion of an epoch size, by repeat, by choose."""
    a, b = make(), make(first=1000)
    mixed = StreamingDataset(
        streams=[Stream(local=a, proportion=3), Stream(local=b, proportion=1)],
        epoch_size=80,
        batch_size=4,
    )
    found = ids(mixed)
    assert (sum(i < 1000 for i in found), len(found)) == (60, 80)
    mixed = StreamingDataset(
        streams=[Stream(local=a, choose=30), Stream(local=b, repeat=2)], batch_size=4
    )
    found = ids(mixed)
    assert (sum(i < 1000 for i in found), sum(i >= 1000 for i in found)) == (30, 200)


@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
def test_every_batching_method_gives_whole_batches_of_both_streams(make, method):
    """A mixture iterates in each method, without a sample too many."""
    dataset = StreamingDataset(
        streams=[Stream(local=make(), proportion=1), Stream(local=make(first=1000), proportion=1)],
        batch_size=4,
        batching_method=method,
        shuffle=True,
    )
    found = ids(dataset)
    assert len(found) == len(set(found)) >= 190
    assert any(i >= 1000 for i in found)
    assert any(i < 1000 for i in found)


def test_parts_are_planned_like_wholes(make):
    """select, limit and split number their samples anew and lose none."""
    dataset = StreamingDataset(local=make(), batch_size=4, shuffle=True)
    odd = dataset.select([i for i in range(100) if i % 2])
    assert (len(odd), odd[0]["id"], odd[-1]["id"]) == (50, 1, 99)
    assert sorted(ids(odd)) == list(range(1, 100, 2))
    assert ids(dataset.limit(5)[:]) == [0, 1, 2, 3, 4]
    parts = dataset.split({"train": 0.8, "val": 0.2})
    together = ids(parts["train"]) + ids(parts["val"])
    assert sorted(together) == list(range(100))
    assert sorted(ids(odd.limit(3))) == [1, 3, 5]
    mask = np.zeros(100, bool)
    mask[40:45] = True
    assert ids(dataset.select(mask)[:]) == [40, 41, 42, 43, 44]


@pytest.mark.parametrize(
    "numbers",
    [
        range(20, 23),
        slice(20, 23),
        {22, 20, 21},
        (number for number in (20, 21, 22)),
        {20: "a", 21: "b", 22: "c"}.keys(),
        np.arange(20, 23),
        torch.arange(20, 23),
    ],
    ids=lambda numbers: type(numbers).__name__,
)
def test_numbers_to_select_come_in_many_forms(make, numbers):
    """A set, which has no order, is sorted."""
    part = StreamingDataset(local=make()).select(numbers)
    assert ids(part) == ids(part[:]) == [20, 21, 22]


@pytest.mark.parametrize(
    ("numbers", "remedy"),
    [
        ([7, 3, 5], r"3 follows 7\. Write select\(sorted\(numbers\)\)"),
        (slice(5, 2, -1), r"4 follows 5\. Write select\(sorted\(numbers\)\)"),
        ([3, 3, 5], r"1 of 3 .* repeated\. Write select\(sorted\(set\(numbers\)\)\)"),
        ([3, 100], "expected numbers from 0 to 99"),
        (7, r"write select\(\[7\]\)\. .* dataset.limit\(7\)"),
        (["id"], r"StreamingDataset\(\.\.\., columns=\['id'\]\)"),
        ([[1], [2, 3]], r"got \[\[1\], \[2, 3\]\]\. Write select\(\[0, 7\]\)"),
        ({1, "a"}, r"Write select\(\[0, 7\]\)"),
    ],
)
def test_numbers_that_cannot_be_selected_are_refused(make, numbers, remedy):
    """The error shows what to write. An order of one's own is none that a dataset has."""
    with pytest.raises(ConfigError, match=remedy):
        StreamingDataset(local=make()).select(numbers)


def test_a_split_by_numbers_of_samples_has_exact_sizes(make):
    """The parts are drawn by the hash of the sample numbers, as those of shares are."""
    dataset = StreamingDataset(local=make())
    train, val, test = dataset.split([80, 10, 10])
    assert [part.num_samples for part in (train, val, test)] == [80, 10, 10]
    assert sorted(ids(train) + ids(val) + ids(test)) == list(range(100))
    assert ids(val) == sorted(ids(val)) != list(range(80, 90))
    named = dataset.split({"train": np.int64(80), "rest": 20})
    assert ids(named["train"]) == ids(train)
    assert ids(dataset.split([80, 20], seed=1)[0]) != ids(train)
    assert dataset.split([100, 0])[0].num_samples == 100


@pytest.mark.parametrize(
    ("shares", "way_out"),
    [
        (
            [80, 30],
            r"110 samples in all, but the dataset has 100 samples: .* split\(\[0\.727, 0\.273\]\)",
        ),
        ({"a": -20, "b": 120}, "or change a number"),
    ],
)
def test_a_split_by_wrong_numbers_of_samples(make, shares, way_out):
    """Their sum must be the number of samples; a column has groups of any size."""
    with pytest.raises(ConfigError, match=way_out):
        StreamingDataset(local=make()).split(shares)
    with pytest.raises(ConfigError, match=r"Use shares, as in split\(\[0\.9, 0\.1\], by='id'\)"):
        StreamingDataset(local=make()).split([50, 50], by="id")


def test_a_split_by_a_column_keeps_together_what_belongs_together(make):
    """Samples with one value are in one part, whatever their numbers."""
    data = make(columns={"id": "int", "book": "str"}, value=by_book)
    parts = StreamingDataset(local=data, batch_size=4).split({"a": 0.5, "b": 0.5}, by="book")
    books = {name: {s["book"] for s in part} for name, part in parts.items()}
    assert not books["a"] & books["b"]
    assert len(books["a"]) + len(books["b"]) == 10
    assert sorted(ids(parts["a"]) + ids(parts["b"])) == list(range(100))


def by_book(i):
    """Ten books of ten pages each, mixed."""
    return {"id": i, "book": f"book {i % 10}"}


def test_a_part_gives_a_subclass_its_own_numbers(make):
    """__getitem__ of a part is asked for numbers of the part."""

    class Mine(StreamingDataset):
        def __getitem__(self, at):
            assert isinstance(at, int)
            assert at < 50
            return super().__getitem__(at)

    odd = Mine(local=make(), batch_size=4).select(range(1, 100, 2))
    assert ids(odd) == list(range(1, 100, 2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no data was named"),
        ({"streams": []}, "empty"),
        ({"local": "x", "streams": [Stream(local="x")]}, "does not work with"),
        ({"local": "x", "shuffle_seed": -1}, "shuffle_seed"),
        ({"local": "x", "sampling_method": "lucky"}, "lucky"),
        ({"local": "x", "sampling_granularity": 0}, "granularity"),
        ({"local": "x", "stream_name": "nobody"}, "nobody"),
        ({"local": "x", "cache_limit": "plenty"}, "plenty"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, words):
    """Before anything is read, with the argument in the text."""
    with pytest.raises(ConfigError, match=words):
        StreamingDataset(**options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batching_method", "lucky"),
        ("partition_algo", "lucky"),
        ("sampling_method", "lucky"),
        ("sampling_granularity", 0),
        ("shuffle_seed", -1),
        ("num_canonical_nodes", 1 << 30),
        ("remainder", "often"),
    ],
)
def test_settings_of_the_order_are_checked_once(make, name, value):
    """By OrderSpec, with one sentence: in the constructor, when set later, and in a plan."""
    dataset = StreamingDataset(local=make(), batch_size=4)
    said = set()
    for spell in (
        lambda: StreamingDataset(local="x", **{name: value}),
        lambda: setattr(dataset, name, value),
        lambda: EpochPlan([{"shards": [5]}], World(1, 1, 1, 0), **{name: value}),
    ):
        with pytest.raises(ConfigError, match=name) as told:
            spell()
        said.add(str(told.value))
    assert len(said) == 1
    assert len(list(dataset)) == 100


def test_asking_for_the_state_changes_nothing(make):
    """Neither settings nor the next state; before an epoch, inside one, and after a resume."""
    names = [
        *("num_canonical_nodes", "initial_physical_nodes", "shuffle_seed", "shuffle_block_size"),
        *("next_epoch", "batch_size", "epoch_size", "shuffle_algo"),
    ]
    dataset = StreamingDataset(local=make(), batch_size=4, shuffle=True, shuffle_algo="py1s")
    for _ in range(3):
        before = [getattr(dataset, name) for name in names]
        state = dataset.state_dict(8)
        assert dataset.state_dict(8) == state
        assert [getattr(dataset, name) for name in names] == before
        next(iter(dataset))
        dataset.load_state_dict(state)
    assert dataset.num_canonical_nodes == 64


def test_batches_by_stream_need_a_batch_size(make):
    """Their order depends on it, so a dataset is not iterated without one."""
    with pytest.raises(ConfigError, match="batch_size"):
        next(iter(StreamingDataset(local=make(), batching_method="per_stream")))


def test_a_state_of_other_data_or_another_order_is_refused(make):
    """With the differences; the five common keys alone go through."""
    state = StreamingDataset(local=make(), batch_size=4, shuffle=True).state_dict(40, False)
    assert json.loads(json.dumps(state)) == state
    other = StreamingDataset(local=make(samples=90), batch_size=4, shuffle=True)
    with pytest.raises(StateError, match="samples was 100 and is 90"):
        other.load_state_dict(state)
    with pytest.raises(StateError, match="shuffle was True and is False"):
        StreamingDataset(local=make(), batch_size=4).load_state_dict(state)
    common = {key: state[key] for key in list(state)[:5]}
    other.load_state_dict(common)


@pytest.mark.parametrize("after", [0, 4, 40, 96, 100])
def test_resume_law_in_one_process(make, after):
    """From the state after any batch, the tail is the tail."""
    options = {"local": make(), "batch_size": 4, "shuffle": True}
    dataset = StreamingDataset(**options)
    whole, following = ids(dataset), ids(dataset)
    resumed = StreamingDataset(**options)
    resumed.load_state_dict({**resumed.state_dict(0, True), "epoch": 0, "sample_in_epoch": after})
    assert ids(resumed) == whole[after:]
    assert ids(resumed) == following


def test_copies_go_their_own_way(make):
    """A pickled or deep-copied dataset is whole and independent."""
    dataset = StreamingDataset(local=make(), batch_size=4, shuffle=True)
    first = ids(dataset)
    for twin in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert twin.next_epoch == 1
        assert ids(twin) != first
    assert dataset.next_epoch == 1


def test_two_iterations_of_one_dataset_side_by_side(make):
    """Each has its own epoch and its own shards."""
    dataset = StreamingDataset(local=make(), batch_size=4)
    assert [(int(a["id"]), int(b["id"])) for a, b in zip(dataset, dataset, strict=True)] == [
        (i, i) for i in range(100)
    ]


def test_explain_names_settings_reasons_and_costs(make):
    """A text that a person can act on."""
    text = StreamingDataset(local=make(), batch_size=4, shuffle=True).explain()
    for word in (
        "100 samples in 10 shards",
        "num_canonical_nodes",
        "py1e",
        "25 steps",
        "shards at once",
    ):
        assert word in text


def test_a_loader_of_another_dataset_is_a_plain_loader():
    """And has no state."""
    loader = StreamingDataLoader([1, 2, 3], batch_size=2)
    assert [batch.tolist() for batch in loader] == [[1, 2], [3]]
    assert loader.state_dict() is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sample_in_epoch": -1}, "sample_in_epoch -1"),
        ({"sample_in_epoch": 10**9}, "an epoch of this dataset has 100 samples"),
        ({"dataset": [1, 2]}, "expected a dict"),
        ({"order": "py1e"}, "expected a dict"),
        ({"num_canonical_nodes": 10**6}, "num_canonical_nodes 1000000"),
        ({"num_canonical_nodes": 2**31}, "num_canonical_nodes"),
        ({"epoch": True}, "epoch True"),
        ({"shuffle_seed": float("nan")}, "shuffle_seed nan"),
        ({"initial_physical_nodes": 10**4000}, "initial_physical_nodes"),
    ],
)
@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_state_out_of_range_is_refused_at_once(make, monkeypatch, whose, change, says):
    """By the dataset and by its loader, before anything of the order is computed."""
    dataset = StreamingDataset(local=make(), batch_size=4)
    state = dataset.state_dict(8)
    if whose == "theirs":
        state = {key: state[key] for key in KEYS}
        if {"dataset", "order"} & change.keys():
            state["version"] = 1
    elif isinstance(state.get(next(iter(change))), str):
        change = {key: json.dumps(value) for key, value in change.items()}
    loader = StreamingDataLoader(dataset)
    with monkeypatch.context() as patch:
        patch.setattr(EpochPlan, "__init__", lambda *_, **__: pytest.fail("computed"))
        for target in (dataset, loader):
            with pytest.raises(StateError, match=says):
                target.load_state_dict({**state, **change})
    assert [s["id"] for s in dataset] == list(range(100))


def test_a_state_at_the_end_gives_an_empty_epoch_and_then_the_next(make):
    """Also where padding of several ranks went beyond the last sample."""
    for end in (100, 102):
        dataset = StreamingDataset(local=make(), batch_size=4)
        dataset.load_state_dict(dataset.state_dict(end))
        assert [len(list(dataset)) for _ in range(2)] == [0, 100]


def test_two_iterations_count_for_themselves(make):
    """The position is that of the iteration begun last; others do not add to it."""
    dataset = StreamingDataset(local=make(), batch_size=4, shuffle=True)
    first = iter(dataset)
    head = [next(first)["id"] for _ in range(10)]
    assert dataset.state_dict()["sample_in_epoch"] == 10
    second = iter(dataset)
    assert [next(second)["id"] for _ in range(3)] != head[:3]
    head += [next(first)["id"] for _ in range(20)]
    state = dataset.state_dict()
    assert (state["epoch"], state["sample_in_epoch"]) == (1, 3)
    assert sorted(head + [s["id"] for s in first]) == list(range(100))


def test_a_loader_starts_the_count_of_its_dataset_anew(make):
    """What dataset.state_dict() says after two epochs is where the second one is."""

    class Mine(StreamingDataset):
        def get_item(self, sample_id, retry=7):
            return super().get_item(sample_id, retry)

    dataset = Mine(local=make(), batch_size=4)
    loader = StreamingDataLoader(dataset)
    list(loader)
    for _ in zip(range(3), loader, strict=False):
        pass
    assert dataset.state_dict()["sample_in_epoch"] == 12


def test_the_explanation_of_data_in_place_fetches_nothing(make, tmp_path):
    """Only data behind a remote are fetched, and fill a folder."""
    text = StreamingDataset(local=make(), batch_size=4).explain()
    assert "nothing" in text
    assert "the files are read where they are" in text
    assert "grows" not in text
    remote = StreamingDataset(remote=make(), local=str(tmp_path / "cache"), batch_size=4).explain()
    assert "the folder grows to about" in remote
    assert "for each node and epoch, if every shard is fetched once" in remote


def test_the_explanation_of_a_schedule_does_not_say_once(make):
    """The passes of each stream are listed; how often a sample comes follows from them."""
    streams = {"a": Stream(local=make()), "b": Stream(local=make(50))}
    schedule = Schedule({0: {"a": 0.1, "b": 0.9}})
    text = StreamingDataset(streams=streams, schedule=schedule, batch_size=4).explain()
    assert "0.15 passes by the end of the epoch" in text
    assert "once" not in text.partition("epoch_size")[2].partition("\n")[0]


def test_a_shard_that_cannot_be_fetched_ahead_raises_where_it_is_read(make, tmp_path, caplog):
    """The background thread logs the error and does not end with it."""
    remote = make()
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / "cache"), batch_size=4)
    os.rename(f"{remote}/shard.00001.mds", tmp_path / "hidden")
    before = set(threading.enumerate())
    dataset.prepare_shard(1, blocking=False)
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert "Shard 1 could not be fetched ahead" in caplog.text
    first = int(np.cumsum(dataset.samples_per_shard)[0])
    with pytest.raises(StoreError, match="00001"):
        dataset[first]
    os.rename(tmp_path / "hidden", f"{remote}/shard.00001.mds")
    assert dataset[first] is not None


@pytest.mark.parametrize(
    ("shares", "kwargs", "has_all_once"),
    [
        ({}, {}, True),
        ({"proportion": (0.5, 0.5)}, {}, True),
        ({"proportion": (0.9, 0.1)}, {}, False),
        ({"repeat": (1.5, 0.5)}, {}, False),
        ({}, {"epoch_size": 60}, False),
        ({}, {"batching_method": "per_stream"}, False),
        ({}, {"batching_method": "stratified"}, False),
    ],
)
def test_the_explanation_says_once_of_epochs_that_give_all_once(make, shares, kwargs, has_all_once):
    """Epochs of as many samples as the data, but with other shares or left-overs, do not."""
    streams = {
        name: Stream(local=make(50, 50 * i), **{key: values[i] for key, values in shares.items()})
        for i, name in enumerate("ab")
    }
    dataset = StreamingDataset(streams=streams, batch_size=7, **kwargs)
    assert ("all samples once" in dataset.explain()) == has_all_once
    ids = sorted(int(sample["id"]) for sample in dataset)
    assert (ids == list(range(100))) == has_all_once


def test_the_explanation_of_compressed_local_data_tells_what_the_cache_holds(tmp_path):
    """Nothing is fetched for them, but their shards are decompressed into a folder that grows."""
    folder = str(tmp_path / "data")
    with MDSWriter(out=folder, columns={"x": "int"}, compression="zstd", size_limit=200) as writer:
        for number in range(100):
            writer.write({"x": number})
    text = StreamingDataset(local=folder, batch_size=4).explain()
    assert "compressed local shards are decompressed in the cache" in text
    assert "the folder grows to about" in text
    assert "for each node and epoch" not in text
    limited = StreamingDataset(local=folder, batch_size=4, cache_limit="1mb").explain()
    assert "the whole dataset fits" in limited
