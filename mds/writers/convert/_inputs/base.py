"""The base class of what a conversion reads: files (`FormatInput`), and anything else.

An input lists its source once, says which columns it offers, cuts itself into parts that can be
read anywhere and in any order, and reads one part as records. The order of parts and of records
within them is the order of the dataset, so the output does not depend on how many processes read.
An input is pickled to those processes without its large attributes: a part brings what it needs.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mds._process.fork_safe import cached_property
from mds._redaction import printable
from mds.errors import ConfigError, MdsError, SourceError
from mds.formats._base import Format
from mds.formats._columns import Column
from mds.formats._facts import Problem

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

    #: Name of the input or format, or a format with its settings; None to recognise it.
    format: str | Format | None = None
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


#: Position of a record, for `Input.locate`, and its values by column.
Record = tuple[Any, "dict[str, Any] | Problem"]


class Input(ABC):
    """A source that can be converted, such as a Hugging Face dataset.

    Inherit it, and pass the class to `register_input`. A kind of files is a format instead, see
    `mds.formats.register_format`.

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
                if isinstance(record, Problem):
                    return self.describe_problem(part, position, record)
        return ""

    def describe_problem(self, part: InputPart, position: Any, problem: Problem) -> str:
        """Describe a bad record for messages; a problem without a location has that of a record."""
        if problem.location:
            return printable(str(problem).rstrip("."))
        return self.describe_record(part, position, problem.reason)

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
                if isinstance(record, Problem):
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


class FileInput:
    """Name of a former class; a kind of files is a `mds.formats.Format`."""

    def __init_subclass__(cls) -> None:
        raise ConfigError(
            f"{cls.__name__}: files are converted as they are read in place, so a kind of files is "
            "a format. Inherit mds.formats.Format, and call mds.formats.register_format."
        )
