"""Samples of a tar: files with one name before the first dot, a column for each ending.

    000017.jpg 000017.cls 000017.json   ->   __key__ '000017', jpg, cls, json

The files of a sample follow one another; a late file cannot be told from a missing one. Files
without an ending and hidden files are skipped. `TarColumns` infers the columns of a tar from the
endings, and from values where an ending is not enough. `TarValues` makes records of samples: dicts
from column to value, or a `Problem` for a sample whose files are wrong. The place of a file is
(begin, end), the bytes of its content in the tar.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import mmap
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.encodings import parse_encoding
from mds.errors import FormatError
from mds.formats._columns import KnownColumns, encoding_of, without_optional
from mds.formats._facts import Problem, ShardPlace
from mds.formats._fit import find_coercer
from mds.formats._names import find_hidden
from mds.formats._tar_members import (
    BLOCK,
    Arriving,
    Member,
    ReadAt,
    Windows,
    mapped,
    members,
    reads,
)
from mds.formats._unpack import find_compression, read_start, unpacked

if TYPE_CHECKING:
    from mds.formats._facts import DataFile
    from mds.formats._source import Files

#: The column of the name that the files of a sample have in common.
KEY = "__key__"

_TEXT = {"txt", "text", "transcript", "caption", "url"}
_NUMBER = {"cls", "cls2", "index", "inx", "id", "label"}
_WHOLE_NUMBER = re.compile(rb"-?(0|[1-9][0-9]*)")
_IMAGE = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png"}
#: Bytes of a remote tar that are fetched at once if few of them are needed.
_WINDOW = 64 << 10
#: Problem of a sample whose files do not follow one another.
KEY_TWICE = (
    "an earlier sample has the same key, with others between them; write the files of a sample "
    "one after the other, and each key once"
)
#: Encodings that store the bytes of a file unchanged.
COPIED = ("bytes", "jpeg", "png")


@dataclasses.dataclass(slots=True)
class TarSample:
    """The files of one sample, by ending, in the order of the tar.

    - ``key``: the name that its files have in common.
    - ``end``: first byte after its last file.
    - ``problem``: why they are not a valid sample; '' for a valid one.
    """

    key: str
    files: dict[str, Member]
    end: int = 0
    problem: str = ""

    @property
    def start(self) -> int:
        """First byte of the sample: that of its first header."""
        return next(iter(self.files.values())).header


@dataclasses.dataclass(frozen=True)
class OpenTar:
    """The bytes of a tar that is being read.

    - ``location``: names it in errors.
    - ``read``: returns its bytes, decompressed.
    - ``size``: number of them; None for a compressed tar, of which it is not known.
    - ``is_compressed``: whether it is compressed.
    - ``forget``: frees what was read; None if the bytes can be read in any order.
    """

    location: str
    read: ReadAt
    size: int | None
    is_compressed: bool = False
    forget: Callable[[int], object] | None = None

    def samples(self) -> Iterator[TarSample]:
        """Yield the samples in order. The bytes of one can be read until the next one."""
        for sample in group(members(self.read, self.location, self.size)):
            yield sample
            if self.forget is not None:
                self.forget(sample.end)


def open_tar(file: DataFile, files: Files, *, few: bool = False) -> OpenTar:
    """Open a tar, which may be compressed.

    Args:
        file: The tar.
        files: Reads it.
        few: Only some of its bytes are needed: a remote tar is fetched in pieces, unless it is
            compressed. By default it is fetched from its beginning to its end.
    """
    location, path = files.url(file), files.path(file)
    if path is not None or few:
        read = Windows(files, file, _WINDOW).read if path is None else reads(mapped(path))
        if find_compression(read(0, BLOCK)) is None:
            return OpenTar(location, read, file.size)
    start, chunks = read_start(files.stream(file), BLOCK)
    compression = find_compression(start)
    if compression is not None:
        chunks = unpacked(chunks, compression, location)
    source, is_compressed = Arriving(chunks), compression is not None
    size = None if is_compressed else file.size
    return OpenTar(location, source.read, size, is_compressed, source.forget)


def group(tar_members: Iterable[Member]) -> Iterator[TarSample]:
    """Group the files of a tar into samples, and yield these in order.

    A sample whose files are wrong is yielded with a ``problem``.
    """
    sample: TarSample | None = None
    seen_hashes: set[int] = set()  # of keys; hashes take a tenth of the memory
    for member in tar_members:
        key, ending = split_name(member.name)
        if not ending or find_hidden(member.name):
            continue
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = TarSample(key, {})
            if hash(key) in seen_hashes:
                sample.problem = KEY_TWICE
            seen_hashes.add(hash(key))
        problem = "exists twice" if ending in sample.files else member.problem
        if ending == KEY:
            problem = f"has the ending {KEY!r}, which is the column of names; give it another one"
        if problem and not sample.problem:
            sample.problem = f"the file {member.name!r} {problem}"
        sample.files.setdefault(ending, member)
        sample.end = member.end
    if sample is not None:
        yield sample


def split_name(path: str) -> tuple[str, str]:
    """Split a path into key and ending: ``'a/b.c/17.left.jpg'`` is ``('a/b.c/17', 'left.jpg')``."""
    folder, slash, base = path.rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending.lower()


def encoding_by_ending(ending: str) -> str | None:
    """Return the encoding of files with an ending, or None if it depends on their contents.

    It depends for whole numbers, which are text if one of them is not a number, and for arrays,
    which have a type each.
    """
    kind = ending.rpartition(".")[2]
    if kind in _IMAGE:
        return _IMAGE[kind]
    if kind in _TEXT or ending == KEY:
        return "str"
    if kind == "json":
        return "json"
    return None if kind in _NUMBER or kind == "npy" else "bytes"


def is_number(ending: str) -> bool:
    """Whether files of an ending hold whole numbers, or text where not all are."""
    return ending.rpartition(".")[2] in _NUMBER


def whole_number(data: bytes) -> int | None:
    """Return the whole number in a file, or None for 007, 1_000 and other spellings."""
    text = data.strip()
    if len(text) > 20 or not _WHOLE_NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 and text != b"-0" else None


def value_of(ending: str, data: bytes, encoding: str | None = None) -> Any:
    """Return the value in a file of a sample.

    Args:
        ending: Ending of the file.
        data: Its content.
        encoding: Encoding of the column. None (default) if it is not known yet; a number is then an
            int if it can be.

    Raises ValueError, with the reason, for content that the ending or the encoding does not allow.
    """
    kind = ending.rpartition(".")[2]
    plain = None if encoding is None else without_optional(encoding)
    if plain in COPIED:
        if plain != "bytes":
            parse_encoding(plain).check_bytes(data)
        return data
    if plain == "audio":
        return data
    is_usual = plain in (None, "str", "json" if kind == "json" else "int" * (kind in _NUMBER))
    if encoding is not None and not is_usual and kind != "npy":
        return _parsed(json.loads(data) if kind == "json" else data.decode(), encoding)
    if kind in _NUMBER:
        number = None if plain == "str" else whole_number(data)
        if number is None and plain not in (None, "str"):
            raise ValueError(f"{data[:40]!r} is not a whole number, but the others are")
        return data.decode().strip() if number is None else number
    if kind in _TEXT or plain == "str":
        return data.decode()
    if kind == "json":
        return json.loads(data)
    return data if kind != "npy" else _array(data, plain)


def _parsed(value: Any, encoding: str) -> Any:
    """Return a text, or a value of JSON, as a value of an encoding. Raises ValueError."""
    if value == "" and encoding.startswith("optional["):
        return None
    fit = _coercer(encoding)
    return value if fit is None else fit(value)


def _array(data: bytes, encoding: str | None) -> Any:
    """Return the array in a file, with the dtype of its column. Raises ValueError."""
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # NumPy raises errors of many classes for damage
        raise ValueError(str(error)) from error
    fit = None if encoding is None else _coercer(encoding)
    return array if fit is None else fit(array)


@functools.lru_cache(maxsize=64)
def _coercer(encoding: str) -> Callable[[Any], Any] | None:
    return find_coercer(encoding, from_text=True)


Buffer = mmap.mmap | bytes | memoryview
#: Bytes (begin, end) of the wanted files of a sample, by column.
Places = Mapping[str, tuple[int, int]]
#: Number of samples from which the columns of a tar are inferred if not all are looked at, and of
#: values from which the encoding of a column of arrays is.
_PROBED = 200


class TarValues:
    """Converter of the samples of one tar to records (dicts from column to value).

    ``shard`` is the tar as it was planned, ``location`` names it in errors.
    """

    def __init__(self, shard: ShardPlace, location: str) -> None:
        self.location, self.known_columns = location, KnownColumns(shard)
        self.encodings = dict(zip(shard.columns.names, shard.columns.encodings, strict=True))

    def locate(self, key: str) -> str:
        """Return the location of the sample with a key, for errors."""
        return locate(self.location, key)

    def find_problem(self, sample: TarSample) -> Problem | None:
        """Return why a sample is none, or has a file that was not planned; None if it is right."""
        location = self.locate(sample.key)
        if sample.problem:
            return Problem(location, sample.problem)
        if self.known_columns.is_late(sample.files):
            late = self.known_columns.late(sample.files)
            return Problem(
                location,
                f"it has a file {late}, which the samples at the beginning do not have",
                "Name the columns that you want with columns=.",
            )
        return None

    def of_sample(self, sample: TarSample, read: ReadAt) -> Mapping[str, Any] | Problem:
        """Return the record of a sample (values by column), or the reason why it has none."""
        if problem := self.find_problem(sample):
            return problem
        names = [name for name in self.encodings if name in sample.files]
        files = {name: sample.files[name] for name in names}
        places = {name: (each.start, each.start + each.size) for name, each in files.items()}
        return self.record(lambda: sample.key, places, lambda place: read(*place))

    def record(
        self,
        key: Callable[[], str],
        places: Places,
        read: Callable[[tuple[int, int]], bytes],
    ) -> Mapping[str, Any] | Problem:
        """Return the record of a sample, or the reason why it has none.

        It has none if a value is wrong, or a file is missing.

        Args:
            key: Returns the name of the sample.
            places: Places of its files, by column.
            read: Returns the bytes at such a place.
        """
        record: dict[str, Any] = dict(self.known_columns.gaps)
        if KEY in self.encodings:
            record[KEY] = _parsed(key(), self.encodings[KEY])
        for name, (start, end) in places.items():
            encoding = self.encodings[name]
            data = read((start, end))
            if len(data) < end - start:  # the size of a compressed tar is not known before
                return Problem(self.locate(key()), f"the tar ends inside the file .{name}")
            try:
                record[name] = value_of(name, data, encoding)
            except (ValueError, RecursionError) as error:
                reason = str(error)
                if isinstance(error, UnicodeDecodeError):
                    reason = f"byte 0x{data[error.start]:02x} is not UTF-8"
                kind, stored = ("text", "str") if is_number(name) else ("bytes", "bytes")
                stored = encoding.replace(without_optional(encoding), stored)
                remedy = (
                    f"Read the column as {kind} with encodings={{{name!r}: {stored!r}}}, or leave "
                    "it out with columns=."
                )
                return Problem(f"{self.locate(key())}, file .{name}", reason, remedy)
        if missing := self.known_columns.selected - record.keys():
            name = min(missing)
            optional = f"optional[{self.encodings[name]}]"
            return Problem(
                self.locate(key()),
                f"there is no file .{name}",
                f"Leave it out with columns=, or read None there with encodings={{{name!r}: "
                f"{optional!r}}}.",
            )
        return record


def locate(location: str, key: str) -> str:
    """Return the location of the sample with a key in the tar at ``location``, for errors."""
    return f"{location}, sample {key!r}"


def header_key(data: Buffer, location: str, offset: int = 0) -> str:
    """Return the name of the sample whose first header is at ``offset`` in ``data``.

    Raises FormatError if there is no header.
    """
    # The common case, without parsing the header: the name is in its first 100 bytes, the kind of
    # the header in byte 156, the magic in byte 257, and a prefix of the name from byte 345 on.
    header = bytes(data[offset : offset + BLOCK])
    is_of_file = header[156:157] in (b"0", b"\0")  # else it has attributes or a long name
    has_prefix = header[257:263] == b"ustar\0" and header[345:346] not in (b"", b"\0")
    if len(header) == BLOCK and is_of_file and not has_prefix:
        name = header[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape")
        folder, slash, base = name.rpartition("/")
        return folder + slash + base.partition(".")[0]
    for member in members(lambda start, end: bytes(data[start:end]), location, offset=offset):
        return split_name(member.name)[0]
    raise FormatError(f"{location}: there is no sample at byte {offset:,}, but one was expected.")


class TarColumns:
    """Inference of the columns of a tar from its samples: call `add` for each, then `encodings`."""

    def __init__(self) -> None:
        self._has_samples = False
        self._samples = 0  # without those that are wrong
        # By ending: samples that have such a file, some values, and whether all texts of numbers
        # so far are whole numbers.
        self._counts: Counter[str] = Counter()
        self._values: dict[str, list[Any]] = {}
        self._are_whole: dict[str, bool] = {}

    @property
    def is_probed(self) -> bool:
        """Return True if enough values were seen: more could only show missing files."""
        return self._samples >= _PROBED

    def add(self, sample: TarSample, read: ReadAt) -> None:
        """Take another sample into account; ``read`` returns bytes of the tar.

        Only files whose ending does not say the encoding are read. Files and samples that are wrong
        have no say: they are reported when they are read.
        """
        self._has_samples = True
        if sample.problem:
            return
        self._counts.update(sample.files.keys())
        self._samples += 1
        for ending, file in sample.files.items():
            if is_number(ending):  # all are read: they are short, and one text decides for all
                if self._are_whole.get(ending, True):
                    data = read(file.start, file.start + file.size)
                    self._are_whole[ending] = whole_number(data) is not None
                continue
            values = self._values.setdefault(ending, [])
            if encoding_by_ending(ending) is not None or len(values) >= _PROBED:
                continue
            data = read(file.start, file.start + file.size)
            with contextlib.suppress(ValueError):
                values.append(value_of(ending, data))

    def encodings(self, location: str) -> dict[str, str]:
        """Return the encoding of each column; optional for one that some samples lack."""
        encodings = {KEY: "str"} if self._has_samples else {}
        for ending, count in sorted(self._counts.items()):
            encoding = encoding_by_ending(ending) or self._by_values(ending, location)
            encodings[ending] = encoding if count == self._samples else f"optional[{encoding}]"
        return encodings

    def _by_values(self, ending: str, location: str) -> str:
        """Return the encoding of a column by the values that were read of its files.

        Raises FormatError for arrays of a dtype without an encoding; ``location`` names the tar.
        """
        if is_number(ending):
            return "int" if self._are_whole[ending] else "str"
        if not self._values[ending]:  # none can be read
            return "ndarray"
        try:
            return encoding_of(self._values[ending])[0]
        except ValueError as error:
            raise FormatError(
                f"{location}: the files .{ending}: {str(error).rstrip('.')}."
            ) from error
