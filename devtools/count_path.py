"""Count the files and frames between ``next(iter(loader))`` and the bytes of a cold remote shard.

Run ``python -m devtools.count_path``. It writes a small dataset of raw shards, serves it over http
from another process, imports everything, and traces one cold ``next(iter(loader))`` with the
defaults and no worker. It prints the files of mds in which a line runs before the first remote
read, and those that follow until the batch is complete (a thread fetches the next shards
meanwhile); then the frames of mds on the stack of the reading thread, at its deepest remote read.
``--shuffle`` traces a shuffled dataset, which fetches its first rows by ranges.
"""

from __future__ import annotations

import functools
import http.server
import logging
import multiprocessing
import os
import pathlib
import sys
import tempfile
import threading
from types import FrameType
from typing import Any

import numpy as np

import mds

PACKAGE = str(pathlib.Path(mds.__file__).parent) + os.sep
REMOTE_READ = "urllib3" + os.sep + "connectionpool.py"


class Trace:
    """Files of the package in which a line ran, and the deepest stack above a remote read."""

    def __init__(self) -> None:
        self.is_over = False  # what threads do after the batch is not counted
        self.files: set[str] = set()
        self.files_to_read: set[str] = set()
        self.deepest: list[str] = []

    def on_event(self, frame: FrameType, event: str, _: Any) -> Any:
        """Record the file of a line, and at a call of the HTTP client the frames above it."""
        if self.is_over:
            return None
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            if event == "line":
                self.files.add(name.removeprefix(PACKAGE))
            return self.on_event
        if event == "call" and name.endswith(REMOTE_READ) and frame.f_code.co_name == "urlopen":
            self.files_to_read = self.files_to_read or set(self.files)
            stack = _stack_of_ours(frame)
            if len(stack) > len(self.deepest):
                self.deepest = stack
        return None


def _stack_of_ours(frame: FrameType | None) -> list[str]:
    frames = []
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            frames.append(f"{name.removeprefix(PACKAGE)}:{frame.f_code.co_name}")
        frame = frame.f_back
    return frames[::-1]


def _serve(folder: str, port: Any) -> None:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        port.put(server.server_port)
        server.serve_forever()


def count(*, is_shuffled: bool = False) -> Trace:
    """Return the trace of one cold first batch."""
    with tempfile.TemporaryDirectory() as folder:
        columns = {"id": "int64", "tokens": "ndarray:int32:64"}
        source = os.path.join(folder, "source")
        # Without digests, whose check adds a file.
        writer = mds.MDSWriter(out=source, columns=columns, size_limit=1 << 14, hashes=[])
        with writer:
            for i in range(400):
                writer.write({"id": i, "tokens": np.full(64, i, np.int32)})
        context = multiprocessing.get_context("spawn")
        port = context.Queue()
        server = context.Process(target=_serve, args=(source, port), daemon=True)
        server.start()
        url = f"http://127.0.0.1:{port.get()}"
        try:
            next(iter(_loader(url, os.path.join(folder, "warm"), is_shuffled)))  # all imports
            trace = Trace()
            loader = _loader(url, os.path.join(folder, "cold"), is_shuffled)
            threading.settrace(trace.on_event)
            sys.settrace(trace.on_event)
            try:
                next(iter(loader))
            finally:
                trace.is_over = True
                sys.settrace(None)
                threading.settrace(None)  # type: ignore[arg-type]
        finally:
            logging.disable()  # of fetches ahead that the end of the server breaks off
            server.kill()
            server.join()
    return trace


def _loader(url: str, local: str, is_shuffled: bool) -> Any:
    dataset = mds.StreamingDataset(remote=url, local=local, shuffle=is_shuffled, batch_size=32)
    return mds.StreamingDataLoader(dataset)


def main() -> None:
    """Print files and frames of one cold first batch."""
    trace = count(is_shuffled="--shuffle" in sys.argv[1:])
    print(*sorted(trace.files_to_read), sep="\n")
    print(f"{len(trace.files_to_read)} files in which a line runs down to the remote read\n")
    later = sorted(trace.files - trace.files_to_read)
    print(*later, sep="\n")
    print(f"{len(later)} more until the batch is complete\n")
    print(*trace.deepest, sep="\n")
    print(f"{len(trace.deepest)} frames at the remote read")


if __name__ == "__main__":
    main()
