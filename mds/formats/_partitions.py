"""Columns that folders name, as Hive and Spark write them: ``lang=en/day=7/part-0.parquet``.

The values are in the keys of the files, so no file is read for them. A column of the file itself
takes precedence over a folder of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from mds.errors import FormatError
from mds.formats._fit import find_coercer

#: Name of the folder of rows without a value.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"-?[0-9]{1,18}")


def partitions_of(key: str) -> dict[str, str | None]:
    """Return the columns that the folders of a file name, with their values as text.

    >>> partitions_of("lang=en/day=7/part-0.parquet")
    {'lang': 'en', 'day': '7'}
    """
    values = {}
    for folder in key.split("/")[:-1]:
        name, equals, text = folder.partition("=")
        if name and equals:
            values[unquote(name)] = None if text == _NO_VALUE else unquote(text)
    return values


def partition_encodings(keys: Iterable[str]) -> dict[str, str]:
    """Return the encodings of the columns that the folders of files name.

    A column is ``int`` if all of its values are whole numbers, else ``str``; it is optional if a
    file has no value of it.
    """
    folders = dict.fromkeys(key.rpartition("/")[0] for key in keys)
    values_by_folder = [partitions_of(f"{folder}/") for folder in folders]
    encodings = {}
    for name in sorted({name for values in values_by_folder for name in values}):
        column = [values.get(name) for values in values_by_folder]
        texts = [text for text in column if text is not None]
        encoding = "int" if texts and all(map(_WHOLE.fullmatch, texts)) else "str"
        encodings[name] = encoding if len(texts) == len(column) else f"optional[{encoding}]"
    return encodings


def partition_values(key: str, encodings: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that the folders of a file give to some columns, by name.

    ``encodings`` are those of the columns, by name. Raises FormatError for a value that its
    encoding does not take.
    """
    values: dict[str, Any] = {}
    for name, text in partitions_of(key).items() if "=" in key else ():
        encoding = encodings.get(name)
        if encoding is None:
            continue
        fit = find_coercer(encoding, from_text=True)
        try:
            values[name] = text if fit is None else fit(text)
        except ValueError as error:
            raise FormatError(f"{key}, column {name!r} of its folder: {error}.") from error
    return values
