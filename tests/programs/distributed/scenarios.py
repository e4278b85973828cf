"""Random runs over several topologies, with kills between, held against the plan batch by batch.

A scenario is a mixture, an order and a list of phases. Each phase starts the ranks of a topology
from the last checkpoint and ends by stopping, by a kill -9, or with the epoch. What must hold:
every rank got exactly the plan's batches for that topology and position; every global batch is that
of the uninterrupted run; the phases together are the epoch, and the next epoch is whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

import numpy as np

from mds import MDSWriter
from mds._index.table import read_index
from mds.plan import EpochPlan
from mds.plan._audit import OrderHash, Place
from mds.world import World

HERE = pathlib.Path(__file__).parent
GLOBAL_BATCH = 16
SIZES = (150, 90, 60)
METHODS = ("random", "per_stream", "device_per_stream", "stratified")
ALGORITHMS = ("py1e", "py1br", "py1s", "py2s", "naive")
# The first is where every scenario begins: (nodes, ranks of a node).
TOPOLOGIES = ((2, 2), (1, 1), (1, 4), (4, 1))
MIXTURES = (
    ({}, {}, {}),
    ({"proportion": 2}, {"proportion": 1}, {"proportion": 1}),
    ({"repeat": 1.5}, {"choose": 70}, {}),
)


@dataclasses.dataclass(frozen=True)
class Phase:
    """Ranks of a topology that run until something ends them."""

    nodes: int
    ranks: int
    workers: int
    stop: int | None = None
    kill: dict | None = None


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A whole run."""

    mixture: tuple[dict, ...]
    order: dict
    cache_limit: int | None
    kind: str
    save_every: int
    phases: tuple[Phase, ...]


def draw(seed, method=None):
    """A random scenario."""
    rng = random.Random(seed)
    method = method or rng.choice(METHODS)
    shuffle = rng.random() < 0.8
    order = {
        "shuffle": shuffle,
        "shuffle_algo": rng.choice(ALGORITHMS) if shuffle else "py1e",
        "shuffle_seed": rng.randrange(10_000),
        "shuffle_block_size": rng.choice([None, 64]),
        "num_canonical_nodes": rng.choice([None, 4]),
        "batching_method": method,
        "sampling_method": rng.choice(["balanced", "fixed"]),
    }
    if order["shuffle_algo"] in {"py1s", "py2s"}:
        order["num_canonical_nodes"] = 4  # 64 for each node by default: too many for 300 samples
    return Scenario(
        mixture=rng.choice(MIXTURES),
        order=order,
        cache_limit=rng.choice([None, 60_000]),
        kind=rng.choice(["plain", "processes", "threads"]),
        save_every=rng.choice([1, 2, 3]),
        phases=tuple(_phases(rng, method)),
    )


def _phases(rng, method):
    # Rows of device_per_stream are device batches, so that method goes on in the same topology.
    others = TOPOLOGIES[:1] if method == "device_per_stream" else TOPOLOGIES
    places = [TOPOLOGIES[0], *(rng.choice(others) for _ in range(rng.randrange(1, 4)))]
    for nodes, ranks in places:
        workers = rng.choice([0, 1, 2, 2])
        batch = rng.randrange(1, 6)
        if rng.random() < 0.5:
            kill = {
                "rank": rng.randrange(nodes * ranks),
                "batch": batch,
                "where": rng.choice(["rank", "worker", "saving"]),
            }
            yield Phase(nodes, ranks, workers, kill=kill)
        else:
            yield Phase(nodes, ranks, workers, stop=batch)
    yield Phase(*TOPOLOGIES[0], 2)  # and back, to the end, and one more epoch


def write_streams(folder):
    """Three datasets whose ids count through; the second is compressed."""
    first = 0
    for number, size in enumerate(SIZES):
        options = {"compression": "zstd"} if number == 1 else {}
        columns = {"id": "int", "text": "str"}
        out = os.path.join(folder, f"stream{number}")
        with MDSWriter(columns=columns, out=out, size_limit=4000, **options) as writer:
            for n in range(first, first + size):
                writer.write({"id": n, "text": "x" * (100 + n % 50)})
        first += size


class Ranks:
    """Talks to the launcher; a context manager."""

    def __enter__(self):
        path = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        command = [sys.executable, str(HERE / "launcher.py")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        return self

    def run(self, config, nodes, ranks):
        """Exit statuses of the ranks."""
        told = {"config": config, "nodes": nodes, "ranks": ranks}
        self._process.stdin.write(f"{json.dumps(told)}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class Play:
    """Plays one scenario in a folder of its own."""

    def __init__(self, scenario, streams, home, ranks):
        self.scenario, self.streams, self.home, self.ranks = scenario, streams, str(home), ranks
        self.checkpoint = os.path.join(self.home, "position.json")
        shards = [
            read_index(os.path.join(streams, f"stream{i}", "index.json")).samples
            for i in range(len(SIZES))
        ]
        self.spec = [
            {"shards": sizes, **share}
            for sizes, share in zip(shards, scenario.mixture, strict=True)
        ]
        self.baseline = []

    def play(self):
        """Every phase; raises AssertionError where something does not hold."""
        done = 0  # global batches that the last checkpoint says are done
        for number, phase in enumerate(self.scenario.phases):
            done = self._phase(number, phase, done)
        assert done == len(self.baseline), (done, len(self.baseline))

    def _phase(self, number, phase, done):
        is_last = number == len(self.scenario.phases) - 1
        state = self._state()
        log = os.path.join(self.home, f"log{number}")
        os.makedirs(log)
        statuses = self.ranks.run(self._config(phase, log, is_last), phase.nodes, phase.ranks)
        if phase.kill is None:
            assert not any(statuses), statuses
        world = World(phase.nodes, phase.ranks, max(phase.workers, 1), 0)
        if state is None:  # a run begins, perhaps again: killed before the first checkpoint
            self.baseline = self._global_batches(world, None)
        (first, hashes), (second, _) = self._read(
            log, world, is_finished=bool(state and state.get("finished"))
        )
        self._check_ranks(first, world, state, whole=phase.kill is None and phase.stop is None)
        self._audit(first, hashes, world, self._plan(world, state))
        self._check_globally(first, done)
        if is_last:
            after = {**self._state(), "sample_in_epoch": 0}
            assert after["epoch"] == 1
            self._check_ranks(second, world, after, whole=True)
            return len(self.baseline)
        position = self._state()
        return position["sample_in_epoch"] // GLOBAL_BATCH if position else 0

    def _state(self):
        if not os.path.exists(self.checkpoint):
            return None
        with open(self.checkpoint) as file:
            return json.load(file)

    def _config(self, phase, log, is_last):
        state = self._state()
        epochs = 2 if is_last else 1
        return {
            "streams": [
                {
                    "remote": os.path.join(self.streams, f"stream{i}"),
                    "local": os.path.join(self.home, "node{node}", str(i)),
                    **share,
                }
                for i, share in enumerate(self.scenario.mixture)
            ],
            "dataset": {
                **self.scenario.order,
                "batch_size": GLOBAL_BATCH // (phase.nodes * phase.ranks),
                "cache_limit": self.scenario.cache_limit,
            },
            "workers": phase.workers,
            "kind": self.scenario.kind,
            "state": state,
            "checkpoint": self.checkpoint,
            "log": log,
            "home": self.home,
            "save_every": self.scenario.save_every,
            "stop": phase.stop,
            "kill": phase.kill,
            "epochs": epochs - bool(state and state.get("finished")),
            "last": is_last,
        }

    def _read(self, log, world, *, is_finished):
        """Of the first and of the second epoch that the phase saw: batches and hashes by rank.

        After a state of a finished epoch, nothing comes of that epoch any more.
        """
        epochs = ([], []), ([], [])
        for rank in range(world.num_ranks):
            path = os.path.join(log, str(rank))
            text = pathlib.Path(path).read_text() if os.path.exists(path) else ""
            found = [json.loads(line) for line in text.splitlines()]
            if is_finished:
                found.insert(0, "end")
            end = found.index("end") if "end" in found else len(found)
            parts = found[:end], [line for line in found[end:] if line != "end"]
            for (batches, hashes), lines in zip(epochs, parts, strict=True):
                batches.append([ids for ids, _ in lines])
                hashes.append([made for _, made in lines])
        return epochs

    def _plan(self, world, state):
        order = dict(self.scenario.order, batch_size=GLOBAL_BATCH // world.num_ranks)
        epoch = 0 if state is None else state["epoch"]
        return EpochPlan(self.spec, world, epoch=epoch, resume=state, **order)

    def _check_ranks(self, seen, world, state, *, whole):
        """Every rank saw the plan's batches, from the first on and without a gap."""
        plan, nothing = self._plan(world, state), np.zeros(0, np.int64)
        for rank in range(world.num_ranks):
            place = (rank // world.ranks_per_node, rank % world.ranks_per_node)
            workers = range(world.workers_per_rank)
            expected = as_the_loader_deals(
                [np.concatenate([nothing, *plan.blocks(*place, worker)]) for worker in workers],
                GLOBAL_BATCH // world.num_ranks,
            )
            got = seen[rank]
            assert got == expected[: len(got)], f"rank {rank}"
            if whole:
                assert len(got) == len(expected), f"rank {rank}: {len(got)} of {len(expected)}"

    def _audit(self, seen, hashes, world, plan):
        """What happened is what the plan says when asked by step, by sample and by hash."""
        for step in range(min(map(len, seen))):
            worker = step % world.workers_per_rank
            made = OrderHash()
            for rank, batches in enumerate(seen):
                planned = plan.batch(step)[rank]
                assert planned[planned >= 0].tolist() == batches[step], f"step {step}"
                at = int(np.flatnonzero(planned >= 0)[0])
                assert Place(step, rank, worker, at) in plan.locate(batches[step][0])
                if hashes[rank][step] is not None:
                    made.merge(OrderHash.parse(hashes[rank][step]))
            if self.scenario.kind != "plain":
                assert made == plan.order_hash(step + 1), f"order hash of step {step}"

    def _check_globally(self, seen, done):
        """Batches that all ranks got are the uninterrupted run's, each in its place."""
        common = min(map(len, seen))
        for step in range(common):
            together = sorted(i for batches in seen for i in batches[step])
            expected = self.baseline[done + step]
            if len(expected) == GLOBAL_BATCH:  # the last one is padded as the topology needs
                assert together == expected, f"global batch {done + step}"
            else:
                assert set(together) >= set(expected), f"global batch {done + step}"

    def _global_batches(self, world, state):
        plan = self._plan(world, state)
        steps = [plan.batch(step) for step in range(plan.steps)]
        return [sorted(step[step >= 0].tolist()) for step in steps]


def as_the_loader_deals(workers, size):
    """The batches of a rank: each worker cuts its own ids, and they take turns."""
    queues = []
    for ids in workers:
        left = ids[ids >= 0].tolist()
        queues.append([left[i : i + size] for i in range(0, len(left), size)])
    dealt = []
    for turn in range(max(map(len, queues))):
        dealt += [queue[turn] for queue in queues if turn < len(queue)]
    return dealt


def play(seed, streams, home, ranks, method=None):
    """Play the scenario of a seed and clean up behind it."""
    scenario = draw(seed, method)
    os.makedirs(home)
    Play(scenario, streams, home, ranks).play()
    shutil.rmtree(home)
    return scenario
