"""Fixtures of the tests of writers, for those that start programs or take long."""

from tests.unit.writers.conftest import noise, out, places, written

__all__ = ["noise", "out", "places", "written"]
