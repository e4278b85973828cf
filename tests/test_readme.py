"""Everything that the README and the docs show runs as it stands."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, language):
    """The code blocks of a page in one language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [code for kind, code in BLOCK.findall(text) if kind == language]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with what the README takes for granted."""
    from PIL import Image

    from mds import MDSWriter

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "user-cache"))
    for name in ("cats", "dogs"):
        os.makedirs(f"data/photos/{name}")
        for i in range(5):
            Image.new("RGB", (32, 32), (i * 40, 0, 0)).save(f"data/photos/{name}/{i}.jpg")
    columns = {"text": "str", "tokens": "ndarray:int32", "meta": "json"}
    with MDSWriter(out="data/more", columns=columns) as writer:
        for i in range(300):
            writer.write({"text": f"more {i}", "tokens": make_tokens(i), "meta": {"id": i}})
    return tmp_path


def make_tokens(i):
    """The README's stand-in for a tokenizer."""
    return np.arange(16, dtype=np.int32) + i


def test_python_of_the_readme(folder):
    """The Python blocks run one after the other."""
    names = {"make_tokens": make_tokens}
    for code in blocks("README.md", "python"):
        exec(compile(code, "README.md", "exec"), names)
    assert len(names["following"]["text"]) == 32
    assert names["state"]["sample_in_epoch"] == 6 * 32


def test_commands_of_the_readme(folder):
    """The commands run; the first two are what the gate itself runs."""
    pages = blocks("README.md", "bash")
    assert "examples/quickstart.py" in pages[0]
    assert "pytest" in pages[1]
    for line in "".join(pages[2:]).splitlines():
        words = shlex.split(line, comments=True)
        if words:
            tool = pathlib.Path(sys.executable).parent / words[0]
            subprocess.run([tool, *words[1:]], check=True, timeout=120)


def test_the_gate_runs_the_readmes_commands():
    """What the gate takes from the page as README's two commands are the first two."""
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for number, page in enumerate(blocks("README.md", "bash")[:2], start=1):
        assert f"\nreadme {number}\n" in gate
        command = [sys.executable, ".ci/readme_command.py", str(number)]
        printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert printed.stdout == page


def test_links_lead_somewhere():
    """Every relative link of README and docs is a file."""
    for page in [ROOT / "README.md", ROOT / "FORMAT.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
