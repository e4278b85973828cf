"""Timing of one sample of a batch, of which the caller's code takes a part: see `Stopwatch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mds.process.stopwatch import Stopwatch
    from mds.readers import Reader


class TimedReaders:
    """Readers of a window for one sample; the time of the first access counts as decoding.

    The object is both the mapping and the reader that the first access returns.
    """

    def __init__(self, readers: Mapping[int, Reader], watch: Stopwatch) -> None:
        self._readers, self._watch = readers, watch
        self._is_timed = False

    def __getitem__(self, shard: int) -> Any:
        if self._is_timed:
            return self._readers[shard]
        self._is_timed = True
        self._watch.leave_functions()
        self._reader: Reader = self._readers[shard]
        return self

    def __contains__(self, row: int) -> bool:
        if row in self._reader:
            return True
        self._watch.resume_functions()
        return False

    def get(self, row: int) -> Any:
        """Return the sample of a row."""
        sample = self._reader.get(row)
        self._watch.resume_functions()
        return sample
