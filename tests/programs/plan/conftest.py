"""Fixtures, and the path of the tools, that these programs share with the unit tests of orders."""

from tests.unit.plan.conftest import _quiet

__all__ = ["_quiet"]
