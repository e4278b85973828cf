"""What does an import cost, in time and memory?"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.systems.base import Data, System

# What torch leaves to be collected costs 0.07 s, which the next system would pay, or not, by the
# luck of a counter. So it is collected between two imports, while the clock stands.
_SCRIPT = """
import gc, json, sys, time
took = 0.0
for name in sys.argv[1:]:
    gc.collect()
    before = time.perf_counter()
    module, _, attribute = name.partition(":")
    __import__(module)
    if attribute:
        getattr(sys.modules[module], attribute)
    took += time.perf_counter() - before
with open("/proc/self/status") as file:
    resident = next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))
print(json.dumps([took, resident * 1024 / 1e6]))
"""

_TRIES = 4


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Seconds of ``import X``, or megabytes of the process after it, in fresh interpreters.

    The least of some: an import does the same each time, and what comes on top is the machine's.
    """
    names = [system.module]
    if "torch" in case.name:
        names = ["torch"] if system.name == "limit" else ["torch", *_WITH_TORCH]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    # What pip installs is compiled; a checkout is after its first import, if it may be.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    tries = _TRIES if seconds >= 0.5 else 1  # a short run has more rounds
    which = 1 if case.unit == "MB" else 0
    return {"value": min(_run(names, environment)[which] for _ in range(tries))}


def _run(names: list[str], environment: dict[str, str]) -> tuple[float, float]:
    process = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *names],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    took, resident = json.loads(process.stdout.strip().splitlines()[-1])
    return took, resident


_WITH_TORCH = ("mds:StreamingDataset", "mds:StreamingDataLoader")

QUESTION = Question(
    name="imports",
    title="Importing",
    unit="s",
    cases=(
        Case("import, seconds", "", Bar(at_most=0.15)),
        Case("import, memory of the process", "", Bar(at_most=40.0), unit="MB"),
        Case("torch and the loader, seconds", "", Bar(of_limit=1.05), ours=True),
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "The least of four fresh interpreters, with garbage collected before each import while "
        "the clock stands. The limit is numpy, and in the last line torch alone."
    ),
)
