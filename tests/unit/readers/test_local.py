"""LocalDataset: the rules of its brackets, batches, and other processes."""

import multiprocessing
import operator
import os
import pathlib
import pickle
import shlex
import traceback

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch.utils.data import DataLoader

from devtools.httpserver import http_server
from mds import LocalDataset, MDSWriter, StreamingDataset
from mds._cli import main
from mds.errors import (
    ConfigError,
    FunctionError,
    IndexFileError,
    NotFoundError,
    UnsafeTypeError,
)


@pytest.fixture
def dataset(kit, tmp_path):
    """Samples 0 to 29, fixed-width, in shards of 12, 0, 11 and 7."""
    return LocalDataset(kit.fixed(tmp_path / "data", 12, 0, 11, 7))


def ids(samples):
    if isinstance(samples, list):
        return [ids(sample) for sample in samples]
    return samples["id"] // 10**12


def test_a_sample_by_number(dataset):
    """Python's and NumPy's integers count from the start, negative ones from the end."""
    assert [ids(dataset[i]) for i in (0, 11, 12, 22, 23, 29, -1, -30)] == [
        *(0, 11, 12, 22, 23, 29, 29, 0)
    ]
    assert ids(dataset[np.int64(13)]) == 13
    assert ids(dataset[np.uint8(13)]) == 13
    assert ids(dataset[np.array(-2)]) == 28


def test_many_samples_at_once(dataset):
    """Slices, lists, tuples, ranges, arrays and tensors give lists of the same nesting."""
    assert ids(dataset[10:14]) == [10, 11, 12, 13]
    assert ids(dataset[28:99]) == [28, 29]
    assert ids(dataset[::-15]) == [29, 14]
    assert ids(dataset[[3, -1]]) == [3, 29]
    assert ids(dataset[[[1, 2], [3]]]) == [[1, 2], [3]]
    assert ids(dataset[np.array([[1, 2], [3, 4]])]) == [[1, 2], [3, 4]]
    assert ids(dataset[torch.tensor([5, 6])]) == [5, 6]
    assert ids(dataset[range(3)]) == [0, 1, 2]
    assert ids(dataset[(7, np.int32(8), slice(0, 2))]) == [7, 8, [0, 1]]
    assert dataset[[]] == []
    assert dataset[np.array([])] == []
    assert dataset[5:5] == []


@pytest.mark.parametrize("at", [30, -31, 2**70, np.int64(30), [0, 30], np.array([30])])
def test_out_of_range(dataset, at):
    """A number that does not exist is an IndexError."""
    with pytest.raises(IndexError, match="30 samples"):
        dataset[at]


@pytest.mark.parametrize(
    "at", [1.0, None, {1}, np.array([1.0]), np.array([True]), True, slice(0, 1.5), b"1"]
)
def test_other_things_in_brackets(dataset, at):
    """What is no index of samples is a ValueError."""
    with pytest.raises(ValueError, match=r"integer"):
        dataset[at]


def test_the_values_of_a_column(kit, tmp_path, dataset):
    """By its name; of a class of the user, from its samples."""

    class Doubled(LocalDataset):
        def get_item(self, sample_id):
            return {"id": super().get_item(sample_id)["id"] * 2}

    values = [sample["id"] for sample in dataset]
    assert dataset["id"] == values
    assert Doubled(dataset.local)["id"] == [2 * value for value in values]
    assert dataset.limit(3)["id"] == values[:3]
    assert dataset.map(lambda sample: {"id": -sample["id"]})["id"] == [-v for v in values]
    with pytest.raises(ConfigError, match=r"dataset\['ids'\]: there is no column 'ids'"):
        dataset["ids"]


def test_subsets_have_samples_by_number(dataset):
    """Of one another, too, and with the shards that have them."""
    chosen = dataset.select([3, 13, 23])
    assert ids([*chosen]) == [3, 13, 23]
    assert (len(chosen), chosen.num_samples, ids(chosen[-1])) == (3, 3, 23)
    assert ids(chosen.limit(2)[:]) == [3, 13]
    assert chosen.spanner[1] == dataset.spanner[13]
    odd = dataset.select(lambda sample: ids(sample) % 2)
    assert ids(odd[:3]) == ids(dataset.filter(lambda sample: ids(sample) % 2)[:3]) == [1, 3, 5]
    assert ids(odd.select(where=lambda sample: ids(sample) > 20)[:]) == [21, 23, 25, 27, 29]
    assert repr(chosen) == f"<LocalDataset: 3 samples of {dataset!r}>"
    for call in (
        lambda: chosen._read_rows(None),
        lambda: dataset.select([3, 1]),
        lambda: dataset.select([30]),
        lambda: dataset.select(where=3),
        lambda: dataset.limit(-1),
        lambda: dataset.map(3),
    ):
        with pytest.raises(ValueError, match=r"Write|from 0 to 29|takes|limit|call it before"):
            call()


def test_functions_of_samples(dataset):
    """They are called at each access; random numbers depend on the number of the sample."""
    mapped = dataset.map(ids).map(lambda number: number + 100)
    assert [mapped[0], *mapped[28:]] == [100, 128, 129]
    assert mapped.filter(lambda number: number > 127)[:] == [128, 129]

    def draw(sample, rng):
        return ids(sample), int(rng.integers(1 << 30))

    drawn = dataset.map(draw)
    streamed = StreamingDataset(local=dataset.local).map(draw)
    assert drawn[:] == drawn[:] == [streamed[number] for number in range(30)]
    with pytest.raises(FunctionError, match="sample 7"):
        dataset.map(lambda sample: 1 / (ids(sample) - 7))[7]


def test_parts_go_to_workers(dataset):
    """As whole datasets do."""
    part = dataset.select(range(4, 20)).map(ids_of_text)
    loader = DataLoader(part, batch_size=8, num_workers=1, multiprocessing_context="spawn")
    assert [batch.tolist() for batch in loader] == [[*range(4, 12)], [*range(12, 20)]]


def ids_of_text(sample):
    """Return the number of a sample."""
    return ids(sample)


def test_facts(dataset):
    """Length, sizes, shards and the place of a sample are told."""
    assert isinstance(dataset, torch.utils.data.Dataset)
    assert len(dataset) == dataset.num_samples == dataset.size == 30
    assert [shard.samples for shard in dataset.shards] == [12, 0, 11, 7]
    assert dataset.spanner[12] == (2, 0)
    assert "30 samples in 4 shards" in repr(dataset)


def test_batches_of_a_loader(dataset):
    """A loader gets its samples by one call a batch, with and without workers."""
    assert ids(dataset.__getitems__([4, 2])) == [4, 2]
    dataset = LocalDataset(dataset.local, columns=["id", "label"])
    for workers in (0, 2):
        batches = list(DataLoader(dataset, batch_size=8, num_workers=workers))
        assert torch.cat([batch["label"] for batch in batches]).tolist() == list(range(30))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_copies_in_other_processes(dataset, method):
    """A dataset that has open shards works in forked and in spawned processes."""
    dataset[3]
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert ids(pool.map(dataset.__getitem__, [29, 3])) == [29, 3]


def test_a_pickle_holds_no_open_files(dataset):
    """Pickling leaves the mapped shards behind."""
    assert ids(dataset[20]) == 20
    again = pickle.loads(pickle.dumps(dataset))
    assert again._open == {}
    assert ids(again[20]) == 20


def test_open_shards_are_bounded(dataset):
    """Only so many shards stay open; the others are opened again."""
    dataset._open.max_open = 2
    kept = dataset[0]["tokens"]
    for at in (0, 29, 12, 0, 29):
        assert ids(dataset[at]) == at
        assert len(dataset._open) <= 2
    assert kept.tolist() == [0, 1, 2, 3, 4]


def test_splits_and_columns(kit, tmp_path):
    """A split is a folder below; columns are chosen."""
    kit.fixed(tmp_path / "train" / "en", 5)
    dataset = LocalDataset(str(tmp_path), "train/en", columns=["label"])
    assert dataset[4] == {"label": 4}


def test_a_subclass_changes_samples(kit, tmp_path):
    """An overridden get_item is what every way of indexing calls."""

    class Labels(LocalDataset):
        def get_item(self, sample_id):
            return int(super().get_item(sample_id)["label"])

    dataset = Labels(kit.fixed(tmp_path / "data", 6))
    assert [dataset[1], dataset[-1], dataset[1:3], dataset.__getitems__([2])] == [1, 5, [1, 2], [2]]


def test_what_cannot_be_opened(kit, tmp_path):
    """Missing folders, missing and broken indexes, and pickles are refused at construction."""
    with pytest.raises(NotFoundError, match="nowhere"):
        LocalDataset(str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"index\.json: there is no such file"):
        LocalDataset(str(tmp_path))
    (tmp_path / "index.json").write_text("[]")
    with pytest.raises(IndexFileError, match=r"index\.json"):
        LocalDataset(str(tmp_path))
    folder = kit.write(tmp_path / "unsafe", {"x": "pkl"}, [[{"x": {1}}]])
    with pytest.raises(UnsafeTypeError, match="allow_unsafe_types"):
        LocalDataset(str(folder))
    assert LocalDataset(str(folder), None, True)[0] == {"x": {1}}


def test_compressed_shards_are_for_the_other_dataset(kit, tmp_path):
    """Where only compressed files are, the error says who reads them."""
    import json

    folder = kit.fixed(tmp_path / "data", 3)
    index = json.loads((folder / "index.json").read_text())
    entry = index["shards"][0]
    entry["compression"] = "zstd"
    entry["zip_data"] = {"basename": "shard.00000.mds.zstd", "bytes": 3, "hashes": {}}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "shard.00000.mds").rename(folder / "shard.00000.mds.zstd")
    with pytest.raises(NotFoundError, match=r"StreamingDataset\(local=...\)"):
        LocalDataset(folder)[0]


@pytest.mark.parametrize("argument", ["local", "remote", "LocalDataset"])
@pytest.mark.parametrize("source", ["pets", "table.csv", "tables", "notes"])
def test_files_given_as_a_dataset_name_the_command_that_makes_one(
    argument, source, tmp_path, monkeypatch
):
    """A folder of pictures, a table and texts: LocalDataset names a command, which works."""
    monkeypatch.chdir(tmp_path)
    for folder in ("pets/cat", "tables", "notes"):
        os.makedirs(folder)
    Image.new("RGB", (4, 4)).save("pets/cat/1.jpg")
    for place in ("table.csv", "tables/a.csv", "notes/a.txt"):
        pathlib.Path(place).write_text("a,b\n1,2\n")
    opened = (
        LocalDataset
        if argument == "LocalDataset"
        else lambda place: StreamingDataset(**{argument: place}, batch_size=1)
    )
    if argument != "LocalDataset":  # which reads files in place
        assert len(opened(source)) == 1
        return
    with pytest.raises(NotFoundError, match="the folder of a dataset") as told:
        opened(source)
    assert "Traceback" not in str(told.value)
    assert "During handling" not in "".join(traceback.format_exception(told.value))
    assert "direct cause" not in "".join(traceback.format_exception(told.value))
    command = shlex.split(str(told.value).rpartition(": ")[2])
    assert command[0] == "mds-convert"
    assert CliRunner().invoke(main, ["convert", *command[1:], "--num-workers", "1"]).exit_code == 0
    assert len(LocalDataset(command[2])) == 1


def test_a_remote_without_an_index_is_one_sentence(tmp_path, monkeypatch):
    """A wrong `remote=` says what was looked for, whether it is a folder or a URL."""
    monkeypatch.chdir(tmp_path)
    with http_server(str(tmp_path)) as url:
        places = {f"{url}/petz": "there is no such object", "petz": "does not exist"}
        for remote, words in places.items():
            with pytest.raises(NotFoundError, match=words) as told:
                StreamingDataset(remote=remote, local="cache", batch_size=1)
            assert "petz" in str(told.value)
            assert told.value.__cause__ is None
            assert told.value.__suppress_context__


def test_a_missing_shard_is_one_traceback(tmp_path):
    """A shard that is not there is one error, read in place, from a folder or from a web server."""
    place = tmp_path / "data"
    with MDSWriter(out=str(place), columns={"id": "int"}) as out:
        out.write({"id": 1})
    next(place.glob("shard*")).unlink()
    with http_server(str(place)) as url:
        places = [{"local": str(place)}]
        places += [
            {"remote": each, "local": str(tmp_path / each[:1])} for each in (str(place), url)
        ]
        for settings in places:
            dataset = StreamingDataset(**settings, batch_size=1)
            for read in (operator.itemgetter(0), list):
                with pytest.raises(NotFoundError, match=r"shard\.00000\.mds") as told:
                    read(dataset)
                assert "".join(traceback.format_exception(told.value)).count("Traceback") == 1
