"""Checkpoint folder of a conversion: what is done already, so that a killed one can go on.

    plan.json                 what is being converted, and how; `--resume` must ask for the same
    parts/00000012.part       a part is read: sizes and splits of its samples, and what was bad
    parts/00000012.0.run      its samples for split 0, until the shards that hold them are done
    shards/0/00000003.json    a shard is where it belongs: its entry of the index
    finished                  the indexes are published, only the folder is left to remove

Every file appears whole or not at all, so whatever is there is done, at whatever instant the
process died. The folder is locked by the process that converts (`locks.py`). Only these names are
ever removed: the folder may be one that the user chose.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from typing import Any

import numpy as np

from mds.errors import ConfigError
from mds.storage.files import temporary_owner, write_file
from mds.storage.locks import LOCK_NAME

#: The folder inside a local output.
NAME = ".mds-convert"
_FOLDERS = ("parts", "shards", "upload")
#: What a plan has at least; a plan.json without these is another program's.
_PLAN_KEYS = {"version", "source", "source kind", "columns", "options"}


@dataclass(frozen=True, slots=True)
class PartDone:
    """A part that was read: split, bytes and length of each sample, and the records that are none.

    ``lengths`` are those of the column that they are recorded of; None where they are not.
    """

    number: int
    splits: Any
    sizes: Any
    bad: tuple[str, ...] = ()
    bad_count: int = 0
    lengths: Any = None


class Checkpoint:
    """One work folder, cheap to pickle; ``is_private`` in a folder that all users share."""

    def __init__(self, folder: str, *, is_private: bool = False) -> None:
        self.folder = folder
        self.is_private = is_private

    def run_path(self, part: int, split: int) -> str:
        """Return the path of the samples of a part for a split."""
        return os.path.join(self.folder, "parts", f"{part:08}.{split}.run")

    def part_path(self, part: int) -> str:
        """Return the path of the record of a part that was read."""
        return os.path.join(self.folder, "parts", f"{part:08}.part")

    def shard_path(self, split: int, number: int) -> str:
        """Return the path of the record of a shard that was written."""
        return os.path.join(self.folder, "shards", str(split), f"{number:08}.json")

    def save_part(self, part: PartDone) -> None:
        """Say that a part is read; its runs must be there."""
        head = {"samples": len(part.sizes), "bad": part.bad, "bad_count": part.bad_count}
        splits = np.asarray(part.splits, "<u1").tobytes()
        sizes = np.asarray(part.sizes, "<i8").tobytes()
        lengths = b"" if part.lengths is None else np.asarray(part.lengths, "<u4").tobytes()
        data = json.dumps(head).encode() + b"\n" + splits + sizes + lengths
        write_file(self.part_path(part.number), data)

    def load_part(self, number: int) -> PartDone | None:
        """Return the record of a part that was read, or None if it was not read yet."""
        try:
            with open(self.part_path(number), "rb") as file:
                head = json.loads(file.readline())
                data = file.read()
        except FileNotFoundError:
            return None
        samples = head["samples"]
        return PartDone(
            number,
            np.frombuffer(data, "<u1", samples),
            np.frombuffer(data, "<i8", samples, samples),
            tuple(head["bad"]),
            head["bad_count"],
            np.frombuffer(data, "<u4", samples, 9 * samples) if len(data) > 9 * samples else None,
        )

    def save_shard(self, split: int, number: int, entry: dict[str, Any], version: str) -> None:
        """Say that a shard is where it belongs, with the version that the store gave its file."""
        note = {"entry": entry, "version": version}
        write_file(self.shard_path(split, number), json.dumps(note).encode())

    def load_shard(self, split: int, number: int) -> tuple[dict[str, Any], str] | None:
        """Return a shard's index entry and file version, or None if it is not written yet."""
        try:
            with open(self.shard_path(split, number), "rb") as file:
                note = json.load(file)
        except FileNotFoundError:
            return None
        return note["entry"], note["version"]

    def forget_run(self, part: int, split: int) -> None:
        """Remove a run whose shards are done."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.run_path(part, split))

    def load_plan(self) -> dict[str, Any] | None:
        """Return the plan of an earlier start, or None if there is none.

        Raises ConfigError for a folder that holds something else.
        """
        try:
            with open(os.path.join(self.folder, "plan.json"), "rb") as file:
                plan = json.load(file)
        except FileNotFoundError:
            self._check_empty()
            return None
        except ValueError:
            plan = None
        if not isinstance(plan, dict) or not plan.keys() >= _PLAN_KEYS:
            raise ConfigError(
                f"{self.folder}/plan.json is not the plan of a conversion. Choose another work "
                "folder with --work."
            )
        return plan

    def _check_empty(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self.folder)
            # A start that was killed before it wrote its plan leaves these at most.
            ours = {"finished", LOCK_NAME}
            foreign = [n for n in names if temporary_owner(n) is None and n not in ours]
            if foreign:
                raise ConfigError(
                    f"{self.folder} holds {min(foreign)!r} and no conversion that was begun; "
                    "a conversion needs its own work folder. Choose another with --work."
                )

    def begin_or_resume(self, plan: dict[str, Any]) -> int:
        """Write the plan of a fresh start, or see that it is the one that was begun.

        Gives the number of parts that are read already. Raises ConfigError for another plan.
        """
        plan_as_json = json.loads(json.dumps(plan))
        before = self.load_plan()
        if before is None:
            path = os.path.join(self.folder, "plan.json")
            write_file(path, json.dumps(plan, indent=1, sort_keys=True).encode())
            return 0
        if changed := _list_changes(before, plan_as_json):
            raise ConfigError(
                f"{self.folder}: the conversion that was begun differs in {', '.join(changed)}. "
                "Resume it with the same options, or start again with --overwrite."
            )
        return self.parts_done()

    def parts_done(self) -> int:
        """Return the number of parts that were read."""
        folder = os.path.join(self.folder, "parts")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return sum(name.endswith(".part") for name in names)

    def has_part(self, number: int) -> bool:
        """Whether a part is read."""
        return os.path.exists(self.part_path(number))

    def has_shard(self, split: int, number: int) -> bool:
        """Whether a shard is done."""
        return os.path.exists(self.shard_path(split, number))

    def is_finished(self) -> bool:
        """Whether the indexes were published."""
        return os.path.exists(os.path.join(self.folder, "finished"))

    def finish(self) -> None:
        """Say that the indexes are published."""
        write_file(os.path.join(self.folder, "finished"), b"")

    def remove(self) -> None:
        """Remove what a conversion left in the folder, what says that it is finished last.

        The folder goes too, unless something else is in it.
        """
        if self.load_plan() is None:
            remove_temporaries(self.folder)
        else:
            for name in _FOLDERS:
                path = os.path.join(self.folder, name)
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
            remove_temporaries(self.folder)
            for name in ("plan.json", "finished"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.folder, name))
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)


def _list_changes(before: dict[str, Any], requested: dict[str, Any]) -> list[str]:
    names = []
    for key in sorted({*before, *requested}):
        old, new = before.get(key), requested.get(key)
        if old == new:
            continue
        if key == "options" and isinstance(old, dict) and isinstance(new, dict):
            names += _list_changes(old, new)
        else:
            names.append(f"{key} ({_shorten(old)} then, {_shorten(new)} now)")
    return names


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def remove_temporaries(folder: str) -> None:
    """Remove what a killed process of a conversion left half-written in a folder."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if temporary_owner(entry.name) is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
