"""Paths that the system does not open: the error says why, and its remedy works."""

import os
import pathlib
import shlex
import subprocess

import pytest

from mds import LocalDataset, MDSWriter, StreamingDataset, convert, merge_index
from mds.errors import ConfigError, DeniedError, IndexFileError, NotFoundError, StoreError
from tests.unit.cache.users import USERS, can_become, run_as


def write(folder):
    """Write a dataset of a sample, and return its folder."""
    with MDSWriter(out=str(folder), columns={"x": "int"}) as writer:
        writer.write({"x": 1})
    return folder


def readers(place, folder):
    """Return functions that read a dataset, or other files, at a place."""
    cache = str(folder / "cache")
    return {
        "in place": lambda: StreamingDataset(str(place), batch_size=1)[0],
        "remote": lambda: StreamingDataset(remote=str(place), local=cache, batch_size=1)[0],
        "format": lambda: StreamingDataset(str(place), format="lines", batch_size=1)[0],
        "local": lambda: LocalDataset(str(place))[0],
        "convert": lambda: convert(str(place), str(folder / "out")),
        "keep_shards": lambda: convert(
            str(place), str(folder / "out"), format="lines", keep_shards=True
        ),
        "merge_index": lambda: merge_index([f"{place}/index.json"], os.path.dirname(place)),
    }


KINDS = [*readers("", pathlib.Path())]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "merge_index"])
def test_a_link_to_itself(tmp_path, kind):
    """It leads nowhere, but it exists."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for place in (tmp_path / "loop", tmp_path / "loop" / "below"):
        with pytest.raises(NotFoundError, match="a link in this path leads to itself"):
            readers(place, tmp_path)[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_that_is_too_long(tmp_path, kind):
    """Of the whole path, and of one name."""
    for place in (tmp_path / "/".join(["x" * 200] * 25), tmp_path / ("y" * 300)):
        with pytest.raises(StoreError, match=r"has [0-9,]+ bytes. Linux opens at most 4,095"):
            readers(place, tmp_path)[kind]()


def test_a_file_that_is_too_deep(tmp_path, monkeypatch):
    """Its folders have allowed names, so it exists."""
    (tmp_path / "a.txt").write_text("one")
    monkeypatch.chdir(tmp_path)
    for _ in range(25):
        os.mkdir("x" * 200)
        os.chdir("x" * 200)
    pathlib.Path("b.txt").write_text("two")
    for act in (
        lambda: StreamingDataset(str(tmp_path), format="lines", batch_size=1),
        lambda: convert(str(tmp_path), str(tmp_path / "out")),
        lambda: merge_index(str(tmp_path)),
    ):
        with pytest.raises(StoreError, match=r"bytes. Linux opens at most 4,095.*move the dataset"):
            act()


@pytest.mark.parametrize(
    "act", [lambda place: MDSWriter(out=place, columns={"x": "int"}), merge_index]
)
def test_an_output_that_is_a_link_to_nothing_or_a_file(tmp_path, act):
    """A folder cannot be made there; the remedy is to remove it."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    for name in ("loop", "file"):
        with pytest.raises(StoreError, match="Remove the file or folder of this name"):
            act(str(tmp_path / name))


def test_a_nul_character(tmp_path):
    """No path has one."""
    place = f"{tmp_path}/a\0b"
    for act in (
        lambda: StreamingDataset(place, batch_size=1),
        lambda: LocalDataset(place),
        lambda: merge_index(place),
        lambda: MDSWriter(out=place, columns={"x": "int"}),
    ):
        with pytest.raises(ConfigError, match="has a NUL character"):
            act()


def test_a_folder_to_merge_whose_name_is_not_utf_8(tmp_path):
    """An index cannot name it."""
    write(tmp_path / "a")
    try:
        os.rename(tmp_path / "a", os.fsencode(tmp_path) + b"/\xff")
    except OSError:
        pytest.skip("this file system takes no such names")
    with pytest.raises(IndexFileError, match=r"is not UTF-8\. Rename"):
        merge_index(str(tmp_path))


@pytest.fixture
def shared(tmp_path_factory, request):
    """Return a folder that other users can reach."""
    root = tmp_path_factory.getbasetemp() / f"shared-{request.node.name.replace('[', '-')}"
    root.mkdir()
    for above in (root, *root.parents):
        if above.stat().st_uid == os.geteuid() and above != above.parent:
            above.chmod(above.stat().st_mode | 0o055)
    root.chmod(0o777)
    return root


@pytest.mark.skipif(not can_become(), reason="only root can be another user")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocked", ["folder", "file"])
def test_a_place_without_permission(shared, kind, blocked):
    """The error has the command that helps, run by the owner of the place."""
    place = write(shared / "data" / "train")
    (place / "a.txt").write_text("one")
    if kind in {"format", "convert", "keep_shards"}:
        (place / "index.json").unlink()
        (place / "shard.00000.mds").unlink()
    readers(place, shared / "root")[kind]()  # imports what other users may not read
    shut = [place] if blocked == "folder" else [*place.iterdir()]
    for path in shut:
        path.chmod(0o000)
    act = readers(place, shared)[kind]

    def refused():
        with pytest.raises(DeniedError, match=r"Its owner can allow it: chmod -R a\+rX ") as caught:
            act()
        (shared / "command").write_text(str(caught.value).partition("allow it: ")[2])

    if kind == "convert" and blocked == "file":
        return  # a bad record: see the tests of on_error=
    run_as(USERS[0], refused)
    command = shlex.split((shared / "command").read_text())
    subprocess.run(command, check=True)
    if kind == "merge_index":
        (shared / "data").chmod(0o777)
    for path in shut:
        if str(path) != command[-1]:
            path.chmod(0o644)
    run_as(USERS[0], act)
