"""``python -m mds.compat train.py ...`` runs a program with the door open in all its processes.

``python -m mds.compat -m package.module ...`` runs a module. Without arguments the folder is
printed that does the same when it is on PYTHONPATH.
"""

from __future__ import annotations

import os
import sys

from mds.compat.streaming import FOLDER


def main(arguments: list[str]) -> None:
    """Replace this process by Python running ``arguments`` with the door on its path."""
    if not arguments:
        sys.stdout.write(f"{FOLDER}\n")
        return
    path = [FOLDER, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}
    os.execve(sys.executable, [sys.executable, *arguments], environment)  # noqa: S606 - this Python itself


if __name__ == "__main__":
    main(sys.argv[1:])
