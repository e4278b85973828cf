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
loaded, imported = json.loads(sys.argv[1])
for name in loaded:
    __import__(name)
for name in imported:
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
    loaded, imported = _names(system, case)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    # What pip installs is compiled; a checkout is after its first import, if it may be.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    tries = _TRIES if seconds >= 0.5 else 1  # a short run has more rounds
    which = 1 if case.unit == "MB" else 0
    return {"value": min(_run(loaded, imported, environment)[which] for _ in range(tries))}


def _names(system: System, case: Case) -> tuple[list[str], list[str]]:
    """Return the modules loaded before the clock starts, and the names whose import is timed."""
    classes = [f"{system.module}:{name}" for name in system.classes]
    if case.name == _AFTER_TORCH:
        return ["torch"], classes or [system.module]
    if case.name == _ALONE:
        return [], classes or ["torch"]
    if case.name == _BOTH:
        return [], ["torch", *classes]
    return [], [system.module]


def _run(
    loaded: list[str], imported: list[str], environment: dict[str, str]
) -> tuple[float, float]:
    process = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps([loaded, imported])],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    took, resident = json.loads(process.stdout.strip().splitlines()[-1])
    return took, resident


_ALONE = "dataset and loader, seconds"
_AFTER_TORCH = "dataset and loader, torch loaded, seconds"
_BOTH = "torch and the loader, seconds"

QUESTION = Question(
    name="imports",
    title="Importing",
    heading="How long does an import take?",
    unit="s",
    cases=(
        Case("import, seconds", "", Bar(at_most=0.15)),
        Case("import, memory of the process", "", Bar(at_most=40.0), unit="MB"),
        Case(_ALONE, "", Bar()),
        Case(_AFTER_TORCH, "", Bar()),
        Case(_BOTH, "", Bar(of_limit=1.05), ours=True),
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "A round takes the least of four fresh interpreters. The rows 'import' load the package, "
        "'dataset and loader' its classes StreamingDataset and StreamingDataLoader, and 'torch "
        "and the loader' (mds only) torch, then the classes. In the row 'torch loaded', torch is "
        "imported before the clock starts. A library without such classes loads its package in "
        "this row, and only torch in the other row 'dataset and loader'. The limit imports NumPy "
        "in the rows 'import' and 'torch loaded' (by then imported by torch), and torch in the "
        "others."
    ),
)
