"""What docs/cache.md shows runs as it stands."""

from __future__ import annotations

import json
import pathlib
import re

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "cache.md"


def test_the_page_runs(tmp_path, monkeypatch):
    """Its blocks, one after the other, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for code in blocks:
        exec(compile(code, str(PAGE), "exec"), names)
    assert len(blocks) == 2
    assert names["dataset"].stats()["fetched_shards"] >= 1
    json.loads((tmp_path / "trace.json").read_text())
