"""Standard input as a source of mds-convert: its bytes in a temporary file."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from mds.errors import ConfigError

NAME = "-"
_CHUNK = 1 << 20


@contextlib.contextmanager
def spooled(source: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield ``source``, or for ``-`` the path of a temporary file with all of standard input.

    ``options`` are those of the command, by name.

    A conversion reads its source more than once (to infer columns, and in parts), which a pipe does
    not allow. Raises ConfigError if ``--format`` does not give the format, and for options that
    need the same source again.
    """
    if source != NAME:
        yield source
        return
    if not options.get("format"):
        raise ConfigError(
            "SOURCE is - (standard input), which has no file name and so no format. Add --format "
            "jsonl, --format csv or --format lines."
        )
    if options.get("resume") or options.get("engine", "local") != "local":
        raise ConfigError(
            "SOURCE is - (standard input), which can be read only once and on this machine. "
            "Leave out --resume and --engine, or write it into a file first."
        )
    with tempfile.TemporaryDirectory(prefix="mds-stdin-") as folder:
        path = os.path.join(folder, "stdin")
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, _CHUNK)
        if not os.path.getsize(path):
            raise ConfigError("standard input is empty: the pipe sent no data.")
        yield path
