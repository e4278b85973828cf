"""This version against other commits: all measured in turns, question by question.

The packages of the commits are taken out of git into a temporary folder, and all are asked by the
questions of this version, on the same data. In each round every group of questions has a fresh
process for each version, one after the other, and the next round goes the other way. What counts
is the ratio within a round, so that a busy minute of the machine hits all; a ratio above one is a
gain, whichever way the unit points.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any

from benchmarks import questions
from benchmarks.questions.base import Case, Question
from benchmarks.suite.child import MARK, Job
from benchmarks.suite.memory_costs import describe_costs
from benchmarks.suite.runs import ROOT, Settings, job_of, plan_of, tell, write_data

HERE = "here"
LEAST_RATIO = 0.95
ROUNDS = 9
SECONDS = 0.3  # of each measurement, so that nine rounds of all questions take a quarter of an hour
_DEADLINE = 600.0  # seconds of one process
# Questions of rates share a process; the others look at what their process has and has done.
_GROUPS = (
    ("iterate", "small", "random_access", "rows", "batches"),
    ("images", "augmented"),
    ("cold",),
)

Key = tuple[str, str, str, str]


@dataclasses.dataclass(slots=True)
class Pair:
    """Results of this version (here) and of a commit (there) for one case, one for each round."""

    commit: str
    question: str
    case: str
    variant: str
    here: list[float] = dataclasses.field(default_factory=list)
    there: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)  # ratios by processor time
    errors: list[str] = dataclasses.field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Ratios for each round, above one if this version is better."""
        pairs = zip(self.here, self.there, strict=False)
        if questions.find(self.question).more_is_better:
            return [here / there for here, there in pairs]
        return [there / here if here else 1.0 for here, there in pairs]


def compare(settings: Settings, commits: Sequence[str]) -> Iterator[list[Pair]]:
    """Measure all rounds of this version and of commits; what was measured so far, after each."""
    plan = [*plan_of(settings)]
    for (workload, name), error in write_data(settings, plan).items():
        raise SystemExit(f"{workload} for {name}: {error}")
    keys = [_key(commit, q, c, v) for commit in commits for q, c, _, v in plan]
    pairs = {key: Pair(*key) for key in keys}
    with tempfile.TemporaryDirectory(prefix="mds-against-") as folder:
        trees = {HERE: _tree(os.path.join(folder, HERE), None)}
        trees |= {commit: _tree(os.path.join(folder, commit), commit) for commit in commits}
        for number in range(settings.rounds):
            for group in _groups(plan):
                jobs = [
                    job_of(settings, question, case, name, v) for question, case, name, v in group
                ]
                turn = list(trees) if number % 2 else list(reversed(trees))
                found = {which: _ask(settings, trees[which], jobs) for which in turn}
                for commit in commits:
                    _note(pairs, group, commit, found[HERE], found[commit])
                tell(f"round {number + 1}: {', '.join(dict.fromkeys(q.name for q, *_ in group))}")
            yield [*pairs.values()]


def _key(commit: str, question: Question, case: Case, variant: str) -> Key:
    return commit, question.name, case.name, variant


def _groups(plan: Sequence[Any]) -> Iterator[list[Any]]:
    """The plan cut into what shares a process."""
    together = {name for group in _GROUPS for name in group}
    for group in _GROUPS:
        if entries := [entry for entry in plan if entry[0].name in group]:
            yield entries
    yield from ([entry] for entry in plan if entry[0].name not in together)


def _tree(folder: str, commit: str | None) -> str:
    """A folder with the package of a commit, or of the working tree, and the questions of this."""
    os.makedirs(folder)
    os.symlink(os.path.join(ROOT, "benchmarks"), os.path.join(folder, "benchmarks"))
    if commit is None:
        os.symlink(os.path.join(ROOT, "mds"), os.path.join(folder, "mds"))
        return folder
    command = ["git", "-C", ROOT, "archive", "--format=tar", commit, "mds"]
    process = subprocess.run(command, capture_output=True, check=False)
    if process.returncode:
        raise SystemExit(f"--against {commit}: {process.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(process.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _ask(settings: Settings, tree: str, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The results of some jobs in one fresh process that has the package of a tree."""
    text = json.dumps([dataclasses.asdict(job) for job in jobs])
    environment = {**os.environ, "PYTHONPATH": tree, "MDS_BENCHMARKS_TREE": tree}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.run(
            [settings.python, "-m", "benchmarks.suite.child", text],
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=_DEADLINE * len(jobs),
            check=False,
        )
        errors.seek(0)
        last = (errors.read().strip().splitlines() or ["no output"])[-1]
    lines = [line for line in process.stdout.splitlines() if line.startswith(MARK)]
    found = [json.loads(line[len(MARK) :]) for line in lines]
    missing = {"error": f"exit {process.returncode}: {last}"}
    return found + [missing] * (len(jobs) - len(found))


def _note(
    pairs: dict[Key, Pair],
    group: Sequence[Any],
    commit: str,
    results_here: list[dict[str, Any]],
    results_there: list[dict[str, Any]],
) -> None:
    for entry_number, (question, case, _, variant) in enumerate(group):
        pair = pairs[_key(commit, question, case, variant)]
        here, there = results_here[entry_number], results_there[entry_number]
        for which, result in ((HERE, here), (commit, there)):
            if "error" in result:
                pair.errors.append(f"{which}: {result['error']}")
        if "value" in here and "value" in there:  # a ratio needs both of a round
            pair.here.append(here["value"])
            pair.there.append(there["value"])
            if "per_cpu_second" in here and "per_cpu_second" in there:
                pair.cpu.append(here["per_cpu_second"] / there["per_cpu_second"])


def table(pairs: Sequence[Pair], commit: str) -> str:
    """The ratios to a commit as a table in Markdown; what lost more than it may is marked."""
    pairs = [pair for pair in pairs if pair.commit == commit]
    lines = [
        f"This version against {commit}; above 1 is a gain. Spread: lowest and highest round.",
        "'by CPU' counts the asking process's processor time, which a busy machine disturbs less.",
        describe_costs(),
        "",
        f"| question | case | variant | here | {commit[:12]} | ratio | spread | by CPU | |",
        "|---|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for pair in pairs:
        if not pair.ratios:
            lines.append(f"| {pair.question} | {pair.case} | {pair.variant} | | | | | | failed |")
            continue
        here, there = statistics.median(pair.here), statistics.median(pair.there)
        ratio = statistics.median(pair.ratios)
        cpu = f"{statistics.median(pair.cpu):.3f}" if pair.cpu else ""
        mark = f"**below {LEAST_RATIO}**" if ratio < LEAST_RATIO else ""
        lines.append(
            f"| {pair.question} | {pair.case} | {pair.variant} | {here:,.4g} | {there:,.4g} "
            f"| {ratio:.3f} | {min(pair.ratios):.2f} to {max(pair.ratios):.2f} | {cpu} | {mark} |"
        )
    lines += [
        f"- {pair.question}, {pair.case}, {pair.variant}: {error[-300:]}"
        for pair in pairs
        for error in dict.fromkeys(pair.errors)
    ]
    return "\n".join(lines)


def lost(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs below the least ratio, and those that failed."""
    return [p for p in pairs if not p.ratios or statistics.median(p.ratios) < LEAST_RATIO]


def save(pairs: Sequence[Pair], path: str) -> None:
    """Write all rounds as JSON."""
    with open(path, "w") as file:
        json.dump([dataclasses.asdict(pair) for pair in pairs], file, indent=1)


def check_tree(folder: str) -> None:
    """Raise unless the package of this process is the one that is to be measured."""
    import mds

    found = os.path.realpath(os.path.dirname(mds.__file__))
    if found != os.path.realpath(os.path.join(folder, "mds")):
        raise SystemExit(f"{sys.executable} has mds of {found}, not of {folder}")
