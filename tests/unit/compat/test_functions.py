"""The small functions behind the door do what their callers count on."""

import os
from multiprocessing.shared_memory import SharedMemory
from typing import ClassVar

import numpy as np
import pytest
from streaming.base import compression, hashing, util, world
from streaming.base.array import Array
from streaming.base.format.mds import encodings
from streaming.base.spanner import Spanner
from streaming.base.storage import (
    CloudDownloader,
    CloudUploader,
    LocalUploader,
    S3Downloader,
    download_file,
)
from streaming.base.stream import Stream

from mds.encodings import _registry as registry


def test_list_arguments():
    """A text is cut at its commas; an empty one has no parts."""
    assert util.get_list_arg("a,b") == ["a", "b"]
    assert util.get_list_arg("") == []


def test_numbers_with_units():
    """Bytes count in powers of 1024, samples in powers of 1000."""
    assert util.bytes_to_int("1.5kb") == 1536
    assert util.bytes_to_int(7) == 7
    assert util.number_abbrev_to_int("2b") == 2_000_000_000
    with pytest.raises(ValueError):
        util.bytes_to_int("much")


def test_cleaning_shared_memory_touches_nothing():
    """The cleaner that used to break other jobs of a node leaves /dev/shm as it is."""
    names = [f"{os.getpid():06}_{kind}" for kind in ("locals", "barrier")]  # as the incumbent's
    blocks = [SharedMemory(name, create=True, size=8) for name in names]
    try:
        util.clean_stale_shared_memory()
        for block in blocks:
            SharedMemory(block.name).close()  # it is still there
    finally:
        for block in blocks:
            block.close()
            block.unlink()


def test_retry_tries_as_often_as_told_and_cleans_up_between():
    """A function is tried `num_attempts` times; the cleaner runs before each further try."""
    calls, cleanings = [], []

    @util.retry(
        ValueError,
        clean_up_fn=lambda: cleanings.append(1),
        num_attempts=3,
        initial_backoff=0,
        max_jitter=0,
    )
    def fails():
        calls.append(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert (len(calls), len(cleanings)) == (3, 2)


def test_retry_lets_other_errors_pass():
    """Only the named errors are tried again, of one class or of several."""
    calls = []

    @util.retry((ValueError, KeyError), num_attempts=5, initial_backoff=0, max_jitter=0)
    def fails():
        calls.append(1)
        raise TypeError("other")

    with pytest.raises(TypeError):
        fails()
    assert len(calls) == 1
    with pytest.raises(ValueError):
        util.retry(num_attempts=0)


def test_waiting_for_a_file(tmp_path):
    """A file that is there ends the wait, one that never comes is a RuntimeError with the text."""
    (tmp_path / "here").write_text("")
    util.wait_for_file_to_exist(str(tmp_path / "here"), 0.001, 1, "never seen")
    with pytest.raises(RuntimeError, match="gone missing"):
        util.wait_for_file_to_exist(str(tmp_path / "not"), 0.001, 0.01, "gone missing")


@pytest.mark.parametrize("algo", ["zstd", "zstd:19", "gz:1", "bz2", "snappy", "br:4", None])
@pytest.mark.parametrize("data", [b"", b"hello" * 1000])
def test_compressing_there_and_back(algo, data):
    """Every compression gives back what it took, without being told the size."""
    assert compression.decompress(algo, compression.compress(algo, data)) == data


def test_compressions_by_name():
    """There are 58 names of compressions, with the extensions of the format."""
    assert len(compression.get_compressions()) == 58
    assert compression.is_compression("br:11")
    assert not compression.is_compression("br:12")
    assert compression.get_compression_extension("zstd:7") == "zstd"


def test_hashes_by_name():
    """Digests are lower-case hex, under the names of the format."""
    assert hashing.is_hash("xxh3_64")
    assert "blake2b" in hashing.get_hashes()
    assert hashing.get_hash("sha1", b"") == "da39a3ee5e6b4b0d3255bfef95601890afd80709"


def test_encodings_by_name():
    """Values are encoded and decoded by the name of their encoding."""
    assert encodings.mds_encode("int", 3) == (3).to_bytes(8, "little")
    assert encodings.mds_decode("str", "ü".encode()) == "ü"
    assert encodings.get_mds_encoded_size("ndarray:int32:4") == 16
    assert encodings.is_mds_encoding("ndarray:float16")
    assert not encodings.is_mds_encoding("nonsense")
    assert not encodings.is_mds_encoding_safe("pkl")
    assert encodings.UInt8().encode(7) == b"\x07"
    assert encodings.NDArray("int32", (2,)).size == 8
    assert {"jpeg", "pkl", "ndarray"} <= encodings.get_mds_encodings()


def test_encodings_of_users(monkeypatch):
    """An encoding put into the incumbent's private dict works in ours."""
    entries = {**registry._encodings.entries}
    monkeypatch.setattr(registry._encodings, "entries", entries)  # put back afterwards

    class Reversed(encodings.Encoding):
        def encode(self, obj):
            return obj[::-1].encode()

        def decode(self, data):
            return data.decode()[::-1]

    monkeypatch.setitem(encodings._encodings, "compat_reversed", Reversed)
    assert encodings.mds_encode("compat_reversed", "abc") == b"cba"
    assert encodings.mds_decode("compat_reversed", b"cba") == "abc"
    assert "compat_reversed" in encodings._encodings


def test_files_travel(tmp_path):
    """Uploaders and downloaders move single files, whole, by the scheme of a URL."""
    (tmp_path / "out").mkdir()
    uploader = CloudUploader.get((str(tmp_path / "here"), str(tmp_path / "there")))
    assert isinstance(uploader, LocalUploader)
    (tmp_path / "here" / "file").write_bytes(b"abc")
    uploader.upload_file("file")
    assert not (tmp_path / "here" / "file").exists()
    assert [os.path.basename(url) for url in uploader.list_objects()] == ["file"]
    uploader.clear_local()
    assert not (tmp_path / "here").exists()
    download_file(str(tmp_path / "there" / "file"), str(tmp_path / "out" / "copy"), 60)
    assert (tmp_path / "out" / "copy").read_bytes() == b"abc"
    with pytest.raises(FileNotFoundError):
        download_file(str(tmp_path / "there" / "none"), str(tmp_path / "out" / "none"), 60)
    with pytest.raises(FileExistsError):
        CloudUploader.get(str(tmp_path / "there"))
    assert type(CloudDownloader.get("s3://bucket/x")) is S3Downloader


def test_uploaders_keep_what_they_did_not_make(tmp_path, caplog):
    """A folder with files stays as it is: refused, or with exist_ok=True used with a warning."""
    folder = tmp_path / "mine"
    (folder / "deep").mkdir(parents=True)
    for name in ("thesis.tex", "index.json", "shard.00000.mds", "deep/photo.jpg"):
        (folder / name).write_text(name)
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    for out in (str(folder), (str(folder), str(tmp_path / "there"))):
        with pytest.raises(FileExistsError, match="is not empty"):
            CloudUploader.get(out)
        caplog.clear()
        uploader = CloudUploader.get(out, exist_ok=True)
        assert "its files stay" in caplog.text
        uploader.clear_local()
        uploader.clear_local(str(folder / "deep"))
        assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before
        assert (folder / "thesis.tex").read_text() == "thesis.tex"


def test_uploads_onto_themselves(tmp_path):
    """Where folder and destination are one, a file that is uploaded stays."""
    (tmp_path / "link").symlink_to(tmp_path / "out", target_is_directory=True)
    uploader = CloudUploader.get((str(tmp_path / "out"), str(tmp_path / "link")))
    (tmp_path / "out" / "file").write_bytes(b"abc")
    uploader.upload_file("file")
    uploader.clear_local()
    assert (tmp_path / "out" / "file").read_bytes() == b"abc"


def test_downloaders_of_users(tmp_path):
    """A downloader class of the user's answers for its own scheme."""

    class Mine(CloudDownloader):
        @staticmethod
        def _client_identifier():
            return "compatmine"

        def _download_file_impl(self, remote, local, timeout):
            with open(local, "w") as file:
                file.write(remote)

    downloader = CloudDownloader.get("compatmine://x")
    assert isinstance(downloader, Mine)
    downloader.download("compatmine://x/y", str(tmp_path / "y"), 1)
    assert (tmp_path / "y").read_text() == "compatmine://x/y"


class Fails(CloudDownloader):
    """Keeps the URLs that it was asked for, and fails."""

    requests: ClassVar[list[str]] = []

    @staticmethod
    def _client_identifier():
        return "compatfails"

    def _download_file_impl(self, remote, local, timeout):
        self.requests.append(remote)
        raise ConnectionError


@pytest.mark.parametrize(("download_retry", "tries"), [(0, 1), (1, 1), (2, 2), (None, 2)])
def test_download_retry_is_a_number_of_tries(tmp_path, monkeypatch, download_retry, tries):
    """As in 0.13 and in the rest of mds, of which 0 and 1 mean one try."""
    monkeypatch.setattr(Fails, "requests", [])
    local = str(tmp_path / "local")
    stream = Stream(remote="compatfails://x", local=local, download_retry=download_retry)
    with pytest.raises(ConnectionError):
        stream._download_file("file")
    assert len(Fails.requests) == tries


def test_arrays_and_spans():
    """An Array has the indexing of datasets; a Spanner finds the shard of a sample."""

    class Squares(Array):
        size = 5

        def get_item(self, idx):
            return idx * idx

    assert Squares()[-1] == 16
    assert Squares()[1:3] == [1, 4]
    assert Squares()[np.array([[1], [2]])] == [[1], [4]]
    with pytest.raises(IndexError):
        Squares()[5]
    spanner = Spanner([3, 0, 2])
    assert [spanner[i] for i in range(5)] == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    with pytest.raises(ValueError):
        spanner[5]


def test_distributed_without_a_group(monkeypatch):
    """Without a process group a collective is that of one process, and none is made."""
    import torch
    from streaming.base import distributed

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (distributed.get_rank(), distributed.get_world_size()) == (0, 1)
    assert (distributed.get_local_rank(), distributed.get_local_world_size()) == (0, 1)
    distributed.barrier()
    assert distributed.all_gather_object("x") == ["x"]
    here, there = torch.ones(2), [torch.zeros(2)]
    distributed.all_gather(there, here)
    assert torch.equal(there[0], here)
    assert distributed.maybe_init_dist() is False
    assert not torch.distributed.is_initialized()


def test_the_world_from_the_environment(monkeypatch):
    """The four variables of a launcher say who we are."""
    from streaming.base import distributed

    found = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    assert (distributed.get_rank(), distributed.get_local_rank()) == (5, 1)
    assert world.World.detect().node == 1


def test_registries(tmp_path):
    """Objects are registered by call or decorator, made by name, and taken back after a block."""
    from streaming.base.registry_utils import (
        construct_from_registry,
        create_registry,
        import_file,
        save_registry,
    )

    registry = create_registry("compat", "things", generic_type=type)
    with save_registry():

        @registry.register("thing")
        class Thing:
            def __init__(self, size):
                self.size = size

        made = construct_from_registry(
            "thing", registry, pre_validation_function=Thing, kwargs={"size": 3}
        )
        assert made.size == 3
        with pytest.raises(ValueError):
            construct_from_registry("thing", registry, pre_validation_function=int)
    with pytest.raises(ValueError, match="has no"):
        registry.get("thing")
    (tmp_path / "module_of_user.py").write_text("value = 4\n")
    assert import_file(tmp_path / "module_of_user.py").value == 4
