"""Inputs that a fuzzer found worth keeping are read or refused, on every run of the tests."""

import importlib.util
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def targets():
    spec = importlib.util.spec_from_file_location("fuzz_targets", HERE / "targets.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_targets"] = module
    spec.loader.exec_module(module)
    return module.TARGETS


@pytest.mark.filterwarnings("ignore")  # Pillow warns of the sizes that broken images claim
@pytest.mark.parametrize("name", ["shard", "sample", "lines", "index"])
def test_kept_inputs_are_read_or_refused(targets, name):
    """No input of the corpus raises anything but our errors."""
    files = sorted((HERE / "corpus" / name).iterdir())
    assert files
    for file in files:
        targets[name](file.read_bytes())
