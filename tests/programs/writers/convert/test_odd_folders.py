"""Folders as people have them: named after splits, with strangers among the files, with links."""

import dataclasses
import gzip
import io
import re
import shutil

import folders
import pytest
from quickly import convert, prepare

from mds import LocalDataset, StreamingDataset
from mds._index import column_notes
from mds._index.sidecar import write_sidecar
from mds.errors import ConfigError, IndexFileError, NoSpaceError, SourceError
from mds.events import Listed, subscribe
from mds.formats import _source
from mds.formats._columns import as_columns
from mds.formats._facts import DataFile, ShardPlace
from mds.formats._lines import JsonLines
from mds.formats._source import Files
from mds.storage import open_store
from mds.storage._memory import MemoryStore

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
        (("train/x.jsonl", "train/y.jsonl"), {"": 2}),
        (("train/test.jsonl", "val/test.jsonl"), {"train": 1, "val": 1}),
        (("gsm8k-train.jsonl", "gsm8k-test.jsonl"), {"train": 1, "test": 1}),
        (("my_Train_1.jsonl", "my_test.jsonl"), {"train": 1, "test": 1}),
        (("latest.jsonl", "contest.jsonl"), {"": 2}),
        (("train-0.jsonl", "train-1.jsonl"), {"": 2}),
        (("trains.jsonl", "tests.jsonl"), {"": 2}),
        (("train.jsonl", "extra.jsonl"), {"": 2}),
    ],
)
def test_files_named_after_splits_are_splits(kit, names, splits):
    """Where all of them say which; one split alone is no reason for a folder."""
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


def test_files_of_several_kinds_are_an_error_with_the_command_for_each(kit):
    """One file of another kind is enough; each command that the error names works."""
    for number in range(30):
        kit.write(f"{'ab'[number % 2]}/{number}.png", kit.png)
    kit.write("a/README.md", "about a")
    assert prepare(str(kit.source), kit.out).run().samples == 30
    kit.write("notes.db", "no picture")
    kit.write("one.txt", "a document")
    words = "30 images such as a/0.png, 1 files such as notes.db, 1 text such as one.txt"
    for read in (
        lambda: prepare(str(kit.source), kit.out),
        lambda: StreamingDataset(str(kit.source)),
    ):
        with pytest.raises((SourceError, ConfigError), match=words) as told:
            read()
        assert "--include '*.png'" in str(told.value)
    counts = {"images": 30, "text": 2, "files": 33}  # with a named format, a README is a document
    assert {*re.findall(r"--format (\w+) \(", str(told.value))} == {*counts}
    for kind, count in counts.items():
        made = prepare(str(kit.source), f"{kit.out}-{kind}", format=kind)
        assert made.run().samples == count
        assert StreamingDataset(str(kit.source), format=kind, batch_size=1).num_samples == count


def test_sounds_in_class_folders_have_labels(kit):
    """As pictures have, below splits too."""
    for name in ("train/no/1.wav", "train/yes/2.wav", "test/yes/3.wav"):
        kit.write(name, kit.wav(3))
    made = prepare(str(kit.source), kit.out, drop="audio")
    assert made.source.title == "audio"
    made.run()
    assert kit.samples(kit.out + "/test") == [
        {"class": "yes", "label": 1, "path": "test/yes/3.wav"}
    ]


def test_links_out_of_the_folder_are_followed(kit, tmp_path):
    """A link to a folder elsewhere is followed, and one to a folder above is counted."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "b.txt").write_text("b")
    kit.write("a.txt", "a")
    (kit.source / "up").symlink_to(tmp_path)
    (kit.source / "b.txt").symlink_to(elsewhere / "b.txt")
    (kit.source / "c").symlink_to(elsewhere)
    made = prepare(str(kit.source), kit.out)
    assert made.source.notes == [
        "left out of the folder: 1 link to a folder above (up)",
        "followed: 1 link to a file (b.txt), 1 link to a folder (c)",
    ]
    made.run()
    assert [s["path"] for s in kit.samples()] == ["a.txt", "b.txt", "c/b.txt"]


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


def _fill(kit, files, jpeg, png, wav):
    content = {folders.JPEG: jpeg, folders.PNG: png, folders.WAV: wav}
    for name, data in files.items():
        given = content.get(data, data) if not isinstance(data, (str, bytes)) else data
        kit.write(name, given)


@pytest.fixture(scope="module")
def media():
    """The bytes of a JPEG, a PNG and a WAV file."""
    import wave

    from PIL import Image

    made = []
    for kind in ("JPEG", "PNG"):
        file = io.BytesIO()
        Image.new("RGB", (4, 3), (200, 10, 10)).save(file, kind)
        made.append(file.getvalue())
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\0\0" * 8)
    return (*made, sound.getvalue())


def test_there_are_forty_folders():
    """And more, each with a name of its own."""
    names = [name for name, *_ in (*folders.FOLDERS, *folders.STOPPED)]
    assert len(set(names)) == len(names) >= 40


@pytest.mark.parametrize(
    ("name", "files", "title", "columns", "samples"),
    folders.FOLDERS,
    ids=[name for name, *_ in folders.FOLDERS],
)
def test_a_folder_is_converted_rightly_without_an_option(
    kit, media, name, files, title, columns, samples
):
    """What it is, which columns it gets, and that no sample is lost."""
    _fill(kit, files, *media)
    conversion = prepare(str(kit.source), kit.out)
    assert title in (None, conversion.source.title), name
    assert columns is None or [each.name for each in conversion.columns] == columns
    assert conversion.run().samples == samples


@pytest.mark.parametrize(
    ("name", "files", "words"), folders.STOPPED, ids=[name for name, *_ in folders.STOPPED]
)
def test_a_folder_that_cannot_be_converted_is_stopped_with_what_helps(
    kit, media, name, files, words
):
    """Nothing is written, and the message says what to do."""
    _fill(kit, files, *media)
    with pytest.raises(SourceError, match=words):
        convert(str(kit.source), kit.out)
    assert not (kit.source.parent / "out" / "index.json").exists(), name


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("a.csv", "näme;b\nJosé;x\n", {}),
        ("a.jsonl", '{"näme": "José", "b": "x"}\n', {}),
        ("a.txt", "José", {}),
        ("a.txt", "José\nx\n", {"format": "lines"}),
        ("a.json", '[{"näme": "José"}]', {}),
    ],
)
@pytest.mark.parametrize("encoding", ["cp1252", "utf-8", "iso-8859-15"])
def test_text_of_another_encoding(kit, name, text, options, encoding):
    """Its letters come out, in cells and in names of columns."""
    kit.write(name, text.encode(encoding))
    convert(str(kit.source), kit.out, encoding=encoding, **options)
    assert "José" in next(iter(kit.samples(kit.out))).values()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "hex", "klingon"])
def test_an_encoding_whose_lines_do_not_end_is_refused(kit, encoding):
    """With the way to make UTF-8 of it, or the encodings that there are."""
    kit.write("a.csv", "a\n1\n")
    with pytest.raises(ConfigError, match=r"iconv -f|cp1252"):
        convert(str(kit.source), kit.out, encoding=encoding)


def test_a_table_without_a_header(kit):
    """Its columns are called by their place, in every file and every part."""
    kit.write("1.csv", "".join(f"{n},x\n" for n in range(500)))
    kit.write("2.csv", "500,y\n")
    conversion = dataclasses.replace(
        prepare(str(kit.source), kit.out, no_header=True), part_size=200
    )
    conversion.run()
    found = kit.samples(kit.out)
    assert [sample["column_0"] for sample in found] == list(range(501))
    assert found[-1] == {"column_0": 500, "column_1": "y"}


def test_a_table_of_labels_may_be_chosen(kit, media):
    """Where several are there, and with names that have no ending and no folder."""
    for number in range(4):
        kit.write(f"img/{number}.jpg", media[0])
    kit.write("train.csv", "id,kind\n0,a\n1,b\n2,a\n3,b\n")
    kit.write("other.csv", "x\n1\n")
    convert(str(kit.source), kit.out, labels="train.csv")
    assert [sample["kind"] for sample in kit.samples(kit.out)] == ["a", "b", "a", "b"]


def test_a_last_name_that_two_pictures_share_names_neither(kit, media):
    """A row must not label the wrong picture."""
    kit.write("a/1.jpg", media[0])
    kit.write("b/1.jpg", media[0])
    kit.write("labels.csv", "file,kind\n1.jpg,x\n")
    with pytest.raises(SourceError, match="names an image"):
        prepare(str(kit.source), kit.out)


def test_a_long_document_alone_is_told(kit):
    """It is one sample, which is hardly meant."""
    kit.write("book.txt", "a line\n" * 50_000)
    conversion = prepare(str(kit.source), kit.out)
    assert any("--format lines" in note for note in conversion.source.notes)
    kit.write("other.txt", "short")
    assert not prepare(str(kit.source), kit.out).source.notes


@pytest.mark.parametrize("option", [{"encoding": "cp1252"}, {"no_header": True}])
def test_options_of_text_are_refused_for_pictures(kit, media, option):
    """They would say nothing."""
    kit.write("a.jpg", media[0])
    with pytest.raises(ConfigError, match="does not apply to"):
        prepare(str(kit.source), kit.out, **option)


def test_a_long_line_is_read_once_by_each_byte(kit):
    """A part reads its own bytes of a line that begins before it and ends after it."""
    long = '{"a": "' + "x" * (1 << 20) + '"}\n'
    path = kit.source / "a.jsonl"
    path.write_text(long + '{"a": "y"}\n')
    read = []

    class CountedFiles(Files):
        def stream(self, file, start=0, end=None):
            for chunk in super().stream(file, start, end):
                read.append(len(chunk))
                yield chunk

    kind, files = JsonLines(), CountedFiles(open_store(str(kit.source)))
    file = DataFile("a.jsonl", path.stat().st_size)
    plan = kind.plan_uncounted(file, files)
    shard = ShardPlace(file, plan.spans[0], -1, plan.note, as_columns(plan.columns))
    read.clear()
    blocks = [[*kind.blocks(piece, files)] for piece in kind.cut(shard, files, 1 << 14)]
    assert [len(block.sizes) for piece in blocks for block in piece] == [1, 1]
    assert sum(read) < 3 * file.size


def test_classes_are_kept_beside_the_dataset(kit, media):
    """With what the caller says of columns, bound to the index, for each split."""
    for split in ("train", "test"):
        for name in ("horse", "cat"):
            kit.write(f"{split}/{name}/1.jpg", media[0])
    convert(str(kit.source), kit.out, describe={"label": "the animal <b>"})
    for split in ("train", "test"):
        dataset = LocalDataset(kit.out, split)
        assert dataset.class_names == {"label": ["cat", "horse"]}
        assert dataset.descriptions["label"] == "the animal <b>"
        assert dataset.schema["image"] == "jpeg"
        assert dataset[0]["class"] == dataset.class_names["label"][dataset[0]["label"]]


def test_notes_of_another_index_are_not_believed(kit, media):
    """A dataset that was written anew in their place has lost them."""
    kit.write("cat/1.jpg", media[0])
    kit.write("dog/1.jpg", media[0])
    convert(str(kit.source), kit.out)
    notes = (kit.source.parent / "out" / "index.columns.json").read_bytes()
    kit.write("dog/2.jpg", media[0])
    convert(str(kit.source), kit.out, overwrite=True)
    assert LocalDataset(kit.out).class_names == {"label": ["cat", "dog"]}
    (kit.source.parent / "out" / "index.columns.json").write_bytes(notes)
    with pytest.raises(IndexFileError, match="belongs to another"):
        LocalDataset(kit.out).descriptions  # noqa: B018 - the look is what fails


def test_there_are_no_notes_where_nothing_is_noted(kit):
    """No file is written, and a dataset has its columns all the same."""
    kit.write("a.csv", "a\n1\n")
    convert(str(kit.source), kit.out)
    assert not (kit.source.parent / "out" / "index.columns.json").exists()
    assert LocalDataset(kit.out).schema["a"] == "int"
    assert LocalDataset(kit.out).class_names == {}


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"[]",
        b'{"columns": 3}',
        b'{"columns": {"a": 3}}',
        b'{"columns": {"a": {"class_names": [1]}}}',
    ],
)
def test_damaged_notes_are_refused(payload):
    """What a digest covers may still be no notes."""
    store = MemoryStore("memory://notes")
    write_sidecar(store, column_notes.NAME, "columns", "0" * 32, payload)
    with pytest.raises(IndexFileError, match="does not describe columns"):
        column_notes.read_notes(store, "0" * 32)


def test_the_names_of_classes_of_hugging_face(kit, tmp_path):
    """A ClassLabel keeps its names."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
    table.save_to_disk(str(tmp_path / "hf"))
    convert(str(tmp_path / "hf"), kit.out)
    assert LocalDataset(kit.out).class_names == {"label": ["neg", "pos"]}


def test_a_disk_that_is_too_small_is_told_before(kit, media, monkeypatch):
    """What is needed, what is free, and what would be less; text may become smaller."""
    kit.write("a.jpg", media[0])
    usage = shutil.disk_usage(kit.source)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    conversion = prepare(str(kit.source), kit.out)
    assert "needed, 10 B free" in conversion.describe_disk_space()
    with pytest.raises(NoSpaceError, match="--limit, --include or --compression"):
        conversion.check_disk_space()
    prepare(str(kit.source), kit.out, compression="zstd").check_disk_space()
    kit.write("sub/a.csv", "a\n1234567\n1234567\n")
    prepare(str(kit.source / "sub"), kit.out).check_disk_space()


def test_files_are_counted_while_they_are_listed(kit, monkeypatch):
    """An event for every so many, so that a large folder is not silent."""
    monkeypatch.setattr(_source, "_FILES_BETWEEN_EVENTS", 2)
    for number in range(5):
        kit.write(f"{number}.txt", "x")
    seen = []
    with subscribe(seen.append):
        prepare(str(kit.source), kit.out)
    assert [event.files for event in seen if isinstance(event, Listed)] == [2, 4]


def test_pictures_and_their_captions_are_samples(kit):
    """Each with the text of its name; what has no partner is left out and told, in one line."""
    for at in range(10):
        kit.write(f"{at}.jpg", kit.jpeg)
        kit.write(f"{at}.txt", f"caption {at}")
    kit.write("alone.jpg", kit.jpeg)
    kit.write("README.txt", "about these")
    made = prepare(str(kit.source), kit.out)
    paired, left = made.source.notes
    assert paired.startswith(
        "each picture has the text of the .txt file with its name; --format files"
    )
    assert left == (
        "left out of the folder: 1 file of another kind (README.txt), 1 file without a partner "
        "(alone.jpg)"
    )
    convert(str(kit.source), kit.out)
    told = [(each["path"], each["text"]) for each in kit.samples()]
    assert told == [(f"{at}.jpg", f"caption {at}") for at in range(10)]
    whole = convert(str(kit.source), kit.out + "-files", format="files")
    assert sum(each.samples for each in whole.splits) == 22


def test_few_pictures_with_a_text_are_no_pairs(kit):
    """Nine files of ten have to belong together, and names are to be there once."""
    for at in range(10):
        kit.write(f"{at}.jpg", kit.jpeg)
        kit.write(f"{at if at < 7 else at + 100}.txt", "x")
    with pytest.raises(SourceError, match=r"several kinds: 10 images such as 0\.jpg, 10 text"):
        prepare(str(kit.source), kit.out)
    with pytest.raises(SourceError, match="less than 90 % of the files are pictures or sounds"):
        prepare(str(kit.source), kit.out, format="paired")


def test_transcripts_of_sounds_are_samples(kit):
    """A line for each sound, by the first word; another encoding may be asked for."""
    kit.write("84/1/84-1-0.flac", b"fLaC0")
    kit.write("84/1/84-1-1.flac", b"fLaC1")
    kit.write("84/1/84-1.trans.txt", "84-1-0 UNE FÊTE\n84-1-1 TWO  WORDS\n".encode("cp1252"))
    with pytest.raises(SourceError, match=r"84-1\.trans\.txt: the transcripts cannot be read"):
        prepare(str(kit.source), kit.out)
    convert(str(kit.source), kit.out, encoding="cp1252")
    assert [(each["path"], each["text"]) for each in kit.samples()] == [
        ("84/1/84-1-0.flac", "UNE FÊTE"), ("84/1/84-1-1.flac", "TWO  WORDS"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("include", "label"), [((), (0, 1, 2)), (("b/*",), (1,)), (("c/1.*", "b/*"), (1, 2))]
)
@pytest.mark.parametrize("kind", ["jpg", "wav"])
def test_labels_of_a_part_are_those_of_the_whole_folder(kit, include, label, kind):
    """`--include 'b/*'` numbers and names the classes as a conversion of everything does."""
    for name in "abc":
        for number in range(2):
            kit.write(f"{name}/{number}.{kind}", kit.jpeg if kind == "jpg" else kit.wav(number))
    kit.write("notes/readme.txt", "no class")
    convert(str(kit.source), kit.out, include=list(include), exclude=["notes/*"])
    found = LocalDataset(kit.out, columns=["label", "class"])
    assert {sample["label"] for sample in found} == set(label)
    assert {sample["class"] for sample in found} == {"abc"[number] for number in label}
    assert found.class_names == {"label": ["a", "b", "c"]}


def test_labels_of_one_split_are_those_of_all(kit):
    """A split that is converted alone has the classes of the others."""
    for split in ("train", "test"):
        for name in "abc":
            kit.write(f"{split}/{name}/1.jpg", kit.jpeg)
    convert(str(kit.source), kit.out, include=["train/b/*"])
    found = LocalDataset(kit.out, columns=["label"])
    assert [sample["label"] for sample in found] == [1]


def test_a_column_on_request_is_written_where_only_names_it(kit):
    """`--columns image,path` has the path, which is left out otherwise."""
    kit.write("a/1.jpg", kit.jpeg)
    kit.write("b/1.jpg", kit.jpeg)
    convert(str(kit.source), kit.out, columns=["path", "label"])
    assert kit.samples() == [{"label": 0, "path": "a/1.jpg"}, {"label": 1, "path": "b/1.jpg"}]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("images/1.jpg", "masks/1.png"), "masks seems to hold masks of the pictures in images"),
        (("train/img/1.jpg", "train/gt/1.png"), "train/gt seems to hold masks"),
        (("cat/1.jpg", "instances.json"), r"instances\.json has annotations"),
        (("train2017/1.jpg", "annotations/train.json"), r"train\.json has annotations"),
    ],
)
def test_pictures_with_masks_or_boxes_are_no_classes(kit, files, words):
    """The command stops, says what to do, and takes `--format images` for an answer."""
    coco = '{"info": {}, "images": [], "annotations": [], "categories": []}'
    for name in files:
        for number in range(20) if name.endswith(("jpg", "png")) else [1]:
            content = coco if name.endswith("json") else kit.jpeg
            kit.write(name.replace("1.", f"{number}."), content)
    with pytest.raises(SourceError, match=words) as told:
        prepare(str(kit.source), kit.out)
    assert "docs/writing.md" in str(told.value)
    assert len(prepare(str(kit.source), kit.out, format="images").columns) > 1
    if "seems to hold" in str(told.value):
        way_out = str(told.value).partition("with mds-convert ")[2].partition(". If the folders")[0]
        assert prepare(way_out, kit.out).run().samples == 20


def test_classes_whose_files_have_the_same_names_are_classes(kit):
    """Only a name of masks makes two folders of equal names a question."""
    for name in ("dark", "light", "annotated"):
        for number in range(4):
            kit.write(f"{name}/{number}.jpg", kit.jpeg)
    assert "3 classes" in prepare(str(kit.source), kit.out).source.describe()


@pytest.mark.parametrize("name", ["labels.jsonl", "labels.ndjson", "labels.jsonl.gz"])
def test_a_table_of_labels_in_json_lines(kit, media, name):
    """Its ending says so, also of a compressed table."""
    kit.write("1.jpg", media[0])
    rows = b'{"file": "1.jpg", "kind": 7}\n'
    kit.write(name, gzip.compress(rows) if name.endswith(".gz") else rows)
    convert(str(kit.source), kit.out, labels=name)
    assert [sample["kind"] for sample in LocalDataset(kit.out)] == [7]


def test_a_row_without_the_name_of_its_image_is_refused(kit, media):
    """The row is named, and what it has."""
    kit.write("1.jpg", media[0])
    kit.write("labels.jsonl", b'{"file": "1.jpg", "kind": 1}\n{"kind": 2}\n')
    with pytest.raises(SourceError, match=r"labels.jsonl, row 2: the column 'file'.*has 'kind'"):
        convert(str(kit.source), kit.out)
