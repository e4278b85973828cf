"""What docs/safety.md shows runs as it stands, and what it names is there."""

import pathlib
import re

import mds.errors

ROOT = pathlib.Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "safety.md").read_text(encoding="utf-8")


def test_the_snippet_runs(tmp_path, monkeypatch):
    """The snippet changes an array and reads the sample again as it was."""
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    exec(compile(code, "docs/safety.md", "exec"), {})


def test_errors_of_the_page_exist():
    """Every error that the page names can be caught."""
    for name in re.findall(r"`(\w+Error)`", TEXT):
        assert issubclass(getattr(mds.errors, name), Exception)
