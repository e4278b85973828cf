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
from mds.redaction import printable

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
