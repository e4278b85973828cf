"""merge_index: one index above many datasets, which are not touched."""

import json
import os
import pathlib

import pytest

from mds import LocalDataset, MDSWriter, StreamingDataset, merge_index
from mds._index.table import read_index
from mds.errors import ConfigError, IndexFileError, MdsError, NotFoundError, WriterError
from mds.storage import open_store


def dataset(folder, values, **kwargs):
    with MDSWriter(out=str(folder), columns={"x": "int"}, size_limit=300, **kwargs) as writer:
        for value in values:
            writer.write({"x": value})


@pytest.fixture
def root(tmp_path):
    """Datasets in a, b and deeper/c, of 20 numbers each."""
    for number, name in enumerate(("b", "a", "deeper/c")):
        dataset(tmp_path / "root" / name, range(20 * number, 20 * number + 20))
    return tmp_path / "root"


def numbers(folder):
    found = LocalDataset(str(folder))
    return [found[i]["x"] for i in range(len(found))]


def test_everything_below_a_folder(root):
    """All indexes below, in the order of their paths, at any depth."""
    merge_index(str(root))
    assert numbers(root) == [*range(20, 40), *range(20), *range(40, 60)]
    merge_index(str(root))  # the merged index itself is not merged
    assert len(LocalDataset(str(root))) == 60


def test_a_list_keeps_its_order(root):
    """Listed indexes are merged as listed, pairs by whichever place has the file."""
    files = [str(root / name / "index.json") for name in ("deeper/c", "a")]
    merge_index([files[0], (files[1], "s3://not/asked/a/index.json")], str(root))
    assert numbers(root) == [*range(40, 60), *range(20, 40)]


def test_the_merged_file(root):
    """Default separators, the version first, shards as they were but for their names."""
    merge_index(index_file_urls=[root / "a" / "index.json"], out=root, keep_local=True)
    text = (root / "index.json").read_text()
    assert text.startswith('{"version": 2, "shards": [{"column_encodings": ["int"], ')
    [*merged] = json.loads(text)["shards"]
    [*single] = json.loads((root / "a" / "index.json").read_text())["shards"]
    for one, other in zip(merged, single, strict=True):
        other["raw_data"]["basename"] = "a/" + other["raw_data"]["basename"]
        assert one == other
        assert list(one) == list(other)


def test_datasets_from_elsewhere(root, tmp_path):
    """Indexes that are not below `out` are named by their folders, which can be moved there."""
    merge_index([str(root / "b" / "index.json")], str(tmp_path / "merged"))
    os.rename(root / "b", tmp_path / "merged" / "b")
    assert numbers(tmp_path / "merged") == [*range(20)]


@pytest.mark.parametrize("keep_local", [True, False])
def test_a_pair_of_places(root, tmp_path, keep_local):
    """The result goes to both places, or just to the remote one."""
    remote = f"memory://{tmp_path}"
    merge_index([str(root / "a" / "index.json")], (str(root), remote), keep_local)
    with open_store(remote) as store:
        data = store.get("index.json")
    assert (root / "index.json").exists() is keep_local
    assert json.loads(data)["shards"][0]["raw_data"]["basename"] == "a/shard.00000.mds"


def test_everything_below_a_url(tmp_path):
    """A store is listed like a folder."""
    remote = f"memory://{tmp_path}/below"
    for name in ("x", "y/z"):
        dataset(f"{remote}/{name}", range(5))
    merge_index(remote)
    with open_store(remote) as store:
        shards = json.loads(store.get("index.json"))["shards"]
    names = [shard["raw_data"]["basename"] for shard in shards]
    assert names == ["x/shard.00000.mds", "y/z/shard.00000.mds"]


def test_compressed_and_text_datasets(tmp_path):
    """Every file of a shard gets its new name."""
    from mds import CSVWriter

    with CSVWriter(out=str(tmp_path / "t"), columns={"x": "int"}, compression="gz") as writer:
        writer.write({"x": 1})
    merge_index(str(tmp_path))
    shard = json.loads((tmp_path / "index.json").read_text())["shards"][0]
    infos = {key: value["basename"] for key, value in shard.items() if "basename" in str(value)}
    assert infos == {
        "raw_data": "t/shard.00000.csv",
        "raw_meta": "t/shard.00000.csv.meta",
        "zip_data": "t/shard.00000.csv.gz",
        "zip_meta": "t/shard.00000.csv.meta.gz",
    }


def test_nothing_to_merge(tmp_path):
    """An empty list, an empty folder and a file that is not there are errors, not empty results."""
    for arguments in (([], str(tmp_path)), (str(tmp_path),), (str(tmp_path / "none"),)):
        with pytest.raises(NotFoundError):
            merge_index(*arguments)
    with pytest.raises(FileNotFoundError, match="none"):
        merge_index([str(tmp_path / "none" / "index.json")], str(tmp_path))
    assert list(pathlib.Path(tmp_path).iterdir()) == []


def test_names_that_would_clash(root, tmp_path):
    """Two datasets in folders of the same name are refused rather than mixed."""
    dataset(tmp_path / "other" / "a", range(3))
    files = [str(root / "a" / "index.json"), str(tmp_path / "other" / "a" / "index.json")]
    with pytest.raises(ConfigError, match="two shards would have the name 'a/shard"):
        merge_index(files, str(tmp_path / "merged"))
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("order", [1, -1])
def test_a_list_with_the_merged_index_in_it(root, order):
    """A recursive glob yields it after an earlier merge; the error says which one to leave out."""
    merge_index(str(root))
    listed = sorted(map(str, root.rglob("index.json")), reverse=order < 0)
    merged = str(root / "index.json")
    assert merged in listed
    with pytest.raises(ConfigError, match="is a merged index") as error:
        merge_index(listed, str(root))
    assert str(error.value).startswith(f"{merged} is a merged index")
    samples = len(LocalDataset(str(root)))
    merge_index([path for path in listed if path != merged], str(root))
    assert len(LocalDataset(str(root))) == samples


def test_an_index_of_other_shards_is_not_replaced(root, tmp_path):
    """The dataset in the folder itself would be in no index; listed, or moved, it is merged."""
    dataset(tmp_path / "own", range(60, 80))
    for path in (tmp_path / "own").iterdir():
        path.rename(root / path.name)
    before = (root / "index.json").read_bytes()
    files = [str(root / name / "index.json") for name in ("a", "b")]
    for merge in (lambda: merge_index(str(root)), lambda: merge_index(files, str(root))):
        with pytest.raises(WriterError, match="list its index too"):
            merge()
        assert (root / "index.json").read_bytes() == before
    merge_index([str(root / "index.json"), *files], str(root))
    assert numbers(root) == [*range(60, 80), *range(20, 40), *range(20)]

    shards = [*root.glob("shard.*")]
    (root / "index.json").write_bytes(before)
    (root / "own").mkdir()
    for path in (*shards, root / "index.json"):
        path.rename(root / "own" / path.name)
    merge_index(str(root))
    assert numbers(root) == [*range(20, 40), *range(20), *range(40, 60), *range(60, 80)]

    (root / "index.json").write_bytes(before)  # its shards are not there
    merge_index(str(root))
    assert len(LocalDataset(str(root))) == 80


def test_an_index_of_compressed_shards_is_not_replaced(root, tmp_path):
    """Their raw files, which the index also lists, need not exist."""
    dataset(tmp_path / "own", range(60, 80), compression="zstd")
    for path in (tmp_path / "own").iterdir():
        path.rename(root / path.name)
    with pytest.raises(WriterError, match=r"lists shard\.00000\.mds\.zstd, which"):
        merge_index(str(root))


def test_broken_and_hostile_indexes(root):
    """An index that is broken, or names files elsewhere, is refused with its path."""
    index = root / "a" / "index.json"
    for old, new in (("shard.00000.mds", "../../x.mds"), ('"version": 2', '"version": 3')):
        good = index.read_text()
        index.write_text(good.replace(old, new))
        with pytest.raises(IndexFileError, match=r"a/index\.json"):
            merge_index(str(root))
        index.write_text(good)
    assert not (root / "index.json").exists()


@pytest.mark.parametrize("harm", ["delete", "truncate"])
def test_shards_that_are_missing(root, harm):
    """An index is merged only when every shard that it names is there, with its size."""
    shard = next(iter(sorted((root / "a").glob("shard.*"))))
    if harm == "delete":
        shard.unlink()
    else:
        os.truncate(shard, 7)
    for merge in (
        lambda: merge_index(str(root)),
        lambda: merge_index([str(root / "a" / "index.json")], str(root)),
        lambda: merge_index([str(root / "a" / "index.json")], str(root / "elsewhere")),
    ):
        with pytest.raises(WriterError, match=r"shard\.0.* (is missing|has 7 bytes)"):
            merge()
    assert not (root / "index.json").exists()
    assert not (root / "elsewhere").exists()
    merge_index([str(root / "b" / "index.json")], str(root))
    assert numbers(root) == [*range(20)]


def test_shards_at_the_other_place(root, tmp_path):
    """A pair's shards may be at either place, whichever has the index."""
    remote = tmp_path / "remote"
    os.rename(root, remote)
    (root / "a").mkdir(parents=True)
    index = (remote / "a" / "index.json").read_bytes()
    (root / "a" / "index.json").write_bytes(index)
    pair = (str(root / "a" / "index.json"), str(remote / "a" / "index.json"))
    merge_index([pair], (str(root), str(remote)))
    assert numbers(remote) == [*range(20, 40)]


def test_shards_in_a_store_are_looked_for(tmp_path):
    """Behind a URL too, with one list of all."""
    remote = f"memory://{tmp_path}"
    for name in "ab":
        dataset(f"{remote}/{name}", range(200))
    merge_index(remote)
    with open_store(remote) as store:
        assert len(json.loads(store.get("index.json"))["shards"]) > 16
        store.delete("index.json")
        store.delete("b/shard.00003.mds")
        with pytest.raises(WriterError, match=r"b/shard\.00003\.mds is missing in memory:"):
            merge_index(remote)
        with pytest.raises(NotFoundError):
            store.head("index.json")


def test_a_folder_that_is_being_written(root):
    """Merging into it waits for no one: it is refused."""
    out = str(root / "c")
    with MDSWriter(out=out, columns={"x": "int"}) as writer:
        writer.write({"x": 1})
        with pytest.raises(WriterError, match="in use"):
            merge_index([str(root / "a" / "index.json")], out)
    assert numbers(out) == [1]


def test_names_of_folders_cannot_act_on_a_terminal(tmp_path):
    """A folder whose name holds control characters is refused in a sentence without them."""
    folder = tmp_path / "out" / "part\x1b[2J"
    with MDSWriter(out=str(folder), columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    with pytest.raises(MdsError, match="not a file inside") as caught:
        merge_index(str(tmp_path / "out"))
    assert str(caught.value).isprintable()


def test_control_folders_are_no_datasets(tmp_path):
    """What lies in the library's own folders is not merged."""
    for name in ("a", ".mds/b", ".mds-convert/c"):
        with MDSWriter(out=str(tmp_path / name), columns={"x": "int"}) as writer:
            writer.write({"x": 1})
    merge_index(str(tmp_path))
    names = [shard.raw.basename for shard in read_index(str(tmp_path / "index.json"))]
    assert names == ["a/shard.00000.mds"]


def test_columns_that_differ_in_dtype_are_named(tmp_path, caplog):
    """By the merge, and by a dataset over it or over the parts, unless the column is left out."""
    numbers = {"a": "int32", "b": "int64", "c": "float32", "d": "int"}
    for part, encoding in numbers.items():
        columns = {"x": encoding, "id": "int", "v": "ndarray:int32"}
        with MDSWriter(str(tmp_path / part), columns) as writer:
            writer.write({"x": 3, "id": 1, "v": [1, 2]} if part != "c" else
                         {"x": 3.0, "id": 1, "v": [1, 2]})  # fmt: skip
    merge_index(str(tmp_path))
    text = (
        "column 'x' has the encoding 'int32' in some shards and 'int64', 'float32' in others, so "
        "the dtype of its batches changes"
    )
    (record,) = caplog.records
    assert record.getMessage().startswith(f"merge_index: {text}. Write all datasets with one")
    parts = [str(tmp_path / part) for part in numbers]
    for place in (str(tmp_path), parts):
        with pytest.warns(UserWarning, match=text):
            StreamingDataset(place, batch_size=1)
        StreamingDataset(place, batch_size=1, columns=["id", "v"])
    StreamingDataset([parts[1], parts[3]], batch_size=1)  # both are int64
    for part, encoding in (("e", "ndarray:uint16"), ("f", "ndarray:int32")):
        with MDSWriter(str(tmp_path / "packs" / part), {"x": encoding}) as writer:
            writer.write({"x": [1, 2]})
    packs = [str(tmp_path / "packs" / part) for part in "ef"]
    StreamingDataset(packs, batch_size=1, packing=4)  # packs have one dtype
