"""Standard input as a source: what comes through a pipe, in a file for as long as it is read."""

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
    """Give the source, or for ``-`` a temporary file with all of standard input.

    It is read more than once (to infer columns, and in parts), which a pipe cannot be. Raises
    ConfigError where nothing says what it is, and for options that need the same source again.
    """
    if source != NAME:
        yield source
        return
    if not options.get("kind"):
        raise ConfigError(
            "SOURCE is -, standard input, which has no name to tell what it is: say so with --as "
            "jsonl, --as csv or --as lines."
        )
    if options.get("resume") or options.get("engine", "local") != "local":
        raise ConfigError(
            "SOURCE is -, standard input, which is there once and on this machine alone: leave out "
            "--resume and --engine, or write it into a file first."
        )
    with tempfile.TemporaryDirectory(prefix="mds-stdin-") as folder:
        path = os.path.join(folder, "stdin")
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, _CHUNK)
        if not os.path.getsize(path):
            raise ConfigError("standard input is empty: nothing came through the pipe.")
        yield path
