"""What docs/order.md shows runs as it stands."""

import pathlib
import re

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "order.md"


def test_the_example_of_the_page_runs():
    """As a reader would type it."""
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(block, {})


def test_the_pictures_of_the_page_are_there():
    """Drawn by the script beside them, and small."""
    for name in re.findall(r"\]\((pictures/[^)]+)\)", PAGE.read_text(encoding="utf-8")):
        assert 1_000 < (PAGE.parent / name).stat().st_size < 150_000
