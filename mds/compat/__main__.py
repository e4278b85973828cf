"""Command that runs a program so that ``import streaming`` means mds in all its processes.

``python -m mds.compat train.py ...`` runs a file, ``python -m mds.compat -m package.module ...`` a
module. Without arguments the command prints a folder, which does the same on PYTHONPATH.
"""

from __future__ import annotations

import os
import sys

from mds.compat.streaming import FOLDER


def main(arguments: list[str]) -> None:
    """Replace this process by Python with ``arguments``, and with `FOLDER` first on PYTHONPATH.

    ``arguments``: those of the command; without any, the folder is printed.
    """
    if not arguments:
        sys.stdout.write(f"{FOLDER}\n")
        return
    path = [FOLDER, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}
    os.execve(sys.executable, [sys.executable, *arguments], environment)  # noqa: S606 - this Python itself


if __name__ == "__main__":
    main(sys.argv[1:])
