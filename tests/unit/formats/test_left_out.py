"""Files and links of a folder that a dataset does not read are counted, and some are warned of."""

import logging
import os

import pytest

import mds.formats._dataset
from mds import StreamingDataset
from mds.errors import DeniedError
from mds.formats._facts import describe_left_out
from mds.storage import open_store
from mds.storage._memory import MemoryStore
from mds.writers.convert import prepare
from tests.unit.cache.users import USERS, can_become, run_as

LINE = "one line\n"


def write(root, *names):
    """Write files of a line each, and return the folder."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LINE)
    return root


def left_out(place, row="left out", file_format="lines"):
    """Return the rows of `explain` about files that are left out, as {reason: (count, key)}."""
    text = str(StreamingDataset(str(place), format=file_format, batch_size=1).explain())
    rows = [line.split(row, 1)[1].split(None, 1) for line in text.splitlines() if row in line]
    return {
        reason: (int(count), example)
        for count, (reason, example) in ((each[0], each[1].split(", such as ")) for each in rows)
    }


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a file of each kind."""
    root = write(
        tmp_path / "data",
        *("a.txt", "sub/b.txt", ".hidden.txt", ".git/c.txt", "_old/d.txt", "_e.txt"),
        *("README.md", "_SUCCESS", "sub/notes.rst"),
    )
    (root / "empty.txt").write_text("")
    (root / "linked.txt").symlink_to("a.txt")
    (root / "dangling.txt").symlink_to("nowhere")
    (root / "loop.txt").symlink_to("loop.txt")
    (root / "folder").symlink_to("sub")
    os.mkfifo(root / "pipe.txt")
    return root


def test_each_file_is_counted_by_reason(folder):
    """With an example; links are followed and counted, and names with ``_`` are data."""
    assert left_out(folder) == {
        "broken links": (2, "dangling.txt"),
        "pipes, sockets or devices": (1, "pipe.txt"),
        "hidden names": (2, ".git"),
        "files of another kind": (4, "README.md"),
        "files without samples": (1, "empty.txt"),
    }
    assert left_out(folder, "followed") == {
        "links to folders": (1, "folder"),
        "links to files": (1, "linked.txt"),
    }
    dataset = StreamingDataset(str(folder), format="lines", batch_size=1)
    names = ("_e.txt", "_old/d.txt", "a.txt", "folder/b.txt", "linked.txt", "sub/b.txt")
    assert dataset.num_samples == len(names)


def test_a_pattern_leaves_out_no_file_that_it_does_not_match(folder):
    """The user chose the files."""
    assert left_out(folder / "*.txt") == {
        "broken links": (2, "dangling.txt"),
        "pipes, sockets or devices": (1, "pipe.txt"),
        "hidden names": (1, ".hidden.txt"),
        "files without samples": (1, "empty.txt"),
    }
    assert left_out(folder / "sub" / "*.txt") == {}


def test_a_later_start_counts_anew(folder):
    """Also if it plans no file again."""
    (folder / "sub" / "up").symlink_to("..")
    assert left_out(folder)["files of another kind"] == (4, "README.md")
    write(folder, "second.md")
    (folder / "linked.txt").unlink()
    (folder / "sub" / "up").unlink()
    later = left_out(folder)
    assert later["files of another kind"] == (5, "README.md")
    assert "links to a folder above" not in later
    assert "links to files" not in left_out(folder, "followed")


def test_links_and_names_with_an_underscore_are_warned_of_once(folder, caplog):
    """Each start warns once; nothing else is worth a warning."""
    (folder / "sub" / "up").symlink_to("..")
    for name in ("a.jsonl", "_e.jsonl", "_old/d.jsonl", "_temporary/0/part.jsonl"):
        write(folder, name).joinpath(name).write_text('{"x": 1}\n')
    with caplog.at_level(logging.WARNING, "mds"):
        dataset = StreamingDataset(str(folder), format="jsonl", batch_size=1)
        assert len([*dataset]) == dataset.num_samples == 1
    (warning,) = [each.getMessage() for each in caplog.records]
    assert "links to a folder above: 2 (such as folder/up)" in warning
    assert "names that begin with _: 2 (such as _e.jsonl)" in warning
    assert "_temporary" not in warning
    assert "README" not in warning
    assert "hidden" not in warning


def test_a_folder_without_such_files_is_not_warned_of(tmp_path, caplog):
    """Spark writes a file `_SUCCESS`, and Git a folder `.git`."""
    root = write(tmp_path / "data", "a.txt", "_SUCCESS", ".git/a.txt", "README.md")
    with caplog.at_level(logging.WARNING, "mds"):
        StreamingDataset(str(root), format="lines", batch_size=1)
    assert not caplog.records


def test_files_in_a_store_are_counted_too(tmp_path):
    """Keys of a bucket may be hidden or of another kind."""
    names = ("a.txt", ".b.txt", ".git/c.txt", ".git/d.txt", "__MACOSX/e.txt", "_f.txt", "__g.txt")
    root = write(tmp_path, *names, "s/Thumbs.db", "s/desktop.ini")
    store = MemoryStore("memory://left-out")
    for name in (*names, "s/Thumbs.db", "s/desktop.ini"):
        store.put(name, LINE.encode())
    for url in (f"file://{root}", store.url):
        data, _ = mds.formats._dataset.open_files(url, "lines")
        assert sorted(file.key for file in data.table.files) == ["__g.txt", "_f.txt", "a.txt"]
        left_out = data.costs().left_out
        assert {reason: count for reason, (count, _) in left_out.items()} == {"hidden names": 5}
    assert describe_left_out({"hidden names": (5, ".b.txt")}) == "hidden names: 5 (such as .b.txt)"


@pytest.mark.skipif(not can_become(), reason="only root can be another user")
@pytest.mark.parametrize("is_listed", [True, False], ids=["list", "look"])
def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path_factory, is_listed):
    """Other files of the dataset would be read, and nobody would notice."""
    root = write(tmp_path_factory.getbasetemp() / f"shared-{is_listed}", "a.txt", "sub/b.txt")
    for above in (root, *root.parents):
        if above.stat().st_uid == os.geteuid() and above != above.parent:
            above.chmod(above.stat().st_mode | 0o055)
    (root / "sub").chmod(0o700 if is_listed else 0o744)
    command = f"chmod -R a\\+rX {root}/sub"

    def read():
        for act in (
            lambda: StreamingDataset(str(root), format="lines", batch_size=1),
            lambda: StreamingDataset(str(root), format="lines", batch_size=2),
            lambda: StreamingDataset(f"{root}/**/*.txt", batch_size=1),
            lambda: prepare(str(root), str(root / "out"), format="lines"),
            lambda: [*open_store(str(root)).list()],
        ):
            with pytest.raises(DeniedError, match=command):
                act()
        # A pattern that needs no such folder.
        assert left_out(root / "*.txt") == {}

    run_as(USERS[0], read)
    (root / "sub").chmod(0o755)
    run_as(USERS[0], lambda: left_out(root))
