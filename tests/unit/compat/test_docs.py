"""What docs/migrating.md shows runs as it stands."""

import pathlib
import re

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "migrating.md"


def test_the_python_of_the_page_runs():
    """Every block, one after the other."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), {})
