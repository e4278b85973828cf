"""Fixtures and helpers of the programs on formats: those of the unit tests of formats."""

import pathlib
import sys

from tests.unit.formats.conftest import numbers

# Test files are imported by path, so their shared tools have to be findable.
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "unit" / "formats"))

__all__ = ["numbers"]
