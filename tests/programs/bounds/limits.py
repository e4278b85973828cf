"""Runs a program in a process of its own, under one limit of the system."""

import os
import subprocess
import sys

_BEGIN = """
import os, resource, sys
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("VmHWM"))
def descriptors():
    return len(os.listdir("/proc/self/fd"))
def bound(kind, value):
    resource.setrlimit(kind, (value, value))
def bound_memory(megabytes):
    import mds, mds._dataset.samples, mds._loader
    if "torch" in needed:
        import torch
        from mds import StreamingDataLoader, StreamingDataset
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    bound(resource.RLIMIT_AS, mapped + (megabytes << 20))
"""


def run(program, *arguments, descriptors=None, memory=None, timeout=120, **environment):
    """Run a Python program; return what it printed.

    Args:
        program: Text of the program. It may call ``peak()`` (MB) and ``descriptors()``.
        arguments: Its ``sys.argv[1:]``.
        descriptors: Most files that it may have open; None: no limit.
        memory: Megabytes of address space beside what torch and mds have mapped; None: no limit.
        timeout: Seconds that it may take.
        environment: Variables of its environment.
    """
    begin = _BEGIN
    if descriptors is not None:
        begin += f"bound(resource.RLIMIT_NOFILE, {descriptors})\n"
    if memory is not None:
        begin += f"needed = {'torch' if 'StreamingDataset' in program else ''!r}\n"
        begin += f"bound_memory({memory})\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + program, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
