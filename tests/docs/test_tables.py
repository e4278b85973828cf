"""Tables "their call, ours": both calls of every row run, and have the same effect.

A row has a call of another library, the call of `mds`, and a note. Both are Python. The datasets of
a section hold the same samples, and the values of both calls are compared by the ids of the samples
that they yield, unless `EFFECTS` says how a row is compared.
"""

import ast
import contextlib
import importlib
import io
import json
import os
import pathlib
import shutil
import tarfile
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from markdown_it import MarkdownIt
from PIL import Image

import mds
from devtools.clouds import stand_ins
from mds import (
    LocalDataset,
    MDSWriter,
    Packing,
    Schedule,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from mds.writers.convert._run import Summary

DOCS = pathlib.Path(__file__).parents[2] / "docs"
ROWS = [{"id": i, "text": f"text {i}", "label": i % 2} for i in range(100)]


class Row(NamedTuple):
    """A row of a table: its section, the two calls, and the note."""

    section: str
    theirs: str
    ours: str
    note: str

    def __str__(self):
        return f"{self.section}: {self.theirs}"


def rows_of(page):
    """Return the rows of the tables of a page whose second column is "mds"."""
    rows, section, table = [], "", False
    tokens = MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
    for number, token in enumerate(tokens):
        content = tokens[number + 1].content if number + 1 < len(tokens) else ""
        if token.type == "heading_open":
            section = content
        elif token.type == "table_open":
            table = False
        elif token.type == "tr_open":
            cells = []
        elif token.type in {"td_open", "th_open"}:
            cells.append(content)
        elif token.type == "thead_close":
            table = cells[1] == "mds"
        elif token.type == "tr_close" and table:
            rows.append(Row(section, *(cell.removeprefix("`").removesuffix("`") for cell in cells)))
    return rows


MOVING = rows_of(DOCS / "guides" / "moving.md")
MIGRATING = rows_of(DOCS / "migrating.md")


# ---------------------------------------------------------------- functions of the page


def keep(sample):
    """Keep every tenth sample."""
    return int(sample["id"]) % 10 == 0


def function(sample):
    """Return new values for a sample."""
    return {"id": sample["id"], "length": len(sample["text"])}


def noisy(sample, rng):
    """Add a random number to a sample."""
    return {**sample, "noise": rng.random()}


def double(columns):
    """Change a batch of columns."""
    return {**columns, "double": [2 * number for number in columns["id"]]}


def resize(image):
    """Make a picture smaller."""
    return image.resize((4, 4))


def generate():
    """Yield samples."""
    yield from ROWS


def make(number):
    """Return a sample by its number."""
    return ROWS[number]


def write(number, folder):
    """Write a file of a sample."""
    pathlib.Path(folder, f"{number}.txt").write_text(f"text {number}")


OURS = {
    **{
        thing.__name__: thing
        for thing in (keep, function, noisy, double, resize, generate, make)
    },
    **{
        thing.__name__: thing
        for thing in (
            LocalDataset, MDSWriter, Packing, Schedule, Stream, StreamingDataLoader,
            StreamingDataset,
        )
    },
    "mds": mds, "pyarrow": pa, "rows": ROWS,
}  # fmt: skip


# ---------------------------------------------------------------- data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The folder with the data of all tables."""
    folder = tmp_path_factory.mktemp("data")
    with _inside(folder):
        _write_data()
    return folder


@contextlib.contextmanager
def _inside(folder):
    before = pathlib.Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _write_data():
    """Write the samples in the formats that rows read, into the current folder."""
    mds.convert(ROWS, "data/train")
    mds.convert(ROWS[:80], "data/web")
    mds.convert(ROWS[80:], "data/math")
    mds.convert(ROWS[:80], "parts/0")
    mds.convert(ROWS[80:], "parts/1")
    datasets.Dataset.from_list(ROWS).save_to_disk("saved")
    tokens = [np.arange(16 * number, 16 * (number + 1), dtype=np.int32) for number in range(20)]
    mds.convert([{"tokens": document} for document in tokens], "data/tokens")
    pathlib.Path("rows").mkdir()
    pa.parquet.write_table(pa.Table.from_pylist(ROWS), "rows/0.parquet")
    pathlib.Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name in ("cat", "dog"):
        pathlib.Path("photos", name).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(f"photos/{name}/{number}.png")
    pathlib.Path("files").mkdir()
    for number in range(100):
        write(number, "files")
    for part in range(2):
        with tarfile.open(f"part-{part}.tar", "w") as tar:
            for number in range(10 * part, 10 * part + 10):
                picture = io.BytesIO()
                Image.new("RGB", (8, 8), (number, 0, 0)).save(picture, "JPEG")
                for ending, content in (
                    ("jpg", picture.getvalue()),
                    ("cls", str(number).encode()),
                    ("txt", f"text {number}".encode()),
                ):
                    entry = tarfile.TarInfo(f"{number:04}.{ending}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))


def identity(sample):
    """Return a sample as it is."""
    return sample


@pytest.fixture(scope="module")
def chunks(tmp_path_factory):
    """The folder with the same samples as chunks of litdata; empty if litdata is not installed."""
    folder = tmp_path_factory.mktemp("chunks")
    try:
        import litdata
        from litdata.streaming.item_loader import TokensLoader
    except ImportError:
        return folder
    tokens = [torch.arange(16 * number, 16 * (number + 1)) for number in range(20)]
    with _inside(folder):
        for name, samples in (("chunks", ROWS), ("web", ROWS[:80]), ("math", ROWS[80:])):
            litdata.optimize(identity, samples, name, chunk_bytes="64MB", num_workers=1)
        litdata.optimize(
            identity, tokens, "tokens", chunk_size=320, num_workers=1, item_loader=TokensLoader()
        )
    return folder


@pytest.fixture
def place(data, tmp_path, monkeypatch):
    """A copy of the data, in which a row runs."""
    shutil.copytree(data, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "user-cache"))
    return tmp_path


# ---------------------------------------------------------------- their names


def torch_names():
    """Return the names of the table of torch."""
    from torch.utils import data

    loaders = pytest.importorskip("torchdata.stateful_dataloader", reason=missing("torchdata"))
    names = {name: getattr(data, name) for name in data.__all__}
    dataset = OfTorch(ROWS)
    return {
        **names, "torch": torch, "dataset": dataset, "web": OfTorch(ROWS[:80]),
        "math": OfTorch(ROWS[80:]), "sampler": data.DistributedSampler(dataset, 4, 1),
        "StatefulDataLoader": loaders.StatefulDataLoader,
    }  # fmt: skip


class OfTorch(torch.utils.data.Dataset):
    """A map-style dataset of torch."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def torch_images():
    """Return the names of the rows about pictures."""
    folder = pytest.importorskip("torchvision.datasets", reason=missing("torchvision"))
    return {"ImageFolder": folder.ImageFolder}


def datasets_names():
    """Return the names of the table of Hugging Face datasets."""
    import datasets
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    datasets.disable_progress_bars()
    dataset = Dataset.from_list(ROWS)
    return {
        **vars(datasets), "split_dataset_by_node": split_dataset_by_node, "dataset": dataset,
        "stream": dataset.to_iterable_dataset(), "web": Dataset.from_list(ROWS[:80]),
        "math": Dataset.from_list(ROWS[80:]),
    }  # fmt: skip


def litdata_names():
    """Return the names of the table of litdata."""
    litdata = pytest.importorskip("litdata", reason=missing("litdata zstd"))
    from litdata.streaming.item_loader import TokensLoader

    dataset = litdata.StreamingDataset("chunks")
    return {
        **vars(litdata), "TokensLoader": TokensLoader, "dataset": dataset, "write": write,
        "web": litdata.StreamingDataset("web"), "math": litdata.StreamingDataset("math"),
        "loader": litdata.StreamingDataLoader(dataset, batch_size=8),
    }  # fmt: skip


def webdataset_names():
    """Return the names of the table of WebDataset."""
    webdataset = pytest.importorskip("webdataset", reason=missing("webdataset"))
    dataset = webdataset.WebDataset("part-{0..1}.tar", shardshuffle=False).decode("pil")
    return {
        **vars(webdataset), "dataset": dataset, "web": ROWS[:80], "math": ROWS[80:],
    }  # fmt: skip


def grain_names():
    """Return the names of the table of Grain."""
    grain = pytest.importorskip("grain", reason=missing("grain"))
    source = grain.MapDataset.source
    iterator = iter(source(ROWS).to_iter_dataset())
    return {
        **vars(grain), "IndexSampler": grain.samplers.IndexSampler,
        "ShardOptions": grain.sharding.ShardOptions, "dataset": source(ROWS),
        "web": source(ROWS[:80]), "math": source(ROWS[80:]), "iterator": iterator,
        "state": iterator.get_state(),
    }  # fmt: skip


def missing(package):
    """Return the reason of a skip."""
    return f"needs the libraries of the tables: pip install {package}"


def streaming_names():
    """Return the names of the table of mosaicml-streaming, of which `mds.compat` answers for."""
    importlib.import_module("mds.compat.streaming")  # from here on `import streaming` means mds
    streaming = importlib.import_module("streaming")

    class Mapped(streaming.StreamingDataset):
        """A class as users of mosaicml-streaming write them."""

        def __getitem__(self, index):
            return function(super().__getitem__(index))

    return {
        **{name: getattr(streaming, name) for name in streaming.__all__},
        "DataLoader": torch.utils.data.DataLoader, "Mapped": Mapped,
        "dataset": streaming.StreamingDataset(local="data/train", batch_size=8),
    }  # fmt: skip


NAMES = {
    "Shorter calls": streaming_names,
    "torch": torch_names,
    "Hugging Face datasets": datasets_names,
    "litdata": litdata_names,
    "WebDataset": webdataset_names,
    "Grain": grain_names,
}


# ---------------------------------------------------------------- running a call


def run(code, names):
    """Run a call, and return its value; None for a statement."""
    names = dict(names)
    tree = ast.parse(code)
    if isinstance(tree.body[-1], ast.Expr):
        return eval(code, names)
    exec(code, names)
    return names.get("dataset")


def our_value(row):
    """Return what our call of a row gives, in the current folder."""
    tars = row.section == "WebDataset"
    dataset = StreamingDataset("part-{0..1}.tar" if tars else "data/train", batch_size=8)
    loader = StreamingDataLoader(dataset)
    names = {**OURS, "dataset": dataset, "loader": loader, "state": loader.state_dict()}
    if tars:
        names.update(keep=keep_tar, function=change_tar)
    return run(row.ours, names)


def their_value(row):
    """Return what the other library's call of a row gives, in the current folder."""
    names = {**OURS, **NAMES[row.section]()}
    if row.section == "torch" and "ImageFolder" in row.theirs:
        names.update(torch_images())
    if row.section == "WebDataset":
        names.update(keep=keep_tar, function=change_tar)
    return run(row.theirs, names)


def keep_tar(sample):
    """Keep even classes."""
    return sample["cls"] % 2 == 0


def change_tar(sample):
    """Return new values for a sample of a tar."""
    return {"cls": sample["cls"], "length": len(sample["txt"])}


def ids(value):
    """Return the ids of all samples of a value: a dataset, a loader, a batch, a sample."""
    if isinstance(value, Summary):
        return ids(StreamingDataset(value.out))
    if isinstance(value, dict) and "id" not in value and "cls" not in value:
        return [number for part in value.values() for number in ids(part)]
    if isinstance(value, dict):
        return ids(value["id"] if "id" in value else value["cls"])
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return np.asarray(value).reshape(-1).tolist()
    if isinstance(value, (int, bytes, str, np.integer)):
        return [int(value)]
    return [number for part in value for number in ids(part)]


def same(theirs, ours):
    """Both yield the same samples in the same order."""
    assert ids(ours) == ids(theirs)
    assert ids(ours)


def in_any_order(theirs, ours):
    """Both yield the same samples."""
    assert sorted(ids(ours)) == sorted(ids(theirs))


def as_many(theirs, ours):
    """Both yield as many samples."""
    assert len(ids(ours)) == len(ids(theirs))


def two_parts(theirs, ours):
    """Both give two parts of about nine tenths and one tenth."""
    for parts in (theirs, ours):
        first, second = parts.values() if isinstance(parts, dict) else parts
        assert sorted(ids(first) + ids(second)) == list(range(100))
        assert 85 <= len(ids(first)) <= 95


def third_epoch(theirs, ours):
    """Epoch 3 comes next."""
    del theirs
    assert ours.next_epoch == 3


def states(theirs, ours):
    """Both are a dict, which JSON can hold."""
    assert theirs
    assert json.loads(json.dumps(ours)) == ours


def mixed(theirs, ours, share=0.7):
    """Both take samples of both datasets; ours in the exact share."""
    numbers = ids(ours)
    assert sum(number < 80 for number in numbers) == pytest.approx(share * len(numbers), abs=1)
    assert {number < 80 for number in ids(theirs)} == {True, False}


def mixed_until_one_ends(theirs, ours):
    """Neither takes a sample twice."""
    mixed(theirs, ours)
    for numbers in (ids(theirs), ids(ours)):
        assert len(numbers) == len(set(numbers))


def mixed_until_all_end(theirs, ours):
    """Both take every sample."""
    mixed(theirs, ours)
    assert set(ids(theirs)) == set(ids(ours)) == set(range(100))


def with_new_column(name):
    """Return a comparison of all values of a column, beside the ids."""

    def values(value):
        return np.concatenate([np.atleast_1d(sample[name]) for sample in value]).tolist()

    def compare(theirs, ours):
        same(theirs, ours)
        assert values(ours) == values(theirs)

    return compare


def same_columns(theirs, ours):
    """The samples of both have the same columns."""
    same(theirs, ours) if "id" in next(iter(ours)) else None
    assert sorted(next(iter(ours))) == sorted(next(iter(theirs)))


def same_names(theirs, ours):
    """Both list the columns by name."""
    assert sorted(theirs) == sorted(ours) == ["id", "label", "text"]


def incomplete_dropped(theirs, ours):
    """Our loader drops the last four of 100 samples; one worker of litdata has nothing to drop."""
    assert len(ids(theirs)) == 100
    assert ids(ours) == ids(theirs)[:96]


def nothing_returned(theirs, ours):
    """Both change an iterator that exists."""
    assert theirs is ours is None


def same_labels(theirs, ours):
    """Pictures have the same labels, with the same names."""
    assert [sample["label"] for sample in ours] == [label for _, label in theirs]
    assert sorted({sample["class"] for sample in ours}) == theirs.classes


def small_pictures(theirs, ours):
    """All pictures were resized."""
    for pictures in ([image for image, _ in theirs], [sample["image"] for sample in ours]):
        assert {picture.size for picture in pictures} == {(4, 4)}


def same_pixels(theirs, ours):
    """The pictures are arrays of the same pixels."""
    for their_sample, our_sample in zip(theirs, ours, strict=True):
        np.testing.assert_array_equal(their_sample["jpg"], our_sample["jpg"])


def same_blocks(theirs, ours):
    """The same tokens come in blocks of the same size."""
    blocks = [block.tolist() for block in theirs]
    tokens = [token for batch in ours for token in batch["tokens"].reshape(-1).tolist()]
    assert {len(block) for block in blocks} == {16}
    assert sorted(tokens) == sorted(token for block in blocks for token in block)


def same_files(theirs, ours):
    """The contents of the files are the samples."""
    assert sorted(sample["bytes"] for sample in StreamingDataset(ours.out)) == sorted(theirs)


def read_back(load):
    """Return a comparison of what their call wrote."""

    def compare(theirs, ours):
        del theirs
        in_any_order(load(), StreamingDataset(ours.out) if hasattr(ours, "out") else ours)

    return compare


def litdata_folder(name):
    """Return a function that reads chunks of litdata."""

    def load():
        import litdata

        return litdata.StreamingDataset(name)

    return load


def one_written(theirs, ours):
    """Both wrote a sample."""
    del theirs, ours
    assert list(pathlib.Path().glob("new*.tar"))
    (folder,) = pathlib.Path("out").iterdir()
    assert ids(StreamingDataset(folder)) == [7]


def same_folders(theirs, ours):
    """Both wrote the same sample; the header of ours also names its digest."""
    del theirs, ours
    folders = [pathlib.Path("out", name) for name in ("theirs", "ours")]
    assert [ids(StreamingDataset(folder)) for folder in folders] == [[7], [7]]
    entries = [json.loads((folder / "index.json").read_bytes())["shards"] for folder in folders]
    assert [shard.pop("hashes") for (shard,) in entries] == [[], ["xxh3_64"]]
    assert [shard.pop("raw_data")["basename"] for (shard,) in entries] == ["shard.00000.mds"] * 2
    assert entries[0] == entries[1]


#: Comparisons of rows whose calls do not yield the same samples in the same order.
EFFECTS = {
    # mosaicml-streaming
    "dataset.state_dict(16, True)": states,
    'with MDSWriter(columns={"id": "int"}, out="out/theirs") as writer: writer.write({"id": 7})': (
        same_folders
    ),
    # torch
    "DataLoader(dataset, batch_size=8, shuffle=True)": in_any_order,
    "DataLoader(dataset, shuffle=True, generator=torch.Generator().manual_seed(7))": in_any_order,
    'ImageFolder("photos")': same_labels,
    'ImageFolder("photos", transform=resize)': small_pictures,
    "Subset(dataset, [7, 3, 5])": in_any_order,
    "random_split(dataset, [90, 10])": two_parts,
    "DistributedSampler(dataset, num_replicas=4, rank=1, shuffle=False)": as_many,
    "sampler.set_epoch(3)": third_epoch,
    "WeightedRandomSampler([0.9 / 80] * 80 + [0.1 / 20] * 20, 100)": lambda theirs, ours: mixed(
        theirs, ours, share=0.9
    ),
    "StatefulDataLoader(dataset, batch_size=8).state_dict()": states,
    # Hugging Face datasets
    "dataset.map(function)": with_new_column("length"),
    "dataset.map(double, batched=True)": with_new_column("double"),
    "dataset.select([7, 3, 5])": in_any_order,
    "stream.shuffle(seed=7, buffer_size=1000)": in_any_order,
    "dataset.train_test_split(0.1)": two_parts,
    "interleave_datasets([web, math], probabilities=[0.7, 0.3])": mixed_until_one_ends,
    "interleave_datasets([web, math], probabilities=[0.7, 0.3], "
    'stopping_strategy="all_exhausted")': mixed_until_all_end,
    'dataset.select_columns(["id"])': same_columns,
    "dataset.features": same_names,
    "stream.state_dict()": states,
    "split_dataset_by_node(dataset, rank=1, world_size=4)": as_many,
    'dataset.save_to_disk("other", max_shard_size="64MB")': read_back(
        lambda: datasets.load_from_disk("other")
    ),
    # litdata
    'optimize(fn=make, inputs=list(range(100)), output_dir="out/optimized", chunk_bytes="64MB")': (
        read_back(litdata_folder("out/optimized"))
    ),
    'merge_datasets(input_dirs=["web", "math"], output_dir="out/merged")': (
        lambda theirs, ours: read_back(litdata_folder("out/merged"))(
            None, StreamingDataset("parts")
        )
    ),
    'StreamingDataset("chunks", shuffle=True, seed=7)': in_any_order,
    'StreamingDataset("chunks", drop_last=True)': incomplete_dropped,
    'StreamingDataset("chunks", subsample=0.5)': as_many,
    'StreamingDataset("chunks", transform=function)': with_new_column("length"),
    "train_test_split(dataset, splits=[0.9, 0.1])": two_parts,
    "CombinedStreamingDataset([web, math], weights=[0.7, 0.3], iterate_over_all=False)": mixed,
    "CombinedStreamingDataset([web, math], iterate_over_all=True)": in_any_order,
    'StreamingDataset("tokens", item_loader=TokensLoader(block_size=16))': same_blocks,
    'StreamingRawDataset("photos")': same_files,
    # WebDataset
    'WebDataset("part-{0..1}.tar").decode("rgb8")': same_pixels,
    'WebDataset("part-{0..1}.tar").shuffle(1000)': in_any_order,
    'dataset.to_tuple("jpg", "cls")': lambda theirs, ours: same(
        [number for _, number in theirs], [number for _, number in ours]
    ),
    "dataset.with_epoch(10)": as_many,
    "WebLoader(dataset, batch_size=None, num_workers=2)": in_any_order,
    "RandomMix([web, math], [0.7, 0.3])": mixed,
    'with ShardWriter("new-%06d.tar", maxsize=64e6) as writer: '
    'writer.write({"__key__": "0", "cls": 7})': one_written,
    # Grain
    "dataset.shuffle(seed=7)": in_any_order,
    "MapDataset.mix([web, math], [0.7, 0.3])": mixed,
    "iterator.get_state()": states,
    "iterator.set_state(state)": nothing_returned,
}
#: Rows whose left call needs a service: only its names are checked.
NOT_RUN = {
    'load_dataset("my-org/rows", split="train", streaming=True)': datasets.load_dataset,
    'dataset.push_to_hub("my-org/pushed")': datasets.Dataset.push_to_hub,
}


# ---------------------------------------------------------------- tests


@pytest.mark.parametrize("row", MIGRATING + MOVING, ids=str)
def test_our_call_runs(row, place):
    """Whatever else is installed."""
    with clouds(row, place):
        value = our_value(row)
        if row.theirs in NOT_RUN:
            assert callable(NOT_RUN[row.theirs])
            assert sorted(ids(value)) == list(range(100))


@pytest.mark.filterwarnings("ignore")  # of the other libraries
@pytest.mark.parametrize(
    "row", [row for row in MIGRATING + MOVING if row.theirs not in NOT_RUN], ids=str
)
def test_both_calls_have_the_same_effect(row, place, request):
    """As far as the two libraries agree."""
    if row.section == "litdata":
        shutil.copytree(request.getfixturevalue("chunks"), ".", dirs_exist_ok=True)
    with clouds(row, place):
        value = our_value(row)
        EFFECTS.get(row.theirs, same)(their_value(row), value)


@contextlib.contextmanager
def clouds(row, folder):
    """Serve the Hub that a row names."""
    with stand_ins(row.ours, folder) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.variables.items():
            patch.setenv(name, value)
            shutil.copytree("rows", folder / "3" / "files" / "data", dirs_exist_ok=True)
        yield


def test_each_effect_is_that_of_a_row():
    """No comparison is left of a row that went."""
    assert set(EFFECTS) <= {row.theirs for row in MIGRATING + MOVING}
    assert {row.section for row in MIGRATING + MOVING} == set(NAMES)
