"""docs/door.md and its list of calls are those of an installed mosaicml-streaming 0.13."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from devtools import door_page, incumbent
from mds.compat.streaming import FOLDER

HERE = pathlib.Path(__file__).parent


def run(python, file, **environment):
    with tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run(
            [python, "-W", "ignore", str(HERE / file)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
            timeout=600,
            env={**os.environ, **environment},
        )
        errors.seek(0)
        assert done.returncode == 0, errors.read()[-3000:]
    return json.loads(done.stdout)


@incumbent.NEEDED
def test_the_inventory_is_that_of_an_installed_one():
    """Names, parameters and defaults of the page are those of 0.13 where it is installed."""
    stored = json.loads(door_page.INVENTORY.read_text(encoding="utf-8"))
    with incumbent.alone():
        found = run(incumbent.PYTHON, "inventory.py")
    assert found.keys() == stored.keys()
    for module, facts in found.items():
        # What a module imports itself may be missing here or there.
        if "error" not in facts and "error" not in stored[module]:
            assert facts == stored[module], module


@incumbent.NEEDED
def test_bad_calls_end_alike():
    """Each call that is fine there is fine here; each error is of the type that it has there."""
    path = os.pathsep.join(filter(None, [FOLDER, os.environ.get("PYTHONPATH")]))
    with incumbent.alone():
        there = run(incumbent.PYTHON, "bad_calls.py")
    here = run(sys.executable, "bad_calls.py", PYTHONPATH=path)
    assert len(there) >= 100
    assert there.keys() == here.keys()
    different = {
        call
        for call in there
        if (there[call] == "fine") != (here[call] == "fine")
        or (there[call] != "fine" and there[call][0] not in here[call])
    }
    assert different == set(door_page.DIFFERENT_CALLS)
