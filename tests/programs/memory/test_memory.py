"""Epochs leave nothing behind: the short form of the measurement in epochs.py."""

import pytest
from epochs import growth, measure, write

pytestmark = pytest.mark.slow


def test_epochs_leave_nothing_behind(tmp_path):
    """Over 12 epochs neither Python objects nor resident memory grow from epoch to epoch."""
    folder = str(tmp_path / "data")
    write(folder, 400)
    sizes, objects = measure(folder, 16, 2)
    # Caches of the interpreter settle within a few epochs; a leak of one object for each batch
    # would be 240 of them here.
    assert growth(objects[4:]) < 100
    assert max(growth(column) for column in sizes[4:].T) < 4
