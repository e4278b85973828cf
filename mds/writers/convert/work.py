"""The work folder of a conversion: what is done already, so that a killed one can go on.

    plan.json                 what is being converted, and how; `--resume` must ask for the same
    lock                      held by the process that converts; the kernel drops it with its owner
    parts/00000012.part       a part is read: sizes and splits of its samples, and what was bad
    parts/00000012.0.run      its samples for split 0, until the shards that hold them are done
    shards/0/00000003.json    a shard is where it belongs: its entry of the index
    finished                  the indexes are published, only the folder is left to remove

Every file appears whole or not at all, so whatever is there is done, at whatever instant the
process died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import dataclass
from typing import Any

import numpy as np

from mds.errors import ConfigError
from mds.storage.files import temporary_owner, write_file

#: The folder inside a local output.
NAME = ".mds-convert"


@dataclass(frozen=True, slots=True)
class PartDone:
    """A part that was read: split and bytes of each sample, and the records that are none."""

    number: int
    splits: Any
    sizes: Any
    bad: tuple[str, ...] = ()
    bad_count: int = 0


class Work:
    """One work folder; cheap to pickle, opened by nobody but the process that converts."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def run(self, part: int, split: int) -> str:
        """Where the samples of a part for a split are."""
        return os.path.join(self.folder, "parts", f"{part:08}.{split}.run")

    def part(self, part: int) -> str:
        """Where it says that a part is read."""
        return os.path.join(self.folder, "parts", f"{part:08}.part")

    def shard(self, split: int, number: int) -> str:
        """Where it says that a shard is done."""
        return os.path.join(self.folder, "shards", str(split), f"{number:08}.json")

    def save_part(self, done: PartDone) -> None:
        """Say that a part is read; its runs must be there."""
        head = {"samples": len(done.sizes), "bad": done.bad, "bad_count": done.bad_count}
        splits = np.asarray(done.splits, "<u1").tobytes()
        sizes = np.asarray(done.sizes, "<i8").tobytes()
        write_file(self.part(done.number), json.dumps(head).encode() + b"\n" + splits + sizes)

    def load_part(self, number: int) -> PartDone | None:
        """What is known of a part; None when it was not read yet."""
        try:
            with open(self.part(number), "rb") as file:
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
        )

    def save_shard(self, split: int, number: int, entry: dict[str, Any]) -> None:
        """Say that a shard is where it belongs."""
        write_file(self.shard(split, number), json.dumps(entry).encode())

    def load_shard(self, split: int, number: int) -> dict[str, Any] | None:
        """The index entry of a shard; None when it is not done yet."""
        try:
            with open(self.shard(split, number), "rb") as file:
                entry: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return None
        return entry

    def forget_run(self, part: int, split: int) -> None:
        """Remove a run whose shards are done."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.run(part, split))

    def plan(self) -> dict[str, Any] | None:
        """The plan of an earlier start; None when there is none."""
        try:
            with open(os.path.join(self.folder, "plan.json"), "rb") as file:
                plan: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return None
        return plan

    def begin_or_resume(self, plan: dict[str, Any]) -> int:
        """Write the plan of a fresh start, or see that it is the one that was begun.

        Gives the number of parts that are read already. Raises ConfigError for another plan.
        """
        wanted = json.loads(json.dumps(plan))
        before = self.plan()
        if before is None:
            path = os.path.join(self.folder, "plan.json")
            write_file(path, json.dumps(plan, indent=1, sort_keys=True).encode())
            return 0
        if changed := _changed(before, wanted):
            raise ConfigError(
                f"{self.folder}: the conversion that was begun differs in {', '.join(changed)}. "
                "Resume it with what it was begun with, or start again with --overwrite."
            )
        return self.parts_done()

    def parts_done(self) -> int:
        """How many parts are read."""
        folder = os.path.join(self.folder, "parts")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return sum(name.endswith(".part") for name in names)

    def has_part(self, number: int) -> bool:
        """Whether a part is read."""
        return os.path.exists(self.part(number))

    def has_shard(self, split: int, number: int) -> bool:
        """Whether a shard is done."""
        return os.path.exists(self.shard(split, number))

    def is_finished(self) -> bool:
        """Whether the indexes were published."""
        return os.path.exists(os.path.join(self.folder, "finished"))

    def finish(self) -> None:
        """Say that the indexes are published."""
        write_file(os.path.join(self.folder, "finished"), b"")

    def remove(self) -> None:
        """Remove the folder, what says that it is finished last."""
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.folder), key=lambda name: name == "finished"):
                path = os.path.join(self.folder, name)
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
            os.rmdir(self.folder)

    @contextlib.contextmanager
    def locked(self) -> Any:
        """Hold the folder. Raises ConfigError when another process does."""
        os.makedirs(self.folder, exist_ok=True)
        handle = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise ConfigError(
                f"{self.folder}: another process is converting to this output. Wait for it, or "
                "choose another output."
            ) from error
        try:
            yield
        finally:
            os.close(handle)


def _changed(before: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    names = []
    for key in sorted({*before, *wanted}):
        old, new = before.get(key), wanted.get(key)
        if old == new:
            continue
        if key == "options" and isinstance(old, dict) and isinstance(new, dict):
            names += _changed(old, new)
        else:
            names.append(f"{key} ({_short(old)} then, {_short(new)} now)")
    return names


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def remove_temporaries(folder: str) -> None:
    """Remove what a killed process of a conversion left half-written in a folder."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if temporary_owner(entry.name) is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
