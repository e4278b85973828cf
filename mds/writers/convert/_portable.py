"""Encodings that mosaicml-streaming 0.13 reads, for `--portable`.

`bool`, `optional`, `tensor`, `audio` and most lists are younger than the format of shards. JSON
holds the same values, except for bytes, which stay a column that cannot be None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mds.errors import ConfigError
from mds.formats._columns import Column, without_optional

#: Families of encodings, and lists, that mosaicml-streaming 0.13 reads.
_KNOWN = frozenset(
    (
        *("int", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "ndarray", "str", "bytes", "json", "pkl"),
        *("str_int", "str_float", "str_decimal", "pil", "jpeg", "png", "jpeg_array", "jpegarray"),
        *("list[pil]", "list[jpeg]", "list[png]"),
    )
)
#: Encodings of bytes, which JSON cannot hold.
_OF_BYTES = frozenset(("bytes", "jpeg", "pil", "png"))


def is_portable(encoding: str) -> bool:
    """Return True if mosaicml-streaming reads an encoding."""
    return encoding.partition(":")[0] in _KNOWN


def portable_columns(columns: Iterable[Column], chosen: Iterable[str]) -> list[Column]:
    """Return columns with encodings that mosaicml-streaming reads.

    Those that the user chose stay. Raises ConfigError for a column that has no such encoding.
    """
    user_columns = {*chosen}
    return [
        column if column.name in user_columns or is_portable(column.encoding) else _portable(column)
        for column in columns
    ]


def _portable(column: Column) -> Column:
    inner = without_optional(column.encoding)
    inner = "bytes" if inner == "audio" else inner
    if inner in _OF_BYTES:
        return replace(column, encoding=inner, note="a missing value is an error")
    family, *parameters = inner.split(":")
    if family == "tensor" and len(parameters) == 2 and inner == column.encoding:
        return replace(column, encoding=f"ndarray:{inner.partition(':')[2]}")
    if family.startswith("list[") and without_optional(family[5:-1]) in {*_OF_BYTES, "audio"}:
        raise ConfigError(
            f"column {column.name!r} has lists of files ({column.encoding}), which "
            "mosaicml-streaming cannot read. Leave it out with drop= (--drop), or leave out "
            "--portable (portable=True)."
        )
    return replace(column, encoding="json", note="read by mosaicml-streaming")


def describe_others(columns: Sequence[Column]) -> str:
    """Return a note on the columns that mosaicml-streaming cannot read, or ''."""
    foreign_columns = [each for each in columns if not is_portable(each.encoding)]
    if not foreign_columns:
        return ""
    names = ", ".join(f"{each.name} ({each.encoding})" for each in foreign_columns)
    return f"mosaicml-streaming cannot read {names}; --portable writes encodings that it knows"
