"""Files appear whole or not at all, and a full disk is told as such."""

import errno
import os
import subprocess

import pytest

from devtools.httpserver import http_server
from mds.errors import NoSpaceError, StoreError, VanishedError
from mds.storage import open_store
from mds.storage._files import (
    open_target,
    publish,
    temporary_owner,
    temporary_path,
    translate_write_errors,
    write_at,
    write_file,
)


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
    with pytest.raises(PermissionError), translate_write_errors(path):
        raise PermissionError(errno.EACCES, "other errors pass")


def test_a_disk_without_inodes_is_named(tmp_path):
    """A disk with room for bytes and none for files says which of them is missing."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=3", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a file system")
    try:
        write_file(str(folder / "one"), b"word")
        write_file(str(folder / "two"), b"word")
        with pytest.raises(NoSpaceError, match="no inodes left for another file") as error:
            write_file(str(folder / "three"), b"word")
        assert "bytes are free" in str(error.value)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("name", ["nothing/x", "nothing/deeper/x"])
def test_a_folder_in_which_no_file_can_be_made_is_named(name):
    """A folder of the system is not one that another process deletes."""
    with pytest.raises((StoreError, PermissionError)) as error:
        write_file(f"/proc/{name}", b"word")
    assert not isinstance(error.value, VanishedError)
    assert "Choose another folder" in str(error.value)


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


def test_names_of_every_length_can_be_published(tmp_path):
    """A name of 255 bytes, all that file systems take, has a temporary one all the same."""
    for name in ("x" * 255, "\u65e5" * 85, "short"):
        write_file(str(tmp_path / name), b"whole")
        assert (tmp_path / name).read_bytes() == b"whole"
        assert temporary_owner(temporary_path(str(tmp_path / name))) == os.getpid()
    with pytest.raises(StoreError, match=r"the path has .* and 255 of each name"):
        write_file(str(tmp_path / ("x" * 256)), b"whole")


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path):
    """Something in the way of a file is an error of ours, with the way out."""
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"folder: Is a directory\. Remove the file or folder"):
        write_file(str(tmp_path / "folder"), b"whole")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"Not a directory\. Remove the file or folder"):
        write_file(str(tmp_path / "file" / "below" / "it"), b"whole")
    assert os.listdir(tmp_path / "folder") == ["inside"]


@pytest.mark.parametrize("planted", ["link", "second name", "pipe"])
def test_a_temporary_file_that_was_exchanged_is_not_written_to(tmp_path, planted):
    """Who shares a folder cannot turn a second try for a file against another file of ours."""
    own = tmp_path / "own"
    own.write_bytes(b"precious")
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote" / "x").write_bytes(b"content")
    with http_server(str(tmp_path / "remote")) as url:
        for store in (open_store(url), open_store(str(tmp_path / "remote"))):
            with publish(str(tmp_path / "target")) as temporary:
                store.get_file("x", temporary, 7)
                os.unlink(temporary)
                if planted == "link":
                    os.symlink(own, temporary)
                elif planted == "second name":
                    os.link(own, temporary)
                else:
                    os.mkfifo(temporary)
                with pytest.raises(StoreError, match="it was replaced while mds wrote it"):
                    store.get_file("x", temporary, 7)
                os.unlink(temporary)
                store.get_file("x", temporary, 7)
            assert own.read_bytes() == b"precious"
            assert sorted(os.listdir(tmp_path)) == ["own", "remote", "target"]


def test_a_link_that_the_caller_names_is_followed(tmp_path):
    """Only temporary files are ours alone; what a user names may be a link."""
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote" / "x").write_bytes(b"content")
    (tmp_path / "there").write_bytes(b"a longer text")
    os.symlink("there", tmp_path / "link")
    open_store(str(tmp_path / "remote")).get_file("x", str(tmp_path / "link"))
    assert (tmp_path / "there").read_bytes() == b"content"


def test_a_temporary_file_that_is_deleted_at_once_has_vanished(tmp_path, monkeypatch):
    """It is not taken for one that was exchanged, so what makes it is begun anew."""
    opened = os.open

    def open_and_lose(path, *args, **options):
        handle = opened(path, *args, **options)
        if str(path).endswith(".mds-part"):
            os.unlink(path)
        return handle

    with publish(str(tmp_path / "target")) as temporary:
        monkeypatch.setattr(os, "open", open_and_lose)
        with pytest.raises(VanishedError, match="another process delete it"):
            open_target(temporary)
        monkeypatch.undo()
        write_file(temporary, b"whole")
    assert (tmp_path / "target").read_bytes() == b"whole"
