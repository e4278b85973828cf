"""What every shuffle keeps to, and that windows give what whole arrays would."""

import itertools
import tracemalloc

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ordertools import ALGORITHMS, DRAWN, algorithms, joined, sizes, uneven

from mds.errors import PlanError, UnknownNameError
from mds.shuffle import ShuffleSpec, get_shuffle
from mds.shuffle import _py1e as py1e
from mds.shuffle._py1e import BUCKET_PLACES, StreamingBucketSort
from mds.shuffle._registry import algos
from mds.shuffle._shard_parts import shuffled_parts

nodes = st.integers(1, 9)
seeds = st.integers(0, 2**40)


@given(st.sampled_from(DRAWN), sizes, nodes, seeds, st.integers(0, 5), st.integers(4, 90))
@pytest.mark.filterwarnings("ignore")
def test_windows_are_the_plain_computation(algo, shards, canonical, seed, epoch, block):
    """Every drawn shuffle, cut in windows, is the whole array that a plain loop makes."""
    shards = np.array(shards, np.int64)
    want = getattr(oracles, algo)(shards, canonical, seed, epoch, block)
    assert np.array_equal(get_shuffle(algo, shards, canonical, seed, epoch, block), want)


@pytest.mark.parametrize("algo", DRAWN)
@pytest.mark.parametrize("canonical", [1, 3])
def test_windows_are_the_plain_computation_over_many_windows(algo, canonical):
    """The same where a node takes several windows, bins and batches of shards."""
    shards = uneven(150, 700_000)
    block = 90_000
    want = getattr(oracles, algo)(shards, canonical, 1, 2, block)
    assert np.array_equal(get_shuffle(algo, shards, canonical, 1, 2, block), want)


def test_replaying_and_keeping_the_first_phase_are_the_same(monkeypatch):
    """py1e gives the same whether a node's shuffled shards are kept or made a second time."""
    shards = uneven(90, 300_000)
    kept = get_shuffle("py1e", shards, 2, 1, 2, 50_000)
    monkeypatch.setattr(py1e.Py1e, "keep", 0)
    assert np.array_equal(get_shuffle("py1e", shards, 2, 1, 2, 50_000), kept)


@given(algorithms, sizes, nodes, seeds, st.integers(4, 90))
@pytest.mark.filterwarnings("ignore")
def test_nodes_can_be_produced_in_any_order(algo, shards, canonical, seed, block):
    """A node's windows do not depend on which nodes were produced before."""
    shards = np.array(shards, np.int64)
    whole = get_shuffle(algo, shards, canonical, seed, 1, block)
    shuffle = algos[algo](ShuffleSpec(shards, canonical, seed, 1, block))
    starts = shuffle.starts
    for node in reversed(range(canonical)):
        assert np.array_equal(joined(shuffle.windows(node)), whole[starts[node] : starts[node + 1]])


@pytest.mark.parametrize("algo", sorted(set(ALGORITHMS) - {"naive"}))
def test_a_node_keeps_its_share_over_all_epochs(algo):
    """The samples of a canonical node are the same in every epoch, in another order."""
    shards = uneven(40, 2_000)
    edges = np.arange(5) * 2_000 // 4
    epochs = [get_shuffle(algo, shards, 4, 3, epoch, 300) for epoch in range(3)]
    for first, last in itertools.pairwise(edges):
        shares = [np.sort(order[first:last]).tolist() for order in epochs]
        assert shares[0] == shares[1] == shares[2]
    assert not np.array_equal(epochs[0], epochs[1])


def test_equal_places_are_ordered_by_place():
    """Where two samples fall on exactly the same place the earlier one comes first."""
    places = np.array([5.0, 2.5, 5.0, 2.5, 2.5 + 2.0**-40, 0.0])
    sorter = StreamingBucketSort(samples=1 << 40, reach=10)
    sorter.push(0, places, np.array([50, 25, 51, 24, 26, 0]))
    assert joined(sorter.pop(np.inf)).tolist() == [0, 25, 24, 26, 50, 51]


@given(
    st.lists(st.floats(0, 3 * BUCKET_PLACES), min_size=1, max_size=200),
    st.sampled_from([200, 1 << 45]),
)
def test_merging_is_a_stable_sort(places, samples):
    """Batch by batch, however coarse the rounding beside a large id is."""
    sorter = StreamingBucketSort(samples=samples, reach=3 * BUCKET_PLACES)
    for first in range(0, len(places), 7):
        part = np.array(places[first : first + 7])
        sorter.push(first, part, np.arange(first, first + len(part)))
    want = np.argsort(np.array(places), kind="stable")
    assert joined(sorter.pop(np.inf)).tolist() == want.tolist()


@given(sizes, st.integers(1, 60))
def test_nodes_share_the_samples_evenly(shards, canonical):
    """Parts of shards cover each node exactly, also with more nodes than samples."""
    shards = np.array(shards, np.int64)
    spec = ShuffleSpec(shards, canonical, 0, 0, 1)
    parts = shuffled_parts(spec)
    shares = [int(parts.of_node(node)[1].sum()) for node in range(canonical)]
    assert shares == np.diff(spec.node_starts()).tolist()
    assert len(parts.size) == parts.edges[-1]


@pytest.mark.parametrize("algo", sorted(set(ALGORITHMS) - {"naive"}))
def test_memory_is_that_of_blocks_and_shards(algo):
    """Producing four times the samples takes no more memory but for the list of shards."""

    def peak(count):
        shards = np.full(count, 1_000)
        tracemalloc.start()
        shuffle = algos[algo](ShuffleSpec(shards, 1, 0, 0, 50_000))
        shuffle.keep = 0
        for window in shuffle.windows(0):
            assert len(window) <= 1_000_000
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    small, large = peak(500), peak(2_000)
    assert large < small + 1_500 * 1_000
    assert large < 16_000_000


def test_an_unknown_name_lists_the_known_ones():
    """It is a KeyError and a ValueError."""
    with pytest.raises(UnknownNameError, match="py1e, py1s, py2s, seekable"):
        get_shuffle("py9x", [3], 1, 0, 0)


@pytest.mark.parametrize(
    ("algo", "block"), [("py1b", 0), ("py1br", 1), ("py1e", 0), ("seekable", 0), ("py1e", -4)]
)
def test_a_block_that_is_too_small_is_refused(algo, block):
    """The sentence names the argument."""
    with pytest.raises(PlanError, match="shuffle_block_size"):
        get_shuffle(algo, [30, 30], 1, 0, 0, block)


def test_a_shard_larger_than_a_block_is_told_once():
    """One warning for the whole shuffle."""
    with pytest.warns(UserWarning, match="block size was smaller than shard size") as told:
        get_shuffle("py1e", [100, 100, 100], 2, 0, 0, 8)
    assert len(told) == 1
