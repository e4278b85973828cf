"""Base classes of what a conversion reads: `FileInput` for files, `Input` for anything else.

An input lists its source once, says which columns it offers, cuts itself into parts that can be
read anywhere and in any order, and reads one part as records. The order of parts and of records
within them is the order of the dataset, so the output does not depend on how many processes read.
An input is pickled to those processes without its large attributes: a part brings what it needs.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mds.errors import MdsError, SourceError
from mds.formats.columns import Column
from mds.process.fork_safe import cached_property
from mds.redaction import printable
from mds.writers.convert.inputs.listing import Listing

#: Records that are looked at to tell the columns.
MAX_PROBED_RECORDS = 1000
#: Size of the parts that are probed; the 0th, 1st, 2nd, 4th, 8th, ... are looked into.
PROBE_BYTES = 4 << 20


@dataclass(frozen=True)
class InputOptions:
    """Options of an input besides its path."""

    #: Its registered name; None to have it recognised.
    kind: str | None = None
    #: Patterns of the files to take, and of those to leave out.
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    #: Table of labels in a folder of images.
    labels: str | None = None
    #: Encodings that were asked for, by column.
    columns: Mapping[str, str] = field(default_factory=dict)
    #: Configuration and split of a Hugging Face dataset.
    config: str | None = None
    source_split: str | None = None
    #: Whether splits of the input become one dataset.
    merge_splits: bool = False
    #: Texts of cells that are missing values.
    null: tuple[str, ...] = ()
    #: How bytes are text; None is UTF-8.
    encoding: str | None = None
    #: Whether the first line of a table is a record, and names no columns.
    no_header: bool = False


@dataclass(frozen=True, slots=True)
class InputPart:
    """A piece of an input: ``size`` in bytes, ``address`` where it is in the input's own terms."""

    number: int
    size: int
    address: Any
    split: str | None = None


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that is no sample, why, and in which column of its line (0: that is no matter)."""

    why: str
    column: int = 0

    def __str__(self) -> str:
        return f"column {self.column}: {self.why}" if self.column else self.why


#: The position of a record, which `Input.locate` describes, and its values by column.
Record = tuple[Any, "dict[str, Any] | BadRecord"]


class Input(ABC):
    """Something that can be converted. Inherit it (or `FileInput`) and `register_input` it."""

    #: What people call it.
    title: ClassVar[str]
    #: What the library has to know of its values. Every one is text, so numbers are read from it;
    is_text: ClassVar[bool] = False
    #: they came out of JSON, so a json column takes them as they are;
    is_json: ClassVar[bool] = False
    #: they are encoded already, byte for byte.
    is_encoded: ClassVar[bool] = False
    #: Options that mean something to it, of those that not every input takes.
    takes: ClassVar[frozenset[str]] = frozenset()
    #: Whether later records may have keys that the ones looked at did not have.
    has_late_keys: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def open(cls, path: str, options: InputOptions) -> Input:
        """Open the input at a path, URL or name. Raises SourceError if it cannot be read."""

    @classmethod
    def recognizes(cls, path: str) -> bool:
        """Whether a path, URL or name is surely such an input; asked in the order of registry."""
        del path
        return False

    def __init__(self, root: str) -> None:
        self.root = root
        #: The source as the user wrote it.
        self.name = root
        #: Things worth telling before the work starts.
        self.notes: list[str] = []
        #: Column by whose value samples are assigned to splits; None: by all they hold.
        self.key: str | None = None
        #: How bytes are text.
        self.encoding = "utf-8"
        #: Texts of cells that are missing values.
        self.nulls: Sequence[str] = ()
        #: Bytes of the input; 0 when unknown.
        self.size = 0

    @abstractmethod
    def infer_columns(self) -> Sequence[Column]:
        """Infer the columns from some of the records."""

    @cached_property
    def inferred_columns(self) -> Sequence[Column]:
        """Result of `infer_columns`, computed once."""
        return self.infer_columns()

    def list_extra_columns(self) -> Sequence[Column]:
        """Return columns that are written only on request (``columns={"path": "str"}``)."""
        return ()

    @abstractmethod
    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Cut the input into parts of about ``size`` bytes, numbered from 0, always the same."""

    @abstractmethod
    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield the records of a part, in order."""

    def read_records(self, part: InputPart) -> Iterator[Record]:
        """Yield what `read` yields, and raise SourceError if the file itself is broken.

        Cut-off gzip streams, tars, Arrow files: each package has errors of its own.
        """
        try:
            yield from self.read(part)
        except (MdsError, GeneratorExit):
            raise
        except Exception as error:
            first = part.address[0] if isinstance(part.address, tuple) else ""
            place = os.path.join(self.root, first) if isinstance(first, str) else self.name
            raise SourceError(
                f"{place}: cannot be read: {type(error).__name__}: {error}"
            ) from error

    def find_bad_record(self) -> str:
        """Return place and reason of the first bad record probed, or '' if all are good."""
        for part in self._probed_parts():
            for position, record in self.read_records(part):
                if isinstance(record, BadRecord):
                    return self.describe_record(part, position, str(record))
        return ""

    def describe_record(self, part: InputPart, position: Any, why: str) -> str:
        """Return place and fault of a record: ``"train.jsonl, line 3, column 12: ..."``."""
        # A reason that begins with a line or column continues the place.
        comma = ", " if why.startswith(("line ", "column ")) else ": "
        # Keys and names come from the input, and control characters move cursors.
        return printable(f"{self.locate(part, position)}{comma}{why.rstrip('.')}")

    @abstractmethod
    def locate(self, part: InputPart, position: Any) -> str:
        """Return the place of a record for messages: ``"train.jsonl, line 17"``."""

    @abstractmethod
    def describe(self) -> str:
        """Summarise the input in a few words: ``"180 files in 24 classes"``."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a digest that differs if the input does; a resumed conversion checks it."""

    def list_splits(self) -> Sequence[str]:
        """Return the splits of the input itself (a folder of train and val); usually none."""
        return ()

    def probe(self) -> Iterator[dict[str, Any]]:
        """Yield good records from the beginning and from further on, to infer columns."""
        count = 0
        for part in self._probed_parts():
            for _, record in self.read_records(part):
                if isinstance(record, BadRecord):
                    continue
                yield record
                count += 1
                if count % (MAX_PROBED_RECORDS // 4) == 0:
                    break
            if count >= MAX_PROBED_RECORDS:
                return

    def _probed_parts(self) -> Iterator[InputPart]:
        # A thousand equal records at the start of a big file say little about its end.
        for number, part in enumerate(self.cut_parts(PROBE_BYTES)):
            if number & (number - 1) == 0:
                yield part


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
