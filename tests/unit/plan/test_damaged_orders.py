"""Order files that a power cut, a disk or a stranger changed: the order is right all the same."""

import os
import random
import struct
import warnings

import numpy as np
import pytest
import xxhash
from ordertools import joined, make_plan, uneven

from mds._cache import order_files
from mds._cache import order_files as cached
from mds._cache.order_files import prepare, share_order

SHARDS = uneven(120, 200_000)
ORDER = {
    "small_order": 0,
    "shuffle": True,
    "batch_size": 5,
    "shuffle_algo": "py1e",
    "shuffle_block_size": 9_000,
}
BYTES = 4 * 200_000


@pytest.fixture(autouse=True)
def _no_thread_prepares(monkeypatch):
    monkeypatch.setattr(cached._ahead, "begin", lambda *args: None)


def plan_of(epoch=0):
    return make_plan(SHARDS, (1, 1, 2), **ORDER, epoch=epoch)


@pytest.fixture(scope="module")
def want():
    """The order, computed without any file."""
    plan = plan_of()
    plan.small_order = 1 << 40
    return joined(plan.blocks(0, 0, 1))


def zeros(data):
    return bytes(len(data))


def ones(data):
    return b"\xff" * len(data)


def ids_of_zeros(data):
    return bytes(BYTES) + data[BYTES:]


def ids_of_ones(data):
    return b"\xff" * BYTES + data[BYTES:]


def last_page_of_zeros(data):
    return data[: BYTES - 4096] + bytes(4096) + data[BYTES:]


def one_bit(data):
    data = bytearray(data)
    data[len(data) // 2] ^= 4
    return bytes(data)


def one_bit_of_a_digest(data):
    data = bytearray(data)
    data[BYTES + 9] ^= 1
    return bytes(data)


def cut(data):
    return data[:-5]


def longer(data):
    return data + bytes(8)


def empty(data):
    return data[:0]


def noise(data):
    return random.Random(1).randbytes(len(data))


CHANGES = [
    *(zeros, ones, ids_of_zeros, ids_of_ones, last_page_of_zeros, one_bit, one_bit_of_a_digest),
    *(cut, longer, empty, noise),
]


def exchange(path, data):
    """Put other bytes in place of a file; in the file itself they would change what is mapped."""
    os.unlink(path)
    with open(path, "wb") as file:
        file.write(data)


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_file_is_computed_anew(change, want, tmp_path):
    """With a line in the log and no warning, and the next process finds it whole."""
    (path,) = prepare(plan_of(), str(tmp_path))
    with open(path, "rb") as file:
        right = file.read()
    exchange(path, change(right))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = share_order(plan_of(), str(tmp_path))
        assert np.array_equal(joined(plan.blocks(0, 0, 1)), want)
    with open(path, "rb") as file:
        assert file.read() == right


def test_a_file_with_the_name_of_another_is_computed_anew(want, tmp_path, caplog):
    """Its digests are right, for another order."""
    paths = [prepare(plan_of(epoch), str(tmp_path))[0] for epoch in range(2)]
    with open(paths[1], "rb") as file:
        exchange(paths[0], file.read())
    plan = share_order(plan_of(), str(tmp_path))
    assert np.array_equal(joined(plan.blocks(0, 0, 1)), want)
    assert "computes the order again" in caplog.text


@pytest.mark.parametrize("value", [200_000, 2**31, 2**32 - 1])
def test_ids_of_samples_that_there_are_not_are_never_given(value, want, tmp_path, caplog):
    """Also when their digests fit."""
    (path,) = prepare(plan_of(), str(tmp_path))
    with open(path, "rb") as file:
        data = bytearray(file.read())
    data[400:404] = struct.pack("<I", value)
    digests = [
        xxhash.xxh3_64_intdigest(data[at : min(at + order_files.BLOCK, BYTES)])
        for at in range(0, BYTES, order_files.BLOCK)
    ]
    table = struct.pack(f"<{len(digests)}Q", *digests)
    key = os.path.basename(path).split("-")[3].removesuffix(".ids").encode()
    data[BYTES:] = table + b"mdsorder" + struct.pack("<Q", xxhash.xxh3_64_intdigest(key + table))
    exchange(path, bytes(data))
    plan = share_order(plan_of(), str(tmp_path))
    assert np.array_equal(joined(plan.blocks(0, 0, 1)), want)
    assert "samples that do not exist" in caplog.text


def test_a_file_that_is_damaged_while_it_is_read_is_noticed_in_what_was_not_read(want, tmp_path):
    """Each block is looked at before its first id is given."""
    (path,) = prepare(plan_of(), str(tmp_path))
    plan = share_order(plan_of(), str(tmp_path))
    blocks = plan.blocks(0, 0, 1)
    found = [next(blocks)]
    with open(path, "r+b") as file:
        file.seek(BYTES - 1000)
        file.write(bytes(1000))
    assert np.array_equal(joined([*found, *blocks]), want)


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_a_link_in_place_of_a_file_is_not_followed(make, want, tmp_path):
    """What it leads to is neither read nor changed."""
    (path,) = prepare(plan_of(), str(tmp_path / "orders"))
    with open(path, "rb") as file:
        data = bytearray(file.read())
    data[0] ^= 1
    (tmp_path / "key").write_bytes(data)
    os.unlink(path)
    make(tmp_path / "key", path)
    plan = share_order(plan_of(), str(tmp_path / "orders"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.array_equal(joined(plan.blocks(0, 0, 1)), want)
    assert (tmp_path / "key").read_bytes() == bytes(data)


@pytest.mark.parametrize("samples", [0, 1, 7, 65_535, 65_536, 65_537, 300_001])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_what_is_written_is_what_is_read(samples, kind, tmp_path):
    """For every width of ids, in windows of any size."""
    generator = np.random.default_rng(samples)
    ids = generator.integers(0, 200, samples).astype(kind)
    cuts = np.sort(generator.integers(0, samples + 1, 5))
    path = str(tmp_path / "ids")
    with open(path, "wb") as file:
        order_files.write_ids(file, np.split(ids, cuts), "key")
    assert os.path.getsize(path) == order_files.file_size(ids.nbytes)
    found = order_files.CheckedIds(path, "key", ids.nbytes, ids.dtype, 200)
    assert np.array_equal(found.take(np.arange(samples)), ids)
    places = generator.integers(0, max(samples, 1), min(samples, 50))
    assert np.array_equal(found.take(places), ids[places])
