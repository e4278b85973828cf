"""Existence check of the shards of a merged index: beside the indexes that are merged.

An index may be at two places, and a file at either. All files below the folder that the datasets
have in common are asked for together, so that a store is listed once.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

from mds.errors import WriterError
from mds.storage import is_local, local_path, open_store, redact
from mds.writers.presence import ExpectedFile, find_faults

_Choice = tuple[str, ExpectedFile]


class ShardFiles:
    """The files of all datasets that are merged, with the places where each may be."""

    def __init__(self, places: list[str]) -> None:
        self._places = [normalize_place(place) for place in places]
        self._files: list[list[_Choice]] = []

    def add(self, shards: list[dict[str, Any]], folders: list[str]) -> None:
        """Take the shards of an index, which is in the first of the folders."""
        roots = [self._root(normalize_place(folder)) for folder in folders]
        for shard in shards:
            for what in ("data", "meta"):
                infos = [shard.get(f"{kind}_{what}") for kind in ("zip", "raw")]
                choices = [
                    (root, ExpectedFile(prefix + info["basename"], info["bytes"]))
                    for root, prefix in roots
                    for info in infos
                    if info
                ]
                if choices:
                    self._files.append(choices)

    def check(self, timeout: float) -> None:
        """Raise WriterError for the first file that is nowhere."""
        reasons: dict[int, str] = {}
        missing = list(range(len(self._files)))
        for turn in range(max(map(len, self._files), default=0)):
            asked: dict[str, dict[ExpectedFile, int]] = defaultdict(dict)
            for number in missing:
                choices = self._files[number]
                root, file = choices[min(turn, len(choices) - 1)]
                asked[root][file] = number
            missing = []
            for root, files in asked.items():
                with open_store(root, timeout=timeout) as store:
                    for file, reason in find_faults(files, store):
                        missing.append(files[file])
                        reasons.setdefault(files[file], f"{reason} in {redact(root)}")
            if not missing:
                return
        if missing:
            more = f" ({len(missing) - 1} more files alike)" if len(missing) > 1 else ""
            raise WriterError(
                f"{reasons[missing[0]]}{more}: a merged index would name what is not there. No "
                "index is published; write that dataset anew, or leave it out."
            )

    def _root(self, folder: str) -> tuple[str, str]:
        """The place of the merged index and what leads from it, or the folder itself."""
        for place in self._places:
            if folder == place:
                return place, ""
            if folder.startswith(place + "/"):
                return place, folder[len(place) + 1 :] + "/"
        return folder, ""


def normalize_place(place: str) -> str:
    """A place without the ways to write it: an absolute path, or a URL without the last slash."""
    if is_local(place):
        return os.path.abspath(local_path(place)).replace(os.sep, "/")
    return place.rstrip("/")
