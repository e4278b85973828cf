"""select(where=...): decided beforehand, once on a node, and batches are full."""

import os
import pathlib

import pytest

from mds import StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError


def even(sample):
    """Keeps every other sample."""
    return sample["id"] % 2 == 0


def at_least(least):
    """A function whose code is always the same."""
    return lambda sample: sample["id"] >= least


def files():
    """The kept selections."""
    folder = pathlib.Path(os.environ["MDS_CACHE_DIR"]) / "selections"
    return sorted(folder.glob("*.ids")) if folder.is_dir() else []


@pytest.mark.parametrize("remainder", ["repeat", "short", "mask"])
def test_batches_are_full_and_every_kept_sample_comes_once(make, remainder):
    """As a dataset of those samples alone, over two ranks."""
    found = []
    for rank in range(2):
        dataset = StreamingDataset(
            local=make(), batch_size=5, remainder=remainder, topology=(rank, 2)
        )
        batches = list(StreamingDataLoader(dataset.select(where=even), num_workers=2))
        assert all(len(batch["id"]) == 5 for batch in batches)
        found += [i for batch in batches for i in batch["id"].tolist()]
    assert sorted(found) == list(range(0, 100, 2))


def test_with_a_key_the_function_is_called_once(make):
    """Later processes read the file; other data, columns and keys have another."""
    calls = []

    def where(sample):
        calls.append(sample["id"])
        return even(sample)

    def fresh(**options):
        return StreamingDataset(local=make(), batch_size=5, **options)

    first = fresh().select(where=where, key="even")
    assert len(calls) == 100
    again = fresh().select(where=where, key="even")
    assert len(calls) == 100
    assert [s["id"] for s in first] == [s["id"] for s in again] == list(range(0, 100, 2))
    fresh(columns=["id"]).select(where=where, key="even")
    fresh().limit(50).select(where=where, key="even")
    fresh().select(where=where, key="other")
    StreamingDataset(local=make(samples=90), batch_size=5).select(where=where, key="even")
    assert len(calls) == 100 + 100 + 50 + 100 + 90


def test_functions_that_differ_only_in_what_they_refer_to_differ(make):
    """A closure, a default, a global: nothing is taken for another."""
    dataset = StreamingDataset(local=make(), batch_size=5)
    for least in (10, 90):
        assert len(dataset.select(where=lambda s, least=least: s["id"] >= least)) == 100 - least
        assert len(dataset.select(where=at_least(least))) == 100 - least
    chosen = object()  # no pickle tells what it is: evaluated here, and nothing is kept
    before = files()
    dataset.select(where=lambda s: (s, chosen, open)[0])
    assert len(files()) - len(before) <= 1


@pytest.mark.parametrize("damage", [b"", b"short", b"0" * 16, b"0" * 816, None])
def test_a_damaged_file_is_made_anew(make, damage):
    """Zeros, an empty one, one without an end, one of other data."""
    dataset = StreamingDataset(local=make(), batch_size=5)
    dataset.select(where=even, key="even")
    (path,) = files()
    path.write_bytes(path.read_bytes()[:-9] if damage is None else damage)
    assert [s["id"] for s in dataset.select(where=even, key="even")] == list(range(0, 100, 2))


def test_it_sees_what_filters_keep_and_what_can_be_read(make):
    """A filter set before goes on holding."""
    dataset = StreamingDataset(local=make(), batch_size=5).filter(even)
    assert [s["id"] for s in dataset.select(where=lambda s: s["id"] > 90)] == [92, 94, 96, 98]
    nothing = StreamingDataset(local=make(), batch_size=5).select(where=lambda s: False)
    assert list(nothing) == []


@pytest.mark.parametrize("wrong", [{}, {"choice": [1], "where": even}])
def test_one_way_of_choosing(make, wrong):
    """Numbers or a function."""
    with pytest.raises(ConfigError, match="where="):
        StreamingDataset(local=make()).select(**wrong)
