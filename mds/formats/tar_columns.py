"""The columns of a tar, told from its samples: from their endings, and from values where needed."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mds.errors import FormatError
from mds.formats.infer import encoding_of
from mds.formats.tar_members import ReadAt
from mds.formats.tar_samples import (
    KEY,
    TarSample,
    encoding_by_ending,
    is_number,
    value_of,
    whole_number,
)

#: Samples from whose values a column is inferred.
_PROBED = 64


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
