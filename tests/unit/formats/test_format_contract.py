"""The formats of this package keep the laws that all formats keep."""

import gzip
import json

import pictures
import pytest
import tars

from mds.formats import ImageFiles, JsonLines, RawFiles, Tar, TextLines, format_names
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
        return path, "broken.txt, line at byte 5"


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
        return path, "has a row with 'no/such/file.bin'"
