"""Files appear whole or not at all, and a full disk is told as such."""

import errno
import os

import pytest

from mds.errors import NoSpaceError
from mds.storage import publish, temporary_owner, write_at, write_file
from mds.storage.files import disk, temporary_path


def test_a_file_appears_when_it_is_complete(tmp_path):
    """Until the block ends there is only a temporary name; folders are made."""
    path = str(tmp_path / "deep" / "er" / "file")
    with publish(path, durable=True) as temporary:
        with open(temporary, "wb") as file:
            file.write(b"half")
        assert not os.path.exists(path)
        assert os.path.dirname(temporary) == os.path.dirname(path)
    assert os.listdir(os.path.dirname(path)) == ["file"]


def test_a_block_that_raises_leaves_what_was_there(tmp_path):
    """The old file stays, the temporary one goes."""
    path = str(tmp_path / "file")
    write_file(path, b"old")
    with pytest.raises(ZeroDivisionError), publish(path) as temporary:
        _half_write(temporary)
    assert os.listdir(tmp_path) == ["file"]
    with open(path, "rb") as file:
        assert file.read() == b"old"


def test_temporary_names_tell_their_owner():
    """Ours name the process; other names are not ours."""
    path = temporary_path("/data/shard.00000.mds")
    assert temporary_owner(path) == os.getpid()
    assert temporary_path("/data/x") != temporary_path("/data/x")
    for other in ("/data/shard.00000.mds", "/data/.x.12-ab.mds-part", "/data/x.tmp"):
        assert temporary_owner(other) is None


def test_a_full_disk_is_named(tmp_path):
    """Which file, which folder, how much is free there, and what to do."""
    path = str(tmp_path / "file")
    with pytest.raises(NoSpaceError, match="bytes free in") as caught, publish(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert path in str(caught.value)
    assert os.listdir(tmp_path) == []
    with pytest.raises(PermissionError), disk(path):
        raise PermissionError(errno.EACCES, "other errors pass")


def test_a_write_goes_on_until_all_is_written(monkeypatch):
    """A disk that fills up writes less before it fails; what is left is written next."""
    written = []

    def some(_file, data, offset):
        written.append((offset, bytes(data[:3])))
        return min(3, len(data))

    monkeypatch.setattr(os, "pwrite", some)
    write_at(0, b"0123456", 100)
    assert written == [(100, b"012"), (103, b"345"), (106, b"6")]


def _half_write(path):
    write_file(path, b"new")
    raise ZeroDivisionError
