"""A tar that is read where it lies, by the places of its files: no header is looked at for a value.

Values come straight from the mapped tar, decoded as the reader of an MDS shard decodes them from
its own file. What is not stored alike in both (numbers in text, arrays) is encoded first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mds.encodings import DecodeKind, parse_encoding
from mds.errors import FormatError
from mds.formats.encode import sample_encoder
from mds.formats.facts import ShardPlace
from mds.formats.made_reader import MadeReader
from mds.formats.tar_bytes import mapped, reads
from mds.formats.tar_members import BLOCK, members
from mds.formats.tar_places import FoundPlaces, TarPlaces
from mds.formats.tar_samples import KEY, group, is_number, value_of, whole_number
from mds.formats.tar_values import TarValues, header_key
from mds.readers.codegen import load_json
from mds.readers.fields import Field, fields_of

if TYPE_CHECKING:
    from mds.formats.tar_bytes import Mapped
    from mds.readers import ColumnSelection, Reader

Get = Callable[[int], Any]
_IMAGES = ("jpeg", "png")


def tar_reader(shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader:
    """Return a reader of a tar on a local disk.

    Raises FormatError for one that is not as it was planned.
    """
    data, values = mapped(path), TarValues(shard, path)
    if len(data) != shard.file.size:
        raise FormatError(f"{path}: it has {len(data):,} bytes, {shard.file.size:,} were planned.")
    places = TarPlaces.of(shard)
    if places is None or not places.files:
        places = _scanned(data, values, shard)
    starts = places.starts.data
    bounds = {name: places.bounds(name) for name in shard.columns.names if name in places.files}
    views = {name: (begins.data, ends.data) for name, (begins, ends) in bounds.items()}
    have_gaps = {name for name, (begins, _) in bounds.items() if begins.min() < 0}
    encode = sample_encoder(shard.columns)

    def key(row: int) -> str:
        return header_key(data, path, starts[row] * BLOCK)

    def make(row: int) -> bytes:
        row_places = {name: (pair[0][row], pair[1][row]) for name, pair in views.items()}
        present_places = {name: place for name, place in row_places.items() if place[0] >= 0}
        record = values.record(
            lambda: key(row), present_places, lambda place: data[place[0] : place[1]]
        )
        return encode(record, lambda: f"{path}, sample {key(row)!r}")

    getters: list[tuple[str, Get]] = []
    for field in fields_of(shard.columns, columns).wanted:
        if field.name == KEY:
            getters.append((KEY, _key_getter(key)))
        elif field.name in views:
            get = _getter(field, columns.images_of(field.name), data, *views[field.name])
            if field.name in have_gaps:
                get = _where_there(get, views[field.name][0], field)
            getters.append((field.name, get))
        else:
            getters.append((field.name, _nothing(field)))

    def sample(row: int) -> dict[str, Any]:
        return {name: get(row) for name, get in getters}

    return MadeReader(shard.columns, shard.samples, path, make, columns, sample)


def _scanned(data: Mapped, values: TarValues, shard: ShardPlace) -> TarPlaces:
    """Scan a tar, whose sidecar has counted its samples, for their places."""
    collected = FoundPlaces()
    for sample in group(members(reads(data), values.location, len(data))):
        values.check(sample)
        collected.add(sample)
    places = collected.places()
    if len(places) != shard.samples:
        raise FormatError(
            f"{values.location}: there are {len(places):,} samples, {shard.samples:,} were planned."
        )
    return places


def _key_getter(key: Get) -> Get:
    def get(row: int) -> str:
        name: str = key(row)
        name.encode()  # raises for a name that is not UTF-8; the slow path words the error
        return name

    return get


def _getter(field: Field, images: str, data: Mapped, begins: memoryview, ends: memoryview) -> Get:
    """Return a getter of a column's values that agrees with readers of MDS shards."""
    encoding = field.encoding.name
    if encoding.startswith("optional["):
        inner = parse_encoding(encoding[len("optional[") : -1])
        decode = (inner.decode_array if images == "array" else None) or inner.decode
        field = field._replace(encoding=inner, kind=inner.decode_kind, decode=decode)
    return _value_getter(field, data, begins, ends)


def _value_getter(field: Field, data: Mapped, begins: memoryview, ends: memoryview) -> Get:
    view, decode, name = memoryview(data), field.decode, field.name
    if field.encoding.name in _IMAGES:
        return lambda row: decode(view[begins[row] : ends[row]])
    if field.kind is DecodeKind.BYTES:
        return lambda row: data[begins[row] : ends[row]]
    if field.kind is DecodeKind.TEXT and not is_number(name):
        return lambda row: data[begins[row] : ends[row]].decode()
    if field.kind is DecodeKind.JSON:
        return lambda row: load_json(data[begins[row] : ends[row]].decode().rstrip())
    if field.kind is DecodeKind.INT and is_number(name):

        def number(row: int) -> int:
            parsed = whole_number(data[begins[row] : ends[row]])
            if parsed is None:
                raise ValueError
            return parsed

        return number
    pack, encoding = field.encoding.pack, field.encoding.name

    def careful(row: int) -> Any:
        value = value_of(name, data[begins[row] : ends[row]], encoding)
        return decode(memoryview(pack(value)))

    return careful


def _where_there(get: Get, begins: memoryview, field: Field) -> Get:
    nothing = _nothing(field)
    return lambda row: nothing(row) if begins[row] < 0 else get(row)


def _nothing(field: Field) -> Get:
    """Return a getter for a missing file: None if allowed, else an error, worded elsewhere."""
    may_be_none = field.encoding.name == "json" or field.encoding.name.startswith("optional[")

    def get(row: int) -> None:
        if not may_be_none:
            raise ValueError(row)

    return get
