"""Runs of random ranks, microbatches and batch sizes that are killed lose and repeat nothing.

A process iterates all ranks of a world. It writes down a digest of the samples of each step, and
states at steps and in their middle. It is killed with SIGKILL at a random time, and the next
process goes on from the last state, with other ranks, microbatches and workers. Edits are made in
the middle of steps. In the end, all steps must be those of one rank with one batch. MDS_FAULTS=long
kills more often.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from mds import MDSWriter

KILLS = 60 if os.environ.get("MDS_FAULTS") == "long" else 6
STREAMS = ("web", "code", "math")

# One process imports everything once and forks those that are killed, so that a kill costs little.
PROGRAM = """
import hashlib, json, os, random, signal, sys, time, warnings
from mds import Packing, Schedule, Stream, StreamingDataLoader, StreamingDataset

warnings.simplefilter("ignore")  # of more workers than this machine has cores
folder, out, kills, kind, seed = sys.argv[1:]
GLOBAL_BATCH, STREAMS = 24, ("web", "code", "math")
SCHEDULE = {0: {"web": 8, "code": 1, "math": 1}, 9: {"web": 1, "code": 1, "math": 8}}
ORDERS = {
    "random": {},
    "stratified": {"batching_method": "stratified"},
    "schedule": {"schedule": Schedule(SCHEDULE, between="linear")},
    "packs": {"packing": Packing(64, overflow="split", window=8, balance="tokens")},
    "scheduled packs": {
        "packing": Packing(64, overflow="split", window=8), "schedule": Schedule(SCHEDULE),
    },
}
ORDER = ORDERS[kind]
WORLDS = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 3), (3, 2), (4, 1), (4, 2)]
if kind == "stratified":  # how streams are padded depends on the ranks with which a run begins
    WORLDS = [(2, 1), *WORLDS]
EDITS = {2: "replace", 7: "skip", 11: "replace"} | ({5: "weights"} if "schedule" in kind else {})

def samples_of(batch):
    if "cu_seqlens" not in batch:
        return batch["id"].tolist()
    return [token for token in batch["tokens"].tolist() if token]  # 0 is padding

def edit(edits, number):
    # Edits of a step that was interrupted are in its state already.
    kind = EDITS[number]
    words = {"replace": f"(bad in {number})", "skip": "skipped", "weights": "weights"}[kind]
    if any(words in text for text in edits):
        return
    if kind == "replace":
        samples = [number * 7 + 1, number * 7 + 90, number + 200]
        edits.replace_samples(samples, f"bad in {number}")
    elif kind == "skip":
        edits.skip_steps(range(number + 2, number + 4))
    else:
        edits.set_weights({"web": 1, "code": 1, "math": 1})

def read(world, workers, state, path, number=0, last=None):
    ranks, parts = world
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(*facts):
        line = json.dumps(facts) + "\\n"
        assert os.write(log, line.encode()) == len(line)

    loaders = []
    for rank in range(ranks):
        dataset = StreamingDataset(
            streams={name: Stream(local=f"{folder}/{name}") for name in STREAMS},
            batch_size=GLOBAL_BATCH // (ranks * parts), shuffle=True, num_canonical_nodes=2,
            topology=(rank, ranks), **ORDER)
        loaders.append(StreamingDataLoader(
            dataset, microbatches=parts, num_workers=workers,
            worker_type="processes" if workers else "auto", drop_last=True))
        if state is not None:
            loaders[-1].load_state_dict(state)
    while True:
        loops = [iter(loader) for loader in loaders]
        for first in zip(*loops):
            samples = [i for batch in first for i in samples_of(batch)]
            for part in range(parts):
                if part:
                    samples += [i for loop in loops for i in samples_of(next(loop))]
                if number in EDITS and part == number % parts:
                    for loader in loaders:
                        edit(loader.dataset.edits, number)
                if part < parts - 1:
                    write(None, loaders[number % ranks].state_dict())
            states = [loader.state_dict() | {"order_hash": ""} for loader in loaders]
            assert all(each == states[0] for each in states)
            write(hashlib.md5(repr(sorted(samples)).encode()).hexdigest(), states[0])
            number += 1
            if number == last:
                return

def notes(path):
    with open(path) as file:
        return [json.loads(line) for line in file.read().split("\\n")[:-1]]

def steps(path):
    return [samples for samples, _ in notes(path) if samples is not None]

rng, killed, worlds = random.Random(int(seed)), 0, set()
open(out, "w").close()
while killed < int(kills):
    seen = notes(out)
    state = seen[-1][1] if seen else None
    world = rng.choice(WORLDS) if seen else WORLDS[0]
    workers = rng.randint(0, 2)
    child = os.fork()
    if not child:
        read(world, workers, state, out, len(steps(out)))
    more = rng.randint(1, 12)
    while len(notes(out)) < len(seen) + more:
        time.sleep(0.001)
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "a run ended by itself"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    killed += 1
    worlds.add((world, workers))
seen = steps(out)
if not os.fork():
    read(WORLDS[0], 0, None, out + ".undisturbed", last=len(seen))
    os._exit(0)
assert os.wait()[1] == 0
equal = seen == steps(out + ".undisturbed")
print(json.dumps({"steps": len(seen), "worlds": len(worlds), "equal": equal}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three streams of documents whose tokens are their number; none is 0."""
    folder, number = tmp_path_factory.mktemp("streams"), 0
    columns = {"id": "int", "tokens": "ndarray:int32"}
    for name, samples in zip(STREAMS, (400, 230, 170), strict=True):
        with MDSWriter(folder / name, columns, lengths="tokens", size_limit=4000) as writer:
            for _ in range(samples):
                number += 1
                tokens = np.full(1 + number * 7919 % 90, number, np.int32)
                writer.write({"id": number, "tokens": tokens})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "stratified", "schedule", "packs", "scheduled packs"])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_runs_have_the_steps_of_an_undisturbed_one(kind, seed, folder, tmp_path):
    """In each step the same samples, with edits and in the next epochs too."""
    program, out = tmp_path / "program.py", str(tmp_path / "log")
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[3])}
    command = [sys.executable, str(program), str(folder), out, str(KILLS), kind, str(seed)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["equal"]
    assert result["steps"] >= KILLS
    assert result["worlds"] > KILLS // 2
