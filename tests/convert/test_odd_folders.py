"""Folders as people have them: named after splits, with strangers among the files, with links."""

import pytest

from mds.errors import ConfigError
from mds.writers.convert import convert, prepare

ROW = '{"a": 1}\n'


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train.jsonl", "test.jsonl"), {"train": 1, "test": 1}),
        (
            ("train-00000-of-2.jsonl", "train-00001-of-2.jsonl", "val_1.jsonl"),
            {"train": 2, "val": 1},
        ),
        (("Train.jsonl", "Validation.jsonl"), {"train": 1, "validation": 1}),
        (("data/train/x.jsonl", "data/test/x.jsonl"), {"train": 1, "test": 1}),
        (("train/x.jsonl", "train/y.jsonl"), {"train": 2}),
        (("train/test.jsonl", "val/test.jsonl"), {"train": 1, "val": 1}),
        (("train-0.jsonl", "train-1.jsonl"), {"": 2}),
        (("trains.jsonl", "tests.jsonl"), {"": 2}),
        (("train.jsonl", "extra.jsonl"), {"": 2}),
    ],
)
def test_files_named_after_splits_are_splits(kit, names, splits):
    """Where all of them say which; one split by file names alone is no reason for a folder."""
    for name in names:
        kit.write(name, ROW)
    summary = convert(str(kit.source), kit.out)
    assert {each.name: each.samples for each in summary.splits} == splits


def test_splits_of_tables_have_their_own_rows(kit):
    """CSV and Parquet alike: each row is in the split of its file."""
    kit.write("train.csv", "a,b\n1,x\n2,y\n")
    kit.write("test.csv", "a,b\n3,z\n")
    convert(str(kit.source), kit.out)
    assert kit.samples(kit.out + "/train") == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert kit.samples(kit.out + "/test") == [{"a": 3, "b": "z"}]


def test_splits_of_parquet_files(kit):
    """As the Hub names them."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, values in (("train-00000-of-00001", [1, 2]), ("test-00000-of-00001", [3])):
        path = kit.source / "data" / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        parquet.write_table(arrow.table({"a": values}), path)
    convert(str(kit.source), kit.out)
    assert [s["a"] for s in kit.samples(kit.out + "/train")] == [1, 2]
    assert [s["a"] for s in kit.samples(kit.out + "/test")] == [3]


def test_splits_are_merged_when_that_is_asked_for(kit):
    """One dataset of all files, which may be split by a hash in turn."""
    for name in ("train.jsonl", "test.jsonl"):
        kit.write(name, ROW * 50)
    with pytest.raises(ConfigError, match="--merge-splits"):
        prepare(str(kit.source), kit.out, split="a=0.5,b=0.5")
    (only,) = convert(str(kit.source), kit.out, merge_splits=True).splits
    assert (only.name, only.samples) == ("", 100)
    summary = convert(
        str(kit.source), kit.out + "2", merge_splits=True, split="a=0.5,b=0.5", split_key="a"
    )
    assert sum(each.samples for each in summary.splits) == 100


def test_documents_named_test_are_documents(kit):
    """A file that is one sample says nothing of splits by its own name; its folder does."""
    kit.write("train.txt", "one")
    kit.write("test.txt", "two")
    assert [each.name for each in convert(str(kit.source), kit.out).splits] == [""]
    kit.write("more/train/a.txt", "one")
    kit.write("more/test/a.txt", "two")
    convert(str(kit.source / "more"), kit.out + "2")
    assert kit.samples(kit.out + "2/test") == [{"path": "test/a.txt", "text": "two"}]


def test_images_of_splits_without_classes(kit):
    """train/1.png has a split and no class; a class above the split is a class."""
    kit.write("flat/train/1.png", kit.png)
    kit.write("flat/test/2.png", kit.png)
    made = prepare(str(kit.source / "flat"), kit.out)
    assert (made.splits, kit.encodings(made)) == (
        ("test", "train"),
        {"image": "png", "path": "str"},
    )
    kit.write("deep/cat/train/1.png", kit.png)
    kit.write("deep/dog/test/2.png", kit.png)
    convert(str(kit.source / "deep"), kit.out, drop="image")
    assert kit.samples(kit.out + "/train") == [{"class": "cat", "label": 0}]
    assert kit.samples(kit.out + "/test") == [{"class": "dog", "label": 1}]


def test_a_stranger_among_many_files_is_left_out_and_told(kit):
    """Notes and thumbnails do not make bytes of a thousand photographs."""
    for number in range(30):
        kit.write(f"{'ab'[number % 2]}/{number}.png", kit.png)
    kit.write("a/README.md", "about a")
    kit.write("Thumbs.db", "no picture")
    made = prepare(str(kit.source), kit.out)
    assert made.source.title == "image folder"
    (note,) = made.source.notes
    assert note.startswith("2 other files left out (Thumbs.db, a/README.md)")
    assert "--as files" in note
    assert made.run().samples == 30


def test_a_folder_without_a_majority_says_how_to_choose(kit):
    """Every file is stored, and the hint is a pattern of files that are there."""
    for number in range(6):
        kit.write(f"{number}.png", kit.png)
    for number in range(5):
        kit.write(f"{number}.wav", kit.wav(number))
    made = prepare(str(kit.source), kit.out)
    assert made.source.title == "files"
    (note,) = made.source.notes
    assert "6 images, 5 audio" in note
    assert "--include '*.png'" in note


def test_sounds_in_class_folders_have_labels(kit):
    """As pictures have, below splits too."""
    for name in ("train/no/1.wav", "train/yes/2.wav", "test/yes/3.wav"):
        kit.write(name, kit.wav(3))
    made = prepare(str(kit.source), kit.out, drop="audio")
    assert made.source.title == "audio folder"
    made.run()
    assert kit.samples(kit.out + "/test") == [
        {"class": "yes", "label": 1, "path": "test/yes/3.wav"}
    ]


def test_links_out_of_the_folder_are_not_followed(kit, tmp_path):
    """A link to a folder elsewhere is told; one to a file is the file, as in a snapshot."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "b.txt").write_text("b")
    kit.write("a.txt", "a")
    (kit.source / "up").symlink_to(tmp_path)
    (kit.source / "b.txt").symlink_to(elsewhere / "b.txt")
    made = prepare(str(kit.source), kit.out)
    assert made.source.notes == ["passed over in the folder: 1 link to folders elsewhere"]
    made.run()
    assert [s["text"] for s in kit.samples()] == ["a", "b"]


@pytest.mark.parametrize(
    "options", [{"labels": "x.csv"}, {"config": "en"}, {"source_split": "train"}, {"null": "NA"}]
)
def test_an_option_that_says_nothing_of_the_source_is_refused(kit, options):
    """It was meant for something, and what it was meant for would not happen."""
    path = kit.write("t.jsonl", ROW)
    with pytest.raises(ConfigError, match=f"--{next(iter(options)).replace('_', '-')} "):
        prepare(path, kit.out, **options)


def test_a_tiny_shard_is_told(kit):
    """A limit of ten bytes is hardly meant."""
    made = prepare(kit.write("t.jsonl", ROW), kit.out, size_limit=10)
    assert any("--size-limit" in note for note in made.source.notes)
