"""What others put where our own files are expected is neither followed, changed nor waited for."""

from __future__ import annotations

import os

import pytest
from cache_tools import SAMPLES, open_cache, read
from users import GROUP, USERS, can_become

from mds.errors import CacheError
from mds.storage._files import temporary_owner

needs_root = pytest.mark.skipif(not can_become(), reason="only root can give files away")
NAMES = ("lock", "ledger")
KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----\n" * 4


@pytest.fixture
def key(tmp_path):
    """A file that nobody but its owner may read."""
    path = tmp_path / "id_ed25519"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


def plant(folder, name):
    os.makedirs(os.path.join(folder, ".mds"), exist_ok=True)
    return os.path.join(folder, ".mds", name)


def unchanged(key):
    return key.read_bytes() == KEY and key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [os.symlink, os.link])
def test_a_link_in_place_of_a_control_file_is_refused_and_its_target_stays(
    remote, folder, key, name, kind
):
    """Neither its mode nor its content changes, and the message names the link."""
    kind(key, plant(folder, name))
    os.chmod(folder, 0o777)
    with pytest.raises(CacheError, match=name), open_cache(remote, folder) as cache:
        read(cache)
    assert unchanged(key)


def test_a_link_in_place_of_the_origin_is_replaced_and_its_target_stays(remote, folder, key):
    """It is written anew by rename."""
    os.symlink(key, plant(folder, "origin.json"))
    with open_cache(remote, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
    assert unchanged(key)
    assert not os.path.islink(os.path.join(folder, ".mds", "origin.json"))


def test_a_link_in_place_of_the_control_folder_is_refused(remote, folder, tmp_path):
    """Nothing is written where it leads."""
    (tmp_path / "elsewhere").mkdir()
    os.makedirs(folder)
    os.symlink(tmp_path / "elsewhere", os.path.join(folder, ".mds"))
    with pytest.raises(CacheError, match="link"):
        open_cache(remote, folder)
    assert not os.listdir(tmp_path / "elsewhere")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_folder_or_pipe_in_place_of_a_control_file_is_refused(remote, folder, name, make):
    """In one sentence, at once."""
    make(plant(folder, name))
    with pytest.raises(CacheError, match=name), open_cache(remote, folder) as cache:
        read(cache)


def test_a_file_in_place_of_a_folder_is_refused(remote, folder, tmp_path):
    """The cache folder, one above it, or the one for control files."""
    os.makedirs(folder)
    for path in (os.path.join(folder, ".mds"), str(tmp_path / "file")):
        with open(path, "w", encoding="utf-8"):
            continue
    for place in (folder, tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.raises(CacheError, match="folder"):
            open_cache(remote, str(place))


def test_a_cache_folder_may_be_reached_through_a_link(remote, folder, tmp_path):
    """The user named it."""
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", folder)
    with open_cache(remote, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
    assert (tmp_path / "real" / ".mds" / "ledger").exists()


@pytest.mark.parametrize("number", ["0", "4194304000", "9" * 40])
def test_a_temporary_name_with_any_number_in_it_stops_no_start(remote, folder, number):
    """It is no process, so it is no name of ours."""
    os.makedirs(folder)
    name = f".shard.00000.mds.{number}-0123456789ab.mds-part"
    with open(os.path.join(folder, name), "wb") as file:
        file.write(b"planted")
    assert temporary_owner(name) is None
    for _ in range(2):
        with open_cache(remote, folder) as cache:
            assert read(cache) == list(range(SAMPLES))


def test_the_private_temporary_folder_is_of_this_user_alone(tmp_path, monkeypatch):
    """A link, or a folder that others can write to, is refused with the way out."""
    from mds.storage._control_files import private_temporary_folder

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = private_temporary_folder()
    assert os.stat(path).st_mode & 0o777 == 0o700
    assert private_temporary_folder() == path
    os.chmod(path, 0o777)
    with pytest.raises(CacheError, match="TMPDIR"):
        private_temporary_folder()
    os.rmdir(path)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(CacheError, match="link"):
        private_temporary_folder()


@needs_root
def test_the_private_temporary_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    """Whoever made it could read and exchange what lies there."""
    from mds.storage._control_files import private_temporary_folder

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    os.chown(private_temporary_folder(), USERS[0], GROUP)
    with pytest.raises(CacheError, match=str(USERS[0])):
        private_temporary_folder()


@needs_root
def test_in_a_sticky_folder_control_files_of_strangers_are_not_opened(remote, folder):
    """Anyone can make them there, and nobody else can remove them."""
    os.makedirs(folder)
    os.chmod(folder, 0o1777)
    path = plant(folder, "lock")
    os.chown(os.path.dirname(path), USERS[0], GROUP)
    with pytest.raises(CacheError, match=str(USERS[0])):
        open_cache(remote, folder)
