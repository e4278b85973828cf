"""A dataset in a format outside of a cache: planned anew, to be copied or looked into."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from mds.errors import ConfigError
from mds.formats.base import Format
from mds.formats.dataset import FormatData, make_table
from mds.formats.place import parse_place
from mds.formats.registry import format_names, format_of_files, parse_format
from mds.formats.source import Files, open_pinned
from mds.storage import open_store, redact
from mds.storage.url import Url


def open_files(
    source: str,
    format: str | Format | None = None,  # noqa: A002 - what it is
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[FormatData, Files]:
    """Plan a dataset of files anew, and return it with its reader of files.

    Raises ConfigError for a source of no format, and what planning raises.
    """
    kind = parse_format(format) or format_of_files(source, beside_index=True)
    if kind is None:
        known_formats = ", ".join(format_names())
        raise ConfigError(
            f"{redact(source)!r} holds no files that are read as they lie ({known_formats})."
        )
    place = kind.narrow(parse_place(source, kind.endings))
    files = open_pinned(place.root, functools.partial(open_store, options=storage_options))
    table = make_table(kind, files, kind.find(place, files))
    return FormatData.of(kind, table, columns, Url(source)), files
