"""torch.distributed.checkpoint keeps a loader's state whole, on other numbers of ranks too."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from mds import MDSWriter

pytestmark = pytest.mark.slow

PROGRAM = str(pathlib.Path(__file__).with_name("checkpoint_program.py"))
CASES = ("samples", "drop", "schedule", "packs", "packed schedule")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two streams of 600 documents, whose tokens are the number of their document."""
    folder = tmp_path_factory.mktemp("streams")
    number = 1
    for name in ("web", "code"):
        columns = {"tokens": "ndarray:uint16"}
        with MDSWriter(
            out=str(folder / name), columns=columns, lengths="tokens", size_limit=4000
        ) as writer:
            for _ in range(600):
                size = 20 if name == "web" else 31
                writer.write({"tokens": np.full(size, number, np.uint16)})
                number += 1
    return folder


def rest_of(folder, tmp_path, case, ranks, save):
    """Documents of each global batch after the checkpoint, of all ranks together."""
    out = tmp_path / f"{ranks}-{save}"
    out.mkdir()
    config = {
        "folder": str(folder),
        "case": case,
        "ranks": ranks,
        "checkpoint": str(tmp_path / "checkpoint"),
        "save": save,
        "out": str(out),
    }
    subprocess.run([sys.executable, PROGRAM, json.dumps(config)], check=True, timeout=300)
    parts = [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]
    return [set().union(*batches) for batches in zip(*parts, strict=True)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("ranks", "others", "save"), [(2, 4, "sync"), (4, 2, "async")])
def test_a_loader_in_a_checkpoint_goes_on_with_other_ranks(
    folder, tmp_path, case, ranks, others, save
):
    """Every later global batch is what it would have been, with all edits and in packs."""
    expected = rest_of(folder, tmp_path, case, ranks, save)
    assert len(expected) > 10
    assert rest_of(folder, tmp_path, case, others, None) == expected
