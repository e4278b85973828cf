"""Anonymous files in memory, which processes share by their descriptor."""

from __future__ import annotations

import contextlib
import os
import tempfile


def open_nameless(name: str) -> int:
    """Return the descriptor of an empty file that is in no folder.

    ``name`` is shown by /proc. Raises OSError where the system gives none.
    """
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:  # gone from its folder as soon as it is made
        return os.dup(file.fileno())
