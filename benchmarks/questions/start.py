"""How long until the first sample of a data set of 50,000 shards, and what memory does it take?"""

from __future__ import annotations

import json
import os
import time

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.suite.timing import private_bytes
from benchmarks.systems.base import Data, System

_SAMPLES = 16  # of a shard


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Seconds, or bytes of private memory, of constructing and taking one sample.

    With the variant "again" a first data set has been made in this folder before, in a process that
    is gone; imports are over when the clock starts.
    """
    shards = int(case.name.split()[0].replace(",", ""))
    many = Data(data.workload, _folder(os.path.dirname(data.folder), shards), shards * _SAMPLES)
    cache = os.path.join(many.folder, "..", f"cache-{variant.replace(' ', '-')}-{os.getpid()}")
    os.environ["MDS_CACHE_DIR"] = os.path.abspath(cache)
    if variant == "again":
        pid = os.fork()
        if not pid:
            system.start(many, variant)
            os._exit(0)
        os.waitpid(pid, 0)
    _warm(system, data)
    before = private_bytes()
    begun = time.perf_counter()
    kept = system.start(many, variant)
    took = time.perf_counter() - begun
    after = private_bytes()
    del kept
    return {"value": (after - before) / 1e6 if case.unit == "MB" else took, "seconds": took}


def _warm(system: System, data: Data) -> None:
    """Have everything imported that a first sample needs."""
    small = Data(data.workload, _folder(os.path.dirname(data.folder), 2), 2 * _SAMPLES)
    system.start(small, "")


def _folder(place: str, shards: int) -> str:
    """A data set of so many shards, each a link to the same file; made once."""
    import numpy as np

    from mds import MDSWriter

    folder = os.path.join(place, f"shards-{shards}")
    if os.path.exists(os.path.join(folder, "index.json")):
        return folder
    with MDSWriter(
        columns={"tokens": "ndarray:int32:64"},
        out=folder,
        size_limit=_SAMPLES * 300,
        exist_ok=True,
        hashes=["xxh64"],
    ) as writer:
        for number in range(_SAMPLES):
            writer.write({"tokens": np.full(64, number, np.int32)})
    with open(os.path.join(folder, "index.json")) as file:
        index = json.load(file)
    (shard,) = index["shards"]
    name = shard["raw_data"]["basename"]
    index["shards"] = []
    for number in range(shards):
        link = f"shard.{number:05d}.mds"
        if link != name:
            os.link(os.path.join(folder, name), os.path.join(folder, link))
        index["shards"].append({**shard, "raw_data": {**shard["raw_data"], "basename": link}})
    with open(os.path.join(folder, "index.json.new"), "w") as file:
        json.dump(index, file, sort_keys=True)
    os.replace(os.path.join(folder, "index.json.new"), os.path.join(folder, "index.json"))
    return folder


QUESTION = Question(
    name="start",
    title="Constructing a data set of many shards and taking its first sample",
    unit="s",
    cases=(
        Case("50,000 shards, first time", "tokens", Bar(at_most=1.0), only=("first time",)),
        Case("50,000 shards, again", "tokens", Bar(at_most=0.2), only=("again",)),
        Case(
            "50,000 shards, again, memory", "tokens", Bar(at_most=20.0), only=("again",), unit="MB"
        ),
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "'first time' parses index.json, 'again' finds what the first time left behind. The limit "
        "is json.load of the same file. Systems with another index are not asked."
    ),
)
