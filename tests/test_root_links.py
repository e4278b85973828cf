"""The folders that matter most are also links in the root, and no tool follows the links."""

import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.skip_reasons import not_installed

ROOT = pathlib.Path(__file__).parents[1]

LINKS = {
    "writers": "mds/writers",
    "readers": "mds/_readers",
    "shuffle": "mds/shuffle",
    "storage": "mds/storage",
}

#: Folders of code.
CODE = ("mds", "benchmarks", "devtools", "docs", "examples", "tests")


def files_through_links(paths):
    """Return the paths, relative to the root, that lie below a link."""
    return [path for path in paths if pathlib.PurePath(path).parts[0] in LINKS]


def test_the_root_has_relative_links():
    """They are the only links of the root, and lead to folders of the package in any clone."""
    links = {path.name: os.readlink(path) for path in ROOT.iterdir() if path.is_symlink()}
    assert links == LINKS
    for name in LINKS:
        assert (ROOT / name / "__init__.py").is_file()


def test_nothing_imports_through_a_link():
    """A module has one name, the one below `mds`."""
    imports = re.compile(rf"^\s*(?:import|from)\s+(?:{'|'.join(LINKS)})\b", re.MULTILINE)
    assert imports.search("if True:\n    from storage.local import x")
    for path in (path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        found = imports.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found[0]}"


def test_the_linters_visit_no_file_twice(tmp_path):
    """Ruff lists, and codespell reads, only the files of `mds` itself."""
    for tool in ("ruff", "codespell_lib"):
        pytest.importorskip(tool, reason=not_installed(tool.removesuffix("_lib")))
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--show-files", "."]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    checked = [os.path.relpath(line, ROOT) for line in run.stdout.splitlines()]
    assert "mds/storage/__init__.py" in checked
    assert not files_through_links(checked)

    word = "recieve"  # codespell:ignore
    (tmp_path / "mds" / "storage").mkdir(parents=True)
    (tmp_path / "mds" / "storage" / "a.txt").write_text(word)
    (tmp_path / "storage").symlink_to("mds/storage")
    command = [sys.executable, "-m", "codespell_lib"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == [f"./mds/storage/a.txt:1: {word} ==> receive"]


def test_the_distributions_have_each_file_once(tmp_path):
    """The links are in neither the archive of the sources nor the wheel, their targets in both."""
    pytest.importorskip("hatchling", reason=not_installed("hatchling"))
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (archive,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(archive) as sources:
        names = [name.partition("/")[2] for name in sources.getnames()]
    for files in (names, zipfile.ZipFile(wheel).namelist()):
        assert len(files) == len({*files})
        assert not files_through_links(files)
        assert {f"{target}/__init__.py" for target in LINKS.values()} <= {*files}
