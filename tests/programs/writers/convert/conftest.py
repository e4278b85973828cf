"""Fixtures of the tests of conversions, for those that start programs or take long."""

from tests.unit.writers.convert.conftest import kit, spark

__all__ = ["kit", "spark"]
