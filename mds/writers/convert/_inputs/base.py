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

from mds._process.fork_safe import cached_property
from mds._redaction import printable
from mds.errors import MdsError, SourceError
from mds.formats._columns import Column
from mds.writers.convert._inputs.listing import Listing

#: Number of records from which columns are inferred.
MAX_PROBED_RECORDS = 1000
#: Bytes of the parts that are probed: parts 0, 1, 2, 4, 8, ... of this size.
PROBE_BYTES = 4 << 20


@dataclass(frozen=True)
class InputOptions:
    """Options of an input besides its path.

    >>> InputOptions(format="fasta", encodings={"id": "int32"}).encodings
    {'id': 'int32'}
    """

    #: Name of the input or format; None to recognise it.
    format: str | None = None
    #: Patterns of the files to convert, and of those to leave out.
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    #: Name of the table of labels in a folder of images.
    labels: str | None = None
    #: Encodings that the user chose, by column.
    encodings: Mapping[str, str] = field(default_factory=dict)
    #: Configuration and split of a Hugging Face dataset.
    config: str | None = None
    source_split: str | None = None
    #: Whether all splits of the input are written as one dataset.
    merge_splits: bool = False
    #: Texts of cells that count as missing values.
    null: tuple[str, ...] = ()
    #: Encoding of text, such as "cp1252"; None is UTF-8.
    encoding: str | None = None
    #: Whether the first line of a CSV or TSV is a record instead of the names of the columns.
    no_header: bool = False


@dataclass(frozen=True, slots=True)
class InputPart:
    """A piece of an input that one process reads.

    - ``number`` (int): Its place in the order of parts, from 0.
    - ``size`` (int): Its bytes, for progress.
    - ``address`` (Any): Where it is, such as (file, first byte, last byte + 1). Each input has its
      own kind of addresses; they are pickled.
    - ``split`` (str | None): The split of its samples.

    >>> name, start, end = InputPart(0, 4096, ("genes.fa", 0, 4096)).address
    >>> end - start
    4096
    """

    number: int
    size: int
    address: Any
    split: str | None = None


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot become a sample.

    ``why`` is the reason, ``column`` the place in its line from 1 (0: unknown).

    >>> str(BadRecord("expected a number", column=12))
    'column 12: expected a number'
    """

    why: str
    column: int = 0

    def __str__(self) -> str:
        return f"column {self.column}: {self.why}" if self.column else self.why


#: Position of a record, for `Input.locate`, and its values by column.
Record = tuple[Any, "dict[str, Any] | BadRecord"]


class Input(ABC):
    """A source that can be converted, such as a Hugging Face dataset.

    Inherit it, or `FileInput` for files, and pass the class to `register_input`.

    For example, rows of a table that is read in parts of a thousand::

        class Rows(Input):
            title = "table"

            @classmethod
            def open(cls, path, options): ...  # return cls(path)
            def infer_columns(self): ...  # return [Column("text", "str")]
            def cut_parts(self, size): ...  # yield InputPart(number, size, (first, last))
            def read(self, part): ...  # yield (row, {"text": "..."}) for the rows of a part
            def locate(self, part, position): ...  # return f"row {position}"
            def describe(self): ...  # return "80 rows"
            def fingerprint(self): ...  # return a digest that changes with the rows

        register_input("rows", Rows)
    """

    #: Name of the kind of input for people.
    title: ClassVar[str]
    #: Whether every value is text, so that numbers are parsed.
    is_text: ClassVar[bool] = False
    #: Whether values came from JSON, so that a `json` column takes them as they are.
    is_json: ClassVar[bool] = False
    #: Whether values are the encoded bytes of their columns.
    is_encoded: ClassVar[bool] = False
    #: Names of the special options that it takes: "labels", "config", "source_split", "encoding",
    #: "no_header". Others of these are refused.
    takes: ClassVar[frozenset[str]] = frozenset()
    #: Whether a record may have keys that the probed records did not have.
    has_late_keys: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def open(cls, path: str, options: InputOptions) -> Input:
        """Open the input at a path, URL or name. Raises SourceError if it cannot be read."""

    @classmethod
    def recognizes(cls, path: str) -> bool:
        """Return whether a path, URL or name certainly is such an input.

        The inputs of the registry are asked in order, and the first that returns True is used.
        """
        del path  # an argument for subclasses
        return False

    def __init__(self, root: str) -> None:
        """Set the defaults of all attributes; ``root`` is the path, URL or name of the input."""
        self.root = root
        #: The source as the user wrote it.
        self.name = root
        #: Notes for the user, shown before the work starts.
        self.notes: list[str] = []
        #: Column whose value decides the split of a sample; None: the bytes of the whole sample.
        self.key: str | None = None
        #: Encoding of text.
        self.encoding = "utf-8"
        #: Texts of cells that count as missing values.
        self.nulls: Sequence[str] = ()
        #: Bytes of the input; 0 if unknown.
        self.size = 0

    @abstractmethod
    def infer_columns(self) -> Sequence[Column]:
        """Infer the columns from some of the records."""

    @cached_property
    def inferred_columns(self) -> Sequence[Column]:
        """The result of `infer_columns`, computed once."""
        return self.infer_columns()

    def list_extra_columns(self) -> Sequence[Column]:
        """Return columns that are written only on request (``encodings={"path": "str"}``)."""
        return ()

    @abstractmethod
    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield parts of about ``size`` bytes, numbered from 0; the same parts in every call."""

    @abstractmethod
    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield the records of a part, in order."""

    def read_records(self, part: InputPart) -> Iterator[Record]:
        """Yield what `read` yields, and raise SourceError if the file itself is broken.

        Damaged files raise errors of the package that reads them, such as `zlib` or `pyarrow`.
        """
        try:
            yield from self.read(part)
        except (MdsError, GeneratorExit):
            raise
        except Exception as error:
            # The address of most inputs begins with the name of a file.
            first = part.address[0] if isinstance(part.address, tuple) else ""
            place = os.path.join(self.root, first) if isinstance(first, str) else self.name
            raise SourceError(f"{place} cannot be read: {type(error).__name__}: {error}") from error

    def find_bad_record(self) -> str:
        """Return place and reason of the first bad record probed, or '' if all are good."""
        for part in self._probed_parts():
            for position, record in self.read_records(part):
                if isinstance(record, BadRecord):
                    return self.describe_record(part, position, str(record))
        return ""

    def describe_record(self, part: InputPart, position: Any, why: str) -> str:
        """Describe a bad record for messages: ``"train.jsonl, line 3, column 12: REASON"``."""
        # A reason that begins with a line or a column is part of the place.
        comma = ", " if why.startswith(("line ", "column ")) else ": "
        # Names come from the input, and control characters in them would move the cursor.
        return printable(f"{self.locate(part, position)}{comma}{why.rstrip('.')}")

    @abstractmethod
    def locate(self, part: InputPart, position: Any) -> str:
        """Return the place of a record for messages: ``"train.jsonl, line 17"``."""

    @abstractmethod
    def describe(self) -> str:
        """Summarise the input in a few words: ``"180 files in 24 classes"``."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a digest that changes with the input; a conversion that resumes compares it."""

    def list_splits(self) -> Sequence[str]:
        """Return the splits that the input has itself, such as train and val; often none."""
        return ()

    def probe(self) -> Iterator[dict[str, Any]]:
        """Yield records from which columns are inferred: some of the parts 0, 1, 2, 4, 8, ..."""
        count = 0
        for part in self._probed_parts():
            for _, record in self.read_records(part):
                if isinstance(record, BadRecord):
                    continue
                yield record
                count += 1
                # At most a quarter of the records come from one part.
                if count % (MAX_PROBED_RECORDS // 4) == 0:
                    break
            if count >= MAX_PROBED_RECORDS:
                return

    def _probed_parts(self) -> Iterator[InputPart]:
        """Yield the parts 0, 1, 2, 4, 8, ..., whose records are probed."""
        # Records at the start of a large file may be unlike those further on.
        for number, part in enumerate(self.cut_parts(PROBE_BYTES)):
            if number & (number - 1) == 0:  # 0 or a power of two
                yield part


class FileInput(Input):
    """A file, or a folder of files of one kind, which ``listing`` has.

    Only `infer_columns`, `read` and `locate` are needed. Files and folders that are all named after
    splits (``train``, ``test``, ...) give the dataset these splits.

    For example, files with a name and a number on each line::

        class Scores(FileInput):
            title = "scores"
            endings = frozenset({".scores"})

            def infer_columns(self):
                return [Column("name", "str"), Column("score", "int")]

            def read(self, part):  # part.address is (file, first byte, last byte + 1)
                with open(self.listing.path(part.address[0])) as file:
                    for number, line in enumerate(file, 1):
                        name, _, score = line.strip().rpartition(" ")
                        if score.isdigit():
                            yield number, {"name": name, "score": int(score)}
                        else:
                            yield number, BadRecord(f"{score!r} is no number")

            def locate(self, part, position):
                return f"{part.address[0]}, line {position}"

        register_input("scores", Scores)
    """

    #: Endings by which its files are recognised, in lower case and with the dot.
    endings: ClassVar[frozenset[str]] = frozenset()
    #: Whether a file holds many samples, so that its name may be that of a split.
    names_splits: ClassVar[bool] = True

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing.root)
        self.listing = listing
        self.size = listing.size
        #: Split of each file by name; empty if there are none.
        self.split_of = find_splits(listing.names, by_file=self.names_splits)

    @classmethod
    def open(cls, path: str, options: InputOptions) -> Input:
        """Open the input of a file, or of all files below a folder."""
        return cls.from_files(Listing.scan(path, options.include, options.exclude), options)

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open the input of the files in a listing; subclasses use the options."""
        del options
        return cls(listing)

    @classmethod
    def recognizes_mixture(cls, files: Mapping[str, int]) -> bool:
        """Return whether a folder of mixed files is one input, such as images and a table.

        - ``files`` (Mapping[str, int]): Number of files of each kind, by name in the registry.
        """
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
        """Yield start and end of pieces of about ``size`` bytes of a file of ``length`` bytes.

        By default a file is one piece.
        """
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
        # Processes that read parts need no table of all files: each part has its split.
        return {**self.__dict__, "split_of": {}}

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
    """Return the split of every file: the first folder named after one, else from its file name.

    The result is empty unless every file has a split. If file names alone name splits, there must
    be two or more.

    - ``by_file`` (bool): Whether file names count.
    """
    split_of: dict[str, str] = {}
    is_from_folders = True
    for name in names:
        *folders, file = name.split("/")
        split = split_folder(folders)
        if split is None and by_file and (match := _IN_FILE_NAME.search(file)):
            split, is_from_folders = match[1].lower(), False
        if split is None:
            return {}
        split_of[name] = split
    return split_of if is_from_folders or len(set(split_of.values())) > 1 else {}


def split_folder(folders: Sequence[str]) -> str | None:
    """Return the first of these folders that is named after a split."""
    return next((folder for folder in folders if _FOLDER.fullmatch(folder)), None)
