"""The formats of this package keep the laws that all formats keep."""

import gzip
import json

import pictures
import pytest
import tars

from mds.formats import (
    AudioFiles,
    Csv,
    ImageFiles,
    JsonLines,
    MetadataFiles,
    PairedFiles,
    RawFiles,
    Tar,
    TextFiles,
    TextLines,
    format_names,
)
from mds.formats._registry import BUILTIN_FORMATS, find_format
from mds.testing import FormatContract

RECORDS = [{"id": i, "text": f"number {i} é" * (i % 4), "more": [i]} for i in range(40)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()


@pytest.mark.parametrize("name", format_names())
def test_endings_are_known_without_loading_a_format(name):
    """The registry has the endings of each format of this package, as the class has them."""
    if name in BUILTIN_FORMATS:
        assert BUILTIN_FORMATS[name].endings == find_format(name).endings


class TestJsonLines(FormatContract):
    format = JsonLines(shard_size=500)

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "lines"
        place.mkdir()
        (place / "a.jsonl").write_bytes(LINES)
        (place / "b.ndjson").write_bytes(b"\xef\xbb\xbf" + LINES.rstrip() + b"\n  \n")
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        path = tmp_path / "broken.jsonl"
        path.write_bytes(LINES.replace(b'"id": 17', b'"id" 17'))
        return path, "broken.jsonl"


class TestPackedJsonLines(FormatContract):
    format = JsonLines()

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "lines"
        place.mkdir()
        (place / "a.jsonl.gz").write_bytes(gzip.compress(LINES[:500]) + gzip.compress(LINES[500:]))
        (place / "b.jsonl").write_bytes(LINES)
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        path = tmp_path / "broken.jsonl.gz"
        path.write_bytes(gzip.compress(LINES)[:-9])
        return path, "broken.jsonl.gz: the compressed data end too early"


class TestCsv(FormatContract):
    format = Csv(shard_size=500)

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "tables"
        place.mkdir()
        rows = "".join(f'{i},{i / 4},"a ""quote"",\nand a line {i}"\n' for i in range(40))
        (place / "a.csv").write_text(f"id,x,text\n{rows}")
        (place / "b.tsv").write_text("\ufefftext\tid\tx\n\n" + "one\t1\t0.5\r\n" * 9)
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        path = tmp_path / "broken.csv"
        path.write_text("id,x\n1,2\n3\n")
        return path, "broken.csv, line 3: 1 value for 2 columns"


class TestPackedCsv(FormatContract):
    format = Csv()

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "tables"
        place.mkdir()
        for name in "ab":
            rows = "".join(f'{i},"{i}\n"\n' for i in range(9))
            (place / f"{name}.csv.gz").write_bytes(gzip.compress(f"id,text\n{rows}".encode()))
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        path = tmp_path / "broken.csv.gz"
        path.write_bytes(gzip.compress(b"id,x\n" + b"1,2\n" * 999)[:-9])
        return path, "broken.csv.gz: the compressed data end too early"


class TestJsonDocuments(FormatContract):
    format = JsonLines()

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "lists"
        place.mkdir()
        (place / "a.json").write_text(json.dumps(RECORDS))
        (place / "b.json.gz").write_bytes(gzip.compress(json.dumps(RECORDS, indent=2).encode()))
        (place / "c.json").write_bytes(LINES)
        (place / "d.json").write_text(json.dumps(RECORDS[0], indent=1))
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        path = tmp_path / "broken.json"
        path.write_text(json.dumps(RECORDS)[:-9])
        return path, "broken.json: this is not JSON: "


class TestTextLines(FormatContract):
    format = TextLines(shard_size=30)

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "text"
        place.mkdir()
        (place / "a.txt").write_bytes(b"one\n\ntwo\r\n" * 8 + b"last of all")
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        path = tmp_path / "broken.txt"
        path.write_bytes(b"good\nb\xffd\n")
        return path, "broken.txt, line 2, column 2: byte 0xff is not UTF-8"


class TestTar(FormatContract):
    format = Tar()

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "tars"
        place.mkdir()
        for number in range(2):
            samples = [tars.sample(10 * number + i) for i in range(9)]
            tars.by_python(place / f"{number:05}.tar", tars.members(samples))
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        path = tmp_path / "broken.tar"
        tars.by_python(path, tars.members([tars.sample(i) for i in range(9)]))
        path.write_bytes(path.read_bytes()[:9000])
        return path, "broken.tar"


class TestImages(FormatContract):
    format = ImageFiles(samples_per_shard=8)

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "pictures"
        for i in range(20):
            (place / "abc"[i % 3]).mkdir(parents=True, exist_ok=True)
            (place / f"{'abc'[i % 3]}/{i:02}.jpg").write_bytes(pictures.jpeg(i))
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken/1.jpg").write_bytes(b"<html>")
        return tmp_path / "broken", "1.jpg: this is not a picture: it starts with b'<html>'"


class TestRawFiles(FormatContract):
    format = RawFiles(manifest="files.csv", samples_per_shard=8)

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "raw"
        (place / "below").mkdir(parents=True)
        rows = ["path,label,weight\n"]
        for i in range(20):
            (place / f"below/{i}.bin").write_bytes(bytes([i]) * i)
            rows.append(f"below/{i}.bin,{i % 3},{i / 4}\n")
        (place / "files.csv").write_text("".join(rows))
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        path = tmp_path / "files.csv"
        path.write_text("path,label\nno/such/file.bin,3\n")
        return path, "no/such/file.bin: files.csv lists it, but there is no such file"


class TestAllFiles(FormatContract):
    format = RawFiles(samples_per_shard=8)

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "raw"
        (place / "below").mkdir(parents=True)
        for i in range(20):
            (place / f"below/{i}.bin").write_bytes(bytes([i]) * i)
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken/\udcff.bin").write_bytes(b"1")
        return tmp_path / "broken", r"the name of the file '\udcff.bin' is not UTF-8"


class TestAudio(FormatContract):
    format = AudioFiles(samples_per_shard=8)

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "sounds"
        for i in range(20):
            (place / "abc"[i % 3]).mkdir(parents=True, exist_ok=True)
            (place / f"{'abc'[i % 3]}/{i:02}.flac").write_bytes(b"fLaC" + bytes([i]))
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken/1.wav").write_bytes(b"<html>")
        return tmp_path / "broken", "1.wav: this is not wav, flac, mp3 or ogg: it starts with b'<"


class TestDocuments(FormatContract):
    format = TextFiles(samples_per_shard=8)

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "texts"
        place.mkdir()
        for i in range(20):
            (place / f"{i:02}.txt").write_bytes(f"text {i} é\n".encode())
        (place / "20.md.gz").write_bytes(gzip.compress(b"compressed"))
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        path = tmp_path / "broken.txt"
        path.write_bytes(b"good\nb\xffd\n")
        return path, "broken.txt, line 2, column 2: byte 0xff is not UTF-8"


class TestMetadata(FormatContract):
    format = MetadataFiles(samples_per_shard=8)

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "speech"
        place.mkdir()
        for i in range(20):
            (place / f"{i:02}.flac").write_bytes(b"fLaC" + bytes([i]))
        rows = "".join(f"{i:02}.flac,text {i},{i}\n" for i in range(20))
        (place / "metadata.csv").write_text(f"file_name,text,size\n{rows}")
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken/1.flac").write_bytes(b"fLaC")
        (tmp_path / "broken/metadata.csv").write_text("file_name,text\n1.flac,a\n2.flac,b\n")
        return tmp_path / "broken", "2.flac: metadata.csv lists it, but there is no such file"


class TestPairedFiles(FormatContract):
    format = PairedFiles(samples_per_shard=8)

    @pytest.fixture
    def folder(self, tmp_path):
        place = tmp_path / "captions"
        place.mkdir()
        for i in range(20):
            (place / f"{i:02}.jpg").write_bytes(pictures.jpeg(i))
            (place / f"{i:02}.txt").write_text(f"caption {i}")
        return place

    @pytest.fixture
    def damaged(self, tmp_path):
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken/1.jpg").write_bytes(pictures.jpeg(1))
        (tmp_path / "broken/1.txt").write_bytes(b"\xff")
        return tmp_path / "broken", "1.txt, line 1, column 1: byte 0xff is not UTF-8"
