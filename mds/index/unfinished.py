"""Why a folder has no index: what a writer or a conversion left there that never finished."""

from __future__ import annotations

import os


def unfinished(folder: str) -> str:
    """Return a sentence on why a folder has no index, or '' if its files do not show it."""
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    if ".mds-convert" in names:
        return " A conversion was begun there and not finished; go on with mds-convert --resume."
    if any(name.startswith("shard.") for name in names):
        return " It holds shards: the writer that wrote them never finished. Write it anew."
    return ""
