"""What a dataset keeps open: one descriptor a cache folder, and nothing once it is dropped."""

import gc
import os
import threading

import pytest
from cache_tools import write

from mds import Samples, Stream
from mds._process.mmaps import count_maps

STREAMS = 12


def count_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def streams(tmp_path):
    """A function that makes the streams of a dataset with cache folders of their own."""
    for number in range(STREAMS):
        write(tmp_path / f"remote{number}", samples=20)

    def make(name):
        places = [(tmp_path / f"remote{n}", tmp_path / f"{name}{n}") for n in range(STREAMS)]
        return [Stream(remote=str(remote), local=str(local)) for remote, local in places]

    return make


@pytest.mark.parametrize("limit", [None, "2mb"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stream_takes_one_descriptor(streams, limit, shuffle):
    """The lock of its folder stays open; ledgers, orders and shards are maps without any."""
    before = count_descriptors()
    dataset = Samples(streams=streams("cache"), cache_limit=limit, shuffle=shuffle, batch_size=4)
    assert len([*dataset]) == 20 * STREAMS
    assert dataset[7]["x"] == 7
    assert count_descriptors() <= before + STREAMS + 3  # the book of epochs, and a lock just used


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, "2mb"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_dropped_dataset_lets_go_at_once(streams, limit, shuffle):
    """Its files and maps go with the last use of it, and wait for no garbage collector."""
    gc.collect()
    gc.disable()
    try:
        before = count_descriptors(), count_maps()
        for turn in range(3):
            dataset = Samples(
                streams=streams(f"cache{turn}"), cache_limit=limit, shuffle=shuffle, batch_size=4
            )
            assert len([*dataset]) == 20 * STREAMS
            del dataset
            for thread in threading.enumerate():  # those that fetched are about to end
                if thread.name.startswith("mds") and thread.name != "mds-waiting":  # the process's
                    thread.join(60)
            after = count_descriptors(), count_maps()
            assert after[0] <= before[0] + 2
            assert after[1] <= before[1] + 2
    finally:
        gc.enable()
