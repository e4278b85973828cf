"""A run begins with one library and ends with the other, in the middle of an epoch.

Needs an interpreter that has mosaicml-streaming installed: set MDS_INCUMBENT_PYTHON to it.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import pytest
from scenarios import SIZES, write_streams

from devtools import incumbent
from devtools.servers import free_port

PROGRAM = str(pathlib.Path(__file__).with_name("migrate_program.py"))
PYTHONS = {"mds": sys.executable, "streaming": incumbent.PYTHON}

pytestmark = incumbent.NEEDED


def run(library, config, ranks):
    """Run the ranks of one phase and give their batches and the state."""
    with incumbent.alone() if library == "streaming" else contextlib.nullcontext():
        return run_phase(library, config, ranks)


def run_phase(library, config, ranks):
    work = pathlib.Path(config["work"])
    (work / "config.json").write_text(json.dumps(config))
    port = free_port()
    running = []
    for rank in range(ranks):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        command = [PYTHONS[library], PROGRAM, library, str(work / "config.json")]
        running.append(subprocess.Popen(command, env=environment))
    assert [process.wait() for process in running] == [0] * ranks
    batches = [
        json.loads((work / f"batches-{config['phase']}-{rank}").read_text())
        for rank in range(ranks)
    ]
    return batches, json.loads((work / "state.json").read_text())


CASES = [
    ("random", "py1e", ({}, {}, {}), 1, 2),
    ("random", "py1s", ({}, {}, {}), 2, 2),
    ("per_stream", "py1br", ({"proportion": 2}, {"proportion": 1}, {"proportion": 1}), 2, 1),
    ("stratified", "py1e", ({"repeat": 2}, {"choose": 80}, {}), 2, 2),
]


@pytest.mark.parametrize("first", ["mds", "streaming"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_run_moves_from_one_library_to_the_other(first, case, tmp_path):
    """Two thirds of an epoch with one, the rest with the other: together they are the epoch."""
    method, algorithm, mixture, ranks, workers = case
    write_streams(str(tmp_path))
    config = {
        "work": str(tmp_path),
        "streams": [str(tmp_path / f"stream{i}") for i in range(len(SIZES))],
        "mixture": mixture,
        "dataset": {
            "batch_size": 4,
            "shuffle": True,
            "shuffle_algo": algorithm,
            "num_canonical_nodes": 4,
            "batching_method": method,
        },
        "workers": workers,
    }
    second = "streaming" if first == "mds" else "mds"
    whole, _ = run(first, {**config, "phase": 0, "state": None, "stop": None}, ranks)
    steps = len(whole[0]) * 2 // 3
    begun, state = run(first, {**config, "phase": 1, "state": None, "stop": steps}, ranks)
    ended, _ = run(second, {**config, "phase": 2, "state": state, "stop": None}, ranks)
    assert begun == [batches[:steps] for batches in whole]
    full = [len(batches[-1]) == 4 for batches in whole]
    for rank in range(ranks):
        # The padding of a short last batch depends on where the loader was resumed.
        end = None if all(full) else -1
        assert ended[rank][:end] == whole[rank][steps:][:end]
    union = {i for batches in (*begun, *ended) for batch in batches for i in batch}
    assert union == {i for batches in whole for batch in batches for i in batch}
