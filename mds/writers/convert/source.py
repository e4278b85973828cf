"""The seam between a conversion and whatever it converts: one `Source` per kind of input.

A source lists its input once, says which columns it offers, cuts itself into parts that can be
read anywhere and in any order, and reads one part as records. The order of parts and of records
within them is the order of the dataset, so nothing that is written depends on how many processes
read. A source travels to those processes without its listing: a part brings what it needs.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from mds.errors import MdsError, SourceError

#: Records that are looked at to tell the columns.
PROBED = 1000


@dataclass(frozen=True, slots=True)
class Column:
    """A column as inferred: its encoding, an example for people, and what they should know."""

    name: str
    encoding: str
    example: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a source: ``size`` is its bytes there, ``what`` the source's own address of it."""

    number: int
    size: int
    what: Any
    split: str | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that is no sample, why, and in which column of its line (0: that is no matter)."""

    why: str
    column: int = 0

    def __str__(self) -> str:
        return f"column {self.column}: {self.why}" if self.column else self.why


#: Where a record is (in the source's own terms, see `Source.place`) and what it holds.
Record = tuple[Any, "dict[str, Any] | Bad"]


class Source(ABC):
    """Something that can be converted. Made by `recognise.open_source`."""

    #: What people call it.
    kind: ClassVar[str]
    #: Whether every value is text, so that numbers must be read from it.
    is_text: ClassVar[bool] = False
    #: Whether values came out of JSON, so that a json column takes them as they are.
    is_plain: ClassVar[bool] = False
    #: Whether later records may have keys that the ones looked at did not have.
    is_open: ClassVar[bool] = False
    #: Whether values are encoded already, byte for byte.
    is_encoded: ClassVar[bool] = False

    def __init__(self, root: str) -> None:
        self.root = root
        #: What was asked for, as it was written.
        self.name = root
        #: Things worth telling before the work starts.
        self.notes: list[str] = []
        #: Column by whose value samples are assigned to splits; None: by all they hold.
        self.key: str | None = None
        #: Bytes of the input; 0 when unknown.
        self.size = 0

    @abstractmethod
    def columns(self) -> Sequence[Column]:
        """The columns as inferred from a look at the records."""

    @cached_property
    def found(self) -> Sequence[Column]:
        """`columns`, looked for once."""
        return self.columns()

    def extras(self) -> Sequence[Column]:
        """Columns that are there for the asking (``columns={"path": "str"}``)."""
        return ()

    @abstractmethod
    def parts(self, size: int) -> Iterator[Part]:
        """The source in parts of about ``size`` bytes, numbered from 0, the same ones each time."""

    @abstractmethod
    def read(self, part: Part) -> Iterator[Record]:
        """The records of a part, in order."""

    def records(self, part: Part) -> Iterator[Record]:
        """What `read` gives; SourceError where the file itself is broken.

        Cut-off gzip streams, tars, Arrow files: each package has errors of its own.
        """
        try:
            yield from self.read(part)
        except (MdsError, GeneratorExit):
            raise
        except Exception as error:
            first = part.what[0] if isinstance(part.what, tuple) else ""
            where = os.path.join(self.root, first) if isinstance(first, str) else self.name
            raise SourceError(
                f"{where}: cannot be read: {type(error).__name__}: {error}"
            ) from error

    def first_bad(self) -> str:
        """The place and reason of the first bad record; '' when there is none to be found."""
        for part in self._probed_parts():
            for mark, record in self.records(part):
                if isinstance(record, Bad):
                    return self.sentence(part, mark, str(record))
        return ""

    def sentence(self, part: Part, mark: Any, why: str) -> str:
        """Where a record is and what is wrong: ``"train.jsonl, line 3, column 12: ..."``."""
        # A reason that goes on with the place reads on after it.
        comma = ", " if why.startswith(("line ", "column ")) else ": "
        return f"{self.place(part, mark)}{comma}{why.rstrip('.')}"

    @abstractmethod
    def place(self, part: Part, mark: Any) -> str:
        """Where a record is, for people: ``"train.jsonl, line 17"``."""

    @abstractmethod
    def describe(self) -> str:
        """What was found, in a few words: ``"180 files in 24 classes"``."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest that differs when the input does; an interrupted conversion checks it."""

    def splits(self) -> Sequence[str]:
        """Splits that the source itself has (a folder of train and val); usually none."""
        return ()

    def probe(self) -> Iterator[dict[str, Any]]:
        """Some good records to infer columns from, of the beginning and from further on."""
        found = 0
        for part in self._probed_parts():
            for _, record in self.records(part):
                if isinstance(record, Bad):
                    continue
                yield record
                found += 1
                if found % (PROBED // 4) == 0:
                    break
            if found >= PROBED:
                return

    def _probed_parts(self) -> Iterator[Part]:
        # A thousand equal records at the start of a big file say little about its end.
        for number, part in enumerate(self.parts(PROBE_BYTES)):
            if number & (number - 1) == 0:
                yield part


#: Size of the parts that are probed; the 0th, 1st, 2nd, 4th, 8th, ... are looked into.
PROBE_BYTES = 4 << 20
