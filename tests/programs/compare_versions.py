"""Compare what two installed versions of the library give for random settings.

    python tests/programs/compare_versions.py BEFORE AFTER [--count 50] [--seed 0]
        [--only samples] [--processes] [--no-states] [--no-crossing]

BEFORE and AFTER are interpreters that have a version installed, or folders that contain ``mds/``.
For every seed both versions write the same small streams, draw the same settings, train on up to
eight ranks, stop at random steps and resume, often in another world. Compared are the index of
each stream, the samples of each rank in every step, the states and the texts of errors. AFTER is
run once more with the states that BEFORE saved. The first difference is printed, and the exit code
is 1.

``--only samples`` draws no packs and no schedules, for versions that order these in another way.
``--no-states`` compares no states, and ``--no-crossing`` does not resume from those of BEFORE, for
versions that write them in another way.

The ranks are objects of one process, which get ``topology=``. With ``--processes`` each rank is a
process of its own with the variables of a launcher.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import warnings
from typing import Any

STEPS = 40  # of a training, at most
PHASES = 3  # beginnings of a training: the first and its resumes
WORLDS = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 1), (1, 8), (3, 1), (1, 6))
SHUFFLES = ("naive", "py1b", "py1br", "py1e", "py1s", "py2s")
SEED_OF_SETTINGS = "settings {}"


# ------------------------------------------------------------------------------- settings


def draw_settings(seed: int, only: str | None = None) -> dict[str, Any]:
    """Return the settings of a training, as values of JSON; ``only`` "samples": without packs."""
    draw = random.Random(SEED_OF_SETTINGS.format(seed))
    streams = {
        name: draw.randint(20, 400) for name in ("web", "code", "math")[: draw.choice((1, 2, 3))]
    }
    settings: dict[str, Any] = {
        "streams": streams,
        "global_batch": draw.choice((24, 48)),  # of any world
        "shuffle": draw.random() < 0.8,
        "shuffle_algo": draw.choice(SHUFFLES),
        "shuffle_seed": draw.randint(0, 10_000),
        "shuffle_block_size": draw.choice((10, 64, 1 << 18)),
        "remainder": draw.choice(("repeat", "repeat", "short", "mask")),
        "worlds": [draw.choice(WORLDS) for _ in range(PHASES)],
        "stops": [draw.randint(0, STEPS // 2) for _ in range(PHASES - 1)] + [STEPS],
        "workers": draw.choice((0, 0, 1, 2)),
    }
    if draw.random() < 0.5:
        settings["worlds"] = settings["worlds"][:1] * PHASES
    if draw.random() < 0.3:
        settings["num_canonical_nodes"] = draw.choice((1, 2, 4, 12))
    if draw.random() < 0.2:
        settings["epoch_size"] = draw.randint(10, 600)
    if draw.random() < 0.2:
        settings["sampling_method"] = "fixed"
        settings["sampling_granularity"] = draw.choice((1, 5))
    if draw.random() < 0.2:
        settings["partition_algo"] = "orig"
    if draw.random() < 0.15:
        settings["replication"] = 2
    _draw_batching(draw, settings)
    if only == "samples":
        settings = {k: v for k, v in settings.items() if k not in ("packing", "schedule")}
    _draw_changes(draw, settings)
    if draw.random() < 0.9:
        _settle(settings)
    return settings


def _settle(settings: dict[str, Any]) -> None:
    """Change settings that are refused together; some combinations keep them."""
    if "replication" in settings:
        settings["worlds"] = [(nodes, ranks + ranks % 2) for nodes, ranks in settings["worlds"]]
        settings["worlds"] = [w if 24 % (w[0] * w[1]) == 0 else (1, 2) for w in settings["worlds"]]
    if "batching_method" in settings:
        settings["remainder"] = "repeat"
    if "budget" in settings.get("packing", {}):
        settings["worlds"] = settings["worlds"][:1] * PHASES


def _draw_batching(draw: random.Random, settings: dict[str, Any]) -> None:
    kind = draw.choice(("random", "random", "methods", "packing", "schedule", "both"))
    if kind == "methods":
        methods = ("stratified", "per_stream", "device_per_stream")
        settings["batching_method"] = draw.choice(methods)
    if kind in ("packing", "both"):
        settings["packing"] = draw.choice(
            (
                {"capacity": draw.choice((20, 40))},
                {"capacity": 12, "overflow": draw.choice(("split", "drop", "truncate"))},
                {"budget": 48},
            )
        )
    if kind in ("schedule", "both"):
        names = [*settings["streams"]]
        unit = "steps" if "budget" not in settings.get("packing", {}) else "tokens"
        settings["schedule"] = {
            "knots": {
                str(step): {name: draw.randint(1, 5) for name in names}
                for step in (0, *sorted(draw.sample(range(1, STEPS), draw.choice((0, 1, 2)))))
            },
            "between": draw.choice(("steps", "linear")),
            "unit": unit,
        }


def _draw_changes(draw: random.Random, settings: dict[str, Any]) -> None:
    total = sum(settings["streams"].values())
    if draw.random() < 0.2:
        settings["select"] = sorted(draw.sample(range(total), draw.randint(10, total)))
    if draw.random() < 0.25:
        settings["filter"] = draw.randint(2, 7)
    if draw.random() < 0.3:
        settings["map"] = True
    if draw.random() < 0.2:
        count = max(1, total // 20)
        settings["drop"] = [draw.randint(0, 6), sorted(draw.sample(range(total), count))]
    if draw.random() < 0.2:
        first = draw.randint(6, 15)
        settings["skip"] = [draw.randint(0, 5), first, first + draw.randint(1, 8)]


# ------------------------------------------------------------------------------- a training


def write_streams(folder: str, settings: dict[str, Any]) -> dict[str, str]:
    """Write the streams, and return the digest of the index of each."""
    import hashlib

    import numpy as np

    from mds import MDSWriter

    first, digests = 0, {}
    columns = {"id": "int", "tokens": "ndarray:int32"}
    for name, size in settings["streams"].items():
        place = os.path.join(folder, name)
        with MDSWriter(out=place, columns=columns, size_limit=1500, lengths="tokens") as writer:
            for number in range(first, first + size):
                tokens = np.full(1 + number * 7 % 19, number, np.int32)
                writer.write({"id": number, "tokens": tokens})
        first += size
        with open(os.path.join(place, "index.json"), "rb") as file:
            digests[name] = hashlib.sha256(file.read()).hexdigest()
    return digests


def make_loader(folder: str, settings: dict[str, Any], num_ranks: int, topology: Any) -> Any:
    """Return the loader of one rank."""
    from mds import Packing, Schedule, Stream, StreamingDataLoader, StreamingDataset

    names = (
        *("shuffle", "shuffle_algo", "shuffle_seed", "shuffle_block_size", "remainder"),
        *("num_canonical_nodes", "epoch_size", "sampling_method", "sampling_granularity"),
        *("partition_algo", "replication", "batching_method"),
    )
    given = {name: settings[name] for name in names if name in settings}
    if hasattr(StreamingDataset, "exact"):  # the name of ``remainder`` in earlier versions
        given["exact"] = {"repeat": False, "short": True, "mask": "mask"}[given.pop("remainder")]
    batch_size = max(settings["global_batch"] // num_ranks, 1)
    if "packing" in settings:
        batch_size = 1 if "budget" in settings["packing"] else batch_size
        options = dict(settings["packing"])
        is_earlier = "lengths" in Packing.__dataclass_fields__  # the name of ``column`` there
        if options.get("overflow") == "truncate" and is_earlier:
            options["overflow"] = "cut"
        given["packing"] = Packing(**options, **{"lengths" if is_earlier else "column": "tokens"})
        given["columns"] = ["tokens"]
    else:
        given["columns"] = ["id"]
    if "schedule" in settings:
        told = settings["schedule"]
        knots = {int(step): weights for step, weights in told["knots"].items()}
        # The default, whose word was "steps" in earlier versions and is "hold" now, has no name.
        between = {} if told["between"] == "steps" else {"between": told["between"]}
        given["schedule"] = Schedule(knots, unit=told["unit"], **between)
    places = {name: os.path.join(folder, name) for name in settings["streams"]}
    dataset = StreamingDataset(
        streams={name: Stream(local=place) for name, place in places.items()},
        batch_size=batch_size,
        topology=topology,
        **given,
    )
    column = given["columns"][0]
    if "select" in settings:
        dataset = dataset.select(settings["select"])
    if "map" in settings:
        dataset = dataset.map(dict)
    if "filter" in settings:
        modulus = settings["filter"]
        dataset = dataset.filter(lambda sample: int(sample[column].flat[0]) % modulus
                                 if column == "tokens" else sample[column] % modulus)  # fmt: skip
    workers = settings["workers"]
    # Earlier versions name the argument ``workers``.
    names = inspect.signature(StreamingDataLoader).parameters
    kind = "worker_type" if "worker_type" in names else "workers"
    options = {"num_workers": workers, kind: "threads"} if workers else {}
    return StreamingDataLoader(dataset, batch_size=batch_size, **options)


def samples_of(batch: Any) -> list[int]:
    """Return the ids of the samples of a batch, -1 where they are masked."""
    import numpy as np

    if "tokens" not in batch:
        ids = batch["id"].tolist()
        mask = batch["mask"].tolist() if "mask" in batch else [True] * len(ids)
        return [number if kept else -1 for number, kept in zip(ids, mask, strict=True)]
    tokens = np.asarray(batch["tokens"]).reshape(-1)
    edges = np.flatnonzero(np.diff(tokens)) + 1
    return tokens[np.concatenate(([0], edges))].tolist() if len(tokens) else []


def portable(state: Any, folder: str) -> Any:
    """Return a state without the names of folders."""
    return json.loads(json.dumps(state).replace(json.dumps(folder)[1:-1], "FOLDER"))


def local(state: Any, folder: str) -> Any:
    """Return a state whose folders are those of this run."""
    return json.loads(json.dumps(state).replace("FOLDER", json.dumps(folder)[1:-1]))


def train_ranks(
    folder: str,
    settings: dict[str, Any],
    phase: int,
    state: Any,
    step: int,
    topologies: list[Any],
) -> dict[str, Any]:
    """Train until the stop of a phase; ``step`` steps of the training have passed before.

    Returns the samples of every step by rank, and the state after the last one. There are more
    epochs as long as steps remain.
    """
    steps: list[list[list[int]]] = []
    try:
        nodes, ranks = settings["worlds"][phase]
        loaders = [make_loader(folder, settings, nodes * ranks, each) for each in topologies]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(local(state, folder))
        most = settings["stops"][phase]
        while len(steps) < most:
            before = len(steps)
            for batches in zip(*loaders, strict=True):
                steps.append([samples_of(batch) for batch in batches])
                edit(loaders, settings, step + len(steps))
                if len(steps) == most:
                    break
            if len(steps) == before:
                break
        states = [portable(loader.state_dict(), folder) for loader in loaders]
    except Exception as error:  # noqa: BLE001 - both versions are to give the same
        text = str(error).replace(folder, "FOLDER")
        return {"steps": steps, "error": f"{type(error).__name__}: {text}"}
    return {"steps": steps, "states": states}


def edit(loaders: list[Any], settings: dict[str, Any], step: int) -> None:
    """Drop samples and skip steps where the settings say so."""
    for name in ("drop", "skip"):
        if name in settings and settings[name][0] == step:
            for loader in loaders:
                dataset, edit_argument = loader.dataset, settings[name][1:]
                if not hasattr(dataset, "edits"):  # an earlier version
                    dataset.drop(*edit_argument) if name == "drop" else loader.skip(
                        steps=range(*edit_argument)
                    )
                elif name == "drop":
                    dataset.edits.replace_samples(*edit_argument)
                else:
                    dataset.edits.skip_steps(range(*edit_argument))


def train(
    folder: str,
    settings: dict[str, Any],
    saved: list[Any] | None,
    *,
    has_processes: bool,
) -> list[dict[str, Any]]:
    """Train in all phases, and return what each gave.

    ``saved``: the states that a phase begins with, in the place of those of the phase before.
    """
    from mds.world import World

    phases, state, step = [], None, 0
    for phase, (nodes, ranks) in enumerate(settings["worlds"]):
        if saved is not None and phase:
            state = saved[phase - 1]
        if has_processes:
            result = _train_processes(folder, settings, phase, state, step)
        else:
            topologies = [World(nodes, ranks, 1, rank) for rank in range(nodes * ranks)]
            result = train_ranks(folder, settings, phase, state, step, topologies)
        phases.append(result)
        if "states" not in result:
            break
        state, step = result["states"][0], step + len(result["steps"])
    return phases


def _train_processes(
    folder: str, settings: dict[str, Any], phase: int, state: Any, step: int
) -> dict[str, Any]:
    nodes, per_node = settings["worlds"][phase]
    order = json.dumps([folder, settings, phase, state, step])
    running = []
    for rank in range(nodes * per_node):
        variables = {
            "RANK": rank,
            "WORLD_SIZE": nodes * per_node,
            "LOCAL_RANK": rank % per_node,
            "LOCAL_WORLD_SIZE": per_node,
        }
        running.append(
            subprocess.Popen(
                [sys.executable, __file__, "--rank"],
                env={**os.environ, **{name: str(value) for name, value in variables.items()}},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert running[-1].stdin is not None
        running[-1].stdin.write(order)
        running[-1].stdin.close()
    results = []
    for process in running:
        assert process.stdout is not None
        results.append(json.loads(process.stdout.read()))
        process.stdout.close()
        process.wait()
    for result in results:
        if "error" in result:
            return result
    # Ranks of their own may take unequal numbers of steps: a filter or the end of an epoch may
    # leave one of them fewer batches, and nothing synchronizes them here. Such steps are None.
    rows = [[ranks[0] for ranks in result["steps"]] for result in results]
    steps = [list(step) for step in itertools.zip_longest(*rows)]
    return {"steps": steps, "states": [result["states"][0] for result in results]}


def run_rank() -> None:
    """Train one rank, which reads its order from the standard input."""
    warnings.simplefilter("ignore")
    logging.getLogger("mds").setLevel(logging.ERROR)
    folder, settings, phase, state, step = json.load(sys.stdin)
    print(json.dumps(train_ranks(folder, settings, phase, state, step, [None])))


# ------------------------------------------------------------------------------- versions


def run_seeds(path: str, *, has_processes: bool, only: str | None) -> None:
    """Train for every seed of a file of JSON, and print a line for each."""
    warnings.simplefilter("ignore")
    logging.getLogger("mds").setLevel(logging.ERROR)
    with open(path, encoding="utf-8") as file:
        orders = json.load(file)
    for seed, saved in orders:
        settings = draw_settings(seed, only)
        with tempfile.TemporaryDirectory() as folder:
            digests = write_streams(folder, settings)
            phases = train(folder, settings, saved, has_processes=has_processes)
        print(json.dumps({"seed": seed, "index": digests, "phases": phases}), flush=True)


def run_version(version: str, orders: list[Any], options: list[str]) -> list[dict[str, Any]]:
    """Return the results of a version for a list of (seed, states)."""
    environment = dict(os.environ)
    interpreter = version
    if os.path.isdir(version):
        interpreter = sys.executable
        environment["PYTHONPATH"] = os.path.abspath(version)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "orders.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(orders, file)
        done = subprocess.run(
            [interpreter, __file__, "--run", path, *options],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=folder,
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def find_difference(one: Any, other: Any, where: str = "") -> str | None:
    """Return the first place at which two values of JSON differ, with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return f"{where}: keys {sorted(one)} and {sorted(other)}"
        pairs = [(f"{where}.{key}", one[key], other[key]) for key in one]
    elif isinstance(one, (list, tuple)) and len(one) == len(other):
        pairs = [(f"{where}[{at}]", *each) for at, each in enumerate(zip(one, other, strict=True))]
    else:
        return None if one == other else f"{where}: {str(one)[:300]} and {str(other)[:300]}"
    for place, first, second in pairs:
        if (difference := find_difference(first, second, place)) is not None:
            return difference
    return None


def steps_of(result: dict[str, Any]) -> list[Any]:
    """Return the samples of each step of each phase, and the errors."""
    return [(phase["steps"], phase.get("error")) for phase in result["phases"]]


def compare(given: argparse.Namespace) -> int:
    """Print the first difference of each seed and a summary; return how many seeds differ.

    ``given``: the options of the program.
    """
    options = ["--processes"] if given.processes else []
    options += ["--only", given.only] if given.only else []
    orders = [(seed, None) for seed in range(given.seed, given.seed + given.count)]
    old = run_version(given.before, orders, options)
    new = run_version(given.after, orders, options)
    crossed: list[Any] = [None] * len(old)
    if not given.no_crossing:  # the states of before, which after resumes
        saved = [
            (each["seed"], [phase["states"][0] for phase in each["phases"] if "states" in phase])
            for each in old
        ]
        crossed = run_version(given.after, saved, options)
    different = steps = errors = 0
    for one, other, third in zip(old, new, crossed, strict=True):
        steps += sum(len(phase["steps"]) for phase in one["phases"])
        errors += "error" in one["phases"][-1]
        difference = find_difference(steps_of(one), steps_of(other))
        if third is not None:
            difference = difference or find_difference(
                steps_of(one), steps_of(third), " with the states of before"
            )
        if not given.no_states:
            difference = difference or find_difference(one, other)
        if difference is not None:
            different += 1
            print(f"seed {one['seed']}: {difference}")
            print(f"  settings: {json.dumps(draw_settings(one['seed'], given.only))[:1000]}")
    print(
        f"{len(old)} combinations, {steps} steps, {errors} ended by an error of both versions, "
        f"{different} different"
    )
    return different


def main() -> int:
    """Compare two versions, or do the part of one of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", nargs="?")
    parser.add_argument("after", nargs="?")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--only", choices=["samples"], help="no packs and no schedules")
    parser.add_argument("--processes", action="store_true", help="a process for each rank")
    parser.add_argument("--no-states", action="store_true", help="states may differ")
    parser.add_argument(
        "--no-crossing", action="store_true", help="each version resumes from its own states"
    )
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        run_rank()
    elif given.run:
        run_seeds(given.run, has_processes=given.processes, only=given.only)
    elif given.before is None or given.after is None:
        parser.error("name two versions")
    else:
        return min(compare(given), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
