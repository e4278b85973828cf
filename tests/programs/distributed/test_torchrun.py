"""Two nodes of two ranks under torchrun itself, which says who is who; then one node of four."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from scenarios import SIZES, write_streams

from devtools.servers import free_port

pytestmark = pytest.mark.slow

PROGRAM = str(pathlib.Path(__file__).with_name("rank_program.py"))


def torchrun(config, nodes, ranks):
    """Run the program with an agent for each node, and wait for all of them."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-id", "test"),
        *("--nnodes", str(nodes), "--nproc-per-node", str(ranks), PROGRAM, str(config)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    agents = [subprocess.Popen(command, env=environment) for _ in range(nodes)]
    assert [agent.wait() for agent in agents] == [0] * nodes


def test_two_nodes_then_one(tmp_path):
    """Half an epoch on 2 x 2 ranks, the rest on 1 x 4: each of the 300 samples once."""
    write_streams(str(tmp_path))
    config = {
        "streams": [
            {
                "remote": str(tmp_path / f"stream{i}"),
                "local": str(tmp_path / "node{node}" / str(i)),
            }
            for i in range(len(SIZES))
        ],
        # 300 samples are 25 global batches of 12 and nothing is repeated.
        "dataset": {"batch_size": 3, "shuffle": True},
        "workers": 2,
        "kind": "processes",
        "state": None,
        "checkpoint": str(tmp_path / "position.json"),
        "save_every": 100,
        "stop": 13,
        "kill": None,
        "epochs": 1,
    }
    seen = []
    for phase, (nodes, ranks, stop) in enumerate([(2, 2, 13), (1, 4, None)]):
        log = tmp_path / f"log{phase}"
        log.mkdir()
        if phase:
            config["state"] = json.loads((tmp_path / "position.json").read_text())
        config |= {"log": str(log), "stop": stop}
        (tmp_path / "config.json").write_text(json.dumps(config))
        torchrun(tmp_path / "config.json", nodes, ranks)
        for file in log.iterdir():
            found = map(json.loads, file.read_text().splitlines())
            seen += [i for line in found if line != "end" for i in line[0]]
        if not phase:
            assert len(seen) == len(set(seen)) == 13 * 12
    assert sorted(seen) == list(range(sum(SIZES)))
