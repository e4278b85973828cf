"""WebDataset tars: files with one name before the first dot are one sample, endings are columns.

They are read as `mds.formats.tar` reads them. A part is a run of samples in one tar, found by
hopping from header to header; a compressed tar can only be read through and is one part.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from mds.errors import FormatError, SourceError
from mds.formats.infer import Column, encoding_of, show_value
from mds.formats.tar_bytes import Arriving, mapped
from mds.formats.tar_members import ReadAt, members
from mds.formats.tar_samples import KEY, TarSample, encoding_by_ending, group, value_of
from mds.writers.convert.inputs.base import BadRecord, InputPart, Record
from mds.writers.convert.inputs.file_input import FileInput
from mds.writers.convert.inputs.lines import is_compressed, open_text
from mds.writers.convert.inputs.listing import Listing


class WebDatasetInput(FileInput):
    """Tar files of samples."""

    title: ClassVar[str] = "WebDataset"
    endings: ClassVar[frozenset[str]] = frozenset({".tar", ".tgz"})
    has_late_keys: ClassVar[bool] = True

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self.key = KEY

    def infer_columns(self) -> Sequence[Column]:
        """Return the column of the key, and one per ending."""
        values_of: dict[str, list[Any]] = {}
        count = 0
        for record in self.probe():
            count += 1
            for name, value in record.items():
                values_of.setdefault(name, []).append(value)
            if count == 200:
                break
        columns = []
        for name, values in sorted(values_of.items()):
            # What the ending says, or what its values turned out to be.
            by_ending = encoding_by_ending(name)
            encoding, note = (by_ending, "") if by_ending else encoding_of(values)
            if encoding in ("jpeg", "png"):
                note = "stored as it is"
            if len(values) < count:
                note = f"only in {len(values)} of the first {count} samples"
            columns.append(Column(name, encoding, show_value(values[0]), note))
        return columns

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield one sample per key."""
        name, start, end = part.address
        path = self.listing.path(name)
        try:
            if _is_packed(name):
                with open_text(path) as file:
                    source = Arriving(iter(lambda: file.read(1 << 20), b""))
                    for sample in group(members(source.read, path)):
                        yield _record(sample, source.read)
                        source.forget(sample.end)
                return
            data = mapped(path)
            tar_members = members(lambda begin, upto: data[begin:upto], path, len(data), start)
            for sample in group(itertools.takewhile(lambda each: each.header < end, tar_members)):
                yield _record(sample, lambda begin, upto: data[begin:upto])
        except FormatError as error:
            raise SourceError(str(error)) from error

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the tar and the key."""
        return f"{os.path.join(self.root, part.address[0])}, sample {position}"

    def cut_file(self, name: str, length: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield runs of samples, by the offset of their first header."""
        if length <= size or _is_packed(name):
            yield 0, length
            return
        path, start = self.listing.path(name), 0
        data = mapped(path)
        try:
            for sample in group(members(lambda begin, upto: data[begin:upto], path, length)):
                if sample.start - start >= size:
                    yield start, sample.start
                    start = sample.start
        except FormatError as error:
            raise SourceError(str(error)) from error
        yield start, length


def _is_packed(name: str) -> bool:
    return is_compressed(name) or name.lower().endswith(".tgz")


def _record(sample: TarSample, read: ReadAt) -> Record:
    if sample.problem:
        return sample.key, BadRecord(sample.problem)
    record: dict[str, Any] = {KEY: sample.key}
    name = ""
    try:
        for ending, file in sample.files.items():
            name = file.name
            data = read(file.start, file.start + file.size)
            if len(data) < file.size:  # in a compressed tar, whose size is not known before
                return sample.key, BadRecord(f"the file {name!r} is cut short: the tar ends in it")
            record[ending] = value_of(ending, data)
    except ValueError as error:
        return sample.key, BadRecord(f"the file {name!r}: {error}")
    return sample.key, record
