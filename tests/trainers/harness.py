"""Kills a training of a trainer, resumes it on other ranks, and compares what was trained on.

A trainer has a program in ``programs``, whose ``main(settings)`` runs on every rank and calls
`record` with each batch that the model gets. If it has ``prepare(settings)``, that runs before the
ranks. A case runs it three times: undisturbed, killed by SIGKILL, and resumed from the last
checkpoint of the killed run::

    undisturbed   steps 1 ... 12
    killed        steps 1 ... 7, checkpoints after 3 and 6
    resumed                       steps 7 ... 12     equal to those of the undisturbed run?

As a program, ``python harness.py PROGRAM`` imports the trainer once and forks every rank from
there, because an import takes longer than the training.
"""

import collections
import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import traceback

import numpy as np

HERE = pathlib.Path(__file__).parent
DOCUMENTS, VOCABULARY = 240, 256
CAPACITY = 64  # tokens of a pack
STREAMS = ("web", "code")
SHARES = {0: {"web": 3, "code": 1}, 5: {"web": 1, "code": 3}}  # of a schedule
#: Messages by which loaders of trainers refuse to resume.
REFUSALS = (
    "resharding is not supported",  # torchtitan's, on another number of ranks
    "expected for multiprocess dataloader",  # torchdata's, from no workers to some
)


@dataclasses.dataclass(frozen=True)
class World:
    """Ranks, batches of a rank, batches of a step, and workers of a loader."""

    ranks: int
    batch_size: int
    microbatches: int = 1
    workers: int = 0


@dataclasses.dataclass(frozen=True)
class Case:
    """A training that is killed in one world and resumed in another.

    ``at_epoch_end`` says that the checkpoint lies exactly between two epochs.
    """

    before: World
    after: World
    packing: bool = False
    schedule: bool = False
    drop: bool = False
    loader: str = "mds"
    steps: int = 12
    save_every: int = 3
    seed: int = 0
    at_epoch_end: bool = False

    @property
    def name(self):
        """Words for the case."""
        parts = [f"{self.before.ranks} to {self.after.ranks} ranks"]
        if (self.before.microbatches, self.after.microbatches) != (1, 1):
            parts.append(f"{self.before.microbatches} to {self.after.microbatches} micro-batches")
        parts += [name for name in ("packing", "schedule", "drop") if getattr(self, name)]
        parts += ["end of an epoch"] * self.at_epoch_end
        return ", ".join(parts)


def write_documents(folder):
    """Write documents to two datasets; the tokens of document n are all n + 2."""
    from mds import MDSWriter

    rng = np.random.default_rng(1)
    for stream, name in enumerate(STREAMS):
        with MDSWriter(
            os.path.join(folder, name), {"tokens": "ndarray:uint16"}, lengths="tokens"
        ) as out:
            for n in range(DOCUMENTS // 2):
                number = stream * DOCUMENTS // 2 + n + 2
                out.write({"tokens": np.full(int(rng.integers(3, 40)), number, np.uint16)})


def arguments_of(settings, labels="masked"):
    """Return the arguments of the StreamingDataset of a case; ``labels`` is that of Packing."""
    from mds import Packing, Schedule

    streams = {name: os.path.join(settings["shards"], name) for name in STREAMS}
    arguments = {"streams": streams, "shuffle": True}
    if settings["packing"]:
        arguments["packing"] = Packing(CAPACITY, window=8, labels=labels)
    if settings["schedule"]:
        arguments["schedule"] = Schedule(SHARES)
    return arguments


def dataset_of(settings, labels="masked", **options):
    """Return the StreamingDataset of a case."""
    from mds import StreamingDataset

    return StreamingDataset(**arguments_of(settings, labels), **options)


def tokens_of_documents(settings):
    """Return the tokens of all documents in stored order, for the trainer's own loader."""
    from mds import LocalDataset

    folders = [os.path.join(settings["shards"], name) for name in STREAMS]
    return [sample["tokens"].tolist() for folder in folders for sample in LocalDataset(folder)]


def change(settings, dataset, step):
    """Take documents out of the order after the second step, if the case has this edit."""
    if settings["drop"] and step == 2:
        dataset.edits.replace_samples(range(0, DOCUMENTS, 3), reason="a test")


def record(settings, step, inputs):
    """Write down the documents of a batch, and kill this rank if its time has come.

    Args:
        settings: Settings of the program.
        step: Number of the optimizer step, from 1.
        inputs: ``input_ids`` and ``labels`` of shape (rows, tokens), and ``position_ids`` of the
            same shape if a row has several documents, or ``attention_mask``.
    """
    rank = int(os.environ["RANK"])
    if settings["kill"] == [rank, step]:
        os.kill(os.getpid(), signal.SIGKILL)
    documents = []
    for row, tokens in enumerate(inputs["input_ids"].tolist()):
        labels, end = inputs["labels"][row].tolist(), len(tokens)
        if inputs.get("attention_mask") is not None:
            end = int(inputs["attention_mask"][row].sum())
        starts = [0]
        if inputs.get("position_ids") is not None:
            starts = [
                i for i, place in enumerate(inputs["position_ids"][row].tolist()) if not place
            ]
        for start, stop in zip(starts, [*starts[1:], end], strict=True):
            if tokens[start] < 2:  # padding of a rank that has no pack in this step
                continue
            targets = [label for label in labels[start:stop] if label != -100]
            assert set(targets) <= {tokens[start]}, (tokens, labels)
            assert set(tokens[start:stop]) == {tokens[start]}, tokens
            documents.append([tokens[start], stop - start, len(targets)])
    with open(os.path.join(settings["seen"], str(rank)), "a", encoding="utf-8") as file:
        file.write(json.dumps([step, documents]) + "\n")


def documents_by_step(seen):
    """Return the sorted documents that all ranks together trained on in each step."""
    steps = collections.defaultdict(list)
    for file in pathlib.Path(seen).iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            step, documents = json.loads(line)
            steps[step] += map(tuple, documents)
    return {step: sorted(documents) for step, documents in steps.items()}


def run_case(trainer, case, folder):
    """Run a case of a trainer in an empty folder; return the facts of the resume."""
    folder = pathlib.Path(folder)
    (folder / "shards").mkdir(parents=True)
    write_documents(str(folder / "shards"))
    draw = random.Random(case.seed)
    # Not the first step after a checkpoint: rank 0 may still be writing then.
    later = [step for step in range(case.save_every + 2, case.steps) if step % case.save_every != 1]
    kill = [draw.randrange(case.before.ranks), draw.choice(later)]
    checkpoint = (kill[1] - 1) // case.save_every * case.save_every
    base = {
        **{name: getattr(case, name) for name in ("packing", "schedule", "drop", "loader")},
        **{name: getattr(case, name) for name in ("steps", "save_every")},
        "shards": str(folder / "shards"), "kill": None, "checkpoint": None,
    }  # fmt: skip
    whole = _launch(trainer, case.before, folder, "whole", base)
    killed = _launch(trainer, case.before, folder, "killed", {**base, "kill": kill})
    last = {**base, "checkpoint": checkpoint, "out": str(folder / "killed" / "out")}
    try:
        resumed = _launch(trainer, case.after, folder, "resumed", last)
    except AssertionError as refusal:
        if case.loader == "mds" or not any(text in str(refusal) for text in REFUSALS):
            raise
        resumed = {}
    before = {step: documents for step, documents in whole.items() if step <= checkpoint}
    expected = {step: documents for step, documents in whole.items() if step > checkpoint}
    assert len(whole) == case.steps, sorted(whole)
    assert {step: killed.get(step) for step in before} == before, "two runs differ without a kill"
    if case.at_epoch_end and case.loader == "mds":
        seen = [number for documents in before.values() for number, *_ in documents]
        is_begun_again = any(number in seen for number, *_ in expected[checkpoint + 1])
        assert is_begun_again, "the checkpoint is before the end of an epoch"
        assert len(seen) == len({*seen}), "the checkpoint is after the end of an epoch"
    if case.loader == "mds":
        assert sorted(resumed) == sorted(expected), (sorted(resumed), sorted(expected))
    lost, repeated = (
        collections.Counter(d for documents in a.values() for d in documents)
        - collections.Counter(d for documents in b.values() for d in documents)
        for a, b in ((expected, resumed), (resumed, expected))
    )
    return {
        "case": case.name,
        "loader": case.loader,
        "killed_in_step": kill[1],
        "resumed_after_step": checkpoint,
        "refused": not resumed,
        "equal_steps": sum(resumed.get(step) == expected[step] for step in expected),
        "steps": len(expected),
        "documents": sum(map(len, expected.values())),
        "lost": lost.total() if resumed else 0,
        "added": repeated.total(),
    }


def _launch(trainer, world, folder, name, settings):
    """Run a program on every rank; return the documents of each step."""
    home = folder / name
    for part in ("seen", "out"):
        (home / part).mkdir(parents=True)
    places = {"out": str(home / "out"), "seen": str(home / "seen")}
    settings = {**places, **settings, **dataclasses.asdict(world)}
    done = subprocess.run(
        [sys.executable, __file__, str(HERE / "programs" / f"{trainer}.py"), json.dumps(settings)],
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
        env={
            **os.environ,
            "MDS_CACHE_DIR": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "hf"),
        },
    )
    status = -signal.SIGKILL if settings["kill"] else 0
    assert done.returncode == abs(status), f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return documents_by_step(settings["seen"])


def _run_ranks(main, settings):
    """Fork the ranks; kill the others if one dies. Return the first status that is not 0."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    everybody = [_fork(main, settings, rank, port) for rank in range(settings["ranks"])]
    victim = everybody[settings["kill"][0]] if settings["kill"] else None
    running, result = set(everybody), 0
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if status and victim in running:
            # A rank that has lost its connection to the killed one can end before that one has.
            _, status = os.waitpid(victim, 0)
            running.discard(victim)
        if status and not result:
            result = os.waitstatus_to_exitcode(status)
            for other in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
    for pid in everybody:  # orphaned workers of ranks that were killed
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    return abs(result)


def _fork(main, settings, rank, port):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        ranks = str(settings["ranks"])
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), MASTER_PORT=str(port))
        os.environ.update(GROUP_RANK="0", TORCHELASTIC_RUN_ID="harness")  # as torchrun
        os.environ.update(WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1")
        main(settings)
        status = 0
    except BaseException:  # noqa: BLE001 - a child must not run on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _import(path):
    spec = importlib.util.spec_from_file_location("trainer_program", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["trainer_program"] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    program, its_settings = _import(sys.argv[1]), json.loads(sys.argv[2])
    if hasattr(program, "prepare"):
        program.prepare(its_settings)
    sys.exit(_run_ranks(program.main, its_settings))
