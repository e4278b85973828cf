"""Random schedules of jobs that read several datasets through one folder; run by the tests.

    python schedules.py FIRST LAST FOLDER

The datasets have shards of the same names and sizes and no digests, as blocks of tokens have, so
nothing but the cache keeps them apart. Each schedule has 2 to 4 of them, as whole datasets or as
splits, behind a web server, and 2 to 4 phases on one ``local=``. In a phase, jobs are forked or
spawned, start together or one after the other, read in threads, in forked children, in order,
shuffled or by number, with or without a limit, spell the URL in any way, are killed, and have the
folder deleted under them; between phases datasets are published anew with the same index. Every
sample is compared with what it has to be.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time
import traceback

import numpy as np

from mds import MDSWriter, StreamingDataset
from mds.errors import ReplacedError

BLOCK = 64
SAMPLES = 96
SECONDS = 600


def tokens(variant, number):
    """What a sample has to be."""
    return np.arange(BLOCK, dtype=np.int32) + np.int32(variant * 1_000_000 + number * 1000)


def publish(out, variant):
    """A dataset of eight samples a shard, whose index is the same for every variant."""
    with MDSWriter(
        out=out, columns={"tokens": f"ndarray:int32:{BLOCK}"}, hashes=[], size_limit=2350
    ) as writer:
        for number in range(SAMPLES):
            writer.write({"tokens": tokens(variant, number)})


def replace(out, ready):
    """Publish a dataset anew in place: the shards first, then the index."""
    for name in sorted(os.listdir(ready), key=lambda name: name == "index.json"):
        shutil.copy(os.path.join(ready, name), os.path.join(out, "part"))
        os.replace(os.path.join(out, "part"), os.path.join(out, name))


def spelled(url, how):
    """One source in many spellings."""
    return {
        "plain": url,
        "slash": url + "/",
        "signed": f"{url}?X-Amz-Signature={time.time_ns():x}&X-Amz-Expires=60",
        "login": url.replace("//", "//anna:secret@"),
    }[how]


# ---------------------------------------------------------------------- a job


def job(spec):
    """Read as told; any sample that is another's is an AssertionError."""
    chance = random.Random(spec["seed"])
    for _ in range(spec["starts"]):
        dataset = StreamingDataset(
            remote=spelled(spec["url"], chance.choice(["plain", "slash", "signed", "login"])),
            local=spec["local"],
            split=spec["split"],
            batch_size=8,
            shuffle=chance.random() < 0.6,
            shuffle_seed=chance.randrange(1000),
            cache_limit=spec["limit"],
            num_canonical_nodes=1,
        )
        for _ in range(chance.randint(1, 2)):
            way = chance.choice([epoch, by_number, by_lists, in_threads, in_children])
            way(dataset, spec["variant"], chance)
        dataset._cache.close()


def check(sample, variant, number=None):
    found = sample["tokens"]
    number = int(found[0]) % 1_000_000 // 1000 if number is None else number
    if not np.array_equal(found, tokens(variant, number)):
        raise AssertionError(
            f"sample {number} of {variant} is {int(found[0])} of {int(found[0]) // 1_000_000}"
        )
    return number


def epoch(dataset, variant, chance):
    seen = sorted(check(sample, variant) for sample in dataset)
    assert seen == list(range(SAMPLES)), seen


def by_number(dataset, variant, chance):
    for number in chance.choices(range(SAMPLES), k=SAMPLES):
        check(dataset[number], variant, number)


def by_lists(dataset, variant, chance):
    for _ in range(4):
        numbers = chance.sample(range(SAMPLES), 24)
        for number, sample in zip(numbers, dataset[numbers], strict=True):
            check(sample, variant, number)


def in_threads(dataset, variant, chance):
    errors = []

    def run(seed):
        try:
            by_number(dataset, variant, random.Random(seed))
        except BaseException as error:  # noqa: BLE001 - it is raised by the other thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(chance.random(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def in_children(dataset, variant, chance):
    seeds = [chance.random() for _ in range(2)]
    children = [
        multiprocessing.get_context("fork").Process(
            target=guarded, args=(epoch_or_numbers, dataset, variant, seed)
        )
        for seed in seeds
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(SECONDS)
        assert child.exitcode == 0, f"a child ended with {child.exitcode}"


def epoch_or_numbers(dataset, variant, seed):
    chance = random.Random(seed)
    chance.choice([epoch, by_number])(dataset, variant, chance)


def guarded(act, *arguments):
    """End the process at once, with 1 and a traceback if it failed."""
    code = 1
    try:
        act(*arguments)
        code = 0
    except ReplacedError:
        code = 0  # said, and not a sample of another
    except BaseException:  # noqa: BLE001 - its text and its code are what is asked for
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


# ---------------------------------------------------------------------- a schedule


class Schedule:
    """One schedule, which is known by its number."""

    def __init__(self, number, folder, url, ready):
        self.chance = random.Random(number)
        self.number, self.ready = number, ready
        self.local = os.path.join(folder, f"local{number}")
        self.url = f"{url}/data{number}"
        self.root = os.path.join(folder, "served", f"data{number}")
        self.splits = self.chance.choice([[None], [None], ["train"], ["train", "val"]])
        self.datasets = {}
        for name in range(self.chance.randint(2, 4)):
            for split in self.splits:
                variant = len(self.datasets)
                out = os.path.join(self.root, str(name), split or "")
                shutil.copytree(ready[variant], out)
                self.datasets[name, split] = variant

    def run(self):
        """The failures of all phases."""
        failures = []
        for phase in range(self.chance.randint(2, 4)):
            if phase and self.chance.random() < 0.3:
                self.replace_one()
            failures += self.phase()
        shutil.rmtree(self.local, ignore_errors=True)
        shutil.rmtree(self.root)
        return failures

    def replace_one(self):
        (name, split), before = self.chance.choice(sorted(self.datasets.items(), key=str))
        variant = (before + 1 + self.chance.randrange(len(self.ready) - 1)) % len(self.ready)
        replace(os.path.join(self.root, str(name), split or ""), self.ready[variant])
        self.datasets[name, split] = variant

    def phase(self):
        specs = [self.spec() for _ in range(self.chance.randint(2, 5))]
        is_serial = self.chance.random() < 0.3
        is_deleted = self.chance.random() < 0.25
        is_killed = self.chance.random() < 0.25
        running, failures = [], []
        for spec in specs:
            running.append((spec, self.start(spec)))
            if is_serial:
                failures += ended(running)
                running = []
            elif self.chance.random() < 0.3:
                time.sleep(self.chance.random() * 0.1)  # noqa: TID251 - the schedule is random
        if is_deleted and not is_serial:
            time.sleep(self.chance.random() * 0.2)  # noqa: TID251
            shutil.rmtree(self.local, ignore_errors=True)
        if is_killed and running:
            time.sleep(self.chance.random() * 0.2)  # noqa: TID251
            running.pop()[1].kill()
        return failures + ended(running)

    def spec(self):
        (name, split), variant = self.chance.choice(sorted(self.datasets.items(), key=str))
        return {
            "url": f"{self.url}/{name}",
            "split": split,
            "local": self.local,
            "variant": variant,
            "limit": self.chance.choice([None, None, 40_000, 60_000]),
            "starts": self.chance.choice([1, 1, 2]),
            "seed": self.chance.random(),
            "is_spawned": self.chance.random() < 0.04,
        }

    @staticmethod
    def start(spec):
        if spec["is_spawned"]:
            return subprocess.Popen([sys.executable, __file__, "job", json.dumps(spec)])
        process = multiprocessing.get_context("fork").Process(target=guarded, args=(job, spec))
        process.start()
        return process


def ended(running):
    failures = []
    for spec, process in running:
        if isinstance(process, subprocess.Popen):
            code = process.wait(SECONDS)
        else:
            process.join(SECONDS)
            code = process.exitcode
        if code != 0:
            process.kill()
            failures.append((code, spec))
    return failures


def serve(folder, connection):
    from devtools.httpserver import http_server

    with http_server(folder) as url:
        connection.send(url)
        connection.recv()


def main(first, last, folder):
    """Run the schedules from ``first`` to before ``last``; the number of those that failed."""
    ready = [os.path.join(folder, "ready", str(variant)) for variant in range(10)]
    for variant, out in enumerate(ready):
        publish(out, variant)
    indexes = [pathlib.Path(out, "index.json").read_bytes() for out in ready]
    assert len(set(indexes)) == 1
    os.makedirs(os.path.join(folder, "served"))
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(os.path.join(folder, "served"), there), daemon=True
    )
    server.start()
    url, failed = here.recv(), 0
    for number in range(first, last):
        failures = Schedule(number, folder, url, ready).run()
        failed += bool(failures)
        for failure in failures:
            print("schedule", number, *failure, flush=True)
    print(f"{last - first} schedules, {failed} failed", flush=True)
    here.send(None)
    server.join()
    return failed


if __name__ == "__main__":
    if sys.argv[1] == "job":
        guarded(job, json.loads(sys.argv[2]))
    os.environ["MDS_CACHE_DIR"] = os.path.join(sys.argv[3], "home")
    sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
