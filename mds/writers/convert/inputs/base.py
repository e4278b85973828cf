"""Abstract base class of what a conversion reads: one `Input` per kind of input.

An input lists what there is once, says which columns it offers, cuts itself into parts that can be
read anywhere and in any order, and reads one part as records. The order of parts and of records
within them is the order of the dataset, so nothing that is written depends on how many processes
read. An input is pickled to those processes, without what is large: a part brings what it needs.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mds.errors import MdsError, SourceError
from mds.formats.infer import Column
from mds.process.fork_safe import cached_property
from mds.text.redaction import printable

#: Records that are looked at to tell the columns.
MAX_PROBED_RECORDS = 1000
#: Size of the parts that are probed; the 0th, 1st, 2nd, 4th, 8th, ... are looked into.
PROBE_BYTES = 4 << 20


@dataclass(frozen=True)
class InputOptions:
    """What was asked of an input beside its place."""

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


#: The position of a record (in the input's own terms, see `Input.locate`) and what it holds.
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
        """The input at a path, URL or name. Raises SourceError for one that cannot be read."""

    @classmethod
    def recognizes(cls, path: str) -> bool:
        """Whether a path, URL or name is surely such an input; asked in the order of registry."""
        del path
        return False

    def __init__(self, root: str) -> None:
        self.root = root
        #: What was asked for, as it was written.
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
        """The columns as inferred from a look at the records."""

    @cached_property
    def inferred_columns(self) -> Sequence[Column]:
        """`infer_columns`, looked for once."""
        return self.infer_columns()

    def list_extra_columns(self) -> Sequence[Column]:
        """Columns that are there for the asking (``columns={"path": "str"}``)."""
        return ()

    @abstractmethod
    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """The input in parts of about ``size`` bytes, numbered from 0, the same ones each time."""

    @abstractmethod
    def read(self, part: InputPart) -> Iterator[Record]:
        """The records of a part, in order."""

    def read_records(self, part: InputPart) -> Iterator[Record]:
        """What `read` gives; SourceError where the file itself is broken.

        Cut-off gzip streams, tars, Arrow files: each package has errors of its own.
        """
        try:
            yield from self.read(part)
        except (MdsError, GeneratorExit):
            raise
        except Exception as error:
            first = part.address[0] if isinstance(part.address, tuple) else ""
            where = os.path.join(self.root, first) if isinstance(first, str) else self.name
            raise SourceError(
                f"{where}: cannot be read: {type(error).__name__}: {error}"
            ) from error

    def find_bad_record(self) -> str:
        """The place and reason of the first bad record; '' when there is none to be found."""
        for part in self._probed_parts():
            for position, record in self.read_records(part):
                if isinstance(record, BadRecord):
                    return self.describe_record(part, position, str(record))
        return ""

    def describe_record(self, part: InputPart, position: Any, why: str) -> str:
        """Where a record is and what is wrong: ``"train.jsonl, line 3, column 12: ..."``."""
        # A reason that goes on with the place reads on after it.
        comma = ", " if why.startswith(("line ", "column ")) else ": "
        # Keys and names come from the input, and control characters move cursors.
        return printable(f"{self.locate(part, position)}{comma}{why.rstrip('.')}")

    @abstractmethod
    def locate(self, part: InputPart, position: Any) -> str:
        """Where a record is, for people: ``"train.jsonl, line 17"``."""

    @abstractmethod
    def describe(self) -> str:
        """What was found, in a few words: ``"180 files in 24 classes"``."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest that differs when the input does; an interrupted conversion checks it."""

    def list_splits(self) -> Sequence[str]:
        """Splits that the input itself has (a folder of train and val); usually none."""
        return ()

    def probe(self) -> Iterator[dict[str, Any]]:
        """Some good records to infer columns from, of the beginning and from further on."""
        found = 0
        for part in self._probed_parts():
            for _, record in self.read_records(part):
                if isinstance(record, BadRecord):
                    continue
                yield record
                found += 1
                if found % (MAX_PROBED_RECORDS // 4) == 0:
                    break
            if found >= MAX_PROBED_RECORDS:
                return

    def _probed_parts(self) -> Iterator[InputPart]:
        # A thousand equal records at the start of a big file say little about its end.
        for number, part in enumerate(self.cut_parts(PROBE_BYTES)):
            if number & (number - 1) == 0:
                yield part
