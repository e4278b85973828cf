"""A state that meets other data with as many samples in each shard is told, and is not refused."""

import os
import shutil

import pytest

from mds import MDSWriter, Stream, StreamingDataset
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
        with MDSWriter(out=place, columns={"x": "int"}, size_limit=200, hashes=["sha1"]) as writer:
            for number in range(40):
                writer.write({"x": first + number})
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
