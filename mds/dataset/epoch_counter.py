"""Epoch counter that a dataset object shares with its copies in worker processes.

A DataLoader gives every worker a copy of the dataset, and the object in the main process never
sees that an epoch began. So the count is in memory that the processes of a rank share. Each worker
touches it once an epoch. Ranks that were forked from one parent keep separate records in it, by
owner.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mds.cache.rank_file import RankFile
from mds.plan.state import Position, ResumePoint, emit_state, parse_state

_MAX_REMEMBERED_STARTS = 8  # iterations whose workers may still be arriving


class SharedEpochCounter:
    """Iterations that this rank has started, and the state with which the next one begins."""

    def __init__(self) -> None:
        self._write_first(_blank_record())

    def begin_epoch(self, group: int, worker: int) -> ResumePoint:
        """Return where this worker's new iteration begins.

        Workers of one iteration give the same ``group`` and get the same beginning, even if other
        iterations begin in between. A worker that asks twice with the same group begins another
        iteration. The settings of the point are None unless a loaded state begins here.
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
                    epoch = max(parse_state(resume).position.epoch, 0)
                start = {"group": group, "workers": [worker], "epoch": epoch, "resume": resume}
                starts.append(start)
                del starts[:-_MAX_REMEMBERED_STARTS]
                record["next_epoch"] = epoch + 1
            return _parse_start(start)

    def load(self, point: ResumePoint) -> None:
        """Begin the next iteration at ``point``, in whatever epoch it is."""
        with self._record() as record:
            record["pending"] = emit_state(point)
            record["edits"] = [dict(edit) for edit in point.edits]

    @property
    def pending(self) -> ResumePoint | None:
        """Loaded point at which no iteration has begun yet."""
        with self._record() as record:
            return _parse_point(record["pending"])

    @property
    def loaded(self) -> ResumePoint | None:
        """Point that was loaded last; its seed and canonical nodes stay in force."""
        with self._record() as record:
            return _parse_point(record["pending"] or record["loaded"])

    @property
    def edits(self) -> list[dict[str, Any]]:
        """Changes of the order while it ran, oldest first."""
        with self._record() as record:
            return list(record["edits"])

    def edit(self, edits: Iterable[Mapping[str, Any]]) -> None:
        """Add changes of the order; workers of later iterations see them."""
        with self._record() as record:
            record["edits"].extend(map(dict, edits))

    @property
    def last(self) -> ResumePoint | None:
        """Beginning of the iteration that was started last."""
        with self._record() as record:
            return _parse_start(record["starts"][-1]) if record["starts"] else None

    @property
    def next_epoch(self) -> int:
        """Epoch of the next iteration, unless a state is loaded."""
        with self._record() as record:
            return int(record["next_epoch"])

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        with self._record() as record:
            record["next_epoch"] = int(epoch)

    @contextmanager
    def _record(self) -> Iterator[dict[str, Any]]:
        """Give this rank's record under the lock, and store what the block changes in it."""
        with self._file.locked():
            records = _read(self._file.descriptor)
            owner = str(self._file.owner)
            # A rank that was forked from the maker continues with the maker's record.
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
        """Close the file; closing twice is fine."""
        self._file.close()


def _parse_point(state: Mapping[str, Any] | None) -> ResumePoint | None:
    return parse_state(state) if state is not None else None


def _parse_start(start: Mapping[str, Any]) -> ResumePoint:
    if start["resume"] is None:
        return ResumePoint(Position(start["epoch"]))
    point = parse_state(start["resume"])
    return point.at(point.position._replace(epoch=start["epoch"]))


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
