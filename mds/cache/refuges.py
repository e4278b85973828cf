"""Garbage collection of folders that jobs made for themselves when theirs was taken over.

Such a folder is of one index of a source, and when the last job with that index has ended none will
ask for it again. The first process of a node that opens the folder of the source looks for them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable

from mds.cache.filesystem import control_folder
from mds.cache.origin import CONTROL, apart, read_origin
from mds.cache.process_table import is_in_use


def remove_refuges(folder: str, parts: Iterable[str]) -> None:
    """Delete those parts of a folder that are of other indexes of the folder's own source."""
    owner = read_origin(folder)
    if owner is None:
        return
    for part in parts:
        origin = read_origin(part)
        if origin is None or origin.source != owner.source or origin.identity == owner.identity:
            continue
        # Only what is made for an identity; the folder of a source that came second may be asked
        # for again at any time, and has another name.
        control = control_folder(part, CONTROL)
        if part == apart(folder, origin.identity) and not is_in_use(control):
            for path in {control, part}:
                shutil.rmtree(path, ignore_errors=True)
