"""The C library's heap in a worker process: large blocks go back to the system when they are free.

glibc takes large blocks straight from the kernel, but every one that is freed raises the size from
which it does so, up to 32 MB. Then batches of megabytes and images of less lie in one heap, which
tears: a worker that decodes photographs grows to 260 MB. With the size fixed it stays at 40 MB, at
the same rate (`python -m benchmarks --questions memory,images`). What is free at the heap's end is
kept: the images of a batch are freed together, and their pages would be new for the next one, which
takes a fifth of the rate.
"""

from __future__ import annotations

import ctypes
import os
import sys

MMAP_THRESHOLD_BYTES = 4 << 20  # bytes; smaller ones would be mapped anew too often
TRIM_THRESHOLD_BYTES = 64 << 20  # bytes that may be free at the heap's end
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
# What a user may have chosen for the whole program.
_CHOICES = (
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
)


def tune_malloc() -> bool:
    """Fix the size from which blocks are mapped on their own; False where that is not to be done.

    It is for worker processes, which belong to the library; a program's own heap is its own. Only
    glibc has such a size, and a choice of the user's (an environment variable) stays.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _CHOICES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = (
        (_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        (_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
    )
    return all(mallopt(name, size) for name, size in settings)
