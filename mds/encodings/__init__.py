"""Encodings: how the values of a column become bytes.

`parse_encoding("ndarray:int32:2048")` gives an `Encoding`; `register_encoding` adds your own.
"""

from __future__ import annotations

from mds.encodings._base import DecodeKind, Encoding
from mds.encodings._registry import encoding_names, parse_encoding, register_encoding

__all__ = [
    "DecodeKind",
    "Encoding",
    "encoding_names",
    "parse_encoding",
    "register_encoding",
]
