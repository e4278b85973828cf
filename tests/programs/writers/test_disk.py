"""Disks that are full, read-only or limited: a sentence at once, no index, and nothing lost."""

import json
import os
import pathlib
import resource
import subprocess
import sys

import pytest
from click.testing import CliRunner

from mds import JSONWriter, MDSWriter
from mds._cli import main
from mds.errors import DeniedError, MdsError, NoSpaceError, WriterError

SIZE = 256 << 10
COLUMNS = {"b": "bytes"}


@pytest.fixture
def small(tmp_path):
    """A disk of 256 KB, which can be remounted."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*options):
        command = ["mount", "-t", "tmpfs", "-o", ",".join((f"size={SIZE}", *options))]
        return subprocess.run([*command, "none", str(folder)], capture_output=True, check=False)

    if os.geteuid() or mount().returncode:
        pytest.skip("disks can be mounted by root only")
    yield folder, mount
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(out, megabytes=1, **options):
    with MDSWriter(out=out, columns=COLUMNS, size_limit=64 << 10, **options) as writer:
        for _ in range(megabytes * 64):
            writer.write({"b": bytes(16 << 10)})


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("where", ["folder", "pair"])
def test_a_full_disk(small, tmp_path, where, durable):
    """The error names the folder and what is free there, and no index is left."""
    folder, _ = small
    out = str(folder / "out")
    with pytest.raises(WriterError, match=r"No space left.*bytes free in .*out") as caught:
        fill(out if where == "folder" else (str(tmp_path / "near"), out), durable=durable)
    assert isinstance(caught.value.__cause__, NoSpaceError)
    assert not list(tmp_path.rglob("index.json"))
    assert not list(tmp_path.rglob("*.mds-part"))


@pytest.mark.parametrize("kind", [MDSWriter, JSONWriter])
def test_no_room_for_the_index(small, kind):
    """Shards that fit and an index that does not: an error, and no index."""
    folder, _ = small
    writer = kind(out=str(folder / "out"), columns={"x": "int"}, size_limit=500)
    for i in range(40):
        writer.write({"x": i})
    with open(folder / "ballast", "wb", buffering=0) as ballast:
        while os.statvfs(folder).f_bavail > 0:
            ballast.write(bytes(4096))
    with pytest.raises(WriterError) as told:
        writer.finish()
    assert "No space left" in str(told.value)
    assert not (folder / "out" / "index.json").exists()


def test_a_disk_that_may_only_be_read(small):
    """Refused at the construction, before anything of an old dataset is removed."""
    folder, mount = small
    fill(str(folder / "out"), 0)
    before = sorted(os.listdir(folder / "out"))
    assert mount("remount", "ro").returncode == 0
    for out in (folder / "out", folder / "new"):
        with pytest.raises(DeniedError, match=r"cannot be written to.*Choose a folder") as caught:
            MDSWriter(out=str(out), columns=COLUMNS, exist_ok=True)
        assert isinstance(caught.value, PermissionError)
    assert sorted(os.listdir(folder / "out")) == before


@pytest.mark.parametrize("state", ["full", "ro"])
def test_a_conversion_to_such_a_disk(small, tmp_path, state):
    """One line that names the folder; no traceback."""
    folder, mount = small
    source = tmp_path / "source.jsonl"
    source.write_text("".join(json.dumps({"x": "y" * 1000}) + "\n" for _ in range(1000)))
    if state == "ro":
        mount("remount", "ro")
    result = CliRunner().invoke(main, ["convert", str(source), str(folder / "out")])
    assert result.exit_code not in (0, None)
    assert result.exception is None or isinstance(result.exception, (SystemExit, MdsError))
    assert str(folder) in result.output.replace("\n", "")
    assert not list(tmp_path.rglob("index.json"))


PROGRAM = """
import sys
from mds import MDSWriter
from mds.errors import WriterError
try:
    with MDSWriter(out=sys.argv[1], columns={"b": "bytes"}) as writer:
        for _ in range(64):
            writer.write({"b": bytes(16 << 10)})
except WriterError as error:
    print(error)
"""


def test_a_limit_on_files(tmp_path):
    """`ulimit -f` is met with the ways out."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert "File too large" in done.stdout
    assert "ulimit -f" in done.stdout
    assert not list(pathlib.Path(tmp_path).rglob("index.json"))
