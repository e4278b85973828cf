"""What docs/transforms.md shows runs as it stands."""

import pathlib
import re

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "transforms.md"


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    """One block after the other, and what a comment promises is so."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), names)
        for line, told in re.findall(r"^(batch\S.*?) +# (.+)$", block, re.MULTILINE):
            assert str(eval(line, names)) == told, line
