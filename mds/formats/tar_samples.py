"""Samples of a tar: files of one name before the first dot, a column for each ending.

    000017.jpg 000017.cls 000017.json   ->   __key__ '000017', jpg, cls, json

The files of a sample follow one another, as every writer of such tars has it: a file that comes
late cannot be told from one that is missing. Files without an ending are no samples, nor are hidden
ones.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mds.formats.tar_members import Member

#: The column of the name that the files of a sample have in common.
KEY = "__key__"

_TEXT = {"txt", "text", "transcript", "caption", "url"}
_NUMBER = {"cls", "cls2", "index", "inx", "id", "label"}
_WHOLE_NUMBER = re.compile(rb"-?(0|[1-9][0-9]*)")
_TEXTS = ("str", "optional[str]")
_IMAGE = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png"}
# What others put between samples for themselves, and what desktops leave behind.
_SKIPPED = re.compile(r"(^|/)(\.[^/]*|__[^/]*__(/.*)?)$")


@dataclasses.dataclass(slots=True)
class TarSample:
    """The files of one sample by their ending; ``problem`` says why it is none, '' else."""

    key: str
    files: dict[str, Member]
    problem: str = ""

    @property
    def start(self) -> int:
        """The byte of its first header."""
        return next(iter(self.files.values())).header

    @property
    def end(self) -> int:
        """End of the last file, in bytes of the tar."""
        return next(reversed(self.files.values())).end


def group(tar_members: Iterable[Member]) -> Iterator[TarSample]:
    """Group the files of a tar to samples, in order."""
    sample: TarSample | None = None
    seen_hashes: set[int] = set()  # hashes, a tenth of the memory of keys
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
                    f"there is a sample {key!r} before it already, with others between them; write "
                    f"the files of a sample one behind the other, and each key once"
                )
            seen_hashes.add(hash(key))
        problem = "is there twice" if ending in sample.files else member.problem
        if ending == KEY:
            problem = f"ends as the column of names is called, {KEY!r}; give it another ending"
        if problem and not sample.problem:
            sample.problem = f"the file {member.name!r} {problem}"
        sample.files.setdefault(ending, member)
    if sample is not None:
        yield sample


def split_name(path: str) -> tuple[str, str]:
    """Key and ending: ``'a/b.c/17.left.jpg'`` is ``('a/b.c/17', 'left.jpg')``."""
    folder, slash, base = path.rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending.lower()


def encoding_by_ending(ending: str) -> str | None:
    """Return the encoding for an ending, or None if the values decide.

    Whole numbers are text where one of them is not written as such, and an array says itself of
    what type it is.
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
    """Return the value of a file of a sample, for an encoding if that is known.

    Raises ValueError with the reason where it has none.
    """
    kind = ending.rpartition(".")[2]
    if kind in _TEXT:
        return data.decode()
    if kind in _NUMBER:
        number = None if encoding in _TEXTS else whole_number(data)
        if number is None and encoding not in (None, *_TEXTS):
            raise ValueError(
                f"{data[:40]!r} is not a whole number, and the others are; leave the column out "
                "with columns="
            )
        return data.decode().strip() if number is None else number
    if kind == "json":
        return json.loads(data)
    if kind == "npy":
        try:
            return np.load(io.BytesIO(data), allow_pickle=False)
        except Exception as error:  # what NumPy raises for damage is of many kinds
            raise ValueError(str(error)) from error
    return data
