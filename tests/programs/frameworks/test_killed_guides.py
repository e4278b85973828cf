"""Programs of guides for pictures are killed, and go on with the same pictures and losses.

``site/sitecustomize.py`` writes down a digest of what the model gets and the loss of each step, and
kills a rank. They run on two ranks, so they take some thirty seconds each.
"""

import importlib.metadata
import os
import pathlib
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from devtools.pages import blocks
from mds import MDSWriter

pytestmark = pytest.mark.slow

HERE = pathlib.Path(__file__).parent
GUIDES = HERE.parents[2] / "docs" / "guides"
SAMPLES, STEPS = 96, 8  # six steps of two ranks with batches of eight make an epoch
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
# Guide -> packages as their indexes name them
PACKAGES = {
    "timm": ("timm", "torchvision"),
    "open-clip": ("open_clip_torch",),
    "detection": ("torchvision",),
    "diffusers": ("diffusers", "accelerate", "torchvision"),
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A folder of pictures of several sizes, with a label, a caption and boxes."""
    out, rng = str(tmp_path_factory.mktemp("shards") / "train"), np.random.default_rng(1)
    columns = {"image": "jpeg", "label": "int", "caption": "str", "boxes": "json"}
    with MDSWriter(columns=columns, out=out, size_limit=40_000) as writer:
        for n in range(SAMPLES):
            height, width = rng.integers(64, 90, 2)
            pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
            boxes = [
                {"bbox": [*rng.integers(0, 30, 2).tolist(), 20, 25], "category": 1 + k % 2}
                for k in range(n % 4)
            ]
            image = Image.fromarray(pixels)
            writer.write({"image": image, "label": n % 10, "caption": f"a {n}", "boxes": boxes})
    return out


def run(guide, shards, folder, workers, kill=""):
    """Run the program of a guide; return the (digest, loss) of each step, by rank.

    Args:
        guide: Name of the page.
        shards: Folder of the dataset.
        folder: Folder of the checkpoints.
        workers: Number of workers of each loader.
        kill: ``RANK:N`` kills a rank in its N-th step of this run.
    """
    seen = folder / f"seen{len([*folder.glob('seen*')])}"
    seen.mkdir(parents=True)
    program = next(b.code for b in blocks(GUIDES / f"{guide}.md") if "python" in b.mark)
    every = (("num_workers=2", f"num_workers={workers}"), ("100", "2"))  # workers, steps to save
    for old, new in every:
        assert re.search(rf"\b{old}\b", program), old
        program = re.sub(rf"\b{old}\b", new, program)
    (folder / "train.py").write_text(program)
    done = subprocess.run(
        [sys.executable, *TORCHRUN, "train.py", shards, str(folder), str(STEPS)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "MDS_STEPS": str(seen),
            "MDS_KILL": kill,
            "MDS_CACHE_DIR": str(folder / "cache"),
            "PYTHONPATH": f"{HERE / 'site'}{os.pathsep}{HERE.parents[2]}",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )
    output = done.stdout[-2000:] + done.stderr[-6000:]
    assert (done.returncode != 0) == bool(kill), output
    assert ("Signal 9 (SIGKILL)" in done.stderr) == bool(kill), output
    return {int(file.name): file.read_text().splitlines() for file in sorted(seen.iterdir())}


@pytest.mark.parametrize("guide", PACKAGES)
def test_a_killed_training_goes_on_with_the_same_pictures(guide, shards, tmp_path):
    """Killed in a random step of a rank, and resumed on another number of workers."""
    for package in PACKAGES[guide]:
        try:  # not find_spec, which finds the folders beside this file
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"needs the libraries of the tables: pip install {package}")
    draw = random.SystemRandom()
    whole = run(guide, shards, tmp_path / "whole", 2)
    assert {rank: len(steps) for rank, steps in whole.items()} == {0: STEPS, 1: STEPS}
    assert len({step for steps in whole.values() for step in steps}) == 2 * STEPS
    folder = tmp_path / "killed"
    # Rank 0 may still write the checkpoint of step 2 when step 3 begins.
    killed = run(guide, shards, folder, 2, f"{draw.randrange(2)}:{draw.randint(4, STEPS)}")
    assert first_steps(killed, whole) == {0}
    resumed = run(guide, shards, folder, draw.choice([0, 1, 3]))
    assert first_steps(resumed, whole) in ({2}, {4}, {6})
    assert [steps[-1] for steps in resumed.values()] == [steps[-1] for steps in whole.values()]


def first_steps(runs, whole):
    """Return where ranks began in the whole run, and check that they went on with equal steps."""
    starts = set()
    for rank, steps in runs.items():
        starts.add(start := whole[rank].index(steps[0]))
        assert steps == whole[rank][start : start + len(steps)]
    return starts
