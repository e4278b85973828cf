"""A state that meets other data is refused where digests tell, and gives a warning otherwise."""

import importlib
import json
import os
import shutil

import numpy as np
import pytest

from mds import MDSWriter, Packing, Stream, StreamingDataLoader, StreamingDataset
from mds.errors import StateError
from mds.writers import merge_index
from tests.states import changed, values_of
from tests.unit.dataset.other_data_helpers import state_of, write


def of_lines(folder, first):
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/new", "w", encoding="ascii") as file:
        file.writelines(f'{{"x": {first + number}}}\n' for number in range(40))
    os.utime(f"{folder}/new", ns=(first, first))
    os.replace(f"{folder}/new", f"{folder}/a.jsonl")


@pytest.fixture(params=["mds", "jsonl"])
def published(request, tmp_path):
    """A function that publishes a dataset in a place, in place of what is there."""

    def publish(name, first):
        place = str(tmp_path / name)
        if request.param == "jsonl":
            of_lines(place, first)
            return place
        shutil.rmtree(place, ignore_errors=True)
        # Without digests, the index of other data of the same size has the same bytes.
        write(place, first, compression=f"zstd:{first % 9 + 1}")
        return place

    return publish


def told(caplog):
    return [each.getMessage() for each in caplog.records if "other data" in each.msg]


def test_what_was_replaced_is_told_with_both_digests(published, tmp_path, caplog):
    """At the same URL: the position is taken, and one line names the URL, then and now."""
    place = published("data", 100)
    _, state = state_of(place, tmp_path / "one")
    (before,) = (stream["index"] for stream in values_of(state)["data"]["streams"])
    published("data", 500)
    dataset, now = state_of(place, tmp_path / "two")
    (after,) = (stream["index"] for stream in values_of(now)["data"]["streams"])
    assert before != after
    dataset.load_state_dict(state)
    (line,) = told(caplog)
    assert f"the index of {place} changed from {before} to {after}" in line
    assert [sample["x"] for sample in dataset] == list(range(508, 540))


def test_the_same_data_are_not_told(published, tmp_path, caplog):
    """Nor with other columns or another cache."""
    place = published("data", 100)
    dataset, state = state_of(place, tmp_path / "one")
    dataset.load_state_dict(state)
    other, _ = state_of(place, tmp_path / "two", columns=["x"], shuffle=False)
    other.load_state_dict(state)
    assert not told(caplog)


def test_a_copy_of_the_same_index_is_the_same(tmp_path, caplog):
    """Where data lie is nobody's business."""
    write(str(tmp_path / "a"), 0)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    _, state = state_of(str(tmp_path / "a"), tmp_path / "one")
    dataset, _ = state_of(str(tmp_path / "b"), tmp_path / "two")
    dataset.load_state_dict(state)
    assert not told(caplog)


def test_another_place_with_another_index_is_told(tmp_path, caplog):
    """As many samples in each shard, so it may be a copy in another form."""
    for name, first in (("a", 0), ("b", 1000)):
        write(str(tmp_path / name), first)
        with open(tmp_path / name / "index.json", "a", encoding="ascii") as file:
            file.write(" " * len(name) * (first + 1))
    _, state = state_of(str(tmp_path / "a"), tmp_path / "one")
    dataset, _ = state_of(str(tmp_path / "b"), tmp_path / "two")
    dataset.load_state_dict(state)
    (line,) = told(caplog)
    assert f"{tmp_path}/b with the index" in line
    assert f"but the state was saved with {tmp_path}/a and" in line


def test_of_many_streams_a_few_are_named(tmp_path, caplog):
    """One line, whatever is wrong."""
    for number in range(5):
        write(str(tmp_path / f"s{number}"), number)
    streams = [Stream(local=str(tmp_path / f"s{number}")) for number in range(5)]
    dataset = StreamingDataset(streams=streams, batch_size=4)
    state = dataset.state_dict(8, True)
    data = values_of(state)["data"]
    for stream in data["streams"]:
        stream["index"] = "0" * 16
    dataset.load_state_dict(changed(state, {"data": data}))
    (line,) = told(caplog)
    assert "and 2 more streams" in line


def write_shards(out, values, shard_samples=8, **options):
    """Write a shard for each ``shard_samples`` values, with digests."""
    options = {"hashes": ["xxh3_64"], **options}
    folders = []
    for number, first in enumerate(range(0, len(values), shard_samples)):
        folders.append(str(out / f"{number:03d}"))
        with MDSWriter(out=folders[-1], columns={"x": "int"}, **options) as writer:
            for value in values[first : first + shard_samples]:
                writer.write({"x": value})
    merge_index(str(out))
    return str(out)


def saved(place, **options):
    dataset = StreamingDataset(place, batch_size=4, **options)
    return json.loads(json.dumps(dataset.state_dict(8, True)))


def test_other_contents_are_refused_and_named(tmp_path):
    """Of five shards one has another value."""
    state = saved(write_shards(tmp_path / "a", [*range(40)]))
    place = write_shards(tmp_path / "b", [*range(17), 99, *range(18, 40)])
    dataset = StreamingDataset(place, batch_size=4)
    with pytest.raises(
        StateError, match=r"shard 2 of 5 in .*b \(002/shard.00000.mds\) had"
    ) as error:
        dataset.load_state_dict(state)
    assert "load_state_dict(state, other_data=True)" in str(error.value)
    assert "state['data'] = None" in str(error.value)


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_other_data_lists_what_differs_in_one_warning(tmp_path, caplog, kind):
    """The position is that of the state."""
    state = saved(write_shards(tmp_path / "a", [*range(40)]))
    place = write_shards(tmp_path / "b", [*range(100, 140)])
    dataset = StreamingDataset(place, batch_size=4)
    target = dataset if kind == "dataset" else StreamingDataLoader(dataset)
    target.load_state_dict(state, other_data=True)
    (line,) = told(caplog)
    assert f"shards 0 to 4 of 5 in {place} (000/shard.00000.mds to 004/shard.00000.mds)" in line
    assert [sample["x"] for sample in dataset] == list(range(108, 140))
    # The next state is of the new data.
    caplog.clear()
    target.load_state_dict(target.state_dict())
    assert not told(caplog)


def test_a_state_without_data_is_compared_with_nothing(tmp_path, caplog):
    """It is what the error says where a trainer calls load_state_dict."""
    state = saved(write_shards(tmp_path / "a", [*range(40)]))
    dataset = StreamingDataset(write_shards(tmp_path / "b", [*range(100, 140)]), batch_size=4)
    state["data"] = None
    dataset.load_state_dict(state)
    assert [sample["x"] for sample in dataset] == list(range(108, 140))
    assert not told(caplog)


def test_other_counts_are_refused_in_any_case(tmp_path):
    """Also with other_data=True, and without data in the state."""
    state = saved(write_shards(tmp_path / "a", [*range(40)]))
    dataset = StreamingDataset(write_shards(tmp_path / "b", [*range(41)]), batch_size=4)
    for each in (state, {**state, "data": None}):
        with pytest.raises(StateError, match="samples was 40 and is 41"):
            dataset.load_state_dict(each, other_data=True)


def test_another_order_is_refused_in_any_case(tmp_path):
    """`other_data` is about contents."""
    place = write_shards(tmp_path / "a", [*range(40)])
    dataset = StreamingDataset(place, batch_size=4, shuffle=True)
    with pytest.raises(StateError, match="order shuffle"):
        dataset.load_state_dict(saved(place), other_data=True)


@pytest.mark.parametrize(
    "changes",
    [{"compression": "zstd:3"}, {"hashes": ["sha1"]}, {"hashes": []}, {"size_limit": 1 << 20}],
    ids=str,
)
def test_settings_of_the_writer_are_no_difference(tmp_path, caplog, changes):
    """They are part of the bytes of a shard, so nothing is known, and a warning says so."""
    state = saved(write_shards(tmp_path / "a", [*range(40)]))
    dataset = StreamingDataset(write_shards(tmp_path / "b", [*range(40)], **changes), batch_size=4)
    dataset.load_state_dict(state)
    (line,) = told(caplog)
    assert "the state was saved with" in line
    assert len(list(dataset)) == 32


def test_names_and_folders_are_no_difference(tmp_path, caplog):
    """The index has other names, and the same digests: the data are known to be the same."""
    state = saved(write_shards(tmp_path / "a", [*range(40)]))
    for number in range(5):
        shutil.copytree(tmp_path / "a" / f"{number:03d}", tmp_path / "b" / f"{number + 1:03d}")
    merge_index(str(tmp_path / "b"))
    dataset = StreamingDataset(str(tmp_path / "b"), batch_size=4)
    dataset.load_state_dict(state)
    assert not told(caplog)


def test_shards_that_both_have_are_compared_where_counts_are_unknown(tmp_path):
    """A dataset without batch_size= records no order, so a grown index loads, if it only grew."""
    place = write_shards(tmp_path / "a", [*range(40)])
    dataset = StreamingDataset(place, topology=(0, 2))
    state = dataset.state_dict(8, True)
    grown = write_shards(tmp_path / "b", [*range(80)])
    StreamingDataset(grown, topology=(0, 2)).load_state_dict(state)
    other = write_shards(tmp_path / "c", [*range(39), 99, *range(40)])
    with pytest.raises(StateError, match=r"shard 4 of 10"):
        StreamingDataset(other, topology=(0, 2)).load_state_dict(state)


def test_streams_are_named_by_their_own_shards(tmp_path):
    """Shards are counted in each stream."""
    places = [write_shards(tmp_path / name, [*range(40)]) for name in "ab"]
    streams = [Stream(local=place) for place in places]
    state = StreamingDataset(streams=streams, batch_size=4).state_dict(8, True)
    shutil.rmtree(tmp_path / "b")
    write_shards(tmp_path / "b", [*range(39), 99])
    with pytest.raises(StateError, match=r"data: shard 4 of 5 in .*/b \(004/"):
        StreamingDataset(streams=streams, batch_size=4).load_state_dict(state)


def test_a_state_of_many_shards_stays_small(tmp_path):
    """It has 32 digests; a difference is named by the block of its shard."""
    count = 100
    state = saved(write_shards(tmp_path / "a", [*range(count)], 1, durable=False))
    assert len(values_of(state)["data"]["contents"]["digests"]) <= 32 * 8
    assert len(json.dumps(state)) < 2500
    dataset = StreamingDataset(
        write_shards(tmp_path / "b", [*range(50), -1, *range(51, count)], 1, durable=False),
        batch_size=4,
    )
    with pytest.raises(StateError, match="shards 48 to 51 of 100"):
        dataset.load_state_dict(state)


def test_packs_of_other_contents_are_refused_and_can_be_allowed(tmp_path):
    """Documents of the same lengths and other tokens."""
    for name, value in (("a", 1), ("b", 2)):
        with MDSWriter(
            out=str(tmp_path / name), columns={"tokens": "ndarray:int32"}, hashes=["xxh3_64"]
        ) as writer:
            for number in range(20):
                writer.write({"tokens": np.full(number % 5 + 1, value, np.int32)})
    loaders = [
        StreamingDataLoader(
            StreamingDataset(
                str(tmp_path / name), batch_size=1, packing=Packing(8, column="tokens")
            )
        )
        for name in "ab"
    ]
    batches = iter(loaders[0])
    next(batches)
    state = loaders[0].state_dict()
    left = len([*batches])
    with pytest.raises(StateError, match="shard 0 of 1"):
        loaders[1].load_state_dict(state)
    loaders[1].load_state_dict(state, other_data=True)
    assert len([*loaders[1]]) == left
    loaders[1].load_state_dict({**state, "data": None})
    assert len([*loaders[1]]) == left


def test_the_door_only_warns(tmp_path, caplog):
    """mosaicml-streaming compares nothing."""
    importlib.import_module("mds.compat.streaming")
    streaming = importlib.import_module("streaming")
    state = saved(write_shards(tmp_path / "a", [*range(40)]))
    place = write_shards(tmp_path / "b", [*range(100, 140)])
    dataset = streaming.StreamingDataset(local=place, batch_size=4)
    dataset.load_state_dict(state)
    (line,) = told(caplog)
    assert f"shards 0 to 4 of 5 in {place}" in line


def test_another_seed_is_ignored_with_a_warning(tmp_path, caplog):
    """The run keeps the order of its state, as in mosaicml-streaming."""
    place = write_shards(tmp_path / "a", [*range(40)])
    options = {"batch_size": 4, "shuffle": True}
    first = StreamingDataset(place, shuffle_seed=1, **options)
    order = [sample["x"] for sample in first]
    state = saved(place, shuffle=True, shuffle_seed=1)
    dataset = StreamingDataset(place, shuffle_seed=2, num_canonical_nodes=4, **options)
    dataset.load_state_dict({**state, "epoch": 0})
    (line,) = [text for text in caplog.messages if "ignored" in text]
    assert "num_canonical_nodes=4 (the state has 1), shuffle_seed=2 (the state has 1)" in line
    assert [sample["x"] for sample in dataset] == order[8:]
    caplog.clear()
    dataset.load_state_dict(dataset.state_dict())
    assert not caplog.messages


def test_other_files_that_are_read_in_place_can_be_allowed(tmp_path, caplog):
    """Files of the same format are compared by name and size."""
    place = tmp_path / "lines"
    of_lines(str(place), 100)
    state = saved(str(place))
    of_lines(str(place), 5000)
    dataset = StreamingDataset(str(place), batch_size=4)
    with pytest.raises(StateError, match=r"belongs to 1 file of jsonl, .*other_data=True"):
        dataset.load_state_dict(state)
    caplog.clear()
    dataset.load_state_dict(state, other_data=True)
    (line,) = told(caplog)
    assert "the state is of 1 file of jsonl, but" in line
    assert [sample["x"] for sample in dataset] == list(range(5008, 5040))
    dataset.load_state_dict({**state, "data": None})
    assert [sample["x"] for sample in dataset] == list(range(5008, 5040))
