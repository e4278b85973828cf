"""Training programs of the docs run, and train on every sample of the epoch exactly once.

Those of frameworks take minutes on a small machine and run when they are asked for:
``MDS_FRAMEWORKS=1 pytest tests/programs/frameworks -o faulthandler_timeout=600``.
"""

import ast
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from mds import MDSWriter
from tests.skip_reasons import not_installed

pytestmark = pytest.mark.slow

HERE = pathlib.Path(__file__).parent
PAGES = (
    HERE.parents[2] / "docs" / "frameworks.md",
    HERE.parents[2] / "docs" / "guides" / "grain.md",
)
SAMPLES = 96  # six steps of two ranks with batches of eight

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
COMPOSER = ("-m", "composer.cli", "-n", "2")
ALONE = ()
# Section -> (how it is started, modules that it needs)
RECIPES = {
    "Plain PyTorch": (TORCHRUN, ()),
    "FSDP": (TORCHRUN, ()),
    "torchdata": (TORCHRUN, ("torchdata",)),
    "PyTorch Lightning": (ALONE, ("lightning",)),
    "Hugging Face Accelerate": (TORCHRUN, ("accelerate",)),
    "Hugging Face Trainer": (TORCHRUN, ("transformers", "accelerate")),
    "Composer": (COMPOSER, ("composer",)),
    "Ray Train": (ALONE, ("ray",)),
}
PACKAGES = {"composer": "mosaicml", "ray": "ray[train]"}  # with another name than the module


def program(section):
    """Return the program of a section of the pages."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    body = re.split(r"^## ", text, flags=re.MULTILINE)
    (program_section,) = [part for part in body if part.startswith(section)]
    code = re.search(r"```python(?: no-run)?\n(.*?)```", program_section, re.DOTALL)[1]
    if section == "torchdata":  # shows only what takes the place of a line
        plain = program("Plain PyTorch")
        assert plain.count("\nloader = ") == 1
        return re.sub(r"^loader = .*\n", lambda _: code, plain, flags=re.MULTILINE)
    return code


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A folder of 96 samples, each named by the first number of its x."""
    out = str(tmp_path_factory.mktemp("shards") / "train")
    columns = {"x": "ndarray:float32:4", "y": "float32"}
    with MDSWriter(columns=columns, out=out, size_limit=400) as writer:
        for n in range(SAMPLES):
            writer.write({"x": np.array([n, 1, 2, 3], np.float32), "y": n})
    return out


class Runs:
    """Runs a program in a fresh interpreter, and knows what it trained on."""

    def __init__(self, section, launcher, shards, tmp_path):
        self.script = tmp_path / "train.py"
        self.script.write_text(program(section))
        self.seen, self.folder = tmp_path / "seen", tmp_path / "folder"
        self.launcher, self.shards = launcher, shards
        for folder in (self.seen, self.folder):
            folder.mkdir()
        self.environment = {
            **os.environ,
            "MDS_SEEN": str(self.seen),
            "MDS_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": f"{HERE / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
            "RAY_TRAIN_V2_ENABLED": "1",
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "240",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def to(self, step, **environment):
        """Run to a step; what it printed."""
        command = [sys.executable, *self.launcher, str(self.script), self.shards]
        done = subprocess.run(
            [*command, str(self.folder), str(step)],
            capture_output=True,
            text=True,
            check=False,
            env={**self.environment, **environment},
            cwd=self.script.parent,
        )
        is_done = done.returncode == 0 or _aborted_after_the_end(done.stderr)
        assert is_done, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def ids(self):
        """The samples trained on so far, sorted."""
        files = [*self.seen.iterdir()]
        return sorted(int(n) for file in files for n in file.read_text().split())


def _aborted_after_the_end(text):
    """Whether torch aborted when a program of Gloo and DistributedDataParallel had ended.

    Such a program without any of our code aborts in one of some 30 runs with torch 2.13, also where
    it destroys its process group: a thread of Gloo is still there when the interpreter goes. The
    samples, which the test counts, and the checkpoint are written by then.
    """
    crashes = re.findall(r"Thread 0x\w+ \(most recent call first\):\n *(.*)", text)
    own = [line for line in crashes if line != "<no Python frame>"]
    return "terminate called without an active exception" in text and bool(crashes) and not own


@pytest.mark.parametrize("section", RECIPES)
def test_a_recipe_trains_on_the_epoch_in_two_runs(section, shards, tmp_path):
    """Four steps, a checkpoint, two more in new processes: no sample is lost or seen twice."""
    launcher, modules = RECIPES[section]
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(not_installed(PACKAGES.get(module, module)))
    if modules not in {(), ("torchdata",)} and "MDS_FRAMEWORKS" not in os.environ:
        pytest.skip("trainers take minutes to start: set MDS_FRAMEWORKS=1 to run them")
    runs = Runs(section, launcher, shards, tmp_path)
    runs.to(4)
    assert len(set(runs.ids())) == len(runs.ids()) == 64
    runs.to(6)
    assert runs.ids() == list(range(SAMPLES))


@pytest.mark.parametrize("section", RECIPES)
def test_a_recipe_ends_the_process_group_that_it_begins(section):
    """A process that leaves its group to the interpreter's end aborts there now and then."""
    calls = [
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(program(section)))
        if isinstance(node, ast.Call)
    ]
    begun = calls.count("dist.init_process_group")
    assert calls.count("dist.destroy_process_group") == begun


def test_iteration_without_torch(shards, tmp_path):
    """The numpy recipe sees the epoch in two runs as well, and never imports torch."""
    runs = Runs("JAX or NumPy without torch", ALONE, shards, tmp_path)
    out = runs.to(4) + runs.to(6)
    ids = [int(n) for line in out.splitlines() for n in line.split()[1:]]
    assert len(out.splitlines()) == 6
    assert sorted(ids) == list(range(SAMPLES))


def test_the_variables_of_slurm_are_enough(shards, tmp_path):
    """Under srun each task has its own part, though nobody passes a topology."""
    ids = []
    for task in range(4):
        folder = tmp_path / str(task)
        folder.mkdir()
        runs = Runs("JAX or NumPy without torch", ALONE, shards, folder)
        text = runs.script.read_text().replace(", topology=(0, 1)", "")
        runs.script.write_text(text.replace("16", "8"))
        told = {"SLURM_PROCID": task, "SLURM_NTASKS": 4, "SLURM_NTASKS_PER_NODE": "2(x2)"}
        told["SLURM_STEP_ID"] = 0
        out = runs.to(100, **{name: str(value) for name, value in told.items()})
        ids.append([int(n) for line in out.splitlines() for n in line.split()[1:]])
    assert [len(part) for part in ids] == [24] * 4
    assert sorted(n for part in ids for n in part) == list(range(SAMPLES))
