"""Folders of pictures are read in place as `mds.convert` writes them."""

import os

import pictures
import pytest

from mds import StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, FormatError, MdsError, NotFoundError, ReplacedError
from mds.formats import ImageFiles
from mds.writers.convert import convert


@pytest.fixture
def photos(tmp_path):
    """Twenty pictures of the classes ant, bee and cat."""
    place = tmp_path / "photos"
    for i in range(20):
        folder = place / ("cat", "ant", "bee")[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:02}.jpg").write_bytes(pictures.jpeg(i))
    (place / "README.md").write_text("pictures of animals")
    return place


def of(place, images="images", **more):
    return StreamingDataset(local=str(place), format=images, batch_size=4, **more)


def plain(samples):
    """Samples with the pixels of their pictures."""
    return [{**sample, "image": sample["image"].tobytes()} for sample in samples]


def test_samples_are_those_of_a_conversion(photos, tmp_path):
    """The same order, columns, pictures and labels, and nothing is written beside the pictures."""
    before = sorted(os.listdir(photos))
    dataset = of(photos)
    convert(str(photos), str(tmp_path / "out"), durable=False)
    converted = StreamingDataset(local=str(tmp_path / "out"), batch_size=4)
    assert plain(dataset) == plain(converted)
    assert sorted(dataset[0]) == ["class", "image", "label"]
    assert {(s["class"], s["label"]) for s in dataset} == {("ant", 0), ("bee", 1), ("cat", 2)}
    assert sorted(os.listdir(photos)) == before


def test_a_remote_folder_comes_through_the_cache(photos, tmp_path):
    """Behind remote= the shards are decoded, and hold the same samples."""
    there = StreamingDataset(
        remote=photos.as_uri(), local=str(tmp_path / "c"), format=ImageFiles(samples_per_shard=6)
    )
    assert plain(there[i] for i in range(20)) == plain(of(photos)[i] for i in range(20))
    assert there.num_shards == 4


def test_it_shuffles_and_resumes(photos):
    """An epoch has each picture once; one that stops goes on with what is left."""
    settings = {"shuffle": True, "num_canonical_nodes": 1, "columns": ["class", "label"]}
    whole = [label for batch in StreamingDataLoader(of(photos, **settings), batch_size=4)
             for label in batch["label"].tolist()]  # fmt: skip
    assert len(whole) == 20
    loader = StreamingDataLoader(of(photos, **settings), batch_size=4)
    first = next(iter(loader))["label"].tolist()
    state = loader.state_dict()
    again = StreamingDataLoader(of(photos, **settings), batch_size=4)
    again.load_state_dict(state)
    assert first + [label for batch in again for label in batch["label"].tolist()] == whole


def test_pictures_without_folders_have_their_path(tmp_path):
    """So has a folder where some are beside the folders; other kinds of pictures are bytes."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one/a.png").write_bytes(pictures.jpeg(1, "PNG"))
    (tmp_path / "b.jpg").write_bytes(pictures.jpeg(2))
    assert [sample["path"] for sample in of(tmp_path)] == ["b.jpg", "one/a.png"]
    assert sorted(of(tmp_path)[0]) == ["image", "path"]
    (tmp_path / "c.gif").write_bytes(pictures.jpeg(3, "GIF"))
    assert of(tmp_path)[1] == {"image": pictures.jpeg(3, "GIF"), "path": "c.gif"}


def test_splits_are_read_one_by_one(tmp_path):
    """Folders of splits are no classes; split= chooses one."""
    for name in ("train", "val"):
        (tmp_path / "s" / name / "x").mkdir(parents=True)
        (tmp_path / "s" / name / "x/1.jpg").write_bytes(pictures.jpeg(1))
    with pytest.raises(FormatError, match=r"are splits \(train, val\).*split='val'"):
        of(tmp_path / "s")
    assert [sample["class"] for sample in of(tmp_path / "s", split="train")] == ["x"]


def test_what_is_wrong_is_named(photos):
    """A file that is no picture, or changed, or is gone since the start; skipping leaves it out."""
    dataset = of(photos)
    path = photos / "bee" / "08.jpg"
    number = next(i for i in range(20) if dataset[i]["label"] == 1) + 2
    path.write_bytes(b"nothing")
    with pytest.raises(ReplacedError, match=r"08\.jpg: the file changed"):
        dataset[number]
    with pytest.raises(FormatError, match=r"08\.jpg: this is not a picture: it starts with"):
        of(photos)[number]
    assert len([*of(photos, on_error="skip")]) == 19
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="it is empty"):
        of(photos)[number]
    later = of(photos)
    path.unlink()
    with pytest.raises(NotFoundError, match=r"08\.jpg.*it existed at the start"):
        later[number]


def test_settings_that_make_no_sense(photos):
    """A shard has a picture or more; a damaged picture is an error that names it."""
    with pytest.raises(ConfigError, match="samples_per_shard=0 must be at least 1"):
        ImageFiles(samples_per_shard=0)
    (photos / "ant" / "01.jpg").write_bytes(pictures.jpeg(1)[:100])
    with pytest.raises((MdsError, OSError)):
        of(photos)[0]["image"].load()


def test_packing_needs_a_column_of_numbers(photos):
    """Pictures cannot be packed, and the error says so."""
    from mds import Packing

    with pytest.raises(ConfigError, match="column 'image' is stored as 'jpeg', but packing"):
        next(iter(StreamingDataLoader(of(photos, packing=Packing(64, column="image")))))
