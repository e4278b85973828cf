"""WebDataset tars: files with one name before the first dot are one sample, endings are columns.

    000017.jpg 000017.cls 000017.json   ->   __key__ '000017', jpg, cls, json

A part is a run of samples in one tar, found by hopping from header to header; a compressed tar
can only be read through and is one part. Samples whose members are apart are refused, as nobody
could tell a missing member from a late one.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from mds.errors import SourceError
from mds.writers.convert.infer import encoding_of, shown
from mds.writers.convert.lines import is_compressed
from mds.writers.convert.listing import Listing
from mds.writers.convert.source import Bad, Column, Part, Record, Source

_TEXT = {"txt", "text", "transcript", "caption", "url"}
_NUMBER = {"cls", "cls2", "index", "inx", "id", "label"}
_IMAGE = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png"}
_ARRAY = {"npy"}


class TarSource(Source):
    """Tar files of samples."""

    kind: ClassVar[str] = "WebDataset"
    is_open: ClassVar[bool] = True

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing.root)
        self.listing = listing
        self.size = listing.size
        self.key = "__key__"

    def columns(self) -> Sequence[Column]:
        """The key and a column an ending."""
        seen: dict[str, list[Any]] = {}
        count = 0
        for record in self.probe():
            count += 1
            for name, value in record.items():
                seen.setdefault(name, []).append(value)
            if count == 200:
                break
        columns = []
        for name, values in sorted(seen.items()):
            image = _IMAGE.get(name.rpartition(".")[2])
            # What the ending says, or what its values turned out to be.
            encoding, note = (image, "stored as it is") if image else encoding_of(values)
            if len(values) < count:
                note = f"only in {len(values)} of the first {count} samples"
            columns.append(Column(name, encoding, shown(values[0]), note))
        return columns

    def parts(self, size: int) -> Iterator[Part]:
        """Runs of samples of one tar, by the offset of their first header."""
        number = 0
        for name, length in zip(self.listing.names, self.listing.sizes, strict=True):
            for start, end in self._ranges(name, length, size):
                yield Part(number, end - start, (name, start, end))
                number += 1

    def read(self, part: Part) -> Iterator[Record]:
        """One sample a key."""
        name, start, end = part.what
        with open(self.listing.path(name), "rb") as file:
            file.seek(start)
            is_zipped = is_compressed(name) or name.lower().endswith(".tgz")
            mode: Literal["r:*", "r:"] = "r:*" if is_zipped else "r:"
            with tarfile.open(fileobj=file, mode=mode) as tar:
                yield from _samples(tar, None if mode == "r:*" else end)

    def place(self, part: Part, mark: Any) -> str:
        """Tar and key."""
        return f"{os.path.join(self.root, part.what[0])}, sample {mark}"

    def describe(self) -> str:
        """Number of tars and bytes."""
        return str(self.listing)

    def fingerprint(self) -> str:
        """Names, sizes and times of change of all tars."""
        return self.listing.digest

    def _ranges(self, name: str, length: int, size: int) -> Iterator[tuple[int, int]]:
        if length <= size or is_compressed(name) or name.lower().endswith(".tgz"):
            yield 0, length
            return
        start, key = 0, None
        with self._open(name) as tar:
            while (member := tar.next()) is not None:
                # Or the headers of millions of members pile up in memory.
                tar.members = []  # type: ignore[attr-defined]
                if not member.isfile():
                    continue
                this = split_name(member.name)[0]
                if this != key and member.offset - start >= size:
                    yield start, member.offset
                    start = member.offset
                key = this
        yield start, length

    def _open(self, name: str) -> tarfile.TarFile:
        path = self.listing.path(name)
        try:
            return tarfile.open(path, "r:")
        except tarfile.TarError as error:
            raise SourceError(f"{path}: this is no tar: {error}") from error


def split_name(path: str) -> tuple[str, str]:
    """Key and ending: ``'a/b.c/17.left.jpg'`` is ``('a/b.c/17', 'left.jpg')``."""
    folder, slash, base = path.rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending.lower()


def _samples(tar: tarfile.TarFile, end: int | None) -> Iterator[Record]:
    key: str | None = None
    sample: dict[str, Any] = {}
    wrong: str | None = None
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]
        if end is not None and member.offset >= end:
            break
        base = member.name.rpartition("/")[2]
        if not member.isfile() or base.startswith("."):
            continue
        this, ending = split_name(member.name)
        if this != key:
            if key is not None:
                yield key, Bad(wrong) if wrong else sample
            key, sample, wrong = this, {"__key__": this}, None
        if ending in sample or not ending:
            wrong = f"the member {member.name!r} is {'there twice' if ending else 'without ending'}"
            continue
        data = tar.extractfile(member)
        try:
            sample[ending] = _value(ending, data.read() if data else b"")
        except ValueError as error:
            wrong = f"the member {member.name!r}: {error}"
    if key is not None:
        yield key, Bad(wrong) if wrong else sample


def _value(ending: str, data: bytes) -> Any:
    kind = ending.rpartition(".")[2]
    if kind in _TEXT:
        return data.decode()
    if kind in _NUMBER:
        text = data.decode().strip()
        return int(text) if text.lstrip("-").isdecimal() else text
    if kind == "json":
        return json.loads(data)
    if kind in _ARRAY:
        return np.load(io.BytesIO(data), allow_pickle=False)
    return data
