"""Every built-in input keeps the laws of the contract, and so do those that are registered."""

import json
import pathlib

import pytest
from click.testing import CliRunner

from mds import MDSWriter
from mds._cli import main
from mds.errors import ConfigError
from mds.testing import InputContract
from mds.writers.convert import (
    Column,
    FileInput,
    Input,
    convert,
    input_names,
    prepare,
    register_input,
)
from mds.writers.convert._inputs import registry
from mds.writers.convert._inputs.csv import DelimitedTextInput
from mds.writers.convert._inputs.files import AudioInput, TextFilesInput, WholeFilesInput
from mds.writers.convert._inputs.format_files import (
    JsonLinesInput,
    TablesInput,
    TextLinesInput,
    WebDatasetInput,
)
from mds.writers.convert._inputs.huggingface import HuggingFaceInput
from mds.writers.convert._inputs.images import ImagesInput
from mds.writers.convert._inputs.mds import MdsInput
from mds.writers.convert._inputs.media import MetadataInput, PairedFilesInput

RECORDS = [{"id": i, "text": f"number {i} é", "more": [i]} for i in range(40)]


class TestImages(InputContract):
    input = ImagesInput

    @pytest.fixture
    def place(self, kit):
        for i in range(12):
            kit.write(f"{i}.jpg", kit.jpeg + bytes(100 * i))
        return str(kit.source)

    @pytest.fixture
    def damaged(self, kit):
        kit.write("1.jpg", kit.jpeg)
        kit.write("2.jpg", b"<html>")
        return str(kit.source), "2.jpg: this is not an image"


class TestImageClasses(TestImages):
    @pytest.fixture
    def place(self, kit):
        for i in range(12):
            split = "train" if i % 3 else "val"
            kit.write(f"{split}/{'cat' if i % 2 else 'dog'}/{i}.jpg", kit.jpeg + bytes([i]))
        return str(kit.source)


class TestLabelledImages(TestImages):
    @pytest.fixture
    def place(self, kit):
        for i in range(12):
            kit.write(f"{i}.png", kit.png + bytes([i]))
        kit.write("labels.csv", "file,age\n" + "".join(f"{i}.png,{i}\n" for i in range(12)))
        return str(kit.source)

    @pytest.fixture
    def damaged(self, kit):
        kit.write("1.jpg", kit.jpeg)
        kit.write("2.jpg", kit.jpeg)
        kit.write("labels.csv", "file,age\n1.jpg,7\n")
        return str(kit.source), "2.jpg: labels.csv has no row for it"


class TestMetadata(InputContract):
    input = MetadataInput

    @pytest.fixture
    def place(self, kit):
        for split in ("train", "test"):
            for i in range(6):
                kit.write(f"{split}/{i}.wav", kit.wav(i))
            rows = "".join(f"{i}.wav,number {i}\n" for i in range(6))
            kit.write(f"{split}/metadata.csv", f"file_name,text\n{rows}")
        return str(kit.source)

    @pytest.fixture
    def damaged(self, kit):
        kit.write("1.wav", kit.wav(1))
        kit.write("2.wav", kit.wav(2))
        kit.write("metadata.csv", "file_name,text\n1.wav,one\n")
        return str(kit.source), "2.wav: no row of metadata.csv lists it"


class TestLJSpeech(TestMetadata):
    @pytest.fixture
    def place(self, kit):
        for i in range(12):
            kit.write(f"wavs/LJ{i}.wav", kit.wav(i))
        kit.write("metadata.csv", "".join(f'LJ{i}|no. {i} "|number {i} "\n' for i in range(12)))
        return str(kit.source)


class TestPairs(InputContract):
    input = PairedFilesInput

    @pytest.fixture
    def place(self, kit):
        for i in range(12):
            split = "train" if i % 3 else "val"
            kit.write(f"{split}/{i}.jpg", kit.jpeg + bytes([i]))
            kit.write(f"{split}/{i}.txt", f"caption {i} é\n")
        return str(kit.source)

    @pytest.fixture
    def damaged(self, kit):
        for i in range(3):
            kit.write(f"{i}.jpg", kit.jpeg)
            kit.write(f"{i}.txt", b"\xff" if i == 1 else b"good")
        return str(kit.source), "1.jpg: its text 1.txt, line 1, column 1: byte 0xff is not UTF-8"


class TestTranscripts(TestPairs):
    @pytest.fixture
    def place(self, kit):
        for i in range(12):
            kit.write(f"84/{i % 2}/84-{i}.flac", b"fLaC" + bytes([i]))
        for part in range(2):
            lines = [f"84-{i} SOUND NUMBER {i}\n" for i in range(part, 12, 2)]
            kit.write(f"84/{part}/84-{part}.trans.txt", "".join(lines))
        return str(kit.source)


class TestAudio(InputContract):
    input = AudioInput

    @pytest.fixture
    def place(self, kit):
        for i in range(12):
            kit.write(f"{i}.wav", kit.wav(i))
        return str(kit.source)

    @pytest.fixture
    def damaged(self, kit):
        kit.write("1.wav", kit.wav(1))
        kit.write("2.wav", b"no sound")
        return str(kit.source), "2.wav: this is not wav"


class TestTextFiles(InputContract):
    input = TextFilesInput

    @pytest.fixture
    def place(self, kit):
        for i in range(12):
            kit.write(f"{i}.txt", f"text {i}\n" * i)
        return str(kit.source)

    @pytest.fixture
    def damaged(self, kit):
        kit.write("1.txt", "one")
        kit.write("2.txt", b"one\nt\xffo")
        return str(kit.source), "2.txt, line 2, column 2: byte 0xff is not UTF-8; give --encoding"


class TestFiles(InputContract):
    input = WholeFilesInput

    @pytest.fixture
    def place(self, kit):
        for i in range(12):
            kit.write(f"{i}.bin", bytes([i]) * 100 * i)
        return str(kit.source)

    @pytest.fixture
    def damaged(self, kit):
        kit.write("1.bin", b"1")
        (kit.source / "2.bin").symlink_to("/proc/self/mem")
        return str(kit.source), "2.bin: cannot be read"


class TestTextLines(InputContract):
    input = TextLinesInput

    @pytest.fixture
    def place(self, kit):
        return kit.write("x.txt", "".join(f"line {i} é\n" * (i % 3) for i in range(30)))

    @pytest.fixture
    def damaged(self, kit):
        return kit.write("x.txt", b"one\nt\xffo\n"), "x.txt, line 2, column 2: byte 0xff"


class TestJsonLines(InputContract):
    input = JsonLinesInput

    @pytest.fixture
    def place(self, kit):
        return kit.write("x.jsonl", kit.lines(RECORDS))

    @pytest.fixture
    def damaged(self, kit):
        return kit.write("x.jsonl", '{"a": 1}\n{"a" 2}\n'), "x.jsonl, line 2, column 6"


class TestJsonList(TestJsonLines):
    @pytest.fixture
    def place(self, kit):
        kit.write("x.json", json.dumps(RECORDS[:20]))
        kit.write("y.json", json.dumps(RECORDS[20:]))
        return str(kit.source)

    @pytest.fixture
    def damaged(self, kit):
        return kit.write("x.json", '[{"a": 1}, 2]'), "x.json, item 2: expected an object"


class TestDelimitedText(InputContract):
    input = DelimitedTextInput

    @pytest.fixture
    def place(self, kit):
        rows = "".join(f'{i},"a ""quoted""\nnote {i}",{i / 2}\n' for i in range(40))
        return kit.write("x.csv", "id,text,score\n" + rows)

    @pytest.fixture
    def damaged(self, kit):
        return kit.write("x.csv", "a,b\n1,2\n1,2,3\n"), "x.csv, line 3: 3 values for 2 columns"


class TestParquet(InputContract):
    input = TablesInput

    @pytest.fixture
    def place(self, kit):
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(_table(), kit.source / "x.parquet", row_group_size=7)
        return str(kit.source)

    @pytest.fixture
    def damaged(self, kit):
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(_table(), kit.source / "x.parquet", compression="none")
        data = (kit.source / "x.parquet").read_bytes()
        kit.write("x.parquet", data[:4] + b"\xff" * 400 + data[404:])
        return str(kit.source), "x.parquet, row group 0: it cannot be decoded"


class TestArrowFile(InputContract):
    input = TablesInput

    @pytest.fixture
    def place(self, kit):
        pa = pytest.importorskip("pyarrow")
        with pa.ipc.new_file(str(kit.source / "x.arrow"), _table().schema) as file:
            file.write_table(_table(), max_chunksize=7)
        return str(kit.source)

    @pytest.fixture
    def damaged(self, kit):
        pa = pytest.importorskip("pyarrow")
        with pa.ipc.new_stream(str(kit.source / "x.arrow"), _table().schema) as file:
            file.write_table(_table(), max_chunksize=7)
        data = (kit.source / "x.arrow").read_bytes()
        kit.write("x.arrow", data[: len(data) * 3 // 4])
        return str(kit.source), "x.arrow: this is not an Arrow file"


class TestWebDataset(InputContract):
    input = WebDatasetInput

    @pytest.fixture
    def place(self, kit):
        members = [(f"{i:02}.{ending}", b"%d" % i) for i in range(20) for ending in ("cls", "txt")]
        kit.write("0.tar", kit.tar(members[:26]))
        kit.write("1.tar", kit.tar(members[26:]))
        return str(kit.source)

    @pytest.fixture
    def damaged(self, kit):
        members = [("a.txt", b"one"), ("b.txt", b"two"), ("b.txt", b"again")]
        return kit.write(
            "x.tar", kit.tar(members)
        ), "x.tar, sample b: the file 'b.txt' exists twice"


class TestHuggingFace(InputContract):
    input = HuggingFaceInput

    @pytest.fixture
    def place(self, kit):
        datasets = pytest.importorskip("datasets")
        table = {"text": [f"text {i}" for i in range(20)], "n": list(range(20))}
        splits = {name: datasets.Dataset.from_dict(table) for name in ("train", "test")}
        datasets.DatasetDict(splits).save_to_disk(str(kit.source / "hf"))
        return str(kit.source / "hf")

    @pytest.fixture
    def damaged(self, kit):
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_dict({"n": [1, 2]}).save_to_disk(str(kit.source / "hf"))
        (kit.source / "hf" / "data-00000-of-00001.arrow").write_bytes(b"no table")
        return str(kit.source / "hf"), f"{kit.source}/hf: the Hugging Face dataset cannot be loaded"


class TestMds(InputContract):
    input = MdsInput

    @pytest.fixture
    def place(self, kit):
        return _dataset(kit)

    @pytest.fixture
    def damaged(self, kit):
        place = _dataset(kit)
        shard = kit.source / "mds" / "shard.00001.mds"
        shard.write_bytes(shard.read_bytes()[:-9])
        return place, "shard.00001.mds: "


def _table():
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.ipc")
    texts = [f"row {i}" * 9 for i in range(40)]
    return pa.table({"id": list(range(40)), "text": texts, "v": [[i, 2] for i in range(40)]})


def _dataset(kit):
    columns = {"id": "int", "text": "str", "more": "json"}
    with MDSWriter(out=str(kit.source / "mds"), columns=columns, size_limit=700) as writer:
        for record in RECORDS:
            writer.write(record)
    return str(kit.source / "mds")


def test_every_built_in_input_is_tried():
    """A new one has to be written down here."""
    tried = {kind.input for kind in InputContract.__subclasses__()}
    assert set(registry.inputs.values()) <= tried


class Pairs(FileInput):
    """Lines of a name and a value."""

    title = "pairs"
    endings = frozenset({".pairs", ".csv"})

    def infer_columns(self):
        return [Column("name", "str"), Column("value", "str")]

    def read(self, part):
        with open(self.listing.path(part.address[0]), encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                name, value = line.split()
                yield number, {"name": name, "value": value}

    def locate(self, part, position):
        return f"{part.address[0]}, line {position}"


@pytest.fixture
def _known(monkeypatch):
    monkeypatch.setattr(registry, "inputs", dict(registry.inputs))
    monkeypatch.setattr(registry._inputs, "entries", registry.inputs)


@pytest.mark.usefixtures("_known")
def test_a_registered_input_is_recognised_by_its_ending(kit):
    """And chosen by its name; an ending that is built in stays what it was."""
    register_input("pairs", Pairs)
    convert(kit.write("x.pairs", "a 1\nb 2\n"), kit.out)
    assert kit.samples() == [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]
    table = kit.write("x.csv", "a 1\nb 2\n")
    assert prepare(table, kit.out + "2").source.title == "table of delimited text"
    convert(table, kit.out + "2", format="pairs")
    assert kit.samples(kit.out + "2") == kit.samples()


@pytest.mark.usefixtures("_known")
def test_a_package_brings_an_input_by_an_entry_point(kit, monkeypatch):
    """Of the group mds.inputs; `--help` names it, and one that cannot be loaded is named."""
    kit.write("site/pairs-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: pairs\nVersion: 1\n")
    points = kit.write(
        "site/pairs-1.dist-info/entry_points.txt", f"[mds.inputs]\npairs = {__name__}:Pairs\n"
    )
    monkeypatch.syspath_prepend(str(kit.source / "site"))
    assert input_names()[-1] == "pairs"
    shown = CliRunner().invoke(main, ["convert", "--help"]).output
    assert "hf, mds, files, pairs." in " ".join(shown.split())
    convert(kit.write("x.pairs", "a 1\n"), kit.out)
    assert kit.samples() == [{"name": "a", "value": "1"}]
    pathlib.Path(points).write_text("[mds.inputs]\nsick = no_such_package:Sick\n")
    with pytest.raises(ConfigError, match=r"the input 'sick' \(no_such_package:Sick\) cannot be"):
        prepare(kit.write("x.txt", "a"), kit.out)


@pytest.mark.usefixtures("_known")
def test_what_cannot_be_an_input_is_refused():
    """A name of ours, a name with a comma, and a class that cannot read."""
    with pytest.raises(ConfigError, match="the input 'csv' is built in"):
        register_input("csv", Pairs)
    with pytest.raises(ConfigError, match="'a,b' cannot be the name of an input"):
        register_input("a,b", Pairs)
    for kind in (dict, Pairs.infer_columns, Input, FileInput):
        with pytest.raises(ConfigError, match=r"inherit mds\.writers\.convert\.Input"):
            register_input("mine", kind)
    with pytest.raises(ConfigError, match=r"no format 'mine'\..*The formats are images"):
        convert("x", "y", format="mine")
