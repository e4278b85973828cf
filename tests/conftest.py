"""Settings for all tests: which of them run by default, and which library their programs import."""

import gc
import os
import pathlib
import signal

import hypothesis
import pytest

import mds
from mds._process import fork_safe

# A test starts interpreters in folders of its own, where an installed library, of another tree
# perhaps, would be found first.
_TREE = str(pathlib.Path(mds.__file__).parents[1])
_PATH = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([_TREE, *_PATH]))

# A shell that starts a job in the background has it ignore Ctrl-C, and programs inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests contain no timing: on a busy machine, any example may take long.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


def pytest_configure(config):
    """Deselect the tests marked `slow`, unless the command names a path, a marker or a keyword.

    `pytest` runs the unit tests and the shorter programs; `pytest tests` runs all tests, and
    `pytest FILE` all tests of that file. Worker processes of xdist inherit the marker.
    """
    selected = config.option.markexpr or config.option.keyword
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS and not selected:
        config.option.markexpr = "not slow"


def pytest_collection_finish():
    """Exempt imported modules from garbage collection, so that collections in tests are fast."""
    gc.collect()
    gc.freeze()


_MANY_DESCRIPTORS = 64  # more than after the last look, of the 256 that the suite has to do with
_kept = [0]


@pytest.fixture(autouse=True)
def _few_connections():
    """No test inherits the idle connections of many others, whose servers are gone."""
    yield
    if len(os.listdir("/proc/self/fd")) > _kept[0] + _MANY_DESCRIPTORS:
        fork_safe._objects.clear()
        gc.collect()
        _kept[0] = len(os.listdir("/proc/self/fd"))
