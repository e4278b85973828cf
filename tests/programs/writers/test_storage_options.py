"""Datasets written to a real S3 server whose keys are in `storage_options` alone."""

import json
import logging
import pathlib

import pytest
from click.testing import CliRunner

from devtools import servers
from mds import CSVWriter, MDSWriter, StreamingDataset, merge_index
from mds._cli import main
from mds.errors import StoreError, WriterError
from mds.storage import open_store
from mds.writers.convert import convert
from tests.unit.storage.conftest import FOREIGN

KEY, SECRET = "annas-key-id", "annas-very-secret-key"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Options of a server that takes one key only, and the folder of its bucket."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    for name in (*FOREIGN, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "s3"
    (folder / "bucket").mkdir(parents=True)
    context = servers.s3_server(str(folder), auth=f"{KEY},{SECRET}")
    try:
        endpoint = context.__enter__()
    except servers.ServerMissing as missing:
        pytest.skip(str(missing))
    options = {
        "endpoint_url": endpoint,
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "region_name": "us-east-1",
    }
    yield options, folder / "bucket"
    context.__exit__(None, None, None)


def read(url, options, folder):
    dataset = StreamingDataset(remote=url, local=str(folder), storage_options=options, batch_size=1)
    return [dataset[i]["n"] for i in range(len(dataset))]


@pytest.mark.parametrize("kind", [MDSWriter, CSVWriter])
@pytest.mark.parametrize("is_pair", [False, True])
def test_writers(server, tmp_path, kind, is_pair):
    """A writer uploads with the options, and a reader reads with the same."""
    options, _ = server
    out = (str(tmp_path / "made"), "s3://bucket/data") if is_pair else "s3://bucket/data"
    with kind(out=out, columns={"n": "int"}, size_limit=200, storage_options=options) as writer:
        for n in range(50):
            writer.write({"n": n})
    assert read("s3://bucket/data", options, tmp_path / "cache") == list(range(50))


def test_wrong_key_is_refused_without_telling_it(server, tmp_path):
    """The server refuses another secret, and the error shows neither."""
    options, _ = server
    wrong = {**options, "aws_secret_access_key": "another-very-secret-key"}
    with (
        pytest.raises((StoreError, WriterError)) as caught,
        MDSWriter(out="s3://bucket/x", columns={"n": "int"}, storage_options=wrong) as writer,
    ):
        writer.write({"n": 1})
    assert "another-very-secret-key" not in f"{caught.value}{caught.value.__cause__}"


def test_fsspec_names(server, tmp_path):
    """The names of fsspec mean the same."""
    options, _ = server
    names = {
        "key": KEY,
        "secret": SECRET,
        "client_kwargs": {"endpoint_url": options["endpoint_url"], "region_name": "us-east-1"},
    }
    with MDSWriter(out="s3://bucket/data", columns={"n": int}, storage_options=names) as writer:
        writer.write({"n": 3})
    assert read("s3://bucket/data", names, tmp_path / "cache") == [3]


@pytest.mark.parametrize("is_listed", [False, True])
def test_merge_index(server, tmp_path, is_listed):
    """The indexes of a store are merged with the options, found or listed."""
    options, _ = server
    for part in (0, 1):
        out = f"s3://bucket/all/{part}"
        with MDSWriter(out=out, columns={"n": "int"}, storage_options=options) as writer:
            writer.write({"n": part})
    if is_listed:
        indexes = [f"s3://bucket/all/{part}/index.json" for part in (1, 0)]
        merge_index(indexes, "s3://bucket/all", storage_options=options)
    else:
        merge_index("s3://bucket/all", storage_options=options)
    numbers = read("s3://bucket/all", options, tmp_path / "cache")
    assert numbers == ([1, 0] if is_listed else [0, 1])


def lines(path, count):
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(count)))
    return str(path)


def assert_nowhere(secret, folder):
    """No file below a folder has the secret in it."""
    for path in pathlib.Path(folder).rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_convert_from_and_to_a_store(server, tmp_path, caplog):
    """Both ends of a conversion take the options, in processes too; no record has the secret."""
    options, bucket = server
    caplog.set_level(logging.DEBUG, logger="mds")
    source = lines(tmp_path / "a.jsonl", 3000)
    work = tmp_path / "work"

    def stop(progress):
        if progress.shards >= 2:
            raise KeyboardInterrupt

    settings = {"storage_options": options, "work": str(work), "size_limit": 3000}
    with pytest.raises(KeyboardInterrupt):
        convert(source, "s3://bucket/data", progress=stop, **settings)
    assert (work / "plan.json").exists()
    assert_nowhere(SECRET, work)
    convert(source, "s3://bucket/data", num_workers=2, resume=True, **settings)
    convert("s3://bucket/data", str(tmp_path / "back"), storage_options=options)
    with open_store("s3://bucket/raw", options=options) as store:
        store.put_file("a.jsonl", source)
    convert(
        "s3://bucket/raw/a.jsonl", str(tmp_path / "raw"), num_workers=2, storage_options=options
    )
    for place in ("back", "raw"):
        dataset = StreamingDataset(local=str(tmp_path / place), batch_size=1)
        assert [dataset[i]["n"] for i in range(len(dataset))] == list(range(3000))
        assert_nowhere(SECRET, tmp_path / place)
    assert_nowhere(SECRET, bucket)
    assert SECRET not in caplog.text


def test_command(server, tmp_path):
    """`mds-convert --storage-option` gives each, and prints no secret."""
    options, _ = server
    flags = [text for pair in options.items() for text in ("--storage-option", "=".join(pair))]
    source = lines(tmp_path / "a.jsonl", 10)
    command = ["convert", source, "s3://bucket/data", *flags]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    again = CliRunner().invoke(main, command)
    assert again.exit_code != 0
    assert SECRET not in result.output + again.output
    with open_store("s3://bucket/data", options=options) as store:
        assert store.head("index.json").size
