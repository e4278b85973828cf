"""Splits of a dataset as the names of its folders and files tell them: train, test, validation."""

from __future__ import annotations

import re
from collections.abc import Sequence

SPLITS = frozenset(
    {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"}
)
# train.jsonl, train-00000-of-00008.parquet, squad_test.csv; not trains.csv, not latest.csv
_IN_FILE_NAME = re.compile(
    rf"(?<![a-z0-9])({'|'.join(sorted(SPLITS, reverse=True))})(?![a-z])", re.IGNORECASE
)


# train, but also train2017, as COCO has it.
_FOLDER = re.compile(rf"({'|'.join(sorted(SPLITS, reverse=True))})((19|20)\d\d)?", re.IGNORECASE)


def find_splits(names: Sequence[str], *, by_file: bool) -> dict[str, str]:
    """The split of every file, by the first folder that is named after one, else by its own name.

    Empty where that is not told of all files, or names of files alone tell of one split only.
    ``by_file``: whether names of files count at all.
    """
    found: dict[str, str] = {}
    is_of_folders = True
    for name in names:
        *folders, file = name.split("/")
        split = split_folder(folders)
        if split is None and by_file and (told := _IN_FILE_NAME.search(file)):
            split, is_of_folders = told[1].lower(), False
        if split is None:
            return {}
        found[name] = split
    return found if is_of_folders or len(set(found.values())) > 1 else {}


def split_folder(folders: Sequence[str]) -> str | None:
    """The first of these folders that is named after a split."""
    return next((folder for folder in folders if _FOLDER.fullmatch(folder)), None)
