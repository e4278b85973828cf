"""Feed hostile inputs to the library and look afterwards at what it did to its user.

    python tests/programs/hostile/program.py --inputs 20000 [--first 0] [--kind names] [--verbose]

Inputs are numbered, and a number is an input for ever. They run in forked processes, a batch each,
with a watchdog: what answers nothing for two minutes hangs, what takes longer than two seconds
again when it runs alone is slow. Everything is a failure that is neither a result nor an error of
``mds.errors``; an error whose text holds control characters is one too.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import json
import logging
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

BATCH = 100
HANGS_AFTER = 120.0
SLOW = 2.0
MEMORY = 3 << 30  # beyond what the process has at its beginning


class Found:
    """What went wrong with one input."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.errors = 0

    def attempt(self, act: object) -> object:
        """Do something that may fail in our own words only."""
        from mds.errors import MdsError

        try:
            return act()  # type: ignore[operator]
        except (MdsError, FileExistsError) as error:
            self.errors += 1
            if not isinstance(error, MdsError) and not str(error).count("exist"):
                self.faults.append(f"stray {type(error).__name__}: {error}")
            self.check_text(str(error), "error")
        except Exception as error:  # noqa: BLE001 - these are what is looked for
            frames = traceback.extract_tb(error.__traceback__)
            ours = [f for f in frames if "/mds/" in f.filename] or frames
            at = f"{ours[-1].filename.rpartition('/mds/')[2]}:{ours[-1].lineno}"
            self.faults.append(f"stray {type(error).__name__} at {at}: {str(error)[:300]!r}")
        return None

    def check_text(self, text: str, what: str) -> None:
        """Control characters move cursors and hide lines."""
        if any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in text):
            self.faults.append(f"control characters in {what}: {text[:200]!r}")


class _Log(logging.Handler):
    def __init__(self, found: Found) -> None:
        super().__init__()
        self.found = found

    def emit(self, record: logging.LogRecord) -> None:
        self.found.check_text(record.getMessage(), "log")


def kind_of(number: int, only: str = "") -> object:
    """The kind of an input, by its number."""
    import kinds

    if only:
        return getattr(kinds, only)
    rng = random.Random(f"kind {number}")
    return rng.choices(list(kinds.KINDS), list(kinds.KINDS.values()))[0]


def run_one(number: int, only: str, home: object, server: object, datasets: dict) -> dict:
    """One input, from start to the look afterwards."""
    import kinds

    kind, found = kind_of(number, only), Found()
    server.files, server.other, server.lie = {}, None, None
    handler = _Log(found)
    logging.getLogger("mds").addHandler(handler)
    began = time.monotonic()
    tools = kinds.Tools(random.Random(f"input {number}"), home, server, datasets, found.attempt)
    try:
        kind(tools)
    except Exception:  # noqa: BLE001 - a fault of this program
        found.faults.append("in the program itself: " + traceback.format_exc()[-1500:])
    seconds = time.monotonic() - began
    logging.getLogger("mds").removeHandler(handler)
    del tools
    gc.collect()
    found.faults += [f"touched {path}" for path in home.touched()]
    home.clear()
    return {
        "number": number, "kind": kind.__name__, "seconds": round(seconds, 3),
        "errors": found.errors, "faults": found.faults,
    }  # fmt: skip


def _is_open_to_all(path: str) -> bool:
    """Whether another user can read what is in a folder."""
    while path != "/":
        if not os.stat(path).st_mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True


def run_batch(numbers: list[int], only: str, pipe: int) -> None:
    """In a forked child: run inputs and write a line about each."""
    import kinds
    import sentinels
    import server

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm", encoding="ascii") as file:
        here = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (here + MEMORY, here + MEMORY))
    root = tempfile.mkdtemp(prefix="mds-hostile-")
    try:
        if os.getuid() == 0 and _is_open_to_all(sys.base_prefix):  # rights mean nothing to root
            os.chown(root, 12345, 12345)
            os.setgid(12345)
            os.setuid(12345)
        tempfile.tempdir = os.path.join(root, "tmp")
        web = server.HostileServer()
        home = sentinels.Home(root)
        os.chdir(home.home)
        datasets = kinds.write_datasets(os.path.join(root, "datasets"))
        os.write(pipe, b'{"ready": true}\n')
        for number in numbers:
            line = json.dumps(run_one(number, only, home, web, datasets)) + "\n"
            os.write(pipe, line.encode())
            if '"touched' in line:
                break  # the home is not what it was
    finally:
        shutil.rmtree(root, ignore_errors=True)


def start(numbers: list[int], only: str) -> tuple[int, int]:
    """Fork a batch; its process and the pipe with its lines."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    os.close(reader)
    os.setsid()
    code = 1
    with contextlib.suppress(BaseException):
        try:
            run_batch(numbers, only, writer)
            code = 0
        except BaseException:
            os.write(
                writer, (json.dumps({"broken": traceback.format_exc()[-1500:]}) + "\n").encode()
            )
            raise
    os._exit(code)


def watch(numbers: list[int], only: str) -> list[dict]:
    """The results of a batch, and of what did not end well."""
    child, pipe = start(numbers, only)
    results, text, is_stuck = [], b"", False
    while True:
        ready, _, _ = select.select([pipe], [], [], HANGS_AFTER)
        if not ready:
            is_stuck = True
            os.kill(child, signal.SIGABRT)  # faulthandler tells where
            time.sleep(0.5)  # noqa: TID251 - for what it prints
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            break
        data = os.read(pipe, 1 << 16)
        if not data:
            break
        text += data
        *lines, text = text.split(b"\n")
        results += [json.loads(line) for line in lines]
    os.close(pipe)
    status = os.waitpid(child, 0)[1]
    broken = [r["broken"] for r in results if "broken" in r]
    results = [r for r in results if "number" in r]
    if broken:
        raise RuntimeError(f"the program itself is broken: {broken}")
    rest = numbers[len(results) :]
    if rest and (is_stuck or os.WIFSIGNALED(status)):
        why = "hangs" if is_stuck else f"ends the process (signal {os.WTERMSIG(status)})"
        kind = kind_of(rest[0], only).__name__
        results.append(
            {"number": rest[0], "kind": kind, "seconds": 0, "errors": 0, "faults": [why]}
        )
        rest = rest[1:]
    return results + (watch(rest, only) if rest else [])


def _alone(number: int, only: str) -> float:
    """The seconds of one input by itself, of a machine that has nothing else to do."""
    found = []
    for _ in range(3):
        slowness = _slowness()
        found.append(watch([number], only)[0]["seconds"] / min(slowness, _slowness()))
    return round(min(found), 3)


def _slowness() -> float:
    """How much longer work takes here and now, on a slow processor or one that others want too."""
    began = time.perf_counter()
    for _ in range(5_500):
        sum(range(1000))
    return max((time.perf_counter() - began) / 0.1, 1.0)  # seconds where the bound was set


def run(first: int, count: int, only: str = "", *, verbose: bool = False) -> dict:
    """All inputs of a range: counts, and the faults with their numbers."""
    import faulthandler

    import kinds  # noqa: F401 - all that is costly is imported once, before the forks
    import torch

    from mds._index import table
    from mds.plan import EpochPlan

    torch.set_num_threads(1)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    table.read_index.__kwdefaults__["min_copied_bytes"] = 0  # small indexes have binary copies too
    EpochPlan.__init__.__kwdefaults__["small_order"] = 0  # and small orders have files
    gc.collect()
    gc.freeze()  # what is there already need not be looked at after each input
    counts: collections.Counter[str] = collections.Counter()
    faults, slowest = [], 0.0
    numbers = list(range(first, first + count))
    began = time.monotonic()
    for at in range(0, count, BATCH):
        for result in watch(numbers[at : at + BATCH], only):
            counts[result["kind"]] += 1
            counts["errors"] += result["errors"]
            if result["seconds"] > SLOW:
                result["seconds"] = _alone(result["number"], only)
                if result["seconds"] > SLOW:
                    result["faults"].append(f"slow: {result['seconds']} s")
            slowest = max(slowest, result["seconds"])
            for fault in result["faults"]:
                faults.append((result["number"], result["kind"], fault))
                if verbose:
                    print(f"{result['number']:6} {result['kind']:14} {fault}", flush=True)
        if verbose and at % 1000 == 0:
            print(f"--- {at + BATCH} inputs, {time.monotonic() - began:.0f} s", flush=True)
    return {"counts": dict(counts), "faults": faults, "slowest": slowest}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", default="")
    told = parser.parse_args()
    found = run(told.first, told.inputs, told.kind, verbose=True)
    print(json.dumps(found["counts"]), f"slowest {found['slowest']} s")
    print(f"{len(found['faults'])} faults")
    sys.exit(bool(found["faults"]))
