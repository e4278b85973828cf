"""Shards are cut as one writer would cut them, wherever parts end."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mds import LocalDataset
from mds.errors import RecordError, WriterError
from mds.writers.convert import prepare
from mds.writers.convert._write_shard import ShardCutter


def cut_by_hand(sizes, limit, overhead):
    """The rule of the format, sample by sample: counts of samples a shard."""
    counts, count, running = [], 0, overhead
    for size in sizes:
        if limit and limit < running + size + 4:
            counts.append(count)
            count, running = 0, overhead
        count, running = count + 1, running + size + 4
    return counts + [count] * bool(count)


def lists_of_parts():
    return st.lists(st.lists(st.integers(0, 60), max_size=12), max_size=8)


@pytest.mark.slow
@given(lists_of_parts(), st.sampled_from([0, 40, 64, 100, 1000]), st.integers(8, 50))
def test_cuts_are_those_of_the_writer(parts, limit, overhead):
    """Any sizes in any parts give the shards that the rule gives, an empty first one too."""
    cutter = ShardCutter(0, size_limit=limit, overhead=overhead)
    shards = []
    for number, sizes in enumerate(parts):
        shards += cutter.feed(number, sum(sizes), np.array(sizes, np.int64))
    shards += cutter.finish()
    sizes = [size for part in parts for size in part]
    assert [len(shard.sizes) for shard in shards] == cut_by_hand(sizes, limit, overhead)
    assert [shard.number for shard in shards] == list(range(len(shards)))


@given(lists_of_parts(), st.sampled_from([0, 40, 100]))
def test_pieces_are_the_bytes_of_the_samples(parts, limit):
    """Laid end to end, the pieces of all shards are all runs, each byte once and in order."""
    cutter = ShardCutter(0, size_limit=limit, overhead=20)
    shards = []
    runs = [bytes([number]) * sum(sizes) for number, sizes in enumerate(parts)]
    for number, sizes in enumerate(parts):
        shards += cutter.feed(number, len(runs[number]), np.array(sizes, np.int64))
    shards += cutter.finish()
    for shard in shards:
        length = sum(piece.end - piece.start for piece in shard.pieces)
        assert length == int(shard.sizes.sum())
    pieces = [piece for shard in shards for piece in shard.pieces]
    assert b"".join(runs[p.part][p.start : p.end] for p in pieces) == b"".join(runs)


@given(st.lists(st.integers(0, 50), max_size=10), st.integers(1, 20))
def test_blocks_cross_parts_and_the_leftover_is_known(lengths, block):
    """Runs without samples of their own become blocks; what fills none is left over, or padded."""
    cutter = ShardCutter(0, size_limit=100, overhead=10)
    shards = []
    for number, length in enumerate(lengths):
        blocks = (cutter.leftover_bytes() + length) // block
        shards += cutter.feed(number, length, np.full(blocks, block, np.int64))
    assert cutter.leftover_bytes() == sum(lengths) % block
    missing = -sum(lengths) % block
    if missing:
        shards += cutter.finish(b"\0" * missing, np.array([block], np.int64))
    else:
        shards += cutter.finish()
    held = sum(p.end - p.start for shard in shards for p in shard.pieces)
    assert held == sum(lengths)
    assert sum(len(shard.sizes) for shard in shards) == -(-sum(lengths) // block)


def test_a_single_shard_has_its_bound():
    """Without a limit, samples beyond what offsets can address are refused; up to it they fit."""
    cutter = ShardCutter(0, size_limit=0, overhead=20, max_shard_size=999)
    fits = np.full(5, 190, np.int64)  # with four bytes each and the head: 990
    assert list(cutter.feed(0, int(fits.sum()), fits)) == []
    with pytest.raises(WriterError, match=r"shard would have 10\d\d bytes.*999.*size_limit"):
        list(cutter.feed(1, 30, np.array([30], np.int64)))


def test_a_record_has_its_bound(tmp_path):
    """A record that no shard can hold is a bad record, told with its size; others are converted."""
    source = tmp_path / "source"
    source.mkdir()
    for name, size in (("a", 990), ("b", 2000), ("c", 5)):
        (source / f"{name}.bin").write_bytes(bytes(size))
    with pytest.raises(RecordError, match=r"b\.bin.* bytes, but a shard must be less than 4 GiB"):
        replace(prepare(str(source), str(tmp_path / "out")), max_shard_size=999).run()
    rest = prepare(str(source), str(tmp_path / "rest"), on_error="skip")
    replace(rest, max_shard_size=999).run()
    assert len(LocalDataset(str(tmp_path / "rest"))) == 2
