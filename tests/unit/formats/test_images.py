"""Folders of pictures are read in place as `mds.convert` writes them."""

import gzip
import os

import numpy as np
import pictures
import pyarrow as pa
import pyarrow.parquet as pq
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
    """So has a folder where some are beside the folders."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one/a.png").write_bytes(pictures.jpeg(1, "PNG"))
    (tmp_path / "b.jpg").write_bytes(pictures.jpeg(2))
    assert [sample["path"] for sample in of(tmp_path)] == ["b.jpg", "one/a.png"]
    assert sorted(of(tmp_path)[0]) == ["image", "path"]


def test_pictures_of_several_kinds_are_one_column(tmp_path):
    """Each is decoded by its content, in place and converted; the files stay as they are."""
    kinds = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]
    for number, kind in enumerate(kinds):
        (tmp_path / f"{number}.{kind.lower()}").write_bytes(pictures.jpeg(number, kind))
    (tmp_path / "6.png").write_bytes(pictures.jpeg(6, "GIF"))  # a wrong ending
    dataset = of(tmp_path)
    assert [sample["image"].format for sample in dataset] == [*kinds, "GIF"]
    arrays = StreamingDataset(str(tmp_path), format="images", images="array", batch_size=1)
    assert all(isinstance(sample["image"], np.ndarray) for sample in arrays)
    convert(str(tmp_path), str(tmp_path / "../out"), durable=False)
    converted = StreamingDataset(local=str(tmp_path / "../out"), batch_size=4)
    assert [sample["image"].format for sample in converted] == [*kinds, "GIF"]
    assert converted[3]["image"].tobytes() == dataset[3]["image"].tobytes()


def test_the_path_of_a_picture_with_a_class_is_read_on_request(photos):
    """With `columns=` that names it."""
    assert of(photos, columns=["path", "label"])[0] == {"label": 0, "path": "ant/01.jpg"}
    assert sorted(of(photos)[0]) == ["class", "image", "label"]


class TestLabels:
    """A table of labels beside pictures gives columns."""

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("labels.csv", "file,v\n0.jpg,5\n2.jpg,7\n1.jpg,6\n"),
            ("labels.tsv", "v\tfile\n5\t0.jpg\n6\t1.jpg\n7\t2.jpg\n"),
            ("x/labels.csv", "id,v\n0,5\n1,6\n2,7\n"),  # without the ending
            ("labels.jsonl", "".join(f'{{"p": "x/{i}.jpg", "v": {i + 5}}}\n' for i in range(3))),
            ("labels.csv.gz", gzip.compress(b"f,v\n2.jpg,7\n1.jpg,6\n0.jpg,5\n")),
        ],
        ids=["csv", "tsv", "stems", "jsonl", "gzip"],
    )
    def test_the_only_table_is_joined(self, tmp_path, name, content):
        """By path, by file name or without the ending; the same converted."""
        folder = tmp_path / "photos"
        self.write(folder, "x/0.jpg", "x/1.jpg", "x/2.jpg")
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        dataset = of(folder)
        assert [(s["path"], s["v"]) for s in dataset] == [(f"x/{i}.jpg", i + 5) for i in range(3)]
        convert(str(folder), str(tmp_path / "out"), durable=False)
        converted = StreamingDataset(local=str(tmp_path / "out"), batch_size=4)
        assert plain(dataset) == plain(converted)
        there = StreamingDataset(
            remote=folder.as_uri(), local=str(tmp_path / "c"), format="images", batch_size=4
        )
        assert plain(there) == plain(dataset)

    def test_a_table_of_parquet_is_joined(self, tmp_path):
        """Its types are kept."""
        self.write(tmp_path, "0.jpg", "1.jpg")
        table = pa.table({"name": ["1.jpg", "0.jpg"], "score": [0.5, 1.5]})
        pq.write_table(table, tmp_path / "labels.parquet")
        assert [sample["score"] for sample in of(tmp_path)] == [1.5, 0.5]

    def test_several_tables_need_a_name(self, tmp_path):
        """Without one they are left out and counted."""
        self.write(tmp_path, "0.jpg")
        for name in ("a", "b"):
            (tmp_path / f"{name}.csv").write_text(f"file,{name}\n0.jpg,1\n")
        assert sorted(of(tmp_path)[0]) == ["image", "path"]
        notes = " ".join(str(of(tmp_path).explain()).split())
        assert "2 files of another kind" in notes
        assert of(tmp_path, ImageFiles(labels="b.csv"))[0]["b"] == 1
        with pytest.raises(FormatError, match=r"c\.csv: this table of labels does not exist"):
            of(tmp_path, ImageFiles(labels="c.csv"))

    def test_a_picture_without_a_row_is_no_sample(self, tmp_path):
        """It can be skipped; a row without a picture is counted."""
        self.write(tmp_path, "0.jpg", "1.jpg")
        (tmp_path / "labels.csv").write_text("file,v\n1.jpg,6\n3.jpg,8\n")
        dataset = of(tmp_path)
        with pytest.raises(FormatError, match=r"0\.jpg: labels\.csv has no row for it"):
            dataset[0]
        assert [sample["v"] for sample in of(tmp_path, on_error="skip")] == [6]
        notes = " ".join(str(dataset.explain()).split())
        assert "1 rows of labels without a picture, such as 3.jpg" in notes

    @pytest.mark.parametrize(
        ("table", "words"),
        [
            (
                "file,image\n0.jpg,a\n",
                "the table has a column 'image', which is the name of the files",
            ),
            ("a,b\n1,2\n", "no column of its first 1 row names an image of the folder"),
            ("file,v\n0.jpg,1\n0,2\n", "0.jpg is named twice in the column 'file'"),
        ],
    )
    def test_what_is_wrong_with_a_table_is_said(self, tmp_path, table, words):
        """With its name."""
        self.write(tmp_path, "0.jpg")
        (tmp_path / "labels.csv").write_text(table)
        with pytest.raises(FormatError, match=rf"labels\.csv: {words}"):
            of(tmp_path)

    def test_labels_that_change_are_read_again(self, tmp_path):
        """The pictures are the same, but the table is not."""
        self.write(tmp_path, "0.jpg")
        for value in (1, 2):
            (tmp_path / "labels.csv").write_text(f"file,v\n0.jpg,{value}\n")
            assert of(tmp_path)[0]["v"] == value

    @staticmethod
    def write(folder, *names):
        for number, name in enumerate(names):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pictures.jpeg(number))


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
