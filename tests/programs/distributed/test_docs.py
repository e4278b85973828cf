"""What docs/distributed.md says is so."""

import pathlib
import re

import pytest

from mds import MDSWriter, StreamingDataset
from mds.errors import StateError
from mds.plan._state import KEYS

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "distributed.md"


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    """Blocks run in order, and the program that saves a state resumes from it."""
    monkeypatch.chdir(tmp_path)
    data, training, accumulation, audit = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    names, last_steps = {}, []
    for block in (data, training, training, accumulation, audit):
        exec(compile(block, PAGE.name, "exec"), names)
        last_steps.append(names.get("step"))
    # An epoch has 63 steps. The state is saved after 6 of them, and 57 remain.
    assert last_steps[1:3] == [62, 56]


@pytest.fixture
def folders(tmp_path):
    """Datasets of 120 and of 121 samples."""
    for samples in (120, 121):
        with MDSWriter(columns={"n": "int"}, out=str(tmp_path / str(samples))) as writer:
            for n in range(samples):
                writer.write({"n": n})
    return tmp_path


CASES = [
    # method, ranks and batch at first, ranks and batch afterwards, other changes, is allowed
    ("random", (2, 4), (4, 2), {}, True),
    ("random", (2, 4), (1, 12), {}, True),
    ("random", (2, 4), (2, 4), {"shuffle_algo": "py1br"}, False),
    ("random", (2, 4), (2, 4), {"shuffle": False}, False),
    ("random", (2, 4), (2, 4), {"batching_method": "per_stream"}, False),
    ("random", (2, 4), (2, 4), {"samples": 121}, False),
    ("random", (2, 4), (2, 4), {"predownload": 3, "cache_limit": "1gb"}, True),
    ("per_stream", (2, 4), (4, 2), {}, True),
    ("per_stream", (2, 4), (4, 4), {}, False),
    ("stratified", (2, 4), (1, 8), {}, True),
    ("stratified", (2, 4), (1, 4), {}, False),
    ("device_per_stream", (2, 4), (2, 4), {}, True),
    ("device_per_stream", (2, 4), (1, 8), {}, False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_the_table_of_what_may_change(case, folders, monkeypatch):
    """A state of one run is taken, or refused with the differences, as the table says."""
    method, before, after, changes, is_allowed = case
    changes = dict(changes)
    samples = changes.pop("samples", 120)
    options = {"shuffle": True, "batching_method": method}

    def make(place, folder, **settings):
        ranks, batch = place
        return StreamingDataset(
            local=str(folders / folder), batch_size=batch, topology=(0, ranks), **settings
        )

    state = make(before, "120", **options).state_dict(24, True) | {"epoch": 0}
    resumed = make(after, str(samples), **(options | changes))
    if is_allowed:
        resumed.load_state_dict(state)
        assert sum(1 for _ in resumed) == 96 // after[0]
        return
    with pytest.raises(StateError, match="was"):
        resumed.load_state_dict(state)
    # Its five common keys alone are taken at their word.
    resumed.load_state_dict({key: state[key] for key in KEYS})
