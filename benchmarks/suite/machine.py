"""What was measured on: machine and versions, printed with every result."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from typing import Any

from benchmarks.suite.timing import settle_cpus

_SCRIPT = """
import importlib.metadata as m, json, sys
out = {"python": sys.version.split()[0]}
for name in sys.argv[1:]:
    try:
        out[name] = m.version(name)
    except m.PackageNotFoundError:
        out[name] = None
print(json.dumps(out))
"""
COMMON = ("numpy", "torch", "pillow", "simplejpeg", "zstandard")


def facts() -> dict[str, Any]:
    """Processor, cores, memory, kernel and file system of this machine."""
    return {
        "processor": _processor(),
        "cores": settle_cpus(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        return platform.processor()
    return platform.processor()


def versions(python: str, packages: Sequence[str]) -> dict[str, str | None]:
    """Versions of distributions as an interpreter sees them."""
    requirements = [*COMMON, *packages]
    process = subprocess.run(
        [python, "-c", _SCRIPT, *requirements], capture_output=True, text=True, check=True
    )
    return json.loads(process.stdout)  # type: ignore[no-any-return]
