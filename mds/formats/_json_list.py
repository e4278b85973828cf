"""Files that hold one JSON document: a list of objects, or one object over several lines.

Each object is a sample. A document can only be parsed as a whole, so a file is one shard. Files of
JSON lines and of documents may have the same endings; the content says which one a file is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mds._readers.codegen import load_json
from mds.formats._columns import show_value
from mds.formats._facts import DataFile, Problem
from mds.formats._utf8 import not_utf8

if TYPE_CHECKING:
    from mds.formats._source import Files

_BOM = b"\xef\xbb\xbf"


def is_document(start: bytes) -> bool:
    """Return True if a JSON file is one list or one object, instead of an object per line.

    ``start`` are its first bytes.
    """
    start = start.removeprefix(_BOM).lstrip()
    first, _, following = start.partition(b"\n")
    # json.dump(indent=...) writes a brace alone on the first line; JSON lines do not.
    if first.strip() == b"{":
        return bool(following.strip())
    if not first.startswith(b"["):
        return False
    try:  # a whole list with lines behind it is a broken line
        json.loads(first)
    except ValueError:
        return True
    return not following.strip()


def read_items(
    data: bytes, encoding: str, file: DataFile, files: Files
) -> list[dict[str, Any] | Problem]:
    """Return the objects of a document; of one that is no JSON, the problem.

    Args:
        data: Content of the file.
        encoding: Encoding of the text.
        file, files: The file, for errors.
    """
    location = files.url(file)
    try:
        value = load_json(str(data.removeprefix(_BOM), encoding))
    except UnicodeDecodeError as error:
        return [Problem(location, not_utf8(data, error))]
    except (ValueError, RecursionError) as error:
        return [Problem(location, f"this is not JSON: {error}")]
    items = value if isinstance(value, list) else [value]
    return [
        item if isinstance(item, dict) else Problem(item_location(file, number, files), _why(item))
        for number, item in enumerate(items)
    ]


def item_location(file: DataFile, row: int, files: Files) -> str:
    """Return where the object of a row is; objects are numbered from 1."""
    return f"{files.url(file)}, item {row + 1}"


def _why(value: Any) -> str:
    return f"expected an object with the columns as keys, got {show_value(value)}"
