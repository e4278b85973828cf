"""`mds index` writes the lost index of shards again: the same bytes, or an error and no file."""

import gzip
import json
import os
import pathlib
import shutil

import pytest
from click.testing import CliRunner

from mds import CSVWriter, JSONWriter, LocalDataset, MDSWriter, StreamingDataset
from mds._cli import main
from mds.storage._locks import try_lock_folder
from mds.writers import merge_index

COLUMNS = {"id": "int", "text": "str"}


def write(out, writer=MDSWriter, samples=40, **options):
    """Write a dataset of many shards, delete its index and return the bytes that it had."""
    with writer(out=str(out), columns=COLUMNS, size_limit=400, **options) as target:
        for number in range(samples):
            target.write({"id": number, "text": "x" * (number % 9)})
    index = pathlib.Path(out) / "index.json"
    data = index.read_bytes()
    index.unlink()
    return data


def run(*arguments):
    """Run `mds index`; return (whether it succeeded, its output in one line)."""
    result = CliRunner().invoke(main, ["index", *map(str, arguments)])
    return result.exit_code == 0, " ".join(result.output.split())


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter, CSVWriter])
@pytest.mark.parametrize("compression", [None, "zstd:3", "gz", "bz2"])
@pytest.mark.parametrize("hashes", [[], ["sha1", "xxh3_64"]])
def test_the_index_has_the_same_bytes_again(tmp_path, writer, compression, hashes):
    """All that it has follows from the shards: columns, sizes, digests, settings."""
    data = write(tmp_path / "d", writer, compression=compression, hashes=hashes)
    succeeded, output = run(tmp_path / "d")
    assert succeeded, output
    assert "40 samples in" in output
    assert "shards do not show whether others followed the last one" in output
    assert (tmp_path / "d" / "index.json").read_bytes() == data
    dataset = StreamingDataset(local=str(tmp_path / "d"), batch_size=1)
    assert [int(sample["id"]) for sample in dataset] == list(range(40))


def test_the_index_of_files_that_were_decompressed(tmp_path):
    """Headers name the compression of the writer, but a copy may have the raw files only."""
    write(tmp_path / "d", compression="gz")
    for path in (tmp_path / "d").glob("shard.*.gz"):
        (tmp_path / "d" / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert run(tmp_path / "d")[0]
    assert [sample["id"] for sample in LocalDataset(str(tmp_path / "d"))] == list(range(40))


def test_json_facts(tmp_path):
    """--json prints what `mds merge` prints."""
    write(tmp_path / "d")
    result = CliRunner().invoke(main, ["index", "--json", str(tmp_path / "d")])
    facts = json.loads(result.output)
    assert facts["samples"] == 40
    assert facts["shards"] > 3


@pytest.mark.parametrize("option", [(), ("--overwrite",)])
def test_an_index_is_never_replaced(tmp_path, option):
    """Neither one of shards nor a damaged one; the error names the command that checks it."""
    data = write(tmp_path / "d")
    index = tmp_path / "d" / "index.json"
    for content in (data, b"damaged"):
        index.write_bytes(content)
        succeeded, output = run(tmp_path / "d", *option)
        assert not succeeded
        assert f"mds verify {tmp_path / 'd'}" in output
        assert index.read_bytes() == content


@pytest.mark.parametrize("missing", [0, 2])
def test_a_gap_in_the_numbers_is_refused(tmp_path, missing):
    """A missing shard is named, and no index is written."""
    write(tmp_path / "d")
    (tmp_path / "d" / f"shard.{missing:05}.mds").unlink()
    succeeded, output = run(tmp_path / "d")
    assert not succeeded
    assert f"1 are missing ({missing}). No index is written" in output
    assert not (tmp_path / "d" / "index.json").exists()


def test_a_missing_meta_file_is_a_gap(tmp_path):
    """A shard of JSON is two files."""
    write(tmp_path / "d", JSONWriter)
    (tmp_path / "d" / "shard.00001.json.meta").unlink()
    assert "1 are missing (1)" in run(tmp_path / "d")[1]


@pytest.mark.parametrize("place", [0, 4, 9, 60, -1])
def test_a_damaged_header_or_a_file_that_is_cut_is_refused(tmp_path, place):
    """The error names the file."""
    write(tmp_path / "d", hashes=[])
    path = tmp_path / "d" / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    if place < 0:
        path.write_bytes(data[:-1])
    else:
        data[place] ^= 255
        path.write_bytes(data)
    succeeded, output = run(tmp_path / "d")
    assert not succeeded
    assert "shard.00001.mds" in output or "shard 1 has" in output, output
    assert not (tmp_path / "d" / "index.json").exists()


@pytest.mark.parametrize("compression", ["zstd", "gz", "bz2"])
@pytest.mark.parametrize("kept", [10, -5])
def test_a_compressed_file_that_is_cut_is_refused(tmp_path, compression, kept):
    """In its header, and at its end."""
    write(tmp_path / "d", compression=compression)
    (path,) = (tmp_path / "d").glob("shard.00001.mds.*")
    path.write_bytes(path.read_bytes()[:kept])
    succeeded, output = run(tmp_path / "d")
    assert not succeeded
    assert path.name in output
    assert not (tmp_path / "d" / "index.json").exists()


def test_shards_of_two_datasets_are_refused(tmp_path):
    """Of other columns, settings, or formats."""
    write(tmp_path / "a")
    write(tmp_path / "b", hashes=["md5"])
    write(tmp_path / "c", JSONWriter)
    last = max(path.name for path in (tmp_path / "a").glob("shard.*"))
    shutil.copy(tmp_path / "b" / "shard.00001.mds", tmp_path / "a" / last)
    assert "shards of several datasets are mixed here" in run(tmp_path / "a")[1]
    for path in (tmp_path / "c").glob("shard.00000*"):
        shutil.copy(path, tmp_path / "b")
    assert "shards of several datasets, in the formats json and mds" in run(tmp_path / "b")[1]
    for folder in "ab":
        assert not (tmp_path / folder / "index.json").exists()


def test_a_folder_in_use_and_an_unfinished_conversion_are_refused(tmp_path):
    """Their shards are not all there yet."""
    write(tmp_path / "d")
    lock = try_lock_folder(str(tmp_path / "d"))
    assert "a writer is filling it" in run(tmp_path / "d")[1]
    lock.close()
    (tmp_path / "d" / ".mds-convert").mkdir()
    assert "Continue with mds-convert --resume" in run(tmp_path / "d")[1]
    os.rmdir(tmp_path / "d" / ".mds-convert")
    assert "Leave out OUT" in run(tmp_path / "d", tmp_path / "elsewhere")[1]
    assert run(tmp_path / "d", tmp_path / "d")[0]


def test_what_the_errors_of_reading_advise_works(tmp_path):
    """The command is in the error, and a rebuilt part can be merged."""
    for part in "ab":
        write(tmp_path / "parts" / part)
        with pytest.raises(FileNotFoundError, match="write the index again: mds index") as error:
            LocalDataset(str(tmp_path / "parts" / part))
        command = str(error.value).partition("write the index again: mds ")[2].split()
        assert CliRunner().invoke(main, command).exit_code == 0
    merge_index(str(tmp_path / "parts"))
    assert len(LocalDataset(str(tmp_path / "parts"))) == 80
