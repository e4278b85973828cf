"""No credentials, endpoints or proxies but those of the test."""

from tests.unit.storage.conftest import environment

__all__ = ["environment"]
