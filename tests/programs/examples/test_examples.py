"""The examples run as they stand, in short form, and do what they say."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"


def run(name, *arguments, launcher=()):
    """Run an example in an interpreter of its own and give what it printed."""
    command = [sys.executable, "-W", "error", *launcher, str(EXAMPLES / name), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(path):
    """An example is read in one go: less than 150 lines, opening with how to run it."""
    text = path.read_text()
    assert text.count("\n") < 150
    assert text.startswith('"""')


def test_gpt_learns_and_goes_on(tmp_path):
    """The loss falls, and a second run begins at the step where the first one stopped."""
    options = ("--data", tmp_path, "--workers", 1, "--batch", 8)
    first = run("gpt.py", "--steps", 20, *options)
    second = run("gpt.py", "--steps", 40, *options)
    assert first.startswith("step 20: loss")
    assert second.startswith("step 40: loss")
    assert float(second.split()[-1]) < 5.5


def test_gpt_on_two_ranks(tmp_path):
    """The same program runs under torchrun and goes on from the checkpoint of a single process."""
    options = ("--data", tmp_path, "--workers", 0, "--batch", 8)
    run("gpt.py", "--steps", 3, *options)
    out = run("gpt.py", "--steps", 6, *options, launcher=(*TORCHRUN, "2"))
    assert "step 6: loss" in out


def test_images(tmp_path):
    """The classifier draws its own images, splits them, and trains."""
    out = run("images.py", "--data", tmp_path, "--each", 20, "--epochs", 1, "--workers", 1)
    assert "images to train on" in out
    assert "epoch 0: loss" in out


def test_images_of_a_folder(tmp_path):
    """A folder of one's own works, PNG files too."""
    from PIL import Image

    for name, colour in (("dark", 10), ("light", 240)):
        (tmp_path / "mine" / name).mkdir(parents=True)
        for number in range(8):
            image = Image.new("RGB", (20, 20), (colour + number % 4,) * 3)
            image.save(tmp_path / "mine" / name / f"{number}.{'png' if number % 2 else 'jpg'}")
    options = ("--images", tmp_path / "mine", "--epochs", 1, "--workers", 0)
    out = run("images.py", "--data", tmp_path / "data", *options)
    assert "epoch 0" in out


def test_mixing_keeps_the_shares_and_goes_on(tmp_path):
    """Every phase has its shares, and a run that stopped in the middle finishes its phase."""
    out = run("mixing.py", "--data", tmp_path, "--epoch-size", 200, "--stop-after", 13)
    assert "phase 0: 200 samples, code 20%, prose 70%, numbers 10%" in out
    assert "stopped in phase 1 after 13 batches" in out
    out = run("mixing.py", "--data", tmp_path, "--epoch-size", 200)
    assert "phase 1: 140 samples, code 50%, prose 30%, numbers 20%" in out
    assert "phase 2: 200 samples, code 70%, prose 10%, numbers 20%" in out


@pytest.mark.parametrize("launcher", [(), (*TORCHRUN, "3")], ids=["plain", "torchrun"])
def test_evaluation_is_exact(tmp_path, launcher):
    """Each of 1,001 samples is counted once over three ranks."""
    out = run("evaluate.py", "--data", tmp_path, "--workers", 1, launcher=launcher)
    assert "858 of 1001 right: 0.857143" in out
