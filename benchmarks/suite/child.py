"""A fresh process of the suite: takes one job as JSON, prints one result as JSON.

Everything that a system prints goes elsewhere; the result is the last line, behind a mark.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import sys
from typing import Any

from benchmarks import questions, systems
from benchmarks.suite.workloads import WORKLOADS
from benchmarks.systems.base import Data

MARK = "RESULT "


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """Request to a child process; with an empty ``question`` it writes the data."""

    system: str
    folder: str  # of the workload's data; each system has its own inside
    workload: str
    count: int
    question: str = ""
    case: str = ""
    variant: str = ""
    seconds: float = 1.0
    images: str | None = None  # a folder of photographs


def perform(job: Job) -> dict[str, Any]:
    """Do the job here."""
    system = systems.find(job.system)
    place = os.path.join(job.folder, system.stored_as or system.name)
    if not job.question:
        return _write(job, place)
    question = questions.find(job.question)
    case = next(c for c in question.cases if c.name == job.case)
    data = Data(job.workload, place, job.count)
    return question.measure(system, data, case, job.variant, job.seconds)


def _write(job: Job, place: str) -> dict[str, Any]:
    workload = WORKLOADS[job.workload]
    os.makedirs(place, exist_ok=True)
    first = os.path.join(job.folder, "first.pickle")
    if not os.path.exists(first):
        with open(first, "wb") as file:
            pickle.dump([*workload.samples(8, job.images)], file)
    samples = workload.samples(job.count, job.images)
    systems.find(job.system).write(job.workload, workload.columns, samples, place)
    return {"value": sum(e.stat().st_size for e in os.scandir(place))}


def main() -> None:
    """Read the job, or a list of them, from the command line and print each result."""
    request = json.loads(sys.argv[1])
    if tree := os.environ.get("MDS_BENCHMARKS_TREE"):
        from benchmarks.suite.against import check_tree

        check_tree(tree)
    for each in request if isinstance(request, list) else [request]:
        try:
            result = perform(Job(**each))
        except Exception as error:
            if not isinstance(request, list):
                raise
            result = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.flush()
        print(MARK + json.dumps(result), flush=True)
    # Some systems leave threads and processes that keep an interpreter from ending.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
