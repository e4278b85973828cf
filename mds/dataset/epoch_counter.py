"""Which epoch comes next, agreed between a dataset object and its copies in worker processes.

A DataLoader gives every worker a copy of the dataset, and the object in the main process never
sees that an epoch began. So the count lives in memory that the processes of a rank share. It is
touched once an epoch by each worker. Ranks that were forked from one parent keep separate records
in it, by owner.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from mds.cache.rank_file import RankFile
from mds.plan.state import ResumePoint, emit_state, parse_state

_MAX_REMEMBERED_STARTS = 8  # iterations whose workers may still be arriving


class EpochStart(NamedTuple):
    """Start of one iteration: its epoch, and the point that it was resumed from, if any."""

    epoch: int
    resume: ResumePoint | None


class SharedEpochCounter:
    """The iterations started so far in this rank, and the state waiting for the next one."""

    def __init__(self) -> None:
        self._write_first(_blank_record())

    def begin_epoch(self, group: int, worker: int) -> EpochStart:
        """The start of this worker's new iteration.

        Workers of one iteration say the same ``group`` and get the same epoch, also if other
        iterations begin in between; a worker that asks twice with the same group begins another
        iteration.
        """
        with self._record() as record:
            starts = record["starts"]
            start = next((s for s in reversed(starts) if s["group"] == group), None)
            if start is not None and worker not in start["workers"]:
                start["workers"].append(worker)
            else:
                resume = record["pending"]
                record["pending"] = None
                epoch = record["next_epoch"]
                if resume is not None:
                    record["loaded"] = resume
                    # A state from before the first epoch asks for the first.
                    epoch = max(parse_state(resume).epoch, 0)
                start = {"group": group, "workers": [worker], "epoch": epoch, "resume": resume}
                starts.append(start)
                del starts[:-_MAX_REMEMBERED_STARTS]
                record["next_epoch"] = epoch + 1
            return EpochStart(start["epoch"], _point(start["resume"]))

    def load(self, point: ResumePoint) -> None:
        """Let the next iteration begin from ``point``, whatever epoch it is of."""
        with self._record() as record:
            record["pending"] = emit_state(point)
            record["edits"] = [dict(edit) for edit in point.edits]

    @property
    def pending(self) -> ResumePoint | None:
        """The loaded point that no iteration has begun from yet."""
        with self._record() as record:
            return _point(record["pending"])

    @property
    def loaded(self) -> ResumePoint | None:
        """The point that was last loaded, begun from or not; its seed and nodes stay in force."""
        with self._record() as record:
            return _point(record["pending"] or record["loaded"])

    @property
    def edits(self) -> list[dict[str, Any]]:
        """What was changed of the order while it ran, in the order in which it was said."""
        with self._record() as record:
            return list(record["edits"])

    def edit(self, edits: Iterable[Mapping[str, Any]]) -> None:
        """Take note of changes; workers of later iterations see them."""
        with self._record() as record:
            record["edits"].extend(map(dict, edits))

    @property
    def last(self) -> EpochStart | None:
        """The iteration that was started last."""
        with self._record() as record:
            if not record["starts"]:
                return None
            return EpochStart(record["starts"][-1]["epoch"], _point(record["starts"][-1]["resume"]))

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration will be, unless a state is loaded."""
        with self._record() as record:
            return int(record["next_epoch"])

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        with self._record() as record:
            record["next_epoch"] = int(epoch)

    @contextmanager
    def _record(self) -> Iterator[dict[str, Any]]:
        """This rank's record, under the lock; what the block changes is kept."""
        with self._file.locked():
            records = _read(self._file.descriptor)
            owner = str(self._file.owner)
            # A rank forked from the maker goes on from what the maker had.
            before = json.dumps(records.get(owner, records[records["maker"]]))
            record = json.loads(before)
            yield record
            if json.dumps(record) != before:
                records[owner] = record
                _write(self._file.descriptor, records)

    def __getstate__(self) -> dict[str, Any]:
        if self._file.is_handed_on():
            return {"_file": self._file}
        with self._record() as record:
            return {"record": dict(record)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "record" in state:
            self._write_first(state["record"])
        else:
            self._file: RankFile = state["_file"]

    def _write_first(self, record: Mapping[str, Any]) -> None:
        self._file = RankFile("mds-epochs")
        maker = str(self._file.owner)
        _write(self._file.descriptor, {"maker": maker, maker: record})

    def close(self) -> None:
        """Give the file back; closing twice is fine."""
        self._file.close()


def _point(record: Mapping[str, Any] | None) -> ResumePoint | None:
    """The point that a record holds as plain JSON."""
    return parse_state(record) if record is not None else None


def _blank_record() -> dict[str, Any]:
    return {"next_epoch": 0, "pending": None, "loaded": None, "starts": [], "edits": []}


def _read(fd: int) -> dict[str, Any]:
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    records: dict[str, Any] = json.loads(data) if data else {}
    return records


def _write(fd: int, records: Mapping[str, Any]) -> None:
    data = json.dumps(records).encode()
    # Longer first: a reader parses up to the end of the file, and trailing blanks are no harm.
    size = os.fstat(fd).st_size
    os.pwrite(fd, data.ljust(size), 0)
