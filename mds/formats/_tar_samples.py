"""Samples of a tar: files with one name before the first dot, a column for each ending.

    000017.jpg 000017.cls 000017.json   ->   __key__ '000017', jpg, cls, json

The files of a sample follow one another; a late file cannot be told from a missing one. Files
without an ending and hidden files are skipped. `TarColumns` infers the columns of a tar from the
endings, and from values where an ending is not enough. `TarValues` makes records of samples: dicts
from column to value. The place of a file is (begin, end), the bytes of its content in the tar.
"""

from __future__ import annotations

import dataclasses
import io
import json
import mmap
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mds.errors import FormatError
from mds.formats._columns import KnownColumns, encoding_of
from mds.formats._facts import ShardPlace
from mds.formats._tar_members import BLOCK, Member, ReadAt, members

#: The column of the name that the files of a sample have in common.
KEY = "__key__"

_TEXT = {"txt", "text", "transcript", "caption", "url"}
_NUMBER = {"cls", "cls2", "index", "inx", "id", "label"}
_WHOLE_NUMBER = re.compile(rb"-?(0|[1-9][0-9]*)")
_TEXTS = ("str", "optional[str]")
_IMAGE = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png"}
# Files that other tools put between samples, and hidden files of desktops.
_SKIPPED = re.compile(r"(^|/)(\.[^/]*|__[^/]*__(/.*)?)$")


@dataclasses.dataclass(slots=True)
class TarSample:
    """The files of one sample, by ending, in the order of the tar.

    - ``key``: the name that its files have in common.
    - ``problem``: why they are not a valid sample; '' for a valid one.
    """

    key: str
    files: dict[str, Member]
    problem: str = ""

    @property
    def start(self) -> int:
        """First byte of the sample: that of its first header."""
        return next(iter(self.files.values())).header

    @property
    def end(self) -> int:
        """First byte after the last file of the sample."""
        return next(reversed(self.files.values())).end


def group(tar_members: Iterable[Member]) -> Iterator[TarSample]:
    """Group the files of a tar into samples, and yield these in order.

    A sample whose files are wrong is yielded with a ``problem``; see `check_sample`.
    """
    sample: TarSample | None = None
    seen_hashes: set[int] = set()  # of keys; hashes take a tenth of the memory
    for member in tar_members:
        key, ending = split_name(member.name)
        if not ending or _SKIPPED.search(member.name):
            continue
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = TarSample(key, {})
            if hash(key) in seen_hashes:
                sample.problem = (
                    f"an earlier sample has the key {key!r}, with others between them; write the "
                    f"files of a sample one after the other, and each key once"
                )
            seen_hashes.add(hash(key))
        problem = "exists twice" if ending in sample.files else member.problem
        if ending == KEY:
            problem = f"has the ending {KEY!r}, which is the column of names; give it another one"
        if problem and not sample.problem:
            sample.problem = f"the file {member.name!r} {problem}"
        sample.files.setdefault(ending, member)
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

    - ``ending`` (str): Ending of the file.
    - ``data`` (bytes): Its content.
    - ``encoding`` (str | None, default None): The encoding of the column, if it is known.

    Raises ValueError, with the reason, for content that the ending does not allow.
    """
    kind = ending.rpartition(".")[2]
    if kind in _TEXT:
        return data.decode()
    if kind in _NUMBER:
        # A column of text keeps the text, one of numbers must hold a number. While the encoding is
        # not known, the value is a number if it can be.
        number = None if encoding in _TEXTS else whole_number(data)
        if number is None and encoding not in (None, *_TEXTS):
            raise ValueError(
                f"{data[:40]!r} is not a whole number, but the others are; leave the column out "
                "with columns="
            )
        return data.decode().strip() if number is None else number
    if kind == "json":
        return json.loads(data)
    if kind == "npy":
        try:
            return np.load(io.BytesIO(data), allow_pickle=False)
        except Exception as error:  # NumPy raises errors of many classes for damage
            raise ValueError(str(error)) from error
    return data


Buffer = mmap.mmap | bytes | memoryview
#: Bytes (begin, end) of the wanted files of a sample, by column.
Places = Mapping[str, tuple[int, int]]
#: Number of samples from whose values a column is inferred.
_PROBED = 64


class TarValues:
    """Converter of the samples of one tar to records (dicts from column to value).

    ``shard`` is the tar as it was planned, ``location`` names it in errors.
    """

    def __init__(self, shard: ShardPlace, location: str) -> None:
        self.location, self.known_columns = location, KnownColumns(shard)
        self.encodings = dict(zip(shard.columns.names, shard.columns.encodings, strict=True))

    def check(self, sample: TarSample) -> None:
        """Raise FormatError for an invalid sample, or one with a file that was not planned."""
        check_sample(sample, self.location)
        self.known_columns.check(
            (KEY, *sample.files), self.location, f"sample {sample.key!r} has a file"
        )

    def of_sample(self, sample: TarSample, read: ReadAt) -> Mapping[str, Any]:
        """Check a sample, and return its record: values by column."""
        self.check(sample)
        names = [name for name in self.encodings if name in sample.files]
        files = {name: sample.files[name] for name in names}
        places = {name: (each.start, each.start + each.size) for name, each in files.items()}
        return self.record(lambda: sample.key, places, lambda place: read(*place))

    def record(
        self,
        key: Callable[[], str],
        places: Places,
        read: Callable[[tuple[int, int]], bytes],
    ) -> Mapping[str, Any]:
        """Return the record of a sample.

        - ``key`` (Callable[[], str]): Returns the name of the sample.
        - ``places`` (Mapping[str, tuple[int, int]]): Places of its files, by column.
        - ``read`` (Callable[[tuple[int, int]], bytes]): Returns the bytes at such a place.

        Raises FormatError for a wrong value, and for a missing file.
        """
        record: dict[str, Any] = dict(self.known_columns.gaps)
        if KEY in self.encodings:
            record[KEY] = key()
        name = ""
        try:
            for name, place in places.items():
                record[name] = value_of(name, read(place), self.encodings[name])
        except (ValueError, RecursionError) as error:
            raise FormatError(
                f"{self.location}, sample {key()!r}, file .{name}: {error}"
            ) from error
        if missing := self.known_columns.selected - record.keys():
            raise FormatError(
                f"{self.location}, sample {key()!r}: there is no file .{min(missing)}. Leave it "
                f"out with columns=, or read None there with format=Tar(missing='null')."
            )
        return record


def check_sample(sample: TarSample, location: str) -> None:
    """Raise FormatError for an invalid sample."""
    if sample.problem:
        raise FormatError(f"{location}: {sample.problem}.")


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
        self._samples = 0
        # By ending: samples that have such a file, some values, and whether all texts of numbers
        # so far are whole numbers.
        self._counts: Counter[str] = Counter()
        self._values: dict[str, list[Any]] = {}
        self._are_whole: dict[str, bool] = {}

    @property
    def is_probed(self) -> bool:
        """Whether enough values were seen: more samples could only show missing files."""
        return self._samples >= _PROBED

    def add(self, sample: TarSample, read: ReadAt, location: str) -> None:
        """Take another sample into account; ``read`` returns bytes of the tar at ``location``.

        Only files whose ending does not say the encoding are read. Raises FormatError for a wrong
        file.
        """
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
            try:
                values.append(value_of(ending, read(file.start, file.start + file.size)))
            except ValueError as error:
                raise FormatError(f"{location}: the file {file.name!r}: {error}") from error

    def encodings(self, location: str) -> dict[str, str]:
        """Return the encoding of each column; optional for one that some samples lack."""
        encodings = {KEY: "str"} if self._samples else {}
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
        try:
            return encoding_of(self._values[ending])[0]
        except ValueError as error:
            raise FormatError(f"{location}: the files .{ending}: {error}.") from error
