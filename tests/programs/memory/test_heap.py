"""The heap of worker processes gives large blocks back, and only theirs."""

import ctypes
import os
import re
import subprocess
import sys

import pytest

from mds._loader.worker_batches import MMAP_THRESHOLD_BYTES

MALLOC = """
import ctypes, sys
from mds._loader.worker_batches import tune_malloc
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
libc.malloc_stats()
"""
# Frees a block of twice the size, after which glibc by itself would keep the next one in its heap.
ONE_AFTER_ANOTHER = f"""{MALLOC}
print(tune_malloc())
libc.free(libc.malloc({4 * MMAP_THRESHOLD_BYTES}))
block = libc.malloc({2 * MMAP_THRESHOLD_BYTES})
libc.malloc_stats()
"""
# Frees what a batch of images would take, all at once. With an argument as without the library.
ALL_AT_ONCE = f"""{MALLOC}
print(libc.mallopt(-3, {MMAP_THRESHOLD_BYTES}) == 1 if sys.argv[1:] else tune_malloc())
blocks = [libc.malloc({MMAP_THRESHOLD_BYTES // 4}) for _ in range(32)]
for block in reversed(blocks):
    libc.free(block)
libc.malloc_stats()
"""

needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_stats"), reason="only glibc has malloc_stats"
)


def heap_growth(program, *arguments, **environment):
    """Bytes by which a program grows the heap, which holds all blocks not mapped on their own."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    assert done.stdout.strip() == str(not environment)
    before, after = re.findall(r"Arena 0:\nsystem bytes *= *(\d+)", done.stderr)
    return int(after) - int(before)


@pytest.mark.slow
@needs_glibc
def test_large_blocks_are_mapped_on_their_own():
    """Also after one was freed, which raises glibc's threshold; a user's choice stays."""
    assert heap_growth(ONE_AFTER_ANOTHER) < 2 * MMAP_THRESHOLD_BYTES
    chosen = {"MALLOC_MMAP_THRESHOLD_": str(8 * MMAP_THRESHOLD_BYTES)}
    assert heap_growth(ONE_AFTER_ANOTHER, **chosen) >= 2 * MMAP_THRESHOLD_BYTES


@pytest.mark.slow
@needs_glibc
def test_what_the_images_of_a_batch_took_is_there_for_the_next():
    """Blocks freed together at the heap's end stay; glibc, or a user's choice, gives them back."""
    # Of the eight thresholds, some bytes were free at the heap's end before.
    assert heap_growth(ALL_AT_ONCE) > 7 * MMAP_THRESHOLD_BYTES
    assert heap_growth(ALL_AT_ONCE, "without") < 4 * MMAP_THRESHOLD_BYTES
    assert heap_growth(ALL_AT_ONCE, MALLOC_TRIM_THRESHOLD_=str(1 << 17)) < 4 * MMAP_THRESHOLD_BYTES
