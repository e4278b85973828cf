"""Tests of many files, large ones, and every kind of damage: they take seconds each."""

import contextlib
import importlib.util
import itertools
import json

import numpy as np
import pytest
from megatron_files import random_documents, read_by_numpy, same, tokens_of, write

pa = pytest.importorskip("pyarrow")

from tables import table, write_arrow, write_files  # noqa: E402

from mds import StreamingDataset  # noqa: E402
from mds.errors import MdsError  # noqa: E402
from mds.formats import Megatron  # noqa: E402


def read_by_megatron(path):
    """Read all documents with the IndexedDataset of megatron-core."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    indexed = IndexedDataset(str(path))
    documents = []
    for first, last in itertools.pairwise(indexed.document_indices.tolist()):
        sequences = [indexed.get(number) for number in range(first, last)]
        documents.append(np.concatenate([np.zeros(0, indexed.index.dtype), *sequences]))
    return documents


pytestmark = pytest.mark.slow

READERS = [read_by_numpy]
if importlib.util.find_spec("megatron") is not None:  # not a dependency of the tests
    READERS.append(read_by_megatron)


@pytest.mark.parametrize("read", READERS)
def test_documents_are_those_that_others_read(tmp_path, read):
    """300 random files, of each type, with and without modes and empty documents."""
    rng = np.random.default_rng(7)
    for number in range(300):
        code = 1 + number % 8
        # megatron-core gives sequences of several modes as pairs, so modes are left out there.
        has_modes = number % 3 == 0 and read is read_by_numpy
        path = tmp_path / f"{number}" / "web"
        path.parent.mkdir()
        write(path, random_documents(rng, code, is_empty=number % 5 == 0), code, has_modes)
        size = int(rng.integers(1, 900))
        dataset = StreamingDataset(local=str(path.parent), format=Megatron(shard_size=size))
        same(tokens_of(dataset), read(path))


def test_a_shard_is_consecutive_documents_of_64_megabytes(tmp_path):
    """A document that is larger is a shard of its own; the rest is cut where the size is full."""
    count = 3 << 20
    write(tmp_path / "a", [[np.zeros(n, np.int32)] for n in (5, 20 * count, count, count)], 4)
    dataset = StreamingDataset(local=str(tmp_path), format="megatron")
    assert dataset.samples_per_shard.tolist() == [1, 1, 2]
    assert len(dataset[1]["tokens"]) == 20 * count
    assert len(dataset[3]["tokens"]) == count


def test_places_that_cannot_be_are_told(tmp_path):
    """A flipped byte anywhere gives an error of the library or a sample, and ends no process."""
    path = tmp_path / "files" / "a.arrow"
    write_arrow(path, table(0, 20), 20)
    whole = path.read_bytes()
    for at in range(0, len(whole), 13):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with contextlib.suppress(MdsError):
            dataset = StreamingDataset(
                remote=str(tmp_path / "files"),
                local=str(tmp_path / str(at) / "cache"),
                batch_size=4,
            )
            dataset[:]
            list(dataset)


def test_every_cut_and_every_flipped_byte_is_told_or_harmless(tmp_path):
    """Damage is an error of the library with the file's name, never another kind, never a crash."""
    whole = (write_files(tmp_path / "files", groups=((5,),)) / "part-000.parquet").read_bytes()
    folder = tmp_path / "damaged"
    folder.mkdir()
    rng = np.random.default_rng(5)
    told = []
    for trial in range(150):
        data = bytearray(whole)
        if trial % 3 == 0:
            del data[rng.integers(len(data)) :]
        else:
            data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        (folder / "a.parquet").write_bytes(data)
        cache = str(tmp_path / f"c{trial}")
        try:
            list(StreamingDataset(remote=str(folder), local=cache, batch_size=2))
        except MdsError as error:
            told.append(str(error))
    assert all("a.parquet" in text for text in told)
    assert len(told) > 60


def write_lines(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text('{"x": 1}\n')
    return folder


def of_lines(folder, cache):
    return StreamingDataset(remote=str(folder), local=str(cache), batch_size=1)


def test_a_state_does_not_grow_with_the_files(tmp_path):
    """It has digests of at most 32 blocks of shards, 8 letters each, and the digits of numbers."""
    sizes = []
    for count in (1, 2000):
        folder = write_lines(tmp_path / f"{count}", *[f"part-{n:05}.jsonl" for n in range(count)])
        state = of_lines(folder, tmp_path / f"cache{count}").state_dict(num_samples=1)
        sizes.append(len(json.dumps(state)))
    assert sizes[1] - sizes[0] < 31 * 8 + 30
    assert max(sizes) < 1200
