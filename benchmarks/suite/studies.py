"""Studies of single parts, each a program of its own beside this package, and what they print."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.suite.environment import ROOT

NAMES = ("write", "read", "convert", "plan", "remote", "adapters")
_DEADLINE = 1800.0  # seconds


def run(names: Sequence[str], python: str, *, is_smoke: bool = False) -> dict[str, str]:
    """Run studies and return their output; ``python`` has the incumbent, for comparisons."""
    outputs = {}
    for name in names:
        path = os.path.join(ROOT, "benchmarks", f"{name}.py")
        if not os.path.exists(path):
            continue
        with open(path) as file:
            text = file.read()
        command = [sys.executable, path]
        if is_smoke and '"--smoke"' in text:
            command.append("--smoke")
        if '"--other"' in text and python != sys.executable:
            command += ["--other", python]
        print(f"{time.strftime('%H:%M:%S')} study {name}", file=sys.stderr, flush=True)
        process = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=_DEADLINE, check=False
        )
        outputs[name] = process.stdout.rstrip()
        if process.returncode:
            outputs[name] += f"\nexit {process.returncode}: {process.stderr.strip()[-500:]}"
    return outputs
