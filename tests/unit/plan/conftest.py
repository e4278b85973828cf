"""What holds for all tests of the order."""

import pathlib
import sys
import warnings

import pytest
from hypothesis import settings

# Test files are imported by path, so their shared tools have to be findable.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

settings.register_profile("order", max_examples=50, deadline=None)
settings.load_profile("order")


@pytest.fixture(autouse=True)
def _quiet():
    """Warnings about few samples or small blocks are wanted, and beside the point here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Shuffle block size was smaller")
        warnings.filterwarnings("ignore", ".*samples are few for")
        yield
