"""Decoders written out for one schema, so that a sample costs a lookup, a slice and a dict.

A loop over the columns with a call of ``Encoding.decode`` for each costs three times what the
values themselves do (measured: 1.9 us against 0.6 us for a text with its JSON), so the code for
the columns at hand is put together as Python source and compiled once for each schema. The source
holds no name and no value from a dataset: columns are bound as ``k0``, ``k1``, ... beside it.

Three shapes:
    views     all columns fixed: a row of a strided view on the file, whose numpy checks the row
    offsets   begin and end from the offsets, size words unpacked, their sum checked against both
    sample    the same for the bytes of one sample that came by themselves
Whenever anything is strange the code calls ``explain``, which takes its time and finds the words.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import lru_cache
from json.scanner import make_scanner
from typing import Any

import numpy as np

from mds.readers.fields import Field, Fields, Kind

Get = Callable[[int], dict[str, Any]]
Bind = Callable[..., Callable[..., dict[str, Any]]]

_SCAN = make_scanner(json.JSONDecoder())  # type: ignore[arg-type]  # the stub asks for itself
_CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}

_VIEWS = """
def bind(explain, {views}):
    def get(row):
        try:
            return {{{items}}}
        except Exception:
            return explain(row)
    return get
"""
_OFFSETS = """
def bind(explain, data, view, offsets):
    def get(row):
        try:
            if row < 0:
                return explain(row)
            o = offsets[row]
            e = offsets[row + 1]
{body}
            return {{{items}}}
        except Exception:
            return explain(row)
    return get
"""
_SAMPLE = """
def bind(explain):
    def get(view):
        try:
            o = 0
            e = len(view)
{body}
            return {{{items}}}
        except Exception:
            return explain(view)
    return get
"""


@lru_cache(maxsize=256)
def compile_views(fields: Fields) -> Bind:
    """``bind(explain, *views)``: a view for each wanted column, from ``field_view``."""
    names, items = {}, []
    for number, field in enumerate(fields.wanted):
        names[f"k{number}"] = field.name
        items.append(f"k{number}: v{number}{'.item(row)' if field.kind is Kind.INT else '[row]'}")
    views = ", ".join(f"v{number}" for number in range(len(items))) or "*nothing"
    return _build(_VIEWS.format(views=views, items=", ".join(items)), names)


@lru_cache(maxsize=256)
def compile_dict(columns: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    """A function from a value for each column to the sample."""
    names = {f"k{number}": name for number, name in enumerate(columns)}
    arguments = ", ".join(f"v{number}" for number in range(len(columns)))
    items = ", ".join(f"k{number}: v{number}" for number in range(len(columns)))
    return _build(f"def bind():\n    return lambda {arguments}: {{{items}}}\n", names)()


@lru_cache(maxsize=256)
def compile_offsets(fields: Fields) -> Bind:
    """``bind(explain, data, view, offsets)``: data is mapped, view and offsets are memoryviews."""
    return _compile(_OFFSETS, fields, "data")


@lru_cache(maxsize=256)
def compile_sample(fields: Fields) -> Bind:
    """``bind(explain)``: a function of the bytes of one sample, as a memoryview."""
    return _compile(_SAMPLE, fields, "view")


def _compile(template: str, fields: Fields, data: str) -> Bind:
    names: dict[str, Any] = {"ndarray": np.ndarray, "load_json": load_json}
    body: list[str] = []
    items: list[str] = []
    count = fields.variable
    if count:
        names["sizes"] = struct.Struct(f"<{count}I").unpack_from
        words = "".join(f"s{number}, " for number in range(count))
        body.append(f"{words}= sizes({data}, o)")
    base, shift, seen = "o", 4 * count, 0
    for number, field in enumerate(fields.all):
        start = f"{base} + {shift}" if shift else base
        if field.size is None:
            body.append(f"p{seen} = {start} + s{seen}")
            base, shift, end = f"p{seen}", 0, f"p{seen}"
            seen += 1
        else:
            shift += field.size
            end = f"{base} + {shift}"
        if field.is_wanted:
            names[f"k{number}"] = field.name
            items.append(f"k{number}: {_value(field, number, (data, start, end), names)}")
    total = f"{base} + {shift}" if shift else base
    body += [f"if {total} != e:", f"    return explain({'row' if data == 'data' else 'view'})"]
    text = "\n".join(f"            {line}" for line in body)
    return _build(template.format(body=text, items=", ".join(items)), names)


def _value(field: Field, number: int, place: tuple[str, str, str], names: dict[str, Any]) -> str:
    """The expression for one value; ``place`` is the buffer and the bounds, as expressions."""
    data, start, end = place
    part = f"{data}[{start}:{end}]"
    if field.kind is Kind.BYTES:
        return part if data == "data" else f"bytes({part})"
    # Slices of mapped files are bytes, whose own method is quicker than `str`; those of views not.
    text = f"{part}.decode()" if data == "data" else f"str({part}, 'utf-8')"
    if field.kind is Kind.STR:
        return text
    if field.kind is Kind.JSON:
        return f"load_json({text})"
    dtype = field.encoding.dtype
    if field.kind is Kind.INT:
        names["unpack_int"] = struct.Struct("<q").unpack_from
        return f"unpack_int({data}, {start})[0]"
    if field.kind is Kind.ARRAY:
        names[f"dtype{number}"], names[f"shape{number}"] = dtype, field.encoding.shape
        return f"ndarray(shape{number}, dtype{number}, {data}, {start})"
    if field.kind is Kind.VECTOR:
        names[f"vector{number}"] = vector_decoder(field)
        return f"vector{number}({data}, view, {start}, {end})"
    if field.kind is Kind.SCALAR and dtype is not None:
        if (code := _CODES.get(dtype.str[1:])) is not None:
            names[f"type{number}"] = dtype.type
            names[f"unpack{number}"] = struct.Struct(f"<{code}").unpack_from
            return f"type{number}(unpack{number}({data}, {start})[0])"
        # Through a Python float a NaN could lose bits that this keeps.
        names[f"dtype{number}"] = dtype
        return f"ndarray((), dtype{number}, {data}, {start})[()]"
    names[f"decode{number}"] = field.decode
    return f"decode{number}(view[{start}:{end}])"


def _build(source: str, names: dict[str, Any]) -> Bind:
    space = dict(names)
    exec(compile(source, "<decoder of a schema>", "exec"), space)  # noqa: S102 - see the top
    return space["bind"]  # type: ignore[no-any-return]


def vector_decoder(field: Field) -> Callable[[Any, memoryview, int, int], Any]:
    """``decode(data, view, start, end)`` of arrays whose type the column fixes and shape does not.

    With one axis there is a byte that says so, the length, and the elements: half a microsecond
    less than the general way, which takes all others.
    """
    dtype = np.dtype(field.encoding.name.partition(":")[2]).newbyteorder("<")
    size, general = dtype.itemsize, field.encoding.decode

    def decode(data: Any, view: memoryview, start: int, end: int) -> Any:
        head = data[start]
        if head >> 2 == 1:
            at = start + 1 + (1 << (head & 3))
            count = int.from_bytes(data[start + 1 : at], "little")
            if count and at + count * size == end:
                return np.ndarray((count,), dtype, data, at)
        return general(view[start:end])

    return decode


def load_json(text: str) -> Any:
    """``json.loads`` at half its price for the short texts that samples hold."""
    try:
        value, end = _SCAN(text, 0)
    except (StopIteration, ValueError):
        # White space in front, or an error that json.loads knows better how to word.
        return json.loads(text)
    return value if end == len(text) else json.loads(text)
