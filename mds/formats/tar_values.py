"""The samples of a tar, as records to encode: values of the files that are wanted, checked.

`TarColumns` infers the columns: from endings, and from values where an ending is not enough.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from mds.errors import FormatError
from mds.formats.facts import ShardPlace
from mds.formats.infer import encoding_of
from mds.formats.known_columns import KnownColumns
from mds.formats.tar_members import BLOCK, ReadAt, members
from mds.formats.tar_samples import (
    KEY,
    TarSample,
    encoding_by_ending,
    is_number,
    split_name,
    value_of,
    whole_number,
)

Buffer = mmap.mmap | bytes | memoryview
#: Begin and end of the wanted files of a sample, by column.
Places = Mapping[str, tuple[int, int]]
#: Samples from whose values a column is inferred.
_PROBED = 64


class TarValues:
    """Makes records of the samples of one tar; ``location`` names it in errors."""

    def __init__(self, shard: ShardPlace, location: str) -> None:
        self.location, self.known_columns = location, KnownColumns(shard)
        self.encodings = dict(zip(shard.columns.names, shard.columns.encodings, strict=True))

    def check(self, sample: TarSample) -> None:
        """Raise FormatError for a sample that is none, or has a file that was not planned."""
        check_sample(sample, self.location)
        self.known_columns.check(
            (KEY, *sample.files), self.location, f"sample {sample.key!r} has a file"
        )

    def of_sample(self, sample: TarSample, read: ReadAt) -> Mapping[str, Any]:
        """Return the record of a sample, after checking it."""
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
        """Return the record of a sample whose files are at these places; ``key`` finds its name.

        Raises FormatError for a value that cannot be, and for a file that is not there.
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
                f"out with columns=, or have it None there with format=Tar(missing='null')."
            )
        return record


def check_sample(sample: TarSample, location: str) -> None:
    """Raise FormatError for a sample that is none."""
    if sample.problem:
        raise FormatError(f"{location}: {sample.problem}.")


def header_key(data: Buffer, location: str, offset: int = 0) -> str:
    """Return the name of the sample whose first header is at a byte.

    Raises FormatError where there is none.
    """
    short = bytes(data[offset : offset + BLOCK])
    is_long = short[156:157] not in (b"0", b"\0")  # a longer name comes before
    if len(short) == BLOCK and not is_long and not (short[257:263] == b"ustar\0" and short[345]):
        name = short[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape")
        folder, slash, base = name.rpartition("/")
        return folder + slash + base.partition(".")[0]
    for member in members(lambda start, end: bytes(data[start:end]), location, offset=offset):
        return split_name(member.name)[0]
    raise FormatError(f"{location}: there is no sample at byte {offset:,}, where one was planned.")


class TarColumns:
    """Columns that the samples of a tar have in common."""

    def __init__(self) -> None:
        self._samples = 0
        self._counts: Counter[str] = Counter()
        self._values: dict[str, list[Any]] = {}
        self._are_whole: dict[str, bool] = {}

    @property
    def is_probed(self) -> bool:
        """Whether more samples would tell no more than which files are missing."""
        return self._samples >= _PROBED

    def add(self, sample: TarSample, read: ReadAt, location: str) -> None:
        """Another sample; ``location`` names the tar in errors."""
        self._counts.update(sample.files.keys())
        self._samples += 1
        for ending, file in sample.files.items():
            if is_number(ending):  # all are looked at: they are short, and one decides for all
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
        if is_number(ending):
            return "int" if self._are_whole[ending] else "str"
        try:
            return encoding_of(self._values[ending])[0]
        except ValueError as error:
            raise FormatError(f"{location}: the files .{ending}: {error}.") from error
