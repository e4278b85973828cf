"""Datasets that are written to, and read from, a real S3 server."""

import os

import pytest
from click.testing import CliRunner

from devtools import servers
from mds._cli import main
from mds.storage import open_store
from mds.writers.convert import convert

OPTIONS = {"size_limit": 50_000, "compression": "zstd", "hashes": "sha1"}


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """URL of a place in a bucket, and the folder where the server keeps what is in it."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    folder = tmp_path / "s3"
    (folder / "bucket").mkdir(parents=True)
    context = servers.s3_server(str(folder))
    try:
        endpoint = context.__enter__()
    except servers.ServerMissing as missing:
        pytest.skip(str(missing))
    for name, value in {
        "S3_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "anna",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "TMPDIR": str(tmp_path / "tmp"),
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    yield "s3://bucket/data", folder / "bucket" / "data"
    context.__exit__(None, None, None)


def test_remote_output_is_the_local_one(kit, bucket):
    """Two processes upload what one would have written to a folder; nothing stays behind."""
    url, folder = bucket
    path, _ = kit.many(3000)
    convert(path, kit.out, **OPTIONS)
    convert(path, url, num_workers=2, **OPTIONS)
    assert kit.files(folder) == kit.files()
    assert os.listdir(os.environ["TMPDIR"]) == []


def test_remote_output_resumes(kit, bucket):
    """What is uploaded already is not made again, and the index comes last."""
    url, folder = bucket
    path, _ = kit.many(3000)
    convert(path, kit.out, **OPTIONS)

    def stop(progress):
        if progress.shards >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(path, url, progress=stop, **OPTIONS)
    assert "index.json" not in kit.files(folder)
    before = {name: os.stat(folder / name).st_mtime_ns for name in kit.files(folder)}
    with pytest.raises(FileExistsError, match="--resume"):
        convert(path, url, **OPTIONS)
    convert(path, url, resume=True, **OPTIONS)
    assert kit.files(folder) == kit.files()
    assert before
    for name, changed in before.items():
        assert os.stat(folder / name).st_mtime_ns == changed


def test_remote_dataset_is_not_replaced_unasked(kit, bucket):
    """An index at the destination is respected; with overwrite the old shards go, others stay."""
    url, folder = bucket
    path, _ = kit.many(1000)
    convert(path, url, **OPTIONS)
    with open_store(url) as store:
        store.put("mine.txt", b"mine")
    with pytest.raises(FileExistsError, match="already has a dataset"):
        convert(path, url, **OPTIONS)
    convert(path, url, overwrite=True, limit=10)
    assert sorted(kit.files(folder)) == ["index.json", "mine.txt", "shard.00000.mds"]


def test_remote_dataset_is_a_source_like_any(kit, bucket):
    """Shards come one by one from the store; commands take the URL too."""
    url, _ = bucket
    path, records = kit.many(1000)
    convert(path, url, **OPTIONS)
    convert(url, kit.out, num_workers=2)
    assert [sample["id"] for sample in kit.samples()] == [record["id"] for record in records]
    run = CliRunner().invoke
    assert run(main, ["verify", url]).exit_code == 0
    assert "1,000" in run(main, ["info", url]).stdout
    assert run(main, ["head", url, "-n", "1", "--json"]).stdout.count("\n") == 1
    with open_store(url) as store:
        store.delete("shard.00000.mds.zstd")
    assert "shard.00000.mds.zstd: the file is missing" in run(main, ["verify", url]).stdout
    with open_store(url) as store:
        store.delete("index.json")
    assert "there is no index.json" in run(main, ["info", url]).stderr


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_lost_index_of_a_bucket_is_written_again(kit, bucket, compression):
    """With the bytes that it had; a missing shard is refused, and an index is not replaced."""
    url, folder = bucket
    path, _ = kit.many(1000)
    convert(path, url, size_limit=5_000, compression=compression)
    index = (folder / "index.json").read_bytes()
    run = CliRunner().invoke
    with open_store(url) as store:
        store.delete("index.json")
        last = max(name for name in kit.files(folder) if name.startswith("shard."))
        data = store.get(last.replace(last[6:11], "00001"))
        store.delete(last.replace(last[6:11], "00001"))
        assert "1 are missing (1)" in run(main, ["index", url]).output
        store.put(last.replace(last[6:11], "00001"), data)
    assert run(main, ["index", url]).exit_code == 0
    assert (folder / "index.json").read_bytes() == index
    assert "is never replaced" in run(main, ["index", url]).output
    assert run(main, ["verify", url]).exit_code == 0
