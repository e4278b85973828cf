"""Opens the door for the tests of this folder, with the datasets of the unit tests."""

from tests.unit.compat.conftest import numbers, numbers_once, secret

__all__ = ["numbers", "numbers_once", "secret"]
