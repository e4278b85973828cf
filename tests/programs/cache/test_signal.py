"""A signal has a process write the state of its cache."""

from __future__ import annotations

import signal
import subprocess
import sys


def test_a_signal_brings_the_state_of_a_process_that_hangs():
    """Without a debugger, and the process goes on."""
    code = (
        "import os, signal, sys, threading; from mds.metrics import dump_state_on\n"
        "undo = dump_state_on(signal.SIGUSR1)\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGUSR1)
        assert "state of process" in process.stderr.readline()
        assert "hread" in process.stderr.readline()
        process.communicate("\n", timeout=600)
        assert process.returncode == 0
