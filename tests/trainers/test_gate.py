"""A training of each trainer is killed on 4 ranks, and goes on with the same batches on 2."""

import importlib.metadata
import pathlib
import random
import sys

import pytest

from tests.skip_reasons import not_installed

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

import harness  # noqa: E402 - a program beside this file, which the trainers import too

pytestmark = pytest.mark.slow
PACKAGES = {"olmo_core": "ai2-olmo-core"}  # packages with another name than the trainer


@pytest.mark.parametrize("trainer", ["trl", "torchtitan", "olmo_core", "lightning", "accelerate"])
def test_a_killed_training_goes_on_with_the_same_batches(trainer, tmp_path):
    package = PACKAGES.get(trainer, trainer)
    try:  # not find_spec, which finds the folders beside this file
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(not_installed(package))
    before, after = harness.World(4, 2), harness.World(2, 4, workers=1)
    case = harness.Case(before, after, packing=True, seed=random.SystemRandom().randrange(1000))
    facts = harness.run_case(trainer, case, tmp_path / "run")
    assert facts["equal_steps"] == facts["steps"] > 0, facts
    assert facts["lost"] == facts["added"] == 0, facts
