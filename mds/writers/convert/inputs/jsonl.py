"""JSON lines (also compressed), and JSON files that are one list of objects, or one object.

A plain file is cut at byte offsets and a part takes the lines that begin in it, so that a single
large file is read by all processes; a compressed file or a list is one part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from mds.errors import SourceError
from mds.formats.infer import Column, infer_columns, show_value
from mds.formats.lines import json_object
from mds.writers.convert.inputs.base import BadRecord, Input, InputOptions, InputPart, Record
from mds.writers.convert.inputs.files import bad_line, not_utf8
from mds.writers.convert.inputs.lines import BOM, LinesInput, is_compressed, open_text
from mds.writers.convert.inputs.listing import Listing


class JsonLinesInput(LinesInput):
    """One JSON object a line; every object is a sample."""

    title: ClassVar[str] = "JSON lines"
    endings: ClassVar[frozenset[str]] = frozenset({".jsonl", ".ndjson", ".json"})
    is_json: ClassVar[bool] = True
    has_late_keys: ClassVar[bool] = True

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Lines, or lists where the files are such."""
        lists = [name for name in listing.names if is_document(listing.path(name))]
        if lists and len(lists) < len(listing):
            raise SourceError(
                f"{listing.root}: some files are whole JSON ({lists[0]}), others are lines. "
                "Convert them one by one, or choose with --include."
            )
        made = JsonListInput(listing) if lists else JsonLinesInput(listing)
        made.encoding = options.encoding or made.encoding
        return made

    def infer_columns(self) -> Sequence[Column]:
        """Columns that hold every value of the records looked at."""
        return infer_columns(self.probe())

    def record(self, line: bytes) -> dict[str, Any] | BadRecord | None:
        """The object on a line; None for an empty line."""
        return None if line.isspace() else parse_object(line.rstrip(), self.encoding)


class JsonListInput(LinesInput):
    """Files that each hold one JSON list of objects, or one object over several lines."""

    title: ClassVar[str] = "JSON list"
    is_json: ClassVar[bool] = True
    has_late_keys: ClassVar[bool] = True

    def infer_columns(self) -> Sequence[Column]:
        """Columns that hold every value of the records looked at."""
        return infer_columns(self.probe())

    def cut_file(self, name: str, length: int, size: int) -> Iterator[tuple[int, int]]:
        """One part a file: a list has no place where it could be cut without reading it."""
        del name, size
        yield 0, length

    def read(self, part: InputPart) -> Iterator[Record]:
        """The objects of the list."""
        name = part.address[0]
        with open_text(self.listing.path(name)) as file:
            data = file.read()
        try:
            items = json.loads(data if self.encoding == "utf-8" else data.decode(self.encoding))
        except UnicodeDecodeError as error:
            yield 0, BadRecord(not_utf8(data, error))
            return
        except ValueError as error:
            yield 0, BadRecord(f"this is not JSON: {error}")
            return
        for number, item in enumerate(items if isinstance(items, list) else [items], 1):
            yield number, item if isinstance(item, dict) else BadRecord(_no_object(item))

    def locate(self, part: InputPart, position: Any) -> str:
        """File and number of the item."""
        path = os.path.join(self.root, part.address[0])
        return f"{path}, item {position}" if position else path


def is_document(path: str) -> bool:
    """Whether a JSON file is one list, or one object over several lines, and not many lines."""
    if is_compressed(path):
        return False
    with open(path, "rb") as file:
        start = file.read(4096).removeprefix(BOM).lstrip()
    # What json.dump(indent=...) writes: no line of many is a brace alone.
    first, _, rest = start.partition(b"\n")
    return start[:1] == b"[" or (first.strip() == b"{" and bool(rest.strip()))


def parse_object(line: bytes, encoding: str = "utf-8") -> dict[str, Any] | BadRecord:
    """The object that a line holds, or what is wrong and in which column."""
    try:
        return json_object(line if encoding == "utf-8" else line.decode(encoding).encode())
    except UnicodeDecodeError as error:
        return bad_line(line, error)
    except json.JSONDecodeError as error:
        text = show_value(line.decode("utf-8", "replace"))
        return BadRecord(f"{error.msg} in {text}", column=error.colno)
    except RecursionError as error:
        return BadRecord(f"this is not JSON that Python takes: {error}")
    except ValueError as error:
        return BadRecord(str(error))


def _no_object(value: Any) -> str:
    return f"expected an object with the columns as keys, got {show_value(value)}"
