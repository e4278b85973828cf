"""Base class of inputs that are files: a listing of them, cut into byte ranges.

Folders and files named after splits (train, test, validation) give the splits of the dataset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from mds.writers.convert.inputs.base import Input, InputOptions, InputPart
from mds.writers.convert.inputs.listing import Listing

SPLITS = frozenset(
    {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"}
)
# train.jsonl, train-00000-of-00008.parquet, squad_test.csv; not trains.csv, not latest.csv
_IN_FILE_NAME = re.compile(
    rf"(?<![a-z0-9])({'|'.join(sorted(SPLITS, reverse=True))})(?![a-z])", re.IGNORECASE
)


# train, but also train2017, as COCO has it.
_FOLDER = re.compile(rf"({'|'.join(sorted(SPLITS, reverse=True))})((19|20)\d\d)?", re.IGNORECASE)


def find_splits(names: Sequence[str], *, by_file: bool) -> dict[str, str]:
    """Return the split of every file, by the first folder named after one, else by its name.

    Empty where that is not told of all files, or names of files alone tell of one split only.
    ``by_file``: whether names of files count at all.
    """
    split_of: dict[str, str] = {}
    is_of_folders = True
    for name in names:
        *folders, file = name.split("/")
        split = split_folder(folders)
        if split is None and by_file and (match := _IN_FILE_NAME.search(file)):
            split, is_of_folders = match[1].lower(), False
        if split is None:
            return {}
        split_of[name] = split
    return split_of if is_of_folders or len(set(split_of.values())) > 1 else {}


def split_folder(folders: Sequence[str]) -> str | None:
    """Return the first of these folders that is named after a split."""
    return next((folder for folder in folders if _FOLDER.fullmatch(folder)), None)


class FileInput(Input):
    """A file, or a folder of files of one kind.

    Only `infer_columns`, `read` and `locate` are needed. Files and folders that are all named after
    splits (``train``, ``test``, ...) give the dataset these splits.
    """

    #: Endings of its files, in lower case and with the dot, by which they are recognised.
    endings: ClassVar[frozenset[str]] = frozenset()
    #: Whether a file is many samples, so that its own name may be that of a split.
    names_splits: ClassVar[bool] = True

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing.root)
        self.listing = listing
        self.size = listing.size
        #: The split of each file; empty without splits.
        self.split_of = find_splits(listing.names, by_file=self.names_splits)

    @classmethod
    def open(cls, path: str, options: InputOptions) -> Input:
        """Open the input of a file, or of all files below a folder."""
        return cls.from_files(Listing.scan(path, options.include, options.exclude), options)

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open the input of these files."""
        del options
        return cls(listing)

    @classmethod
    def recognizes_mixture(cls, files: Mapping[str, int]) -> bool:
        """Whether a folder with so many files of each kind (by registered name) is one input."""
        del files
        return False

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield byte ranges of the files; the address of a part is (name, start, end)."""
        number = 0
        for name, length in zip(self.listing.names, self.listing.sizes, strict=True):
            for start, end in self.cut_file(name, length, size):
                address = (name, start, end)
                yield InputPart(number, end - start, address, self.split_of.get(name))
                number += 1

    def cut_file(self, name: str, length: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of pieces of about ``size`` bytes of a file of ``length`` bytes."""
        del name, size
        yield 0, length

    def list_splits(self) -> Sequence[str]:
        """Return the splits that files and folders are named after."""
        return sorted(set(self.split_of.values()))

    def describe(self) -> str:
        """Summarise number of files, bytes and splits."""
        splits = self.list_splits()
        return f"{self.listing}, splits {', '.join(splits)}" if splits else str(self.listing)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "split_of": {}}  # a part knows its own

    def fingerprint(self) -> str:
        """Return a digest of the names, sizes and modification times of all files."""
        return self.listing.digest
