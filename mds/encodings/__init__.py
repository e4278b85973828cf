"""Encodings: how the values of a column become bytes.

`parse_encoding("ndarray:int32:2048")` gives an `Encoding`; `register_encoding` adds your own.
"""

from __future__ import annotations

from mds.encodings import arrays, audio, containers, images, objects, scalars, text
from mds.encodings.base import DecodeKind, Encoding, describe, located
from mds.encodings.registry import encoding_names, parse_encoding, register_encoding

__all__ = [
    "DecodeKind",
    "Encoding",
    "describe",
    "encoding_names",
    "located",
    "parse_encoding",
    "register_encoding",
]

for _module in (scalars, text, arrays, images, objects, containers, audio):
    for _name, _factory in _module.FAMILIES.items():
        register_encoding(_name, _factory)
