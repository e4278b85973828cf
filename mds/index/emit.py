"""The JSON text of a schema's shards, with holes where shards differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mds.index.schema import ShardSchema


class _Hole:
    """A place in the JSON of a shard where something differs from shard to shard."""

    def __init__(self, *path: str) -> None:
        self.path = path


class JsonShape:
    """Writes shard objects exactly as the incumbent's writers do, at some 3 us each."""

    def __init__(self, schema: ShardSchema) -> None:
        self._stored = schema.stored
        self._pieces = _flatten(_object(schema))
        place = {
            piece: index for index, piece in enumerate(self._pieces) if isinstance(piece, tuple)
        }
        self._samples = place["samples",]
        self._files = [
            (
                place[file.kind, "basename"],
                place[file.kind, "bytes"],
                [(place[file.kind, "hashes", name], digits) for name, digits in file.hashes],
            )
            for file in schema.stored
        ]

    def fill(self, samples: int, sizes: Sequence[int], names: Sequence[str], digests: str) -> str:
        """Return the text of one shard. Sizes, names and digests are in the order of ``stored``."""
        out = self._pieces.copy()
        out[self._samples] = str(samples)
        offset = 0
        for (name, size, hashes), basename, bytes_ in zip(self._files, names, sizes, strict=True):
            out[name] = json.dumps(basename)
            out[size] = str(bytes_)
            for place, digits in hashes:
                out[place] = f'"{digests[offset : offset + digits]}"'
                offset += digits
        return "".join(out)

    def example(self) -> str:
        """Return the text of a shard without samples; it holds the whole schema."""
        digits = sum(digits for file in self._stored for _, digits in file.hashes)
        count = len(self._stored)
        return self.fill(0, [0] * count, ["-"] * count, "0" * digits)


def _object(schema: ShardSchema) -> dict[str, Any]:
    names, encodings = schema.columns.names, schema.columns.encodings
    raw: dict[str, Any] = {
        "version": schema.version,
        "format": schema.format,
        "compression": schema.compression,
        "hashes": schema.hashes,
        "size_limit": schema.size_limit,
        "samples": _Hole("samples"),
        "zip_data": None,
    }
    if schema.is_split:
        raw |= {"newline": schema.newline, "zip_meta": None}
    if schema.format == "json":
        raw["columns"] = dict(zip(names, encodings, strict=True))
    else:
        raw |= {"column_names": names, "column_encodings": encodings}
    if schema.format == "mds":
        raw["column_sizes"] = schema.columns.sizes
    if schema.format == "xsv":
        raw["separator"] = schema.separator
    for file in schema.stored:
        raw[file.kind] = {
            "basename": _Hole(file.kind, "basename"),
            "bytes": _Hole(file.kind, "bytes"),
            "hashes": {name: _Hole(file.kind, "hashes", name) for name, _ in file.hashes},
        }
    return raw


def _flatten(raw: Any) -> list[Any]:
    """Return pieces of text; a tuple between them is the path of a hole."""
    if isinstance(raw, _Hole):
        return [raw.path]
    if not isinstance(raw, dict):
        return [json.dumps(raw)]
    out: list[Any] = ["{"]
    for key, value in sorted(raw.items()):
        out += [", "] * (len(out) > 1) + [f"{json.dumps(key)}: ", *_flatten(value)]
    return [*out, "}"]
