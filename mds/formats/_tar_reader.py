"""Read samples of a tar by the places of their files, without looking at headers.

`tar_reader` reads a tar on a local disk in place. Values come from the mapped tar and are decoded
as the reader of an MDS shard decodes them. Values that MDS stores differently (numbers in text,
arrays) are encoded first.

`SampleBytes` fetches the files of a remote tar by ranges, and `tar_blocks` makes a block of them:
the bytes of some samples as in an MDS shard (`Block`). Images, bytes and texts in UTF-8 are copied
unchanged. A value that cannot be stored is decoded again by `TarValues`, whose problem names it.

A row is the number of a sample in its tar. A column is a file ending such as ``jpg``, or `KEY`, the
name that the files of a sample have in common. A `Get` returns a column's value for a row.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mds._readers.codegen import load_json
from mds._readers.fields import Field, fields_of
from mds._words import plural
from mds.encodings import parse_encoding
from mds.errors import FormatError
from mds.formats._encode import ColumnBytes, encode_records, join_columns, sample_encoder
from mds.formats._facts import Block, Problem, ShardPlace
from mds.formats._made_reader import MadeReader
from mds.formats._tar_members import BLOCK, ReadAt, mapped, members, reads
from mds.formats._tar_places import FoundPlaces, TarPlaces
from mds.formats._tar_samples import (
    COPIED,
    KEY,
    KEY_TWICE,
    TarValues,
    encoding_by_ending,
    group,
    header_key,
    is_number,
    value_of,
    whole_number,
)

if TYPE_CHECKING:
    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds.formats._source import Files
    from mds.formats._tar_members import Mapped

Get = Callable[[int], Any]


def tar_reader(shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader:
    """Return a reader of a tar on a local disk, which is mapped into memory.

    - ``shard`` (ShardPlace): The tar as it was planned. ``path`` (str): Its path.
    - ``columns`` (ColumnSelection): The columns to decode.

    A sample consists of what the getter of each column returns. If a getter fails, the sample is
    made again as MDS bytes by `TarValues`, which checks everything and raises errors with a
    message. Raises FormatError for a tar that changed since it was planned.
    """
    data, values = mapped(path), TarValues(shard, path)
    if len(data) != shard.file.size:
        raise FormatError(
            f"{path}: it has {len(data):,} bytes, but {shard.file.size:,} were expected."
        )
    places, found_problems = TarPlaces.of(shard), dict[int, Problem]()
    if places is None or not places.files:
        places, found_problems = _scanned(data, values, shard)
    problems = frozenset(places.problems.tolist())
    starts = places.starts.data  # of samples, in blocks of 512 bytes
    # By column: the bytes at which the file of each sample begins and ends; -1 for a missing file.
    bounds = {name: places.bounds(name) for name in shard.columns.names if name in places.files}
    views = {name: (begins.data, ends.data) for name, (begins, ends) in bounds.items()}
    have_gaps = {name for name, (begins, _) in bounds.items() if begins.min() < 0}
    encode = sample_encoder(shard.columns)

    def key(row: int) -> str:
        return header_key(data, path, starts[row] * BLOCK)

    def mds_bytes(row: int) -> bytes:
        """Return the bytes of a sample as in an MDS shard, or raise an error with a message."""
        if row in problems:
            found = found_problems.get(row)
            raise FormatError(found or problem_at(places, row, values, reads(data)))
        spans = {name: (begins[row], ends[row]) for name, (begins, ends) in views.items()}
        # The span of a missing file is (-1, -1).
        existing_spans = {name: span for name, span in spans.items() if span[0] >= 0}
        record = values.record(
            lambda: key(row), existing_spans, lambda span: data[span[0] : span[1]]
        )
        if isinstance(record, Problem):
            raise FormatError(record)
        return encode(record, lambda: values.locate(key(row)))

    getters: list[tuple[str, Get]] = []
    for field in fields_of(shard.columns, columns).selected:
        if field.name == KEY:
            getters.append((KEY, _key_getter(key, field.encoding.name)))
        elif field.name in views:
            get = _getter(field, columns.images_of(field.name), data, *views[field.name])
            if field.name in have_gaps:
                get = _optional_getter(get, views[field.name][0], field)
            getters.append((field.name, get))
        else:
            getters.append((field.name, _missing_getter(field)))

    def sample(row: int) -> dict[str, Any]:
        if row in problems:
            raise ValueError(row)  # `mds_bytes` then raises an error with a message
        return {name: get(row) for name, get in getters}

    return MadeReader(shard.columns, shard.samples, path, mds_bytes, columns, sample)


def _scanned(
    data: Mapped, values: TarValues, shard: ShardPlace
) -> tuple[TarPlaces, dict[int, Problem]]:
    """Scan a mapped tar for the places of files, which its sidecar did not give.

    Returns the places, and the problem of each row that is no sample. Raises FormatError if the tar
    has another number of samples than planned.
    """
    collected, problems = FoundPlaces(), dict[int, Problem]()
    for row, sample in enumerate(group(members(reads(data), values.location, len(data)))):
        if problem := values.find_problem(sample):
            problems[row] = problem
        collected.add(sample, is_problem=problem is not None)
    places = collected.places()
    if len(places) != shard.samples:
        raise FormatError(
            f"{values.location}: there are {plural(len(places), 'sample')}, but "
            f"{shard.samples:,} were expected."
        )
    return places, problems


def _key_getter(key: Get, encoding: str) -> Get:
    """Return a function from a row to the name of its sample, by ``key``.

    It raises an error for a name that is not UTF-8, and in a column of another encoding than text.
    """

    def get(row: int) -> str:
        if encoding != "str":
            raise ValueError(row)
        name: str = key(row)
        name.encode()  # raises for a name that is not UTF-8; `TarValues` then raises with a message
        return name

    return get


def _getter(field: Field, images: str, data: Mapped, begins: memoryview, ends: memoryview) -> Get:
    """Return a function from a row to a column's value, equal to what an MDS reader returns.

    - ``field`` (Field): The column. ``images`` (str): "array" for pixels instead of Pillow images.
    - ``data`` (Mapped): The tar. ``begins``, ``ends``: bytes of the column's file in each sample.
    """
    encoding = field.encoding.name
    if encoding.startswith("optional["):
        inner = parse_encoding(encoding[len("optional[") : -1])
        decode = (inner.decode_array if images == "array" else None) or inner.decode
        field = field._replace(encoding=inner, kind=inner.decode_kind, decode=decode)
    return _value_getter(field, data, begins, ends)


def _value_getter(field: Field, data: Mapped, begins: memoryview, ends: memoryview) -> Get:
    """Return a function from a row to a column's value; see `_getter`. Every row must have a file.

    Values that MDS stores as the tar does are decoded directly, others are encoded first. The
    function raises an error without a message for a wrong value: `MadeReader` then makes the sample
    another way, which raises one with a message.
    """
    view, decode, name = memoryview(data), field.decode, field.name
    form = stored_form(name, field.encoding.name)
    if form == "image":
        return lambda row: decode(view[begins[row] : ends[row]])
    if form == "bytes":
        return lambda row: data[begins[row] : ends[row]]
    if form == "text":
        return lambda row: data[begins[row] : ends[row]].decode()
    if form == "json":
        return lambda row: load_json(data[begins[row] : ends[row]].decode().rstrip())
    if form == "number":

        def parse_number(row: int) -> int:
            """Parse the text of a row's file, such as b"42", to a number."""
            number = whole_number(data[begins[row] : ends[row]])
            if number is None:
                raise ValueError("not a whole number")
            return number

        return parse_number
    pack, encoding = field.encoding.pack, field.encoding.name

    def encode_and_decode(row: int) -> Any:
        value = value_of(name, data[begins[row] : ends[row]], encoding)
        return decode(memoryview(pack(value)))

    return encode_and_decode


def _optional_getter(get: Get, begins: memoryview, field: Field) -> Get:
    """Return a getter like ``get`` for a column that some samples lack (``begins`` is -1)."""
    get_missing = _missing_getter(field)
    return lambda row: get_missing(row) if begins[row] < 0 else get(row)


def _missing_getter(field: Field) -> Get:
    """Return a getter for a missing file: it returns None if allowed, else raises ValueError.

    `MadeReader` then makes the sample by `TarValues`, whose error has a message.
    """
    may_be_none = field.encoding.name == "json" or field.encoding.name.startswith("optional[")

    def get(row: int) -> None:
        if not may_be_none:
            raise ValueError(row)

    return get


# --------------------------------------------------------------------- ranges of a remote tar


Span = tuple[int, int]
#: Ranges this close are fetched together. About this many bytes arrive in the 30 ms of a
#: request, with 8 requests at a time.
GAP = 256 << 10
#: Most bytes of wanted files in memory at once, and most samples.
_BATCH_BYTES, _BATCH = 16 << 20, 1024
#: Approximate bytes of a block; allocators reuse memory of this size.
_BLOCK_BYTES = 2 << 20
#: Bytes at the beginning of a file that show whether it is a picture.
_PICTURE_HEAD = 16
#: Most bytes of the headers of a file that are read for its name.
_LONGEST_HEAD = 64 << 10


class SampleBytes:
    """The contents of the wanted files of some samples, from a tar whose places are known.

    - ``rows``: numbers of the samples.
    - ``spans``: bytes (begin, end) of the file of each sample, by column; (-1, -1) for a missing
      file. For `KEY` they are those of the headers of the first file.
    - ``data``: the content of each span.
    - ``find_key``: returns the key of a sample, for an error.
    """

    def __init__(
        self,
        rows: Sequence[int],
        spans: Mapping[str, list[Span]],
        data: Mapping[Span, memoryview],
        find_key: Callable[[int], str],
    ) -> None:
        self.rows, self._spans, self._data, self.find_key = rows, spans, data, find_key

    @classmethod
    def fetch(
        cls, places: TarPlaces, rows: Sequence[int], shard: ShardPlace, files: Files
    ) -> SampleBytes:
        """Read the samples ``rows`` from a local tar, or fetch them by ranges from a remote one."""
        spans = _spans(places, np.asarray(rows, np.int64), shard)
        # A missing file has the span (-1, -1).
        existing_spans = [span for column in spans.values() for span in column if span[0] >= 0]
        path = files.path(shard.file)  # None for a remote tar
        if path is not None:
            view = memoryview(mapped(path))
            contents = [view[start:end] for start, end in existing_spans]
        else:
            # Files less than GAP bytes apart come in one request.
            fetched = files.ranges(shard.file, existing_spans, GAP)
            contents = [memoryview(content) for content in fetched]
        find_key = functools.partial(key_at, places, shard=shard, files=files)
        return cls(rows, spans, dict(zip(existing_spans, contents, strict=True)), find_key)

    def parts(self) -> Iterator[SampleBytes]:
        """Yield the samples in parts of some megabytes, so that blocks reuse the same memory.

        ``data`` is not copied: all parts share it.
        """
        size = sum(end - start for start, end in self._data)
        step = max(1, len(self.rows) * _BLOCK_BYTES // max(size, 1))
        for index in range(0, len(self.rows), step):
            spans = {name: each[index : index + step] for name, each in self._spans.items()}
            rows = self.rows[index : index + step]
            yield SampleBytes(rows, spans, self._data, self.find_key)

    def column(self, name: str) -> list[memoryview]:
        """Return the files of a column; headers for the key. Raises KeyError for a missing file."""
        return [self._data[span] for span in self._spans[name]]

    def records(self, values: TarValues) -> Iterator[Mapping[str, Any] | Problem]:
        """Yield the samples as records, and a problem in place of one that is wrong."""
        for index, row in enumerate(self.rows):
            spans = {name: each[index] for name, each in self._spans.items() if each[index][0] >= 0}
            head = spans.pop(KEY, None)

            def key(row: int = row, head: Span | None = head) -> str:
                if head is None:
                    return self.find_key(row)  # for an error: the name was not fetched
                return header_key(self._data[head], values.location)

            yield values.record(key, spans, lambda place: bytes(self._data[place]))


def batches(places: TarPlaces, shard: ShardPlace) -> Iterator[range]:
    """Yield ranges of rows that cover all samples, each as many as may be in memory at once."""
    names = [name for name in shard.columns.names if name in places.files]
    sample_size = places.size(names) // max(len(places), 1) + BLOCK  # on average, with its header
    step = max(1, min(_BATCH, _BATCH_BYTES // sample_size))
    for row in range(0, shard.samples, step):
        yield range(row, min(row + step, shard.samples))


def whole_records(
    places: TarPlaces, rows: Sequence[int], shard: ShardPlace, files: Files, values: TarValues
) -> Iterator[Mapping[str, Any] | Problem]:
    """Yield records of the samples ``rows`` if only the begin of each sample is known.

    The whole samples are fetched, and their headers are read. Raises FormatError if a range holds
    more or less than one sample.
    """
    sample_bytes = files.ranges(shard.file, places.spans(rows))
    for row, data in zip(rows, sample_bytes, strict=True):
        read = reads(bytes(data))
        samples = list(group(members(read, values.location)))
        if len(samples) != 1:
            raise FormatError(
                f"{values.location}, sample {row:,}: there are {plural(len(samples), 'sample')} "
                f"instead of one; the recorded positions do not match the tar."
            )
        yield values.of_sample(samples[0], read)


def _spans(places: TarPlaces, rows: Any, shard: ShardPlace) -> dict[str, list[Span]]:
    """Return bytes (begin, end) of the wanted files of each sample, by column.

    They are (-1, -1) for a missing file. For `KEY` they are those of the headers of the first file,
    which hold the name of the sample. Example for two samples, the second without a text:
    ``{"jpg": [(1536, 3036), (4096, 5200)], "txt": [(512, 521), (-1, -1)]}``.
    """
    out = {}
    for name in shard.columns.names:
        if name in places.files:
            begins, ends = (each[rows] for each in places.bounds(name))
        elif name == KEY:
            begins, ends = (each[rows] for each in places.heads())
        else:
            continue
        out[name] = list(zip(begins.tolist(), ends.tolist(), strict=True))
    return out


def key_at(places: TarPlaces, row: int, shard: ShardPlace, files: Files) -> str:
    """Return the key of a sample, whose headers are read for an error."""
    ((begin, end),) = places.spans([row])
    head_end = int(places.heads()[1][row]) if places.files else min(end, begin + _LONGEST_HEAD)
    return header_key(files.range(shard.file, begin, head_end), files.url(shard.file))


def problem_at(places: TarPlaces, row: int, values: TarValues, read: ReadAt) -> Problem:
    """Return why a sample is none, by its files; ``read`` returns bytes of the tar.

    A sample whose own files are right is none because an earlier one has its key.
    """
    ((begin, end),) = places.spans([row])
    files = members(read, values.location, offset=begin)
    sample = next(group(itertools.takewhile(lambda member: member.header < end, files)))
    return Problem(values.locate(sample.key), sample.problem or KEY_TWICE)


def tar_blocks(
    sample_bytes: SampleBytes, shard: ShardPlace, values: TarValues
) -> Iterator[Block | Problem]:
    """Encode some samples column by column, and yield them as a block.

    If a value cannot be encoded, all samples are encoded again one by one. This is slow, but finds
    the sample, in whose place a problem is yielded.
    """
    try:
        block = _joined(sample_bytes, values)
    except Exception:  # noqa: BLE001 - `records` or `encode_records` finds the reason
        records, rows = sample_bytes.records(values), sample_bytes.rows
        yield from encode_records(
            shard.columns, records, lambda index: values.locate(sample_bytes.find_key(rows[index]))
        )
    else:
        yield block


def stored_form(name: str, encoding: str) -> str:
    """Return how MDS stores the files of a column, if it does so without NumPy or `value_of`.

    It is "image" or "bytes" for files that are copied, "text" for those that must be UTF-8,
    "number" for int64, "json", or '' for all others. ``name`` is the column (an ending).
    """
    if encoding in COPIED:
        return "bytes" if encoding == "bytes" else "image"
    if encoding == "str" and not is_number(name):
        return "text"
    if encoding == "int" and is_number(name):
        return "number"
    return "json" if encoding == encoding_by_ending(name) == "json" else ""


def _joined(sample_bytes: SampleBytes, values: TarValues) -> Block:
    """Join samples to a block. Raises errors of many classes for wrong values."""
    columns: list[ColumnBytes] = []
    for name, encoding in values.encodings.items():
        pieces = sample_bytes.column(name)
        form = stored_form(name, encoding)
        if name == KEY:
            if encoding != "str":
                raise ValueError(f"the key is stored as {encoding}")
            columns.append([header_key(each, values.location).encode() for each in pieces])
        elif form in ("image", "bytes"):
            for each in pieces if form == "image" else ():
                # Raises an error for bytes that do not begin like a picture.
                parse_encoding(encoding).check_bytes(bytes(each[:_PICTURE_HEAD]))
            columns.append(pieces)
        elif form == "text":
            for each in pieces:
                str(each, "utf-8")  # raises an error for bytes that are not UTF-8
            columns.append(pieces)
        elif form == "number":
            columns.append(_integers(whole_number(bytes(each)) for each in pieces))
        else:
            columns.append(_packed(name, encoding, pieces))
    return join_columns(len(sample_bytes.rows), columns)


def _integers(numbers: Iterable[int | None]) -> npt.NDArray[np.uint8]:
    """Return the numbers as int64, uint8 of shape (rows, 8). Raises TypeError for None."""
    values: Any = list(numbers)
    return np.array(values, "<i8").view(np.uint8).reshape(len(values), 8)


def _packed(name: str, encoding: str, pieces: list[memoryview]) -> ColumnBytes:
    """Encode the files of a column whose values MDS does not store as the tar does.

    ``name`` is the column (an ending), ``pieces`` are the contents of its files.
    """
    kind = parse_encoding(encoding)
    packed = [kind.pack(value_of(name, bytes(each), encoding)) for each in pieces]
    if kind.size is None:
        return packed
    return np.frombuffer(b"".join(packed), np.uint8).reshape(len(packed), kind.size)
