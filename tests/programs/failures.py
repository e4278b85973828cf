"""Random programs in which something fails in the middle of an epoch.

Run ``python tests/programs/failures.py --count 300 --seed 0``. The first difference is printed with
the seed of its program, which ``--count 1 --seed SEED`` repeats.
"""

import argparse
import contextlib
import faulthandler
import gc
import itertools
import json
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter

import numpy as np
import torch
from torch.utils.data import IterableDataset

from devtools.httpserver import FolderHandler, http_server
from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset
from mds._cache.shard_cache import live_caches

SAMPLES = 120
SHARD = 9  # samples of a shard
BATCH = 4
REPEATS = 3  # calls of next() after an error
SECONDS = 120  # after which a program counts as hanging


class Injected(Exception):
    """What a function of the caller's raises."""


class Hit(Exception):
    """What a handler of a signal raises."""


class Trigger:
    """A failure that is armed by a file, which worker processes see as well."""

    def __init__(self, path, number, error, is_once):
        self.path, self.number, self.error, self.is_once = path, number, error, is_once

    def arm(self):
        open(self.path, "w").close()

    def disarm(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    @property
    def is_armed(self):
        return os.path.exists(self.path)

    def meet(self, numbers):
        """Fail if the sample is among ``numbers``."""
        if self.number in numbers and self.is_armed:
            if self.is_once:
                self.disarm()
            raise self.error("injected")


def numbers_of(value):
    return np.asarray(value).reshape(-1).tolist()


class OwnItems(StreamingDataset):
    trigger = None

    def __getitem__(self, at):
        sample = super().__getitem__(at)
        self.trigger.meet([int(sample["id"])])
        return sample


class Wrapper(IterableDataset):
    """A dataset of the caller's that iterates a streaming one."""

    def __init__(self, dataset, trigger):
        self.dataset, self.trigger = dataset, trigger

    def __iter__(self):
        for sample in self.dataset:
            self.trigger.meet([int(sample["id"])])
            yield sample


class FailingHandler(FolderHandler):
    """A server that fails for one shard while its trigger is armed."""

    trigger = None
    how = ""

    def do_GET(self):
        if self.trigger.is_armed and f"shard.{self.trigger.number // SHARD:05}" in self.path:
            if self.how == "status":
                self.send_error(503)
                return
            if self.how == "truncate":
                self.send_response(200)
                self.send_header("Content-Length", "100000")
                self.end_headers()
                self.wfile.write(b"x" * 100)
            self.close_connection = True
            return
        super().do_GET()


def length_of(number):
    return 3 + number % 17


def write_data(folder, compression):
    columns = {"id": "int", "text": "str", "tokens": "ndarray:int32"}
    with MDSWriter(
        out=folder,
        columns=columns,
        samples_per_shard=SHARD,
        compression=compression,
        hashes=["xxh3_64"],
        lengths="tokens",
    ) as writer:
        for number in range(SAMPLES):
            tokens = np.full(length_of(number), number, np.int32)
            writer.write({"id": number, "text": f"sample {number:04}.", "tokens": tokens})


SHAPES = ("columns", "samples", "filter", "items", "wrapper", "packs", "dataset")
FUNCTIONS = {
    "columns": ("map_batches",),
    "samples": ("map", "collate"),
    "filter": ("map", "filter", "collate"),
    "items": ("getitem", "map", "collate"),
    "wrapper": ("wrapper", "map", "collate"),
    "packs": ("map", "map_batches"),
    "dataset": ("map", "filter", "getitem"),
}
POINTS = ("function", "function", "function", "download", "shard", "disk", "size", "signal", "kill")
ERRORS = (Injected, OSError, StopIteration, KeyError, SystemExit, KeyboardInterrupt)


class Program:
    """One random program: a loader, where it fails, and what must hold afterwards."""

    def __init__(self, folder, seed):
        self.random = rng = random.Random(seed)
        self.folder = os.path.join(folder, str(seed))
        self.shape = rng.choice(SHAPES)
        self.workers = rng.choice([{}, {}, {"threads": 2}, {"threads": 3}, {"processes": 2}])
        if self.shape == "dataset":
            self.workers = {}
        if self.shape == "wrapper" and "threads" in self.workers:
            self.workers = {"processes": 2}
        self.point = rng.choice(POINTS)
        if self.point == "kill" and "processes" not in self.workers:
            self.point = "signal"
        self.function = rng.choice(FUNCTIONS[self.shape]) if self.point == "function" else None
        error = rng.choice(ERRORS)
        self.trigger = Trigger(
            f"{self.folder}.armed", rng.randrange(SAMPLES), error, rng.random() < 0.4
        )
        self.compression = rng.choice([None, "zstd"]) if self.point != "shard" else None
        self.is_remote = self.point in {"download", "disk"} or rng.random() < 0.3
        self.options = {
            "batch_size": BATCH,
            "shuffle": rng.random() < 0.7,
            "remainder": "short",
            "predownload": rng.choice([None, 1, 20]),
            "cache_limit": rng.choice([None, None, "40kb"]) if self.is_remote else None,
            "download_retry": 0,
            "download_timeout": 5,
        }
        self.is_skipping = self.point == "shard" and self.shape != "packs" and rng.random() < 0.3
        if self.is_skipping:
            self.options["on_error"] = "skip"
        self.steps_before = rng.choice([0, 1, 3, 7])
        self.is_saved_anew = rng.random() < 0.5
        self.is_persistent = "processes" in self.workers and rng.random() < 0.4
        self.how = rng.choice(["status", "truncate", "close"])

    def __repr__(self):
        parts = [self.shape, str(self.workers or "no workers"), self.point]
        if self.point == "function":
            parts += [self.function, self.trigger.error.__name__]
        elif self.point == "download":
            parts.append(self.how)
        parts += [
            f"sample {self.trigger.number}",
            "once" if self.trigger.is_once else "until it is repaired",
            f"after {self.steps_before} steps",
            "remote" if self.is_remote else "in place",
            "persistent" if self.is_persistent else "",
            json.dumps(self.options),
        ]
        return ", ".join(filter(None, parts))

    # ------------------------------------------------------------------ what is read

    def make(self):
        """Make the loader, or the dataset where that is iterated."""
        trigger, point = self.trigger, self.function
        kind = StreamingDataset
        if self.shape == "items" or point == "getitem":
            kind = type(
                "Items", (OwnItems,), {"trigger": trigger if point == "getitem" else self.never}
            )
        options = dict(self.options)
        if self.is_remote:
            options |= {"remote": self.url, "local": self.cache}
        else:
            options["local"] = self.data
        if self.shape == "packs":
            options |= {"packing": Packing(40, column="tokens"), "batch_size": 1}
        dataset = kind(**options)

        def look(sample):
            trigger.meet([int(sample["id"])])
            return sample

        def look_and_keep(sample):
            look(sample)
            return int(sample["id"]) % 3 != 0

        def look_at_batch(batch):
            trigger.meet(numbers_of(batch["tokens" if self.shape == "packs" else "id"]))
            return batch

        def collate(samples):
            numbers = [int(sample["id"]) for sample in samples]
            if point == "collate":
                trigger.meet(numbers)
            return {"id": torch.tensor(numbers)}

        self.is_filtered = point == "filter" or self.shape == "filter"
        if point == "map":
            dataset = dataset.map(look)
        if self.is_filtered:
            keep = look_and_keep if point == "filter" else (lambda s: int(s["id"]) % 3 != 0)
            dataset = dataset.filter(keep)
        if point == "map_batches":
            dataset = dataset.map_batches(look_at_batch)
        if self.shape == "dataset":
            return dataset
        settings = {}
        for name, count in self.workers.items():
            settings |= {"worker_type": name, "num_workers": count}
            if self.is_persistent:
                settings["persistent_workers"] = True
        if self.shape == "packs":
            return StreamingDataLoader(dataset, **settings)
        if self.shape == "wrapper":
            dataset = Wrapper(dataset, trigger if point == "wrapper" else self.never)
        if self.shape == "columns":
            return StreamingDataLoader(dataset.map_batches(only_numbers), **settings)
        return StreamingDataLoader(dataset, collate_fn=collate, **settings)

    def of(self, batch):
        if self.shape == "dataset":
            return [int(batch["id"])]
        if self.shape == "packs":
            return numbers_of(batch["tokens"])
        numbers = numbers_of(batch["id"])
        if "mask" in batch:
            return [n for n, real in zip(numbers, batch["mask"].tolist(), strict=True) if real]
        return numbers

    def expected(self):
        numbers = [n for n in range(SAMPLES) if n % 3 or not self.is_filtered]
        if self.shape == "packs":
            return Counter({n: length_of(n) for n in numbers})
        return Counter(numbers)

    def count(self, batches):
        return Counter(n for batch in batches for n in self.of(batch))

    # ------------------------------------------------------------------ what fails

    @contextlib.contextmanager
    def broken(self, iterator):
        """Let the failure happen from now on; it is over after the block."""
        if self.point in {"function", "download"}:
            self.trigger.arm()
            try:
                yield
            finally:
                self.trigger.disarm()
        elif self.point == "shard":
            with self.damaged():
                yield
        elif self.point == "disk":
            filler = f"{self.cache}/filler"
            with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * 4096)
            try:
                yield
            finally:
                os.unlink(filler)
        elif self.point == "size":
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        elif self.point == "kill":
            os.kill(self.random.choice(children()), signal.SIGKILL)
            yield
        else:
            with self.signalled():
                yield

    @contextlib.contextmanager
    def damaged(self):
        """Bytes of a text that are no UTF-8, in place."""
        name = next(
            n for n in sorted(os.listdir(self.data)) if f"{self.trigger.number // SHARD:05}" in n
        )
        with open(os.path.join(self.data, name), "r+b") as file:
            content = file.read()
            at = content.index(b"sample %04d." % self.trigger.number)
            file.seek(at)
            file.write(b"\xff\xfe")
            file.flush()
            try:
                yield
            finally:
                file.seek(at)
                file.write(b"sa")

    @contextlib.contextmanager
    def signalled(self):
        """A signal that arrives soon; Ctrl-C reaches worker processes as well."""
        is_interrupt = self.random.random() < 0.6
        delay = self.random.choice([1e-4, 1e-3, 3e-3, 1e-2, 5e-2])
        reached = children() if is_interrupt and self.random.random() < 0.5 else []

        def handle(_number, _frame):
            if is_interrupt:
                for child in reached:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGINT)
                raise KeyboardInterrupt
            raise Hit

        before = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, delay)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    # ------------------------------------------------------------------ what must hold

    def run(self):
        os.mkdir(self.folder)
        self.never = Trigger(f"{self.folder}.never", -1, Injected, False)
        self.data = os.path.join(self.folder, "data")
        self.cache = os.path.join(self.folder, "cache")
        write_data(self.data, self.compression)
        is_mounted = False
        with contextlib.ExitStack() as stack:
            if self.is_remote:
                fields = {"trigger": self.trigger, "how": self.how}
                handler = type("Handler", (FailingHandler,), fields)
                self.url = stack.enter_context(http_server(self.data, handler=handler))
            if self.point == "disk":
                os.mkdir(self.cache)
                mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "none", self.cache]
                is_mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
                if not is_mounted:
                    self.point = "size"
            try:
                before = Belongings()
                self.fail_and_resume()
                # A signal that raises between a system call and the assignment of its result leaves
                # a descriptor, which no code can know.
                before.check_gone(self.cache, spared=int(self.point == "signal"))
            finally:
                if is_mounted:
                    subprocess.run(["umount", "-l", self.cache], check=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def fail_and_resume(self):
        source = self.make()
        iterator, batches, error = iter(source), [], None
        batches.extend(itertools.islice(iterator, self.steps_before))
        try:
            with self.broken(iterator):
                batches.extend(iterator)
        except BaseException as raised:  # noqa: BLE001 - any is injected
            error = raised
        if error is None:
            self.check_whole(self.count(batches))
        else:
            self.go_on_after(error, source, iterator, batches)
        del iterator, batches, error, source
        gc.collect()

    def check_whole(self, seen):
        """Compare an epoch that went on, with what on_error="skip" left out."""
        expected = self.expected()
        if self.is_skipping:
            expected[self.trigger.number] = seen[self.trigger.number] = 0
        assert +seen == +expected, difference(+seen, +expected)

    def go_on_after(self, error, source, iterator, batches):
        state = json.loads(json.dumps(source.state_dict()))
        failures = []
        for _ in range(REPEATS):
            got = []
            try:
                got.extend(itertools.islice(iterator, 1))
            except BaseException as again:  # noqa: BLE001 - compared below
                failures.append(again)
            else:
                batches.extend(got)
                break
        if not failures:
            # Nothing of the iteration failed: the error met the program between two batches.
            assert self.point in {"signal", "kill"}, f"goes on after {error!r}"
            with (
                contextlib.suppress(RuntimeError)
                if self.point == "kill"
                else contextlib.nullcontext()
            ):
                batches.extend(iterator)
                self.check_whole(self.count(batches))
            if self.point != "kill":
                self.check_next_epoch(source)
                return
            state = json.loads(json.dumps(source.state_dict()))
        else:
            assert len(failures) == REPEATS, f"{failures} and then a batch"
            for again in failures:
                same = type(again) is type(error) and str(again) == str(error)
                is_named = type(again).__name__ == "IterationError" and (
                    type(error).__name__ in str(again) or "KeyboardInterrupt" in str(again)
                )
                # A signal may come between two batches, and the iteration fail by another cause.
                assert same or is_named or self.point == "kill", (error, again)
            assert source.state_dict() == state, (source.state_dict(), state)
        wait_until(
            lambda: not children() and not own_threads(),
            lambda: f"left: {own_threads()}, {children()}",
        )
        held = [cache.stats()["held_shards"] for cache in live_caches()]
        # A signal may also come between taking hold of a shard and noting it.
        assert sum(held) <= int(self.point == "signal"), f"shards are held: {held}"
        if self.random.random() < 0.3:
            self.check_next_epoch(source)
        other = self.make() if self.is_saved_anew else source
        other.load_state_dict(state)
        rest = []
        rest.extend(other)
        self.check_whole(self.count(batches) + self.count(rest))
        self.check_next_epoch(other)

    def check_next_epoch(self, source):
        self.check_whole(self.count(list(source)))


def only_numbers(batch):
    return {"id": batch["id"]}


class Belongings:
    """What the process has before a program: threads, children, descriptors and locks."""

    def __init__(self):
        gc.collect()
        self.descriptors = Counter(descriptors())
        self.locks = locks()
        self.threads = {*threading.enumerate()}

    def check_gone(self, cache, spared):
        wait_until(lambda: not children(), "processes are left")
        wait_until(lambda: not own_threads(), "threads are left")
        wait_until(lambda: not locks() - self.locks, "locks are left")
        wait_until(
            lambda: (Counter(descriptors()) - self.descriptors).total() <= spared,
            lambda: f"descriptors are left: {Counter(descriptors()) - self.descriptors}",
        )
        names = [name for _, _, files in os.walk(cache) for name in files]
        assert not any(name.endswith(".mds-part") for name in names), f"files are left: {names}"


def difference(seen, expected):
    return f"missing {dict(expected - seen)}, too many {dict(seen - expected)}"


def wait_until(holds, what, seconds=15):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(what() if callable(what) else what)
        gc.collect()
        threading.Event().wait(0.01)


def own_threads():
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.is_alive()
        and thread.name.startswith(("mds-loader", "mds-fetch", "QueueFeeder", "Thread-"))
        and "process_request" not in thread.name
    ]


def children():
    path = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    with open(path) as file:
        return [int(child) for child in file.read().split()]


def descriptors():
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if not target.startswith(("socket:", "anon_inode:", "/proc")):
                found.append(target.split(" (deleted)")[0])
    return found


def locks():
    with open("/proc/locks") as file:
        return Counter(
            parts[-3]
            for parts in map(str.split, file)
            if len(parts) > 5 and parts[-4] == str(os.getpid())
        )


def run(seeds):
    """Run the programs of ``seeds``; return the text of the first failure, or None."""
    warnings.simplefilter("ignore")
    logging.getLogger("mds").setLevel(logging.CRITICAL)  # failures are on purpose
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MDS_CACHE_DIR"] = os.path.join(folder, "user-cache")
        for seed in seeds:
            program = Program(folder, seed)
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            try:
                program.run()
            except BaseException:  # noqa: BLE001 - every failure is reported
                return f"seed {seed}: {program!r}\n{traceback.format_exc()}"
            finally:
                faulthandler.cancel_dump_traceback_later()
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="number of programs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    arguments = parser.parse_args()
    failure = run(range(arguments.seed, arguments.seed + arguments.count))
    print(failure or f"{arguments.count} programs, 0 failures")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
