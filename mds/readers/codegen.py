"""Decoders written out for one schema, so that a sample costs a lookup, a slice and a dict.

A loop over the columns with a call of ``Encoding.decode`` for each costs three times what the
values themselves do (measured: 1.9 us against 0.6 us for a text with its JSON), so the code for
the columns at hand is put together as Python source and compiled once for each schema. The source
holds no name and no value from a dataset: columns are bound as ``k0``, ``k1``, ... beside it.

Three shapes:
    views     all columns fixed: a row of a strided view on the file, whose numpy checks the row
    offsets   begin and end from the offsets, size words unpacked, their sum checked against both
    sample    the same for the bytes of one sample that came by themselves
Whenever anything is strange the code calls ``decode_slowly``, which finds the words of the error.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Callable, Iterator
from json.scanner import make_scanner
from typing import Any

import numpy as np

from mds.encodings import DecodeKind
from mds.readers.fields import Field, Fields

Get = Callable[[int], dict[str, Any]]
# Makes the `get` of one reader.
DecoderFactory = Callable[..., Callable[..., dict[str, Any]]]

_SCAN = make_scanner(json.JSONDecoder())  # type: ignore[arg-type]  # the stub asks for itself
_CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}

_VIEWS = """
def make_getter(decode_slowly, {views}):
    def get(row):
        try:
            return {{{items}}}
        except Exception:
            return decode_slowly(row)
    return get
"""
_OFFSETS = """
def make_getter(decode_slowly, data, view, offsets):
{setup}
    def get(row):
        try:
            if row < 0:
                return decode_slowly(row)
            o = offsets[row]
            e = offsets[row + 1]
{body}
            return {{{items}}}
        except Exception:
            return decode_slowly(row)
    return get
"""
_SAMPLE = """
def make_getter(decode_slowly):
    def get(view):
        try:
            o = 0
            e = len(view)
{body}
            return {{{items}}}
        except Exception:
            return decode_slowly(view)
    return get
"""


@functools.lru_cache(maxsize=256)
def compile_views(fields: Fields) -> DecoderFactory:
    """``make_getter(decode_slowly, *views)``: a strided view for each wanted column."""
    names, items = {}, []
    for number, field in enumerate(fields.wanted):
        names[f"k{number}"] = field.name
        row = ".item(row)" if field.kind is DecodeKind.INT else f"[row]{_copy(field)}"
        items.append(f"k{number}: v{number}{row}")
    views = ", ".join(f"v{number}" for number in range(len(items))) or "*nothing"
    return _build(_VIEWS.format(views=views, items=", ".join(items)), names)


@functools.lru_cache(maxsize=256)
def compile_samples(columns: tuple[str, ...]) -> Callable[..., Iterator[dict[str, Any]]]:
    """Return a generator function that takes the values of each column and yields the samples."""
    names = {f"k{number}": name for number, name in enumerate(columns)}
    values = ", ".join(f"v{number}" for number in range(len(columns)))
    items = ", ".join(f"k{number}: v{number}" for number in range(len(columns)))
    source = values if len(columns) == 1 else f"zip({values})"
    made: Callable[..., Iterator[dict[str, Any]]] = _build(
        f"def make_getter():\n"
        f"    def samples({values}):\n"
        f"        for {values} in {source}:\n"
        f"            yield {{{items}}}\n"
        f"    return samples\n",
        names,
    )()  # type: ignore[assignment]
    return made


@functools.lru_cache(maxsize=256)
def compile_offsets(fields: Fields) -> DecoderFactory:
    """``make_getter(decode_slowly, data, view, offsets)``; the last two are memoryviews."""
    return _compile(_OFFSETS, fields, "data")


@functools.lru_cache(maxsize=256)
def compile_sample(fields: Fields) -> DecoderFactory:
    """``make_getter(decode_slowly)``: a function of the bytes of one sample, as a memoryview."""
    return _compile(_SAMPLE, fields, "view")


def _compile(template: str, fields: Fields, data: str) -> DecoderFactory:
    names: dict[str, Any] = {"ndarray": np.ndarray, "load_json": load_json}
    setup: list[str] = []
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
            if data == "data" and field.kind is DecodeKind.ARRAY:
                # A row of a view made once is 0.15 us quicker than an array made of bounds.
                names[f"cells{number}"] = functools.partial(_cells, field)
                setup.append(f"c{number} = cells{number}(data)")
                items.append(f"k{number}: c{number}[{start}]{_copy(field)}")
                continue
            items.append(f"k{number}: {_value(field, number, (data, start, end), names)}")
    total = f"{base} + {shift}" if shift else base
    body += [
        f"if {total} != e:",
        f"    return decode_slowly({'row' if data == 'data' else 'view'})",
    ]
    text = "\n".join(f"            {line}" for line in body)
    before = "\n".join(f"    {line}" for line in setup)
    return _build(template.format(setup=before, body=text, items=", ".join(items)), names)


def _value(field: Field, number: int, place: tuple[str, str, str], names: dict[str, Any]) -> str:
    """Return the expression for one value; ``place``: expressions of the buffer and its bounds."""
    data, start, end = place
    part = f"{data}[{start}:{end}]"
    if field.kind is DecodeKind.BYTES:
        return part if data == "data" else f"bytes({part})"
    # Slices of mapped files are bytes, whose own method is quicker than `str`; those of views not.
    text = f"{part}.decode()" if data == "data" else f"str({part}, 'utf-8')"
    if field.kind is DecodeKind.TEXT:
        return text
    if field.kind is DecodeKind.JSON:
        return f"load_json({text})"
    dtype = field.encoding.dtype
    if field.kind is DecodeKind.INT:
        names["unpack_int"] = struct.Struct("<q").unpack_from
        return f"unpack_int({data}, {start})[0]"
    if field.kind is DecodeKind.ARRAY:
        names[f"dtype{number}"], names[f"shape{number}"] = dtype, field.encoding.shape
        return f"ndarray(shape{number}, dtype{number}, {data}, {start}){_copy(field)}"
    if field.kind is DecodeKind.VECTOR:
        names[f"vector{number}"] = vector_decoder(field)
        return f"vector{number}({data}, view, {start}, {end})"
    if field.kind is DecodeKind.SCALAR and dtype is not None:
        if (code := _CODES.get(dtype.str[1:])) is not None:
            names[f"type{number}"] = dtype.type
            names[f"unpack{number}"] = struct.Struct(f"<{code}").unpack_from
            return f"type{number}(unpack{number}({data}, {start})[0])"
        # Through a Python float a NaN could lose bits that this keeps.
        names[f"dtype{number}"] = dtype
        return f"ndarray((), dtype{number}, {data}, {start})[()]"
    names[f"decode{number}"] = field.decode
    return f"decode{number}(view[{start}:{end}])"


def _cells(field: Field, data: Any) -> Any:
    """Return the data as values that begin at every byte; each row is a value."""
    dtype, shape, size = field.encoding.dtype, field.encoding.shape, field.size
    assert dtype is not None
    assert shape is not None
    assert size is not None
    # C order; numpy is not asked, which has other words for the strides of an empty array.
    inner = [math.prod(shape[at + 1 :]) * dtype.itemsize for at in range(len(shape))]
    return np.ndarray((max(0, len(data) - size + 1), *shape), dtype, data, 0, (1, *inner))


def _copy(field: Field) -> str:
    """Return the code that copies a view, or "" if the caller takes views."""
    return ".copy()" if field.is_copied and field.kind is DecodeKind.ARRAY else ""


def _build(source: str, names: dict[str, Any]) -> DecoderFactory:
    space = dict(names)
    exec(compile(source, "<decoder of a schema>", "exec"), space)  # noqa: S102 - see the top
    return space["make_getter"]  # type: ignore[no-any-return]


def vector_decoder(field: Field) -> Callable[[Any, memoryview, int, int], Any]:
    """``decode(data, view, start, end)`` of arrays whose type the column fixes and shape does not.

    With one axis there is a byte that says so, the length, and the elements: half a microsecond
    less than the general way, which takes all others.
    """
    dtype = field.encoding.element_dtype
    assert dtype is not None
    size, general, is_copied = dtype.itemsize, field.decode, field.is_copied

    def decode(data: Any, view: memoryview, start: int, end: int) -> Any:
        head = data[start]
        if head >> 2 == 1:
            at = start + 1 + (1 << (head & 3))
            count = int.from_bytes(data[start + 1 : at], "little")
            if count and at + count * size == end:
                found = np.ndarray((count,), dtype, data, at)
                return found.copy() if is_copied else found
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
