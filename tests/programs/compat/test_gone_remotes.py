"""A complete local copy whose remote is gone: 0.13 starts, and so does the door."""

import os
import re
import shutil

import pytest
import streaming

import mds
from devtools.servers import free_port
from mds.errors import CorruptError, NotFoundError, StoreError, UnreachableError

SAMPLES = 40


@pytest.fixture(params=[[], ["sha1", "xxh64"]], ids=["bare", "digests"])
def copy(request, tmp_path, monkeypatch):
    """A copy of a dataset, as `aws s3 sync` makes it; the dataset itself is gone."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "home"))
    return write(tmp_path / "copy", hashes=request.param)


def write(folder, **options):
    with mds.MDSWriter(str(folder), {"id": "int"}, size_limit=300, **options) as writer:
        for number in range(SAMPLES):
            writer.write({"id": number})
    return str(folder)


@pytest.fixture(params=["folder", "server"])
def gone(request, tmp_path, monkeypatch):
    """Arguments of a dataset whose remote is gone, and the class of the error."""
    if request.param == "folder":
        return {"remote": str(tmp_path / "gone")}, NotFoundError
    monkeypatch.setenv("S3_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    arguments = {"remote": "s3://bucket/data", "download_timeout": 1, "download_retry": 0}
    return arguments, UnreachableError


def ids(dataset):
    return sorted(sample["id"] for sample in dataset)


def test_the_door_reads_a_complete_copy(copy, gone, caplog):
    """Without a change to its files; the log says so."""
    before = sorted(os.listdir(copy))
    dataset = streaming.StreamingDataset(**gone[0], local=copy, batch_size=4, shuffle=True)
    assert ids(dataset) == [*range(SAMPLES)]
    assert "reads the complete copy in" in caplog.text
    assert sorted(set(os.listdir(copy)) - {".mds"}) == before
    streams = [streaming.Stream(**gone[0], local=copy)]
    assert ids(streaming.StreamingDataset(streams=streams, batch_size=4)) == [*range(SAMPLES)]


@pytest.mark.parametrize("left", ["raw", "zip"])
def test_the_door_reads_either_form_of_compressed_shards(tmp_path, gone, left, monkeypatch):
    """0.13 leaves raw files in its cache, a copy of the bucket has compressed ones."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "home"))
    packed = write(tmp_path / "packed", compression="zstd")
    if left == "raw":
        cache = str(tmp_path / "cache")
        assert ids(mds.StreamingDataset(packed, local=cache, batch_size=4)) == [*range(SAMPLES)]
        shutil.rmtree(os.path.join(cache, ".mds"))
        packed = cache
    dataset = streaming.StreamingDataset(**gone[0], local=packed, batch_size=4)
    assert ids(dataset) == [*range(SAMPLES)]


def test_an_incomplete_copy_is_the_error_of_the_remote(copy, gone):
    """The door does not begin a run that cannot end."""
    os.truncate(os.path.join(copy, "shard.00001.mds"), 100)
    with pytest.raises(StoreError) as caught:
        streaming.StreamingDataset(**gone[0], local=copy, batch_size=4)
    assert isinstance(caught.value, gone[1])


def test_digests_are_checked_when_a_shard_is_opened(tmp_path, gone):
    """A byte that another program has changed is an error, and not a sample."""
    copy = write(tmp_path / "copy", hashes=["xxh3_64"])
    with open(os.path.join(copy, "shard.00001.mds"), "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    dataset = streaming.StreamingDataset(**gone[0], local=copy, batch_size=4)
    with pytest.raises(CorruptError, match=r"shard\.00001"):
        ids(dataset)


def test_natively_the_error_names_both_ways_out(copy, gone, tmp_path):
    """And both work."""
    with pytest.raises(gone[1]) as caught:
        mds.StreamingDataset(**gone[0], local=copy, batch_size=4)
    text = str(caught.value)
    way = re.search(r"give only local='([^']*)', or make the remote readable\.", text)
    assert ids(mds.StreamingDataset(local=way[1], batch_size=4)) == [*range(SAMPLES)]
    if gone[1] is NotFoundError:
        shutil.copytree(copy, tmp_path / "gone")
        assert ids(mds.StreamingDataset(**gone[0], local=copy, batch_size=4)) == [*range(SAMPLES)]
