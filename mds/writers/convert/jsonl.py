"""JSON lines (also compressed), and JSON files that are one list of objects.

A plain file is cut at byte offsets and a part takes the lines that begin in it, so that a single
large file is read by all processes; a compressed file or a list is one part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from mds.writers.convert.files import bad_line, not_utf8
from mds.writers.convert.infer import infer_columns, shown
from mds.writers.convert.lines import LineFiles, is_compressed, open_text
from mds.writers.convert.source import Bad, Column, Part, Record


class JsonLinesSource(LineFiles):
    """One JSON object a line; every object is a sample."""

    kind: ClassVar[str] = "JSON lines"
    is_plain: ClassVar[bool] = True
    is_open: ClassVar[bool] = True

    def columns(self) -> Sequence[Column]:
        """Columns that hold every value of the records looked at."""
        return infer_columns(self.probe())

    def record(self, line: bytes) -> dict[str, Any] | Bad | None:
        """The object on a line; None for an empty line."""
        return None if line.isspace() else parse_object(line.rstrip())


class JsonListSource(LineFiles):
    """Files that each hold one JSON list of objects."""

    kind: ClassVar[str] = "JSON list"
    is_plain: ClassVar[bool] = True
    is_open: ClassVar[bool] = True

    def columns(self) -> Sequence[Column]:
        """Columns that hold every value of the records looked at."""
        return infer_columns(self.probe())

    def parts(self, size: int) -> Iterator[Part]:
        """One part a file: a list has no place where it could be cut without reading it."""
        del size
        for number, (name, length) in enumerate(
            zip(self.listing.names, self.listing.sizes, strict=True)
        ):
            yield Part(number, length, (name, 0, length))

    def read(self, part: Part) -> Iterator[Record]:
        """The objects of the list."""
        name = part.what[0]
        with open_text(self.listing.path(name)) as file:
            data = file.read()
        try:
            items = json.loads(data)
        except UnicodeDecodeError as error:
            yield 0, Bad(not_utf8(data, error))
            return
        except ValueError as error:
            yield 0, Bad(f"this is no JSON: {error}")
            return
        for number, item in enumerate(items if isinstance(items, list) else [items], 1):
            yield number, item if isinstance(item, dict) else Bad(_no_object(item))

    def place(self, part: Part, mark: Any) -> str:
        """File and number of the item."""
        path = os.path.join(self.root, part.what[0])
        return f"{path}, item {mark}" if mark else path


def is_list(path: str) -> bool:
    """Whether a JSON file begins with a list, rather than with the first of many lines."""
    if is_compressed(path):
        return False
    with open(path, "rb") as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def parse_object(line: bytes) -> dict[str, Any] | Bad:
    """The object that a line holds, or what is wrong and in which column."""
    try:
        # Decoded here: the module would first look which of five Unicodes the bytes are.
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return bad_line(line, error)
    except json.JSONDecodeError as error:
        text = shown(line.decode("utf-8", "replace"))
        return Bad(f"{error.msg} in {text}", column=error.colno)
    except (ValueError, RecursionError) as error:
        return Bad(f"this is no JSON that Python takes: {error}")
    return value if isinstance(value, dict) else Bad(_no_object(value))


def _no_object(value: Any) -> str:
    return f"expected an object with the columns as keys, got {shown(value)}"
