"""What is measured when: fresh processes, systems interleaved, several rounds."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import questions, systems
from benchmarks.questions.base import Case, Question
from benchmarks.suite.child import MARK, Job, perform
from benchmarks.suite.workloads import WORKLOADS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_DEADLINE = 600.0  # seconds of one measurement; a system that hangs is a result too


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Size of the measurements, and their folders."""

    scale: str  # smoke, quick or full
    rounds: int
    seconds: float
    python: str  # the interpreter that has the peers
    folder: str  # of data
    systems: tuple[str, ...]
    questions: tuple[str, ...]
    cases: str = ""  # only cases whose name has this text
    images: str | None = None
    fresh: bool = True  # a process for each measurement


@dataclasses.dataclass(slots=True)
class Measured:
    """All rounds of one system, case and variant."""

    question: str
    case: str
    system: str
    variant: str
    values: list[float] = dataclasses.field(default_factory=list)
    more: list[dict[str, float]] = dataclasses.field(default_factory=list)
    error: str = ""

    @property
    def median(self) -> float:
        """The middle of the rounds."""
        return statistics.median(self.values)


def measure_all(settings: Settings) -> list[Measured]:
    """Write what is missing, then measure every case of every question, round by round."""
    plan = [*plan_of(settings)]
    broken = write_data(settings, plan)
    found: dict[tuple[str, str, str, str], Measured] = {}
    for number in range(settings.rounds):
        # Another system is the first of each round, so that none always follows the same one.
        turn = plan[number % max(1, len(plan)) :] + plan[: number % max(1, len(plan))]
        for question, case, name, variant in turn:
            key = (question.name, case.name, name, variant)
            entry = found.setdefault(
                key, Measured(*key, error=broken.get((case.workload, name), ""))
            )
            if entry.error and not entry.values:
                continue  # it would fail again; a failure of one round is reported at the end
            job = job_of(settings, question, case, name, variant)
            _measure(settings, job, entry, number)
    return [found[q.name, c.name, n, v] for q, c, n, v in plan]


def _measure(settings: Settings, job: Job, entry: Measured, number: int) -> None:
    try:
        result = _do(settings, job)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        entry.error = str(error)[-400:]
        tell(f"{job.question}: {job.case}: {job.system} {job.variant}: FAILED {entry.error}")
        return
    entry.values.append(result.pop("value"))
    entry.more.append(result)
    tell(
        f"round {number + 1}  {job.question}: {job.case}: {job.system} {job.variant}: "
        f"{entry.values[-1]:,.4g}"
    )


def plan_of(settings: Settings) -> Iterator[tuple[Question, Case, str, str]]:
    """Case by case, so that systems to be compared are measured right after each other."""
    for name in settings.questions:
        question = questions.find(name)
        for case in question.cases:
            if settings.cases not in case.name:
                continue
            for system in settings.systems:
                for variant in _variants(question, case, system):
                    yield question, case, system, variant


def _variants(question: Question, case: Case, name: str) -> tuple[str, ...]:
    system = systems.find(name)
    found = system.variants(question.name, case.workload)
    if case.ours and name not in systems.OURS:
        return ()
    if not case.only:
        return found
    if case.only == ("threads",):  # no other system has them
        return tuple(v for v in found if v in case.only)
    return tuple(v for v in found if name != "mds" or v in case.only)


def write_data(settings: Settings, plan: Sequence[Any]) -> dict[tuple[str, str], str]:
    """Write what is not there yet; which system could not write what, and why."""
    broken = {}
    for workload, name in dict.fromkeys((c.workload, n) for _, c, n, _ in plan if c.workload):
        stored = systems.find(name).stored_as or name
        folder = _folder(settings, workload)
        marker = os.path.join(folder, f"{stored}.done")
        if os.path.exists(marker):
            continue
        tell(f"writing {workload} for {stored}")
        shutil.rmtree(os.path.join(folder, stored), ignore_errors=True)
        try:
            _do(settings, job_of(settings, None, Case("", workload), stored, ""))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            broken[workload, name] = f"writing: {str(error)[-400:]}"
            tell(f"{workload} for {stored}: FAILED {error}")
            continue
        with open(marker, "w") as file:
            file.write("written\n")
    return broken


def _folder(settings: Settings, workload: str) -> str:
    return os.path.join(settings.folder, settings.scale, workload)


def job_of(
    settings: Settings, question: Question | None, case: Case, name: str, variant: str
) -> Job:
    return Job(
        system=name,
        folder=_folder(settings, case.workload) if case.workload else settings.folder,
        workload=case.workload,
        count=WORKLOADS[case.workload].sizes[settings.scale] if case.workload else 0,
        question=question.name if question else "",
        case=case.name,
        variant=variant,
        seconds=settings.seconds,
        images=settings.images,
    )


def _do(settings: Settings, job: Job) -> dict[str, Any]:
    """Perform a job in a fresh process, or here when the settings say so."""
    if not settings.fresh:
        return perform(job)
    command = [settings.python, "-m", "benchmarks.suite.child", json.dumps(dataclasses.asdict(job))]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    marker = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_DEADLINE,
        check=False,
    )
    for line in reversed(marker.stdout.splitlines()):
        if line.startswith(MARK):
            return json.loads(line[len(MARK) :])  # type: ignore[no-any-return]
    last = (marker.stderr.strip().splitlines() or ["no output"])[-1]
    raise RuntimeError(f"exit {marker.returncode}: {last}")


def tell(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
