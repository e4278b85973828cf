"""Every built-in input keeps the laws of the contract, and so do those that are registered."""

import dataclasses
import json
import pathlib

import pytest
from click.testing import CliRunner

from mds import MDSWriter
from mds._cli import main
from mds.errors import ConfigError, RecordError
from mds.formats import Problem
from mds.testing import InputContract
from mds.writers.convert import (
    Column,
    FileInput,
    Input,
    InputPart,
    convert,
    input_names,
    prepare,
    register_input,
)
from mds.writers.convert._inputs import registry
from mds.writers.convert._inputs.format_input import FormatInput
from mds.writers.convert._inputs.huggingface import HuggingFaceInput
from mds.writers.convert._inputs.mds import MdsInput

RECORDS = [{"id": i, "text": f"number {i} é", "more": [i]} for i in range(40)]


def of_format(name):
    """Return the input of a format, by the name under which the contract registers it."""

    class Opened(FormatInput):
        @classmethod
        def open(cls, path, options):
            return super().open(path, dataclasses.replace(options, format=name))

    Opened.__name__ = Opened.__qualname__ = f"Opened_{name}"
    globals()[Opened.__name__] = Opened  # so that it can be pickled
    return Opened


class TestImages(InputContract):
    input = of_format("images")

    @pytest.fixture
    def place(self, kit):
        for i in range(12):
            kit.write(f"{i}.jpg", kit.jpeg + bytes(100 * i))
        return str(kit.source)

    @pytest.fixture
    def damaged(self, kit):
        kit.write("1.jpg", kit.jpeg)
        kit.write("2.jpg", b"<html>")
        return str(kit.source), "2.jpg: this is not a picture"


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
    input = of_format("metadata")

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
    input = of_format("paired")

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
        return str(kit.source), "1.txt, line 1, column 1: byte 0xff is not UTF-8"


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
    input = of_format("audio")

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
    input = of_format("text")

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
    input = of_format("files")

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


class TextLinesInput(FormatInput):
    """Files of lines of text as an input."""

    @classmethod
    def open(cls, path, options):
        return super().open(path, dataclasses.replace(options, format="lines"))


class TestTextLines(InputContract):
    input = TextLinesInput

    @pytest.fixture
    def place(self, kit):
        return kit.write("x.txt", "".join(f"line {i} é\n" * (i % 3) for i in range(30)))

    @pytest.fixture
    def damaged(self, kit):
        return kit.write("x.txt", b"one\nt\xffo\n"), "x.txt, line 2, column 2: byte 0xff"


class JsonLinesInput(FormatInput):
    """JSON Lines as an input."""

    @classmethod
    def open(cls, path, options):
        return super().open(path, dataclasses.replace(options, format="jsonl"))


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


class CsvInput(FormatInput):
    """Tables of cells as an input."""

    @classmethod
    def open(cls, path, options):
        return super().open(path, dataclasses.replace(options, format="csv"))


class TestDelimitedText(InputContract):
    input = CsvInput

    @pytest.fixture
    def place(self, kit):
        rows = "".join(f'{i},"a ""quoted""\nnote {i}",{i / 2}\n' for i in range(40))
        return kit.write("x.csv", "id,text,score\n" + rows)

    @pytest.fixture
    def damaged(self, kit):
        return kit.write("x.csv", "a,b\n1,2\n1,2,3\n"), "x.csv, line 3: 3 values for 2 columns"


class ParquetInput(FormatInput):
    """Parquet files, by the name under which the contract registers an input."""

    @classmethod
    def open(cls, path, options):
        return super().open(path, dataclasses.replace(options, format="parquet"))


class ArrowInput(FormatInput):
    """Arrow files, by the name under which the contract registers an input."""

    @classmethod
    def open(cls, path, options):
        return super().open(path, dataclasses.replace(options, format="arrow"))


class TestParquet(InputContract):
    input = ParquetInput

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
    input = ArrowInput

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


class TestTar(InputContract):
    input = of_format("tar")

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
        ), "x.tar, sample 'b': the file 'b.txt' exists twice"


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


class Pairs(Input):
    """Lines of a name and a value."""

    title = "pairs"

    @classmethod
    def open(cls, path, options):
        del options
        return cls(path)

    @classmethod
    def recognizes(cls, path):
        return path.endswith(".pairs")

    def infer_columns(self):
        return [Column("name", "str"), Column("value", "str")]

    def cut_parts(self, size):
        del size
        yield InputPart(0, 1, self.root)

    def read(self, part):
        with open(part.address, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                name, _, value = line.strip().partition(" ")
                record = {"name": name, "value": value}
                yield number, record if value else Problem("", "there is no value")

    def locate(self, part, position):
        return f"{part.address}, line {position}"

    def describe(self):
        return "pairs"

    def fingerprint(self):
        return "the same"


@pytest.fixture
def _known(monkeypatch):
    monkeypatch.setattr(registry, "inputs", dict(registry.inputs))
    monkeypatch.setattr(registry._inputs, "entries", registry.inputs)


@pytest.mark.usefixtures("_known")
def test_a_registered_input_is_asked_whether_it_recognizes_a_path(kit):
    """And chosen by its name; other paths stay what they were."""
    register_input("pairs", Pairs)
    convert(kit.write("x.pairs", "a 1\nb 2\n"), kit.out)
    assert kit.samples() == [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]
    table = kit.write("x.csv", "a 1\nb 2\n")
    assert prepare(table, kit.out + "2").source.title == "CSV"
    convert(table, kit.out + "2", format="pairs")
    assert kit.samples(kit.out + "2") == kit.samples()
    broken = kit.write("y.pairs", "a 1\nb\n")
    with pytest.raises(RecordError, match=r"y\.pairs, line 2: there is no value"):
        convert(broken, kit.out + "3")
    assert convert(broken, kit.out + "3", on_error="skip").bad_count == 1


def test_a_kind_of_files_is_a_format():
    """A class of the former base of files says what to inherit instead."""
    with pytest.raises(ConfigError, match=r"Mine: .*call mds\.formats\.register_format"):
        type("Mine", (FileInput,), {})


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
    names = " ".join(shown.split()).partition("cannot detect it: ")[2].partition(".")[0].split(", ")
    assert {"hf", "mds", "files", "pairs", "audio"} <= {*names}
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
    for kind in (dict, Pairs.infer_columns, Input):
        with pytest.raises(ConfigError, match=r"inherit mds\.writers\.convert\.Input"):
            register_input("mine", kind)
    with pytest.raises(ConfigError, match=r"no format 'mine'\..*The formats are hf"):
        convert("x", "y", format="mine")
