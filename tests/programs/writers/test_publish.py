"""An index appears last, also where a writer is killed and in a real object store."""

import json
import multiprocessing
import os
import pathlib
import signal

import pytest

from devtools import servers
from mds import LocalDataset, MDSWriter
from tests.unit.writers.test_publish import INTS, fill


def _write_forever(out, started):
    with MDSWriter(out=out, columns=INTS, size_limit=400, keep_local=True) as writer:
        for i in range(10**9):
            writer.write({"x": i})
            if i == 100:
                started.set()


def test_a_killed_writer_leaves_no_index_and_is_replaced(places):
    """After kill -9 there is no index; with exist_ok the next writer simply works."""
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    process = context.Process(target=_write_forever, args=(places, started))
    process.start()
    assert started.wait(600)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not list(pathlib.Path(places[0]).parent.rglob("index.json"))
    with pytest.raises(FileExistsError):
        fill(places)
    fill(places, keep_local=True, exist_ok=True)
    for place in places:
        names = set(os.listdir(place))
        index = json.loads((pathlib.Path(place) / "index.json").read_bytes())
        assert {shard["raw_data"]["basename"] for shard in index["shards"]} <= names
        assert len(LocalDataset(place)) == 100


def test_a_real_object_store(tmp_path, monkeypatch):
    """s3://: shards and index arrive whole, a second writer is refused, exist_ok replaces."""
    (tmp_path / "bucket").mkdir()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    try:
        server = servers.s3_server(str(tmp_path), auth="access,secret")
        endpoint = server.__enter__()
    except servers.ServerMissing as missing:
        pytest.skip(str(missing))
    try:
        monkeypatch.setenv("S3_ENDPOINT_URL", endpoint)
        fill("s3://bucket/data", compression="gz", hashes=["md5"])
        files = {p.name: p.stat().st_size for p in (tmp_path / "bucket" / "data").iterdir()}
        index = json.loads((tmp_path / "bucket" / "data" / "index.json").read_bytes())
        for shard in index["shards"]:
            assert files.pop(shard["zip_data"]["basename"]) == shard["zip_data"]["bytes"]
        assert set(files) == {"index.json"}
        with pytest.raises(FileExistsError, match="s3://bucket/data"):
            fill("s3://bucket/data")
        fill("s3://bucket/data", 5, exist_ok=True)
        names = sorted(os.listdir(tmp_path / "bucket" / "data"))
        assert names == ["index.json", "shard.00000.mds"]
    finally:
        server.__exit__(None, None, None)
