"""How many packs the windows of an epoch have, counted once on a node and found again.

Beside the order files, in a small file for each epoch: its name stands for all that the packs
depend on, it appears by rename when it is whole, and a digest tells a damaged one, which is counted
anew. One process counts while it holds a lock that the kernel drops with its owner. Where the
folder cannot be used, every process counts for itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

import numpy as np

from mds.cache.computed_files import ComputedFiles
from mds.errors import CacheError, IndexFileError
from mds.index.companion import pack_companion, parse_companion
from mds.storage.control_files import read_control_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

_KIND = "packs"
_NAME = re.compile(r"^packs-[0-9a-f]{32}\.bin$")
_MOST = 16  # files of a folder
_LOCK_TIMEOUT_SECONDS = 300.0  # seconds to wait for another process that counts


class PackFile:
    """The file of one epoch: of so many ``windows`` in each canonical node, in a folder."""

    def __init__(self, key: str, windows: Ids, folder: str) -> None:
        self._key, self._windows = key, windows
        self._files = ComputedFiles(folder, _LOCK_TIMEOUT_SECONDS)
        self.path = os.path.join(folder, f"packs-{key}.bin")

    def read(self) -> list[Ids] | None:
        """The packs of each window of each canonical node; None where that is not known."""
        whole = int(self._windows.sum())
        try:
            content = read_control_file(self.path, 4 * whole + 2048)
            found = parse_companion(content, self.path, _KIND, self._key)
        except (OSError, CacheError, IndexFileError):
            return None
        if len(found.payload) != 4 * whole:
            return None
        counts = np.frombuffer(found.payload, "<u4").astype(np.int64)
        return np.split(counts, np.cumsum(self._windows)[:-1])

    def ensure(self, count: Callable[[], list[Ids]]) -> list[Ids]:
        """What `read` gives, else what ``count`` gives, which is kept."""
        known = self.read()
        if known is not None:
            return known
        with (
            contextlib.suppress(OSError, CacheError),
            self._files.alone(int(self._key[:7], 16), self.path),
        ):
            known = self.read()
            if known is None:
                known = count()
                self._write(known)
        return known if known is not None else count()

    def _write(self, counts: list[Ids]) -> None:
        payload = np.concatenate([np.zeros(0, np.int64), *counts]).astype("<u4").tobytes()
        with self._files.publish(self.path) as file:
            file.write(pack_companion(_KIND, 1, self._key, payload))
        self._files.keep_newest(_NAME, _MOST)
