"""Datasets of more shards than a process may have files open or mapped.

Each is read in a process of its own that may have 256 descriptors. ``MDS_FAULTS=long`` reads 20,000
shards in place of 2,000, and 100,000 by number.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from devtools.httpserver import http_server
from mds import JSONWriter, LocalDataset
from mds._index.table import read_index

IS_LONG = os.environ.get("MDS_FAULTS") == "long"
SHARDS = 20_000 if IS_LONG else 2_000
FEWER = 20_000 if IS_LONG else 600  # where each costs a request, or is opened again and again
MOST = 100_000 if IS_LONG else 5_000
COLUMNS = {"id": "int", "tokens": "ndarray:int32:8"}
WAYS = ["in order", "py1e", "naive", "naive limit", "by index", "local", "naive threads"]


def write(kit, folder, shards):
    """A dataset of so many shards of two samples."""
    return kit.write(
        folder,
        COLUMNS,
        [
            [{"id": i, "tokens": np.full(8, i, np.int32)} for i in (2 * n, 2 * n + 1)]
            for n in range(shards)
        ],
    )


@pytest.fixture(scope="module")
def many(kit, tmp_path_factory):
    """A dataset of many shards of two samples."""
    return write(kit, tmp_path_factory.mktemp("many") / "data", SHARDS)


@pytest.fixture(scope="module")
def fewer(kit, tmp_path_factory):
    """The same with fewer shards, still more than there are descriptors."""
    return write(kit, tmp_path_factory.mktemp("fewer") / "data", FEWER)


def read(hows, folder, *url, **environment):
    """What the program saw in each way; all samples each time, and never too many descriptors."""
    program = pathlib.Path(__file__).with_name("read_many.py")
    done = subprocess.run(
        [sys.executable, str(program), ",".join(hows), str(folder), *url],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=3000 if IS_LONG else 600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["how"] for one in seen] == hows
    for one in seen:
        assert one["is_whole"], one
        assert one["descriptors"] < 100, one
    return seen


@pytest.mark.slow
def test_shards_are_read_in_place(many):
    """However many there are, none of them holds a descriptor."""
    for seen in read([*WAYS, "naive processes"], many):
        assert seen["samples"] == 2 * SHARDS


@pytest.mark.slow
def test_maps_are_bounded(fewer):
    """A process that may have few maps has few, whatever the window of the shuffle asks for."""
    for seen in read(WAYS, fewer, MDS_MAX_MAPS="40"):
        assert seen["samples"] == 2 * FEWER
        assert seen["maps"] <= 45, seen  # what is being opened, and what was just let go


@pytest.mark.slow
@pytest.mark.parametrize("how", ["in order", "naive", "naive limit", "by index"])
def test_shards_are_read_through_a_cache(fewer, tmp_path, how):
    """From a web server into a cache folder, and from there again."""
    with http_server(str(fewer)) as url:
        for seen in read([how, how], tmp_path / "cache", url):
            assert seen["samples"] == 2 * FEWER


@pytest.mark.slow
def test_shards_of_two_files_count_twice(tmp_path):
    """Lines and their offsets are two maps."""
    samples = 14 * FEWER
    with JSONWriter(columns={"id": "int"}, out=str(tmp_path), size_limit=300) as writer:
        for number in range(samples):
            writer.write({"id": number})
    assert len(read_index(str(tmp_path / "index.json"))) > FEWER // 2
    for seen in read(["naive", "by index", "local", "naive threads"], tmp_path, MDS_MAX_MAPS="40"):
        assert seen["samples"] == samples
        assert seen["maps"] <= 47, seen


@pytest.mark.slow
def test_most_shards_by_number(kit, tmp_path):
    """The largest datasets, a sample of each shard."""
    (seen,) = read(["by index"], write(kit, tmp_path / "data", MOST))
    assert seen["samples"] == 2 * MOST


@pytest.mark.usefixtures("no_garbage")
def test_a_dropped_reader_lets_go_at_once(kit, tmp_path):
    """Nothing of a reader waits for the garbage collector: its map ends with its last use."""
    from mds._process.mmaps import count_maps

    folder = kit.mixed(tmp_path / "mixed", *[3] * 5)
    fixed = kit.fixed(tmp_path / "fixed", *[3] * 5)
    before = count_maps()
    for each in (folder, fixed):
        dataset = LocalDataset(str(each))
        kept = [dataset[number] for number in range(len(dataset))]
        dataset[-1]
        assert count_maps() == before + 5
        del dataset
        assert count_maps() == before
        assert kit.same(kept[0]["tokens"][:1], np.zeros(1, np.int32))


@pytest.mark.usefixtures("no_garbage")
def test_a_view_outlives_its_dataset(kit, tmp_path):
    """Views keep their file mapped, through closing and after; then it is let go of."""
    from mds._process.mmaps import count_maps

    folder = kit.fixed(tmp_path / "data", 4, 4)
    before = count_maps()
    dataset = LocalDataset(str(folder), copy=False)
    view = dataset[5]["tokens"]
    for reader in dataset._open.values():
        reader.close()
    del dataset, reader
    for path in folder.iterdir():
        path.unlink()
    assert view.tolist() == [5, 6, 7, 8, 9]
    assert count_maps() == before + 1
    del view
    assert count_maps() == before


@pytest.mark.usefixtures("no_garbage")
def test_the_first_sample_waits_for_few_shards(kit, tmp_path):
    """Small samples come as columns of a stretch, and the first stretch is a short one."""
    from mds import StreamingDataset
    from mds._process.mmaps import count_maps

    shards = [[{"x": np.int32(number)}] for number in range(300)]
    folder = kit.write(tmp_path / "data", {"x": "int32"}, shards)
    samples = iter(StreamingDataset(local=str(folder), shuffle=True, batch_size=1))
    before = count_maps()
    first = next(samples)
    assert 1 <= count_maps() - before <= 64
    assert sorted(int(s["x"]) for s in (first, *samples)) == [*range(300)]
