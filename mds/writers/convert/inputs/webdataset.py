"""WebDataset tars: files with one name before the first dot are one sample, endings are columns.

    000017.jpg 000017.cls 000017.json   ->   __key__ '000017', jpg, cls, json

A part is a run of samples in one tar, found by hopping from header to header; a compressed tar
can only be read through and is one part. Samples whose members are apart are refused: a
missing member cannot be told from a late one.
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
from mds.writers.convert.inputs.base import BadRecord, Column, InputPart, Record
from mds.writers.convert.inputs.file_input import FileInput
from mds.writers.convert.inputs.infer import encoding_of, show_value
from mds.writers.convert.inputs.listing import Listing
from mds.writers.convert.inputs.text_lines import is_compressed

_TEXT = {"txt", "text", "transcript", "caption", "url"}
_NUMBER = {"cls", "cls2", "index", "inx", "id", "label"}
_IMAGE = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png"}
_ARRAY = {"npy"}


class WebDatasetInput(FileInput):
    """Tar files of samples."""

    title: ClassVar[str] = "WebDataset"
    endings: ClassVar[frozenset[str]] = frozenset({".tar", ".tgz"})
    has_late_keys: ClassVar[bool] = True

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        self.key = "__key__"

    def infer_columns(self) -> Sequence[Column]:
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
            columns.append(Column(name, encoding, show_value(values[0]), note))
        return columns

    def read(self, part: InputPart) -> Iterator[Record]:
        """One sample a key."""
        name, start, end = part.address
        with open(self.listing.path(name), "rb") as file:
            file.seek(start)
            is_zipped = is_compressed(name) or name.lower().endswith(".tgz")
            mode: Literal["r:*", "r:"] = "r:*" if is_zipped else "r:"
            with tarfile.open(fileobj=file, mode=mode) as tar:
                yield from _samples(tar, None if mode == "r:*" else end)

    def locate(self, part: InputPart, position: Any) -> str:
        """Tar and key."""
        return f"{os.path.join(self.root, part.address[0])}, sample {position}"

    def cut_file(self, name: str, length: int, size: int) -> Iterator[tuple[int, int]]:
        """Runs of samples, by the offset of their first header."""
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
                yield key, BadRecord(wrong) if wrong else sample
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
        yield key, BadRecord(wrong) if wrong else sample


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
