"""The programs and commands of docs/convert.md run."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

PAGE = pathlib.Path(__file__).parents[4] / "docs" / "convert.md"


def blocks(page):
    """Pairs of a language and a block to run, in the order of the page."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```(bash|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(kit, monkeypatch):
    """A folder with the sources that the page speaks of."""
    for i in range(6):
        kit.write(f"photos/{'cats' if i % 2 else 'dogs'}/{i}.jpg", kit.jpeg)
        kit.write(f"notes/{i}.txt", f"note {i} " * 100)
    kit.write("records.jsonl", kit.lines({"text": f"text {i}", "id": i} for i in range(50)))
    rows = "".join(f"{i},name {i},{i / 2}\n" for i in range(50))
    kit.write("table.csv", "id,name,score\n" + rows)
    monkeypatch.chdir(kit.source)
    return kit.source


@pytest.mark.slow
def test_commands_and_python_of_the_page(folder):
    """Every command ends well, in the order of the page, and so does the Python."""
    tools = os.path.dirname(sys.executable)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    names = {}
    for language, block in blocks(PAGE):
        if language == "python":
            exec(compile(block, PAGE.name, "exec"), names)
            continue
        script = "set -e\n" + block
        done = subprocess.run(
            ["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True,
            check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
    assert (folder / "out" / "again" / "index.json").exists()


def test_options_of_the_page_exist():
    """No option is documented that the commands do not have."""
    from mds._cli import main

    known = {name for command in main.commands.values() for each in command.params
             for name in each.opts}  # fmt: skip
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE.read_text(encoding="utf-8")))
    assert shown - {"--help"} <= known
