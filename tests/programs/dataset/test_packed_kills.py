"""Packed runs that are killed at any instant go on elsewhere with nothing lost and nothing twice.

A process reads packs for all ranks of a world and notes a digest of each global batch with the
state behind it; it is killed with SIGKILL some time after it began, and another world of 1 to 8
ranks and 0 to 3 workers goes on from the last whole note. MDS_FAULTS=long kills 200 times.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from mds import MDSWriter

KILLS = 200 if os.environ.get("MDS_FAULTS") == "long" else 8

# One process imports everything once and forks those that are killed, so that a kill costs little.
PROGRAM = """
import hashlib, itertools, json, os, random, signal, sys, time, warnings
from mds import Packing, StreamingDataLoader, StreamingDataset
from mds.world import World

warnings.simplefilter("ignore")  # of more workers than this machine has cores
folder, out, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])

def digest(batches):
    documents = []
    for batch in batches:
        ends = batch["cu_seqlens"].tolist()
        columns = [batch[n].numpy() for n in ("tokens", "labels", "position_ids", "weight")]
        documents += [b"".join(c[a:b].tobytes() for c in columns)
                      for a, b in itertools.pairwise(ends) if columns[0][a:b].any()]
    return hashlib.blake2b(b"".join(sorted(documents)), digest_size=16).hexdigest()

def loaders(ranks, workers, state):
    made = []
    for rank in range(ranks):
        dataset = StreamingDataset(
            local=folder, shuffle=True, shuffle_algo="seekable", num_canonical_nodes=4,
            shuffle_block_size=700, packing=Packing(128, overflow="split", balance="attention"),
            batch_size=840 // ranks, topology=World(1, ranks, 1, rank))
        made.append(StreamingDataLoader(dataset, num_workers=workers, worker_type="auto"))
        if state is not None:
            made[-1].load_state_dict(state)
    return made

def read(ranks, workers, state, path, steps=None):
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    made = loaders(ranks, workers, state)
    while steps is None or steps > 0:
        for batches in zip(*made, strict=True):
            line = json.dumps([digest(batches), made[0].state_dict()]) + "\\n"
            assert os.write(log, line.encode()) == len(line)
            if steps is not None:
                steps -= 1
                if not steps:
                    break

def notes(path):
    with open(path) as file:
        return [json.loads(line) for line in file.read().split("\\n")[:-1]]

rng, killed, worlds = random.Random(3), 0, set()
open(out, "w").close()
while killed < kills:
    seen = notes(out)
    state = seen[-1][1] if seen else None
    world = rng.randint(1, 8), rng.randint(0, 3)
    child = os.fork()
    if not child:
        read(*world, state, out)
    while len(notes(out)) == len(seen):
        time.sleep(0.001)
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "a run ended by itself"
    time.sleep(rng.random() * 0.2)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    worlds.add(world)
seen = notes(out)
if not os.fork():
    read(1, 0, None, out + ".undisturbed", len(seen))
    os._exit(0)
assert os.wait()[1] == 0
expected = [digest for digest, _ in notes(out + ".undisturbed")]
print(json.dumps({"kills": killed, "worlds": len(worlds), "steps": len(seen),
                  "epochs": seen[-1][1]["epoch"],
                  "other": sum(a != b for (a, _), b in zip(seen, expected, strict=True))}))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Documents of which no two are alike and none is all zeros; some are longer than a pack."""
    folder = str(tmp_path_factory.mktemp("packed"))
    columns = {"tokens": "ndarray:uint32", "weight": "ndarray:float32"}
    with MDSWriter(out=folder, columns=columns, lengths="tokens", size_limit=1 << 16) as writer:
        for i in range(12_000):
            length = 400 if i % 97 == 5 else 1 + (i * 7919) % 90
            tokens = 1 + np.arange(length, dtype=np.uint32) + 1000 * i
            writer.write({"tokens": tokens, "weight": (tokens / 2).astype(np.float32)})
    return folder


@pytest.mark.slow
def test_runs_that_are_killed_at_any_instant_lose_nothing(corpus, tmp_path):
    """Every global batch of 840 packs is that of a run that nobody disturbed, byte for byte."""
    program, out = tmp_path / "program.py", str(tmp_path / "log")
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, str(program), corpus, out, str(KILLS)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["kills"] == KILLS
    assert found["other"] == 0
    assert found["steps"] >= KILLS
    assert found["worlds"] > KILLS // 20
