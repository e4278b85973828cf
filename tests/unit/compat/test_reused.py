"""A local directory that two datasets name, through the door and natively."""

import gc
import os
import weakref

import pytest

import mds
from mds._dataset.stream import Stream
from mds.compat._dataset import StreamingDataset


@pytest.fixture
def pair(tmp_path):
    """Two datasets with a split each, of the same names and sizes and without digests."""
    for name, start in (("one", 0), ("other", 1000)):
        for split in ("", "train"):
            out = str(tmp_path / name / split)
            with mds.MDSWriter(out=out, columns={"a": "int"}, size_limit=1 << 10) as writer:
                for number in range(100):
                    writer.write({"a": start + number})
    return str(tmp_path / "one"), str(tmp_path / "other")


def test_another_remote_on_the_local_directory_of_a_living_dataset_is_refused(pair, tmp_path):
    """As in 0.13, in its words; not when the first is gone, in another split, or the same."""
    one, other = pair
    local = str(tmp_path / "local")
    first = StreamingDataset(remote=one, local=local, batch_size=1)
    with pytest.raises(ValueError, match=r"Reused local directory: .*local.* vs .*local.*Provide"):
        StreamingDataset(remote=other, local=os.path.join(local, ""), batch_size=1)
    assert not os.path.exists(os.path.join(local, ".mds", "sources"))
    again = StreamingDataset(remote=one + "/", local=local, batch_size=1)
    split = StreamingDataset(remote=other, local=local, split="train", batch_size=1)
    assert [d[5]["a"] for d in (first, again, split)] == [5, 5, 1005]
    del first, again, split
    second = StreamingDataset(remote=other, local=local, batch_size=1)
    assert second[5]["a"] == 1005


def test_a_remote_on_what_another_reads_in_place_is_refused(pair):
    """The one that reads in place is in nobody's way when it comes second."""
    one, other = pair
    place = StreamingDataset(local=one, batch_size=1)
    with pytest.raises(ValueError, match="Reused local directory"):
        StreamingDataset(remote=other, local=one, batch_size=1)
    assert StreamingDataset(local=one, batch_size=1)[3] == place[3]


def test_two_streams_of_one_dataset_are_refused_too(pair, tmp_path):
    """One directory has one remote."""
    streams = [Stream(remote=remote, local=str(tmp_path / "local")) for remote in pair]
    with pytest.raises(ValueError, match="Reused local directory"):
        StreamingDataset(streams=streams, batch_size=1)


def test_a_dataset_that_only_a_cycle_holds_is_gone(pair, tmp_path):
    """Nobody is told to provide another directory because of garbage."""
    one, other = pair
    local = str(tmp_path / "local")
    dataset = StreamingDataset(remote=one, local=local, batch_size=1)
    seen = weakref.ref(dataset)
    dataset.loop = dataset
    gc.disable()
    try:
        del dataset
        assert seen() is not None
        assert StreamingDataset(remote=other, local=local, batch_size=1)[0]["a"] == 1000
    finally:
        gc.enable()


def test_natively_the_second_is_kept_apart(pair, tmp_path):
    """The same two through `mds` have their own samples."""
    local = str(tmp_path / "local")
    first, second = (
        mds.StreamingDataset(remote=remote, local=local, batch_size=1) for remote in pair
    )
    assert [first[number]["a"] for number in range(100)] == list(range(100))
    assert [second[number]["a"] for number in range(100)] == list(range(1000, 1100))
