"""Classes of files that lie in a folder per class: names, numbers, and the columns of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mds.formats.infer import Column, show_value
from mds.writers.convert.inputs.splits import find_splits, split_folder


class FolderClasses:
    """The class of a file is the first folder of its path that names no split.

    Labels are the numbers of the classes by name, the same ones in every split, and in every
    conversion of a part of the folder: ``not_included`` are files of it that are not converted.
    """

    def __init__(
        self, names: Sequence[str], split_of: Mapping[str, str], not_included: Sequence[str] = ()
    ) -> None:
        self._has_splits = bool(split_of)
        classes = {_class_of(name, split_of.get(name)) for name in names}
        for name in not_included:
            split = split_folder(name.split("/")[:-1]) if self._has_splits else None
            if split is not None or not self._has_splits:
                classes.add(_class_of(name, split))
        self.numbers = {name: number for number, name in enumerate(sorted(classes - {""}))}

    @staticmethod
    def are_in(names: Sequence[str]) -> bool:
        """Whether every file has a class.

        Files beside folders of files have none; nor have those that lie in the folder of a split.
        """
        splits = find_splits(names, by_file=False)
        return bool(names) and all(_class_of(name, splits.get(name)) for name in names)

    def of(self, name: str) -> dict[str, str | int]:
        """The columns of a file: the name of its class and its label."""
        folders = name.split("/")[:-1]
        found = _class_of(name, split_folder(folders) if self._has_splits else None)
        return {"class": found, "label": self.numbers[found]}

    def columns(self, first: str) -> list[Column]:
        """What a dataset has for it, with the first file for an example."""
        example = self.of(first)
        most = len(self.numbers) - 1
        return [
            Column("class", "str", show_value(example["class"])),
            Column("label", "int", str(example["label"]), f"0 to {most}", tuple(self.numbers)),
        ]

    def __str__(self) -> str:
        return f"{len(self.numbers)} class{'es' if len(self.numbers) != 1 else ''}"


def _class_of(name: str, split: str | None) -> str:
    folders = name.split("/")[:-1]
    if split is not None:
        folders.remove(split)
    return folders[0] if folders else ""
