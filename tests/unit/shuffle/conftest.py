"""Fixtures of the tests of shuffles: those of the orders that they shuffle."""

from tests.unit.plan.conftest import _quiet

__all__ = ["_quiet"]
