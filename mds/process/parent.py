"""Watch over the parent of a child process, with which the child ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """End this process as soon as its parent is gone, even by kill -9.

    A process that was started by no other is left alone.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_after, args=(parent.sentinel,), name="mds-parent", daemon=True
        ).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
