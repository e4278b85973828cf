"""Base class of inputs that are files: a listing of them, cut into byte ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from mds.writers.convert.inputs.base import Input, InputOptions, InputPart
from mds.writers.convert.inputs.listing import Listing
from mds.writers.convert.inputs.splits import find_splits


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
        """The input of a file, or of all files below a folder."""
        return cls.from_files(Listing.scan(path, options.include, options.exclude), options)

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """The input of these files."""
        del options
        return cls(listing)

    @classmethod
    def recognizes_mixture(cls, files: Mapping[str, int]) -> bool:
        """Whether a folder with so many files of each kind (by registered name) is one input."""
        del files
        return False

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Byte ranges of the files; the address of a part is (name, start, end)."""
        number = 0
        for name, length in zip(self.listing.names, self.listing.sizes, strict=True):
            for start, end in self.cut_file(name, length, size):
                address = (name, start, end)
                yield InputPart(number, end - start, address, self.split_of.get(name))
                number += 1

    def cut_file(self, name: str, length: int, size: int) -> Iterator[tuple[int, int]]:
        """Where a file of ``length`` bytes is cut, to be read in pieces of about ``size``."""
        del name, size
        yield 0, length

    def list_splits(self) -> Sequence[str]:
        """The splits that files and folders are named after."""
        return sorted(set(self.split_of.values()))

    def describe(self) -> str:
        """Number of files, bytes and splits."""
        splits = self.list_splits()
        return f"{self.listing}, splits {', '.join(splits)}" if splits else str(self.listing)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "split_of": {}}  # a part knows its own

    def fingerprint(self) -> str:
        """Names, sizes and times of change of all files."""
        return self.listing.digest
