"""mds info, head, verify and merge: what is in a dataset, and whether it is whole."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from mds import JSONWriter, MDSWriter, StreamingDataset
from mds._cli import main
from mds.writers.convert import convert

COLUMNS = {"a": "ndarray:int16:3", "i": "png", "n": "int", "t": "str"}


def run(*arguments):
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


@pytest.fixture(params=[None, "zstd"])
def dataset(request, tmp_path):
    """Five shards of samples."""
    return written(str(tmp_path / "data"), request.param)


def written(out, compression=None, hashes=("sha1",)):
    with MDSWriter(
        out=out, columns=COLUMNS, compression=compression, hashes=list(hashes), size_limit=1000
    ) as writer:
        for i in range(25):
            image = Image.new("RGB", (4, 4), (i, 0, 0))
            array = np.full(3, i, np.int16)
            writer.write({"a": array, "i": image, "n": i, "t": f"text [bold]{i}[/]\x1b[1m"})
    return out


def change(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        file.write(data)


def shard(dataset, number):
    (name,) = [n for n in os.listdir(dataset) if n.startswith(f"shard.{number:05}")]
    return os.path.join(dataset, name)


def test_info_tells_it_at_a_glance(dataset):
    """Columns, samples, shards, sizes, compression and hashes."""
    result = run("info", dataset)
    assert result.exit_code == 0
    for words in ("ndarray:int16:3", "samples            25", "sha1", "size limit         1000 B"):
        assert words in result.stdout
    (found,) = json.loads(run("info", dataset, "--json").stdout)["datasets"]
    assert (found["samples"], found["columns"]) == (25, COLUMNS)
    assert found["raw_size"] > 0
    assert (found["zip_size"] > 0) == (found["compressions"] == ["zstd"])


def test_info_of_splits_and_of_a_url(dataset, tmp_path):
    """A folder of splits tells of each; a URL is as good as a folder."""
    shutil.copytree(dataset, tmp_path / "both" / "train")
    shutil.copytree(dataset, tmp_path / "both" / "val")
    result = run("info", str(tmp_path / "both"), "--json")
    assert [each["url"].rpartition("/")[2] for each in json.loads(result.stdout)["datasets"]] == [
        "train",
        "val",
    ]
    assert run("info", "file://" + dataset).exit_code == 0


def test_head_shows_samples(dataset):
    """Values in short; nothing in them is taken for markup or acts on the terminal."""
    result = run("head", dataset, "-n", "2")
    assert result.exit_code == 0
    assert "PNG image, 4 x 4 RGB" in result.stdout
    assert "int16 3: 1, 1, 1" in result.stdout
    assert "text [bold]1[/]\\x1b[1m" in result.stdout
    assert "sample 2" not in result.stdout
    rows = [json.loads(line) for line in run("head", dataset, "--json").stdout.splitlines()]
    assert [row["n"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[1]["a"] == [1, 1, 1]


def test_head_shows_what_does_not_decode_and_goes_on(tmp_path):
    """The value stands as the reason, the others as they are; the command ends with status 1."""
    out = tmp_path / "data"
    with MDSWriter(out=str(out), columns={"j": "json", "n": "int"}) as writer:
        for number in range(3):
            writer.write({"j": {"key": number}, "n": number})
    shard = out / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes().replace(b'{"key": 1}', b'{"key" = 1'))
    result = run("head", str(out))
    assert result.exit_code == 1
    assert result.stdout.count("sample ") == 3
    assert result.stdout.count("cannot be decoded: ") == 1
    assert "1 sample of these cannot be decoded" in result.stderr
    rows = [json.loads(line) for line in run("head", str(out), "--json").stdout.splitlines()]
    assert [row["n"] for row in rows] == [0, 1, 2]
    assert rows[1]["j"].startswith("cannot be decoded: ")
    page = tmp_path / "page.html"
    assert run("head", str(out), "--html", str(page)).exit_code == 0
    assert "cannot be decoded" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("info", "nowhere"), "there is no such file or folder"),
        (("head", "a.cvs"), "Did you mean 'a.csv'?"),
        (("verify", "a.pkl"), "mds does not read such files"),
        (("clean", "nowhere"), "there is no such folder"),
        (("head", "a.csv", "-n", "-1"), "'-1' is not a number of samples"),
        (("convert", "a.csv", "out", "--encodings", "z:int"), "there is no column 'z'"),
        (("convert", "a.csv", "out", "--engine", "sprk"), "Did you mean 'spark'?"),
    ],
)
def test_a_place_or_a_name_that_is_not_there_is_told(arguments, words, tmp_path, monkeypatch):
    """With the near one, or what makes a dataset; nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "a.pkl").write_text("a")
    result = run(*arguments)
    assert result.exit_code != 0
    assert words in result.stderr
    assert not (tmp_path / "out" / "index.json").exists()


def test_head_opens_no_pickle(tmp_path):
    """A pickle is shown as its bytes: to load it would run its author's code."""
    out = str(tmp_path / "data")
    with MDSWriter(out=out, columns={"p": "pkl"}) as writer:
        writer.write({"p": {1, 2}})
    result = run("head", out)
    assert result.exit_code == 0
    assert "bytes, b'" in result.stdout
    assert "holds pickles, which were not loaded" in run("verify", out).stdout


@pytest.mark.parametrize("command", ["info", "head", "verify"])
def test_no_dataset_is_a_sentence(tmp_path, command):
    """A folder without an index is said to be no dataset."""
    result = run(command, str(tmp_path))
    assert result.exit_code == 2
    assert "there is no index.json" in result.stderr


def test_verify_collects_all_faults(dataset):
    """A missing, a cut, and a changed file are all named, each once."""
    os.unlink(shard(dataset, 0))
    os.truncate(shard(dataset, 1), 30)
    change(shard(dataset, 2), -3, b"xyz")
    result = run("verify", dataset)
    assert result.exit_code == 1
    faults = result.stdout.splitlines()[:-1]
    assert len(faults) == 3
    for fault, number, words in zip(
        faults, range(3), ["missing", "30 bytes, the index says", "sha1 is"], strict=True
    ):
        assert fault.startswith(f"shard.{number:05}.mds")
        assert words in fault
    assert "3 faults" in result.stdout.splitlines()[-1]


def test_verify_decodes_every_value(tmp_path):
    """Without digests damage is found where values cannot be decoded, by sample and column."""
    out = written(str(tmp_path / "data"), hashes=())
    path = shard(out, 1)
    with open(path, "rb") as file:
        at = file.read().index(b"IDAT")
    change(path, at + 4, b"\0\0\0\0")
    result = run("verify", out)
    assert result.exit_code == 1
    assert "shard.00001.mds: sample 0: column 'i':" in result.stdout
    assert run("verify", out, "--no-decode").exit_code == 0


def test_verify_reads_lines_of_json_too(tmp_path):
    """Split formats have a data and a meta file, and both are checked."""
    out = str(tmp_path / "data")
    with JSONWriter(out=out, columns={"a": "int"}, compression="gz") as writer:
        for i in range(5):
            writer.write({"a": i})
    assert run("verify", out).exit_code == 0
    assert [json.loads(x) for x in run("head", out, "--json").stdout.splitlines()] == [
        {"a": i} for i in range(5)
    ]
    os.unlink(os.path.join(out, "shard.00000.json.meta.gz"))
    assert "shard.00000.json.meta.gz: the file is missing" in run("verify", out).stdout


def test_merge_makes_one_index(tmp_path):
    """Datasets side by side become one; an index that is there is not replaced unasked."""
    root = str(tmp_path / "all")
    for name in ("b", "a"):
        written(os.path.join(root, name))
    result = run("merge", root)
    assert result.exit_code == 0
    assert "50 samples in" in result.stdout
    assert "there is an index.json already" in run("merge", root).stderr
    result = run("merge", os.path.join(root, "b"), root, "--overwrite")
    assert "25 samples in" in result.stdout
    with open(os.path.join(root, "index.json")) as file:
        assert json.load(file)["shards"][0]["raw_data"]["basename"].startswith("b/")
    assert run("verify", root).exit_code == 0


def test_importing_commands_is_cheap():
    """The command line starts without torch, images or tables."""
    code = "import sys, mds._cli; print({'torch', 'PIL', 'rich', 'pyarrow'} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=600
    )
    assert found.stdout.strip() == b"set()"


def test_verify_says_what_it_could_not_check(tmp_path):
    """Without digests a flipped byte that decodes goes unnoticed, and that is said.

    With those that mds-convert writes by default it is found.
    """
    (tmp_path / "lines.jsonl").write_text('{"text": "abc"}\n' * 50)
    for hashes in ("none", "xxh3_64"):
        out = str(tmp_path / hashes)
        convert(str(tmp_path / "lines.jsonl"), out, hashes=None if hashes != "none" else hashes)
        whole = run("verify", out)
        assert whole.exit_code == 0
        assert ("1 of 1 shard has no digest" in whole.stdout) is (hashes == "none")
        shard = tmp_path / hashes / "shard.00000.mds"
        data = shard.read_bytes()
        shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        found = run("verify", out)
        assert found.exit_code == (0 if hashes == "none" else 1)
        assert ("not checked" in found.stdout) is (hashes == "none")


def test_clean_says_how_to_empty_a_cache(tmp_path, monkeypatch):
    """It deletes what writers left, and nothing that a dataset fetched."""
    monkeypatch.chdir(tmp_path)
    with MDSWriter("data", {"id": "int"}) as writer:
        writer.write({"id": 1})
    list(StreamingDataset(remote="data", local="cache", batch_size=1))
    result = CliRunner().invoke(main, ["clean", "cache"])
    assert result.exit_code == 0
    assert "cache is a cache: to empty it, delete the folder" in result.output
    assert "is a cache" not in CliRunner().invoke(main, ["clean", "data"]).output


@pytest.mark.parametrize("command", ["info", "head", "verify"])
def test_files_that_are_read_in_place_have_a_format(tmp_path, command):
    """A folder with files of several kinds: the error names the option."""
    for number in range(3):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("one\ntwo\n")
    result = run(command, str(tmp_path))
    assert result.exit_code == 2
    words = " ".join(result.stderr.split())
    assert "files of several kinds: 3 images such as 0.png, 1 text such as notes.txt" in words
    assert "--format images" in words
    for kind, count in (("images", 3), ("lines", 2)):
        result = run(command, str(tmp_path), "--format", kind, "--json")
        assert result.exit_code == 0, result.stderr
        if command == "head":
            assert len(result.stdout.splitlines()) == count
        else:
            assert json.loads(result.stdout)["samples"] == count
    result = run(command, str(tmp_path), "--format", "tables")
    assert result.exit_code == 2
    assert "there is no format 'tables'" in result.stderr
