"""Work folder of a conversion: a record of finished work, so that a killed one can resume.

    plan.json                 source and options; `--resume` must be given the same
    parts/00000012.part       a part is read: sizes and splits of its samples, bad records
    parts/00000012.0.run      its samples for split 0, until the shards that hold them are done
    shards/0/00000003.json    a shard is in the output: its index entry
    finished                  the indexes are published, only this folder remains to be removed

Every file appears complete or not at all, so a file that exists records finished work, no matter
when the process died. The process that converts locks the folder. Only files of these names are
removed, because the user may have chosen a folder that holds others.
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
from mds.storage._files import temporary_owner, write_file
from mds.storage._locks import LOCK_NAME

#: Name of the work folder inside a local output.
NAME = ".mds-convert"
_FOLDERS = ("parts", "shards", "upload")
#: Keys that every plan has; a plan.json without them belongs to another program.
_PLAN_KEYS = {"version", "source", "source kind", "columns", "options"}


@dataclass(frozen=True, slots=True)
class PartDone:
    """A part that was read: the split and the bytes of each sample, and its bad records.

    - ``splits`` (uint8 array), ``sizes`` (int64 array): One element for each sample.
    - ``bad`` (tuple[str, ...]): Descriptions of the first bad records; ``bad_count`` counts all.
    - ``lengths`` (uint32 array | None): Length of each sample in the column given by ``lengths=``.
    """

    number: int
    splits: Any
    sizes: Any
    bad: tuple[str, ...] = ()
    bad_count: int = 0
    lengths: Any = None


class Checkpoint:
    """Work folder of one conversion, with the records of finished parts and shards.

    - ``folder`` (str): Its path.
    - ``is_private`` (bool, default False): Whether it must belong to this user, as it is in a
      temporary folder that all users share.
    """

    def __init__(self, folder: str, *, is_private: bool = False) -> None:
        self.folder = folder
        self.is_private = is_private

    def run_path(self, part: int, split: int) -> str:
        """Return the path of the file with the samples of a part for a split (a run)."""
        return os.path.join(self.folder, "parts", f"{part:08}.{split}.run")

    def part_path(self, part: int) -> str:
        """Return the path of the record of a part that was read."""
        return os.path.join(self.folder, "parts", f"{part:08}.part")

    def shard_path(self, split: int, number: int) -> str:
        """Return the path of the record of a shard that was written."""
        return os.path.join(self.folder, "shards", str(split), f"{number:08}.json")

    def save_part(self, part: PartDone) -> None:
        """Record that a part is read. Its runs must have been written.

        The file is a line of JSON, and then three arrays with an element for each sample: splits
        (1 byte), sizes (8 bytes) and, if they are recorded, lengths (4 bytes).
        """
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
        # Splits and sizes take 1 + 8 bytes per sample; lengths follow if there are more bytes.
        lengths_offset = 9 * samples
        has_lengths = len(data) > lengths_offset
        return PartDone(
            number=number,
            splits=np.frombuffer(data, "<u1", count=samples),
            sizes=np.frombuffer(data, "<i8", count=samples, offset=samples),
            bad=tuple(head["bad"]),
            bad_count=head["bad_count"],
            lengths=np.frombuffer(data, "<u4", samples, lengths_offset) if has_lengths else None,
        )

    def save_shard(self, split: int, number: int, entry: dict[str, Any], version: str) -> None:
        """Record that a shard is in the output, with the version that the store gave its file."""
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
        """Delete a run after all shards with its samples are written."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.run_path(part, split))

    def load_plan(self) -> dict[str, Any] | None:
        """Return the plan of an earlier run, or None if there is none.

        Raises ConfigError if the folder holds other files.
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
        # The first name of the input of tars.
        options = plan["options"]
        if isinstance(options, dict) and options.get("kind") == "webdataset":
            options["kind"] = "tar"
        return plan

    def _check_empty(self) -> None:
        """Raise ConfigError if the folder holds files of others."""
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self.folder)
            # A run that was killed before it wrote its plan leaves at most these.
            ours = {"finished", LOCK_NAME}
            foreign = [n for n in names if temporary_owner(n) is None and n not in ours]
            if foreign:
                raise ConfigError(
                    f"{self.folder} holds {min(foreign)!r}, and not an interrupted conversion. A "
                    "conversion needs its own work folder; choose another with --work."
                )

    def begin_or_resume(self, plan: dict[str, Any]) -> int:
        """Write the plan of a new conversion, or check that an earlier plan is the same.

        Returns the number of parts that are read already. Raises ConfigError for another plan.
        """
        # As it is after a run is stored and loaded: with lists instead of tuples.
        plan_as_json = json.loads(json.dumps(plan))
        before = self.load_plan()
        if before is None:
            path = os.path.join(self.folder, "plan.json")
            write_file(path, json.dumps(plan, indent=1, sort_keys=True).encode())
            return 0
        if changed := _list_changes(before, plan_as_json):
            raise ConfigError(
                f"{self.folder}: the interrupted conversion differs in {', '.join(changed)}. "
                "Resume it with the same options, or start again with --overwrite."
            )
        return self.parts_done()

    def parts_done(self) -> int:
        """Return the number of parts that were read."""
        folder = os.path.join(self.folder, "parts")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return sum(name.endswith(".part") for name in names)

    def has_part(self, number: int) -> bool:
        """Return whether a part is read."""
        return os.path.exists(self.part_path(number))

    def has_shard(self, split: int, number: int) -> bool:
        """Return whether a shard is written."""
        return os.path.exists(self.shard_path(split, number))

    def is_finished(self) -> bool:
        """Return whether the indexes were published."""
        return os.path.exists(os.path.join(self.folder, "finished"))

    def finish(self) -> None:
        """Record that the indexes are published."""
        write_file(os.path.join(self.folder, "finished"), b"")

    def remove(self) -> None:
        """Delete the files of a conversion, and the folder itself if it is empty then.

        The record that it is finished goes last, so that a conversion does not look unfinished if
        the process is killed meanwhile.
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
    """Return the settings that differ between two plans, each with both values as text."""
    names = []
    for key in sorted({*before, *requested}):
        old, new = before.get(key), requested.get(key)
        if old == new:
            continue
        if key == "options" and isinstance(old, dict) and isinstance(new, dict):
            names += _list_changes(old, new)
        else:
            names.append(f"{key} ({_shorten(old)} before, {_shorten(new)} now)")
    return names


def _shorten(value: Any) -> str:
    """Return a value as JSON for a message, cut to 60 characters."""
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def remove_temporaries(folder: str) -> None:
    """Delete the unfinished temporary files that killed processes left in a folder."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if temporary_owner(entry.name) is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
