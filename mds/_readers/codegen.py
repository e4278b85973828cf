"""Decoders compiled for one schema, so that a sample costs a lookup, a slice and a dict.

A loop over the columns that calls ``Encoding.decode`` takes three times as long as the values
themselves (measured: 1.9 us against 0.6 us for a text with its JSON). So the decoder of a schema is
generated as Python source and compiled once. The source contains no name and no value of a dataset:
column names are bound to ``k0``, ``k1``, ... in the namespace of the function.

There are three templates:
    views     all columns are fixed: row ``row`` of a strided view on the file for each column
    offsets   a sample lies between two offsets and begins with the sizes of its variable columns,
              whose sum must be the size of the sample
    sample    the same for the bytes of one sample
In all of them ``o`` is the start of the sample, ``e`` its end, ``s0``, ``s1``, ... the sizes of
variable columns, and ``p0``, ``p1``, ... the ends of these columns. If anything fails they call
``decode_slowly``, which raises an error that says what is wrong.

For columns ``number: int`` and ``text: str`` the offsets template becomes:

    s0, = sizes(data, o)
    p0 = o + 12 + s0
    if p0 != e:
        return decode_slowly(row)
    return {k0: unpack_int(data, o + 4)[0], k1: data[o + 12:p0].decode()}
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

from mds._readers.fields import Field, Fields
from mds.encodings import DecodeKind

# Function that makes the `get` of one reader.
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
    """Compile ``make_getter(decode_slowly, *views)``, with a view for each selected column.

    It returns a function from a row to its sample, such as
    ``{k0: v0.item(row), k1: v1[row].copy()}``.
    """
    names, items = {}, []
    for number, field in enumerate(fields.selected):
        names[f"k{number}"] = field.name
        row = ".item(row)" if field.kind is DecodeKind.INT else f"[row]{_copy(field)}"
        items.append(f"k{number}: v{number}{row}")
    # Without columns there is no view, and the function takes no arguments but the first.
    views = ", ".join(f"v{number}" for number in range(len(items))) or "*nothing"
    return _build(_VIEWS.format(views=views, items=", ".join(items)), names)


@functools.lru_cache(maxsize=256)
def compile_samples(columns: tuple[str, ...]) -> Callable[..., Iterator[dict[str, Any]]]:
    """Return a generator function that yields samples, given an iterator for each column.

    For the columns a and b it loops ``for v0, v1 in zip(v0, v1): yield {"a": v0, "b": v1}``.
    """
    names = {f"k{number}": name for number, name in enumerate(columns)}
    values = ", ".join(f"v{number}" for number in range(len(columns)))
    items = ", ".join(f"k{number}: v{number}" for number in range(len(columns)))
    source = values if len(columns) == 1 else f"zip({values})"
    make_samples: Callable[..., Iterator[dict[str, Any]]] = _build(
        f"def make_getter():\n"
        f"    def samples({values}):\n"
        f"        for {values} in {source}:\n"
        f"            yield {{{items}}}\n"
        f"    return samples\n",
        names,
    )()  # type: ignore[assignment]
    return make_samples


@functools.lru_cache(maxsize=256)
def compile_offsets(fields: Fields) -> DecoderFactory:
    """Compile ``make_getter(decode_slowly, data, view, offsets)``; the last two are memoryviews."""
    return _compile(_OFFSETS, fields, "data")


@functools.lru_cache(maxsize=256)
def compile_sample(fields: Fields) -> DecoderFactory:
    """Compile ``make_getter(decode_slowly)``, for a memoryview of the bytes of one sample."""
    return _compile(_SAMPLE, fields, "view")


def _compile(template: str, fields: Fields, data: str) -> DecoderFactory:
    """Fill the template "offsets" or "sample" for some columns, and compile it.

    ``fields`` are the columns. ``data`` is the name of the buffer in the template: "data" in
    "offsets", where it is the mapped file, and "view" in "sample", a memoryview of one sample.

    Three lists of source are collected: ``setup`` are lines that run once for each reader, ``body``
    lines that compute sizes and ends of a sample's columns, ``items`` the entries of its dict. An
    example of the result is at the top of this file.
    """
    names: dict[str, Any] = {"ndarray": np.ndarray, "load_json": load_json}
    setup: list[str] = []
    body: list[str] = []
    items: list[str] = []
    count = fields.variable
    if count:
        names["sizes"] = struct.Struct(f"<{count}I").unpack_from
        words = "".join(f"s{number}, " for number in range(count))
        body.append(f"{words}= sizes({data}, o)")
    # The next column begins at `{base} + {shift}`: a variable in the source and a number of bytes.
    base, shift, sizes_used = "o", 4 * count, 0
    for number, field in enumerate(fields.stored):
        start = f"{base} + {shift}" if shift else base
        if field.size is None:
            body.append(f"p{sizes_used} = {start} + s{sizes_used}")
            base, shift, end = f"p{sizes_used}", 0, f"p{sizes_used}"
            sizes_used += 1
        else:
            shift += field.size
            end = f"{base} + {shift}"
        if field.is_selected:
            names[f"k{number}"] = field.name
            if data == "data" and field.kind is DecodeKind.ARRAY:
                # Indexing one view of all values is 0.15 us faster than making an array for each.
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
    """Return the source of an expression for a value of column ``number``.

    Objects that the expression needs are added to ``names``. ``place`` has the expressions of the
    buffer, the start and the end of the value.
    """
    data, start, end = place
    part = f"{data}[{start}:{end}]"
    if field.kind is DecodeKind.BYTES:
        return part if data == "data" else f"bytes({part})"
    # A slice of a mapped file is bytes, whose `decode` is faster than `str`; a view has no
    # `decode`.
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
        # A Python float in between could change the bits of a NaN.
        names[f"dtype{number}"] = dtype
        return f"ndarray((), dtype{number}, {data}, {start})[()]"
    names[f"decode{number}"] = field.decode
    return f"decode{number}(view[{start}:{end}])"


def _cells(field: Field, data: Any) -> Any:
    """Return an array of values that overlap: element i is the value that begins at byte i."""
    dtype, shape, size = field.encoding.dtype, field.encoding.shape, field.size
    assert dtype is not None
    assert shape is not None
    assert size is not None
    # Strides: one byte from element to element, and C order inside a value. They are computed here
    # because numpy gives others for an empty array.
    inner = [math.prod(shape[axis + 1 :]) * dtype.itemsize for axis in range(len(shape))]
    return np.ndarray((max(0, len(data) - size + 1), *shape), dtype, data, 0, (1, *inner))


def _copy(field: Field) -> str:
    """Return the code that copies a view, or '' if the caller accepts views."""
    return ".copy()" if field.is_copied and field.kind is DecodeKind.ARRAY else ""


def _build(source: str, names: dict[str, Any]) -> DecoderFactory:
    """Compile the source of a ``make_getter`` with ``names`` as its globals, and return it."""
    space = dict(names)
    exec(compile(source, "<decoder of a schema>", "exec"), space)  # noqa: S102 - see the top
    return space["make_getter"]  # type: ignore[no-any-return]


def vector_decoder(field: Field) -> Callable[[Any, memoryview, int, int], Any]:
    """Return ``decode(data, view, start, end)`` for arrays of one dtype and any shape.

    An array with one axis is stored as a byte with the number of axes and the width of a length,
    the length, and the elements. Decoding that form here takes half a microsecond less than
    ``Encoding.decode``, which decodes all other forms.
    """
    dtype = field.encoding.element_dtype
    assert dtype is not None
    item_size, decode_any, is_copied = dtype.itemsize, field.decode, field.is_copied

    def decode(data: Any, view: memoryview, start: int, end: int) -> Any:
        """Return the array in bytes ``start`` to ``end``; ``view`` is a memoryview of ``data``.

        The bytes are: a head, the length of each axis, the elements. Only arrays of one axis are
        decoded here, others by ``decode_any``. An array of three elements of one byte is
        ``04 03 | e0 e1 e2``.
        """
        head = data[start]  # number of axes, times four, plus log2 of the bytes of a length
        if head >> 2 == 1:
            first = start + 1 + (1 << (head & 3))  # position of the first element
            count = int.from_bytes(data[start + 1 : first], "little")
            # Empty or damaged arrays are left to `decode_any`, too.
            if count and first + count * item_size == end:
                array = np.ndarray((count,), dtype, data, first)
                return array.copy() if is_copied else array
        return decode_any(view[start:end])

    return decode


def load_json(text: str) -> Any:
    """Parse JSON like ``json.loads``, in half the time for the short texts of samples."""
    # The scanner parses one value, without checks of white space around it.
    try:
        value, end = _SCAN(text, 0)
    except (StopIteration, ValueError):
        # White space at the beginning, or an error, for which json.loads has a better message.
        return json.loads(text)
    return value if end == len(text) else json.loads(text)
