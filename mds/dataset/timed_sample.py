"""Timing of one sample of a batch, of which the caller's code takes a part: see `Stopwatch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mds.dataset.worker_epoch import ReadersAtHand

if TYPE_CHECKING:
    from mds.process.stopwatch import Stopwatch
    from mds.readers import Reader


class TimedReaders(ReadersAtHand):
    """The readers of an epoch for one sample; what the first one that is asked takes is decoding.

    It is their mapping and the reader that was asked for at once.
    """

    def __init__(self, epoch: ReadersAtHand, watch: Stopwatch) -> None:
        super().__init__()
        self.shards = epoch.shards
        self.readers = self  # type: ignore[assignment]
        self._epoch, self._watch = epoch, watch
        self._is_timed = False

    def __getitem__(self, shard: int) -> Any:
        reader = self._epoch.readers
        if self._is_timed:
            return reader[shard]
        self._is_timed = True
        self._watch.leave_functions()
        self._reader: Reader = reader[shard]
        return self

    def __contains__(self, row: int) -> bool:
        if row in self._reader:
            return True
        self._watch.resume_functions()
        return False

    def get(self, row: int) -> Any:
        """The sample of a row."""
        sample = self._reader.get(row)
        self._watch.resume_functions()
        return sample
