"""Shards that lie: refused with the file's name, whatever is wrong with them."""

import json
import os
import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mds import LocalDataset
from mds.errors import MdsError

# For a long search: MDS_FUZZ_CASES=20000 pytest -k damaged
CASES = int(os.environ.get("MDS_FUZZ_CASES", "300"))
COUNT = 20


def _offset(at, value):
    def change(data):
        struct.pack_into("<I", data, 4 * (1 + at), value % 2**32)

    return change


def _swap(data):
    a, b = struct.unpack_from("<2I", data, 4 * 6)
    struct.pack_into("<2I", data, 4 * 6, b, a)


def _word(value):
    """The first size word of sample 3."""

    def change(data):
        (at,) = struct.unpack_from("<I", data, 4 * 4)
        struct.pack_into("<I", data, at, value)

    return change


def _count(value):
    return lambda data: struct.pack_into("<I", data, 0, value)


CHANGES = {
    "offset_backwards": _swap,
    "offset_in_header": _offset(0, 0),
    "offset_beyond_end": _offset(7, 10**6),
    "offset_last_short": _offset(COUNT, 400),
    "offset_huge": _offset(5, -1),
    "count_huge": _count(2**32 - 1),
    "count_zero": _count(0),
    "count_other": _count(COUNT - 1),
}


def read_all(folder):
    dataset = LocalDataset(folder)
    for at in range(len(dataset)):
        dataset[at]
    for number in range(len(dataset.shards)):
        reader = dataset._reader(number)
        reader.rows(range(len(reader)))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shape", ["mixed", "fixed"])
def test_offsets_and_counts_are_distrusted(kit, tmp_path, shape, change):
    """No sample of a shard with impossible offsets is given out."""
    folder = getattr(kit, shape)(tmp_path / "data", COUNT)
    path = folder / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    CHANGES[change](data)
    path.write_bytes(data)
    with pytest.raises(MdsError, match=r"shard\.00000\.mds"):
        LocalDataset(folder)[7]
    with pytest.raises(MdsError, match=r"shard\.00000\.mds"):
        LocalDataset(folder)._reader(0).rows([7])


@pytest.mark.parametrize("value", [0, 1, 10, 2**31, 2**32 - 1])
def test_sizes_of_columns_are_distrusted(kit, tmp_path, value):
    """Sizes that do not add up to their sample are refused, in samples and in columns."""
    folder = kit.mixed(tmp_path / "data", COUNT)
    path = folder / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    _word(value)(data)
    path.write_bytes(data)
    dataset = LocalDataset(folder)
    assert kit.same(dataset[2], kit.mixed_sample(2))
    if value == len(kit.mixed_sample(3)["blob"]):
        return
    with pytest.raises(MdsError, match=r"shard\.00000\.mds, sample 3"):
        dataset[3]
    with pytest.raises(MdsError, match=r"shard\.00000\.mds, sample 3"):
        dataset._reader(0).rows([2, 3])


def test_a_count_takes_no_memory_on_its_word(kit, tmp_path):
    """An index that claims billions of samples is refused before anything is made for them."""
    folder = kit.mixed(tmp_path / "data", COUNT)
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["samples"] = 2**31
    (folder / "index.json").write_text(json.dumps(index))
    tracemalloc.start()
    try:
        with pytest.raises(MdsError, match="samples do not fit into a file"):
            LocalDataset(folder)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def originals(kit, tmp_path_factory):
    """Small datasets of both shapes, to be damaged."""
    root = tmp_path_factory.mktemp("originals")
    return {name: getattr(kit, name)(root / name, 5, 4) for name in ("mixed", "fixed")}


@settings(
    max_examples=CASES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damaged_datasets_read_or_are_refused(originals, tmp_path, data):
    """Any flipped bit and any cut, in any file: every sample is read, or our error says why not."""
    source = originals[data.draw(st.sampled_from(sorted(originals)))]
    folder = tmp_path / "damaged"
    folder.mkdir(exist_ok=True)
    names = sorted(os.listdir(source))
    for name in names:
        (folder / name).write_bytes((source / name).read_bytes())
    victim = folder / data.draw(st.sampled_from(names))
    content = bytearray(victim.read_bytes())
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    victim.write_bytes(content)
    refusal = ""
    try:
        read_all(folder)
    except MdsError as error:
        refusal = str(error)
    assert not refusal or str(folder) in refusal
