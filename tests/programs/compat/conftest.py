"""Opens the door for the tests of this folder, with the datasets of the unit tests."""

from tests.unit.compat.conftest import numbers, secret

__all__ = ["numbers", "secret"]
