"""What docs/writing.md shows runs as it stands."""

import pathlib
import re

from mds import LocalDataset

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "writing.md"


def test_the_snippet_runs(tmp_path, monkeypatch):
    """Top to bottom: the first block writes a dataset with digests that can be read."""
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    names = {}
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(code, str(PAGE), "exec"), names)
    found = LocalDataset("data/train")
    assert [found[i]["id"] for i in (0, 999)] == [0, 999]
    assert "xxh3_64" in (tmp_path / "data/train/index.json").read_text()
