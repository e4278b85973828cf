"""A writer to a store that is killed at any moment: no index unless all of it is there.

A real store, a real process, SIGKILL after a random time. A few kills with all other tests;
``MDS_FAULTS=long`` makes it fifty of a writer and ten of a conversion.
"""

import hashlib
import json
import logging
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import boto3
import pytest
from click.testing import CliRunner

from devtools import servers
from mds import MDSWriter
from mds._cli import main
from mds.storage import open_store
from mds.writers._leftovers import Leftovers

IS_LONG = os.environ.get("MDS_FAULTS") == "long"
# Kills in one test, and tests: a test that takes two minutes is taken for one that hangs.
KILLS = {"writer": 5, "conversion": 5} if IS_LONG else {"writer": 2, "conversion": 1}
ROUNDS = {"writer": 10, "conversion": 2} if IS_LONG else {"writer": 1, "conversion": 1}
REMOTE = "s3://bucket/data"
PARTS = ".rclone_temp_multipart_"  # where the server keeps parts

# Parts of 5 MB, the least that S3 takes, so that uploads of parts are met by kills too.
WRITER = """
import sys
import mds.storage._s3 as s3
from mds import MDSWriter
s3.S3Store.multipart_from = s3.S3Store.upload_part_size = 5 << 20
with MDSWriter(out=sys.argv[1], columns={"b": "bytes"}, size_limit=6 << 20, hashes=["md5"],
               exist_ok=True, strict=False) as writer:
    print("begun", flush=True)
    for i in range(24):
        writer.write({"b": bytes([i]) * (1 << 20)})
"""
CONVERSION = """
import sys
import mds.storage._s3 as s3
from mds.writers.convert import convert
s3.S3Store.multipart_from = s3.S3Store.upload_part_size = 5 << 20
print("begun", flush=True)
convert(sys.argv[2], sys.argv[1], hashes=["md5"], size_limit=6 << 20, overwrite=True)
"""


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A folder that is served as a bucket, and a folder of our own for temporary files."""
    (tmp_path / "served" / "bucket").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    server = servers.s3_server(str(tmp_path / "served"), auth="access,secret")
    try:
        endpoint = server.__enter__()
    except servers.ServerMissing as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("S3_ENDPOINT_URL", endpoint)
    yield tmp_path / "served" / "bucket" / "data"
    server.__exit__(None, None, None)


def start(program, source):
    process = subprocess.Popen(
        [sys.executable, "-c", program, REMOTE, str(source)], stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"begun\n"
    return process


def run_whole(program, source):
    """Let a program end; how many seconds it took from its beginning, without the imports."""
    with start(program, source) as process:
        began = time.monotonic()
        assert process.wait(600) == 0
    return time.monotonic() - began


def kill_at(moment, program, source):
    """Kill a program after so many seconds; whether it was still at work."""
    with start(program, source) as process:
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            return True
    return False


def check_whole(folder):
    """If there is an index, every file that it names has its size and digest."""
    if not (folder / "index.json").exists():
        return False
    shards = json.loads((folder / "index.json").read_bytes())["shards"]
    for shard in shards:
        info = shard["raw_data"]
        data = (folder / info["basename"]).read_bytes()
        assert len(data) == info["bytes"]
        assert hashlib.md5(data).hexdigest() == info["hashes"]["md5"]
    assert sum(shard["samples"] for shard in shards) == 24
    return True


def check_next(folder, caplog):
    """The next writer tells what is left, with the command; it removes nothing unasked."""
    with open_store(REMOTE) as store:
        left = Leftovers.find(store, REMOTE)
    before = names(folder)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "mds.writers"):
        MDSWriter(out=REMOTE, columns={"x": "int"}).abort()
    assert names(folder) == before
    if left:
        assert f"mds clean {REMOTE} --remove" in caplog.text
        assert left.describe() in caplog.text
    else:
        assert caplog.text == ""
    return left


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def settle(folder):
    """Wait until the server is done with what it was sent before the client died."""
    seen, since = None, time.monotonic()
    until = since + 60
    while time.monotonic() < since + 1 or any(is_under_way(name) for name in seen or ()):
        assert time.monotonic() < until, seen
        now = names(folder)
        if now != seen:
            seen, since = now, time.monotonic()
        threading.Event().wait(0.02)


def is_under_way(name):
    """Whether the server writes a file of that name; parts of an upload wait for its end."""
    return name.startswith(".") and not name.startswith(PARTS)


def source_of(kind, tmp_path):
    """What the program reads: a conversion needs a source of 24 records of a megabyte."""
    folder = tmp_path / "source"
    if kind == "conversion":
        folder.mkdir()
        for i in range(24):
            (folder / f"{i:02}.bin").write_bytes(bytes([i]) * (1 << 20))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number"), [(kind, number) for kind in ROUNDS for number in range(ROUNDS[kind])]
)
def test_no_index_unless_all_is_there(bucket, tmp_path, caplog, kind, number):
    """After each kill: an index over whole shards or none; what is left is told and can go."""
    program, source = {"writer": WRITER, "conversion": CONVERSION}[kind], source_of(kind, tmp_path)
    whole = run_whole(program, source)
    assert check_whole(bucket)
    moments = random.Random(f"{kind} {number}")
    found = {"killed": 0, "index": 0, "shards": 0, "uploads": 0, "folders": 0}
    for _ in range(5 * KILLS[kind]):
        if found["killed"] == KILLS[kind]:
            break
        with open_store(REMOTE) as store:
            store.delete("index.json")
        moment = moments.uniform(0, whole)
        if kill_at(moment, program, source):
            found["killed"] += 1
        else:  # faster than when it was measured: the next ones are killed sooner
            whole = moment
        settle(bucket)
        if check_whole(bucket):
            found["index"] += 1
            continue
        left = check_next(bucket, caplog)
        for what in ("shards", "uploads", "folders"):
            found[what] += bool(getattr(left, what))
        clean(left, bucket)
        assert not [name for name in names(bucket) if name.startswith(PARTS)]
    print(kind, found)
    assert found["killed"] == KILLS[kind]


def test_uploads_that_did_not_end(bucket, caplog):
    """Parts of a shard are told and go with --remove; an upload of another kind stays."""
    client = boto3.client("s3", endpoint_url=os.environ["S3_ENDPOINT_URL"], region_name="us-east-1")
    for key in ("data/shard.00007.mds", "data/model.bin"):
        upload = client.create_multipart_upload(Bucket="bucket", Key=key)["UploadId"]
        part = {"Bucket": "bucket", "Key": key, "UploadId": upload, "PartNumber": 1}
        client.upload_part(Body=bytes(5 << 20), **part)
    left = check_next(bucket, caplog)
    assert [each.key for each in left.uploads] == ["shard.00007.mds"]
    assert "1 unfinished uploads (shard.00007.mds)" in caplog.text
    clean(left, bucket)
    with open_store(REMOTE) as store:
        assert [each.key for each in store.list_uploads()] == ["model.bin"]
    assert len([name for name in names(bucket) if name.startswith(PARTS)]) == 1


def clean(left, folder):
    """`mds clean` lists, and with --remove removes, all that was told."""
    listed = CliRunner().invoke(main, ["clean", REMOTE])
    assert listed.exit_code == 0, listed.output
    assert (left.describe() if left else "no files of unfinished writers") in listed.output
    removed = CliRunner().invoke(main, ["clean", REMOTE, "--remove"])
    assert removed.exit_code == 0, removed.output
    again = CliRunner().invoke(main, ["clean", REMOTE])
    assert "no files of unfinished writers" in again.output, again.output
    assert not [name for name in names(folder) if name.startswith("shard.")]
    assert not [path for path in left.folders if pathlib.Path(path).exists()]
