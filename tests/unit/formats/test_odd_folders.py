"""Folders as people have them: with a table that is about something else, or with odd endings.

Each is read in place and converted to the same samples; what is left out is counted.
"""

import io
import re
import wave

import pytest
from PIL import Image

import mds
from mds.writers.convert import prepare

SOUNDS = [f"{number}.wav" for number in range(4)]
PICTURES = [f"{number}.png" for number in range(4)]


def wav():
    data = io.BytesIO()
    with wave.open(data, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(b"\0\0" * 4)
    return data.getvalue()


def png():
    data = io.BytesIO()
    Image.new("RGB", (2, 2)).save(data, "PNG")
    return data.getvalue()


def table(names, first="file", further=""):
    """Return a CSV with a row for each name, and perhaps a further column."""
    lines = [f"{name},{further and '/x/' + name + ','}1" for name in names]
    return "\n".join([f"{first},{further and further + ','}n", *lines, ""])


def sounds(**tables):
    return {**dict.fromkeys(SOUNDS, wav()), **_named(tables)}


def pictures(**tables):
    return {**dict.fromkeys(PICTURES, png()), **_named(tables)}


def _named(tables):
    return {name.replace("__", "/").replace("_", "."): text for name, text in tables.items()}


def texts(*names):
    return dict.fromkeys(names, "text")


def below(folder, files):
    return {f"{folder}/{name}": data for name, data in files.items()}


def plain(dataset):
    """Return the samples, with the pixels of pictures, in the order of their values."""
    samples = [
        {name: getattr(value, "tobytes", lambda: value)() for name, value in sample.items()}  # noqa: B023
        for sample in dataset
    ]
    return sorted(samples, key=repr)


#: Files of a folder, ``format=``, number of samples, their columns, and the number of files that
#: are left out.
FOLDERS = {
    "sounds": (sounds(), None, 4, "audio path", 0),
    "sounds and a table of all": (sounds(a_csv=table(SOUNDS)), None, 4, "audio n path", 0),
    "sounds and a table of some": (sounds(a_csv=table(SOUNDS[:2])), None, 4, "audio path", 1),
    "sounds and a table of more": (
        sounds(a_csv=table([*SOUNDS, "gone.wav"])),
        *(None, 4, "audio path", 1),
    ),
    "sounds and a table of segments": (
        sounds(a_csv=table([*SOUNDS, *SOUNDS])),
        *(None, 4, "audio path", 1),
    ),
    "sounds and a table of none": (sounds(a_csv="day,n\n1,2\n"), None, 4, "audio path", 1),
    "sounds and an empty table": (sounds(a_csv=""), None, 4, "audio path", 1),
    "sounds and a damaged table": (sounds(a_csv=b"\xff\xfe\0a"), None, 4, "audio path", 1),
    "sounds and JSON lines of none": (sounds(a_jsonl='{"a": 1}\n'), None, 4, "audio path", 1),
    "sounds and a JSON document": (sounds(a_json='{"a": 1}'), None, 4, "audio path", 1),
    "sounds and metadata of none": (sounds(metadata_csv="a\n1\n"), None, 4, "audio path", 1),
    "sounds and stems": (
        sounds(a_csv=table([name[0] for name in SOUNDS])),
        *(None, 4, "audio path", 1),
    ),
    "sounds and a table with a column audio": (
        sounds(a_csv=table(SOUNDS, further="audio")),
        *(None, 4, "audio path", 1),
    ),
    "sounds and a table with a column path": (
        sounds(a_csv=table(SOUNDS, further="path")),
        *(None, 4, "audio file n path", 0),
    ),
    "sounds of classes and a table of classes": (
        {**below("cat", sounds()), **below("dog", sounds()), "a.csv": "class,n\ncat,4\n"},
        *(None, 8, "audio class label path", 1),
    ),
    "sounds of splits and tables of none": (
        {**below("a", sounds()), "train.csv": table(SOUNDS[:2]), "test.csv": table(SOUNDS[2:])},
        *("metadata", 4, "audio n path", 0),
    ),
    "sounds, a table, and format": (sounds(a_csv=table(SOUNDS)), "audio", 4, "audio path", 1),
    "sounds of no usual ending": (
        dict.fromkeys(("1.m4a", "2.dat"), wav()),
        *("audio", 2, "audio path", 0),
    ),
    "sounds of some endings": (
        dict.fromkeys(("1.wav", "2.dat"), wav()),
        *("audio", 1, "audio path", 1),
    ),
    "pictures and a table of all": (pictures(a_csv=table(PICTURES)), None, 4, "image n path", 0),
    "pictures and a table with a column path": (
        pictures(a_csv=table(PICTURES, further="path")),
        *(None, 4, "file image n path", 0),
    ),
    "pictures whose column is path": (
        pictures(a_csv=table(PICTURES, first="path")),
        *(None, 4, "image n path", 0),
    ),
    "pictures and a JSON document": (pictures(a_json='{"a": 1}'), None, 4, "image path", 1),
    "pictures and a README": (pictures(README_md="about"), None, 4, "image path", 1),
    "pictures and a README below": (
        {**below("a", pictures()), "b/README.md": "about"},
        *(None, 4, "class image label", 1),
    ),
    "pictures of nested classes": (
        {**below("cat/1", pictures()), **below("cat/2", pictures()), **below("dog", pictures())},
        *(None, 12, "class image label", 0),
    ),
    "documents and a picture": (
        {**texts("a.md", "b.md"), "logo.png": png()},
        *("text", 2, "path text", 1),
    ),
    "documents of no usual ending": (texts("a.log", "b"), "text", 2, "path text", 0),
    "documents of some endings": (texts("a.log", "b", "c.txt"), "text", 1, "path text", 2),
    "lines of no usual ending": (texts("a.log", "b"), "lines", 2, "text", 0),
    "lines of some endings": (texts("a.log", "b", "c.txt"), "lines", 1, "text", 2),
    "tables of no usual ending": (dict.fromkeys(("a.dat", "b"), "x\n1\n"), "csv", 2, "x", 0),
    "records of no usual ending": (dict.fromkeys(("a", "b"), '{"x": 1}\n'), "jsonl", 2, "x", 0),
    "files of all kinds": (sounds(a_csv="x\n", README_md="a"), "files", 6, "bytes path", 0),
    "binary files": (texts("1.bin", "2.bin"), None, 2, "bytes path", 0),
    "logs": (texts("1.log", "2.log"), None, 2, "bytes path", 0),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_is_read_and_converted_alike(tmp_path, case):
    """Every file is a sample, belongs to one, or is counted."""
    files, name, count, columns, left_out = FOLDERS[case]
    for key, data in files.items():
        path = tmp_path / "data" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    source = str(tmp_path / "data")
    split = "all" if name == "metadata" else ""
    dataset = mds.StreamingDataset(source, format=name, split=split, batch_size=1)
    samples = plain(dataset)
    assert len(samples) == count
    assert all(sorted(sample) == columns.split() for sample in samples)
    counts = re.findall(r"left out +([0-9,]+) ", str(dataset.explain()))
    assert sum(map(int, counts)) == left_out
    options = {"merge_splits": True} if split else {}
    conversion = prepare(source, str(tmp_path / "out"), format=name, **options)
    assert conversion.run().samples == count
    notes = [note for note in conversion.source.notes if "left out of the folder" in note]
    assert len(notes) == bool(left_out)
    assert plain(mds.LocalDataset(str(tmp_path / "out"))) == samples
