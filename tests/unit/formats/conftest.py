"""Files of a format of the tests' own."""

import pathlib
import sys

import pytest

# Test files are imported by path, so their shared tools have to be findable.
sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture
def numbers(tmp_path):
    """A folder of two files with 10 and 7 numbers, and one that is none."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    (folder / "b.numbers").write_text("".join(f"{n}\n" for n in range(10, 17)))
    (folder / "a.numbers").write_text("".join(f"{n}\n" for n in range(10)))
    (folder / "_notes.numbers").write_text("not these\n")
    (folder / "README").write_text("nor this\n")
    return folder
