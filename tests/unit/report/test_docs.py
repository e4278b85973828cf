"""The program of docs/guides/slow-loader.md runs as it stands."""

import pathlib
import re

from mds.report._diagnosis import CAUSES

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "guides" / "slow-loader.md"


def test_the_python_of_the_page_runs(tmp_path, monkeypatch, capsys):
    """The loader names the cause that the page says."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), names)
    paragraph, cause = capsys.readouterr().out.splitlines()
    assert cause == "functions"
    assert "map(blur)" in paragraph


def test_the_page_has_every_cause():
    """In the order in which they are listed."""
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [*CAUSES]
