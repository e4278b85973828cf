"""Helpers of the tests of mistakes, in this folder and in tests/programs/dataset."""

import numpy as np
import pytest
import torch

from mds import (
    MDSWriter,
    Packing,
    Schedule,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    merge_index,
)
from mds.writers.convert import convert


class Own(StreamingDataset):
    """A class of the user's, whose name messages must tell."""


class Forgetful(StreamingDataset):
    """A class whose constructor does not call ours."""

    def __init__(self, path):
        self.path = path


@pytest.fixture
def names(tmp_path):
    """What the calls of the table speak of."""
    for name, columns in (("d", {"id": "int", "name": "str"}), ("other", {"text": "str"})):
        with MDSWriter(out=str(tmp_path / name), columns=columns) as writer:
            for number in range(20):
                values = {key: number if kind == "int" else "x" for key, kind in columns.items()}
                writer.write(values)
    d = str(tmp_path / "d")

    def dataset(**given):
        return Own(**{"local": d, "batch_size": 2, **given})

    def writer(**given):
        return MDSWriter(**{"out": str(tmp_path / "new"), "columns": {"a": "int"}, **given})

    def write(encoding, sample):
        made = MDSWriter(out=str(tmp_path / "new"), columns={"label": encoding})
        try:
            made.write(sample)
        finally:
            made.abort()

    def write_after_the_end():
        made = MDSWriter(out=str(tmp_path / "new"), columns={"a": "int"})
        made.finish()
        made.write({"a": 1})

    return {
        "np": np,
        "torch": torch,
        "MDSWriter": MDSWriter,
        "Packing": Packing,
        "Schedule": Schedule,
        "convert": convert,
        "merge_index": merge_index,
        "Stream": Stream,
        "StreamingDataLoader": StreamingDataLoader,
        "Own": Own,
        "Forgetful": Forgetful,
        "dataset": dataset,
        "loader": lambda **given: StreamingDataLoader(dataset(), **given),
        "writer": writer,
        "write": write,
        "write_after_the_end": write_after_the_end,
        "d": d,
        "other": str(tmp_path / "other"),
    }
