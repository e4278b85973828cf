"""Encodings of a user's own, for the time of a test."""

import contextlib

from mds.encodings import _registry, parse_encoding, register_encoding


@contextlib.contextmanager
def registered(kinds):
    """Register the classes of encodings in a dict, by name, and forget them afterwards."""
    for name, kind in kinds.items():
        register_encoding(name, kind)
    try:
        yield
    finally:
        for name in kinds:
            del _registry._encodings.entries[name]
        parse_encoding.cache_clear()
