"""Ranks of a DeviceMesh: those that differ only in tensor parallelism get the same samples."""

import json
import os
import subprocess
import sys

import pytest

from mds import MDSWriter, StreamingDataLoader, StreamingDataset
from mds.world import World, _ranks_of_machine, find_ranks

pytestmark = pytest.mark.slow
HSDP = ("dp_replicate", "dp_shard")

#: Each of four processes, of which `local` count as a machine, writes down what it read.
PROGRAM = """
import json, os, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from mds import StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError

remote, out = sys.argv[1:3]
shape, names, chosen, local = map(json.loads, sys.argv[3:])
dist.init_process_group("gloo")
rank = dist.get_rank()
os.environ["LOCAL_WORLD_SIZE"] = str(local)
os.environ["MDS_CACHE_DIR"] = f"{out}/cache-{rank // local}"
mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=tuple(names))
errors = []
for wrong in (mesh, mesh[names[-1]]):
    try:
        StreamingDataset(remote=remote, batch_size=2, topology=wrong).num_ranks
    except ConfigError as error:
        errors.append(str(error))
dataset = StreamingDataset(
    remote=remote, batch_size=2, shuffle=True, num_canonical_nodes=2, topology=mesh[tuple(chosen)]
)
loader = StreamingDataLoader(dataset)
facts = {
    "world": dataset._dataset_run.world().to_json(),
    "batches": [batch["id"].tolist() for batch in loader],
    "state": loader.state_dict(),
    "fetched": dataset.stats()["fetched_shards"],
    "errors": errors,
}
with open(f"{out}/{rank}.json", "w") as file:
    json.dump(facts, file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("shape", "names", "chosen", "local", "nodes"),
    [
        ((2, 2), ("dp", "tp"), ("dp",), 4, 1),
        ((2, 2), ("dp", "tp"), ("dp",), 2, 2),
        ((2, 2), ("pp", "dp"), ("dp",), 2, 1),
        ((2, 2), HSDP, HSDP, 2, 2),
        ((1, 2, 1, 2), (*HSDP, "cp", "tp"), HSDP, 2, 2),
    ],
)  # fmt: skip
def test_a_mesh_reads_as_data_parallel_ranks_alone(tmp_path, shape, names, chosen, local, nodes):
    """Batches and states are those of as many ranks, and a machine fetches each shard once."""
    remote = str(tmp_path / "remote")
    with MDSWriter(remote, columns={"id": "int"}, samples_per_shard=10) as writer:
        for number in range(200):
            writer.write({"id": number})
    script = tmp_path / "mesh.py"
    script.write_text(PROGRAM)
    arguments = [*map(json.dumps, (shape, names, chosen, local))]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    subprocess.run(
        [sys.executable, *launcher, str(script), remote, str(tmp_path), *arguments],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
    )
    facts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    ranks = facts[0]["world"]["num_ranks"]
    assert ranks == (4 if chosen == names else 2)
    for fact in facts:
        place = fact["world"]
        assert (place["num_ranks"], place["num_nodes"]) == (ranks, nodes)
        alone = StreamingDataset(
            local=remote, batch_size=2, shuffle=True, num_canonical_nodes=2,
            topology=World(nodes, ranks // nodes, 1, place["rank"]),
        )  # fmt: skip
        loader = StreamingDataLoader(alone)
        assert fact["batches"] == [batch["id"].tolist() for batch in loader]
        # `data` has the paths, for people.
        state = loader.state_dict() | {"data": fact["state"]["data"]}
        assert fact["state"] == state
        assert (chosen == names) == (not fact["errors"])  # other dimensions are refused
    for machine in range(4 // local):
        its = facts[machine * local : (machine + 1) * local]
        shards = {n // 10 for fact in its for batch in fact["batches"] for n in batch}
        assert sum(fact["fetched"] for fact in its) == len(shards)
        assert len(shards) == 20 // nodes  # each node reads its part of the data


@pytest.mark.parametrize(
    ("groups", "local", "expected"),
    [
        ([[0, 2], [1, 3]], 4, 2),  # dp 2, tp 2 on one machine
        ([[0, 2], [1, 3]], 2, 1),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], 2, 2),  # pp 2, dp 4
        ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], 6, 4),  # the groups are cut differently
        ([[0, 16], [8, 24]], 8, 1),  # a group of tensor parallelism on two machines
    ],
)
def test_machines_have_blocks_of_ranks(groups, local, expected):
    """As few ranks as possible share a machine, so that each fetches little."""
    assert _ranks_of_machine(groups, local) == expected


@pytest.mark.parametrize(
    ("processes", "local", "size", "expected"),
    [(16, 8, 8, 4), (16, 8, 16, 8), (16, 8, 1, 1), (32, 8, 2, 1), (8, 8, 4, 4), (6, 2, 4, 2)],
)
def test_a_pair_of_fewer_ranks_than_processes(monkeypatch, processes, local, size, expected):
    """Neighbouring processes are one rank."""
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
    assert find_ranks((0, size)).local_world_size == expected
