"""Random programs that use one dataset object in several ways at once.

Run ``python tests/programs/uses.py --count 200 --seed 0``. The first difference is printed with the
seed of its program, which ``--count 1 --seed SEED`` repeats.
"""

import argparse
import copy
import logging
import multiprocessing
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter

import numpy as np

from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError

SAMPLES = 90
BATCH = 4
CHILD_SECONDS = 60


class OwnItems(StreamingDataset):
    def __getitem__(self, at):
        sample = super().__getitem__(at)
        return {**sample, "own": sample["id"]}


class OwnGetItem(StreamingDataset):
    def get_item(self, sample_id, retry=7):
        sample = super().get_item(sample_id, retry)
        return {**sample, "own": sample["id"]}


def is_kept(sample):
    return int(sample["id"]) % 3 != 0


def add_double(sample):
    return {**sample, "double": 2 * sample["id"]}


def length_of(number):
    return 3 + number % 17


def write_data(folder, compression):
    columns = {"id": "int", "text": "str", "tokens": "ndarray:int32"}
    with MDSWriter(
        out=folder,
        columns=columns,
        samples_per_shard=9,
        compression=compression,
        hashes=["xxh3_64"],
        lengths="tokens",
    ) as writer:
        for number in range(SAMPLES):
            tokens = np.full(length_of(number), number, np.int32)
            writer.write({"id": number, "text": f"sample {number}", "tokens": tokens})


class Reading:
    """An iteration of samples or of batches, with the numbers that it has yielded.

    ``repeats``: how many samples may come a second time, a range.
    """

    def __init__(self, iterator, expected, numbers_of, repeats):
        self.iterator, self.expected, self.numbers_of = iterator, expected, numbers_of
        self.repeats, self.seen = repeats, Counter()

    def advance(self, count):
        """Take up to ``count`` items and compare the whole epoch at its end."""
        for _ in range(count):
            try:
                item = next(self.iterator)
            except StopIteration:
                check_epoch(self.seen, self.expected, self.repeats)
                return False
            self.seen.update(self.numbers_of(item))
            assert self.seen.keys() <= self.expected.keys(), (self.seen, self.expected)
            extra = self.seen - self.expected
            assert extra.total() < self.repeats.stop, (self.seen, self.expected)
        return True


def check_epoch(seen, expected, repeats):
    """Compare the numbers of a whole epoch with those that it should have."""
    assert not expected - seen, (expected - seen, "never came")
    assert (seen - expected).total() in repeats, (seen - expected, "came again", repeats)


class Program:
    """One random program: a dataset, what is derived of it, and everything that reads it."""

    def __init__(self, data, folder, seed):
        self.random = rng = random.Random(seed)
        self.log = []
        self.is_packed = rng.random() < 0.2
        kind = rng.choice([StreamingDataset, OwnItems, OwnGetItem])
        options = {
            "remote": data[rng.choice([None, "zstd"])],
            "local": os.path.join(folder, str(seed)),
            "cache_limit": rng.choice([None, None, "24kb", "64kb"]),
            "batch_size": rng.choice([1, BATCH]),
            "remainder": rng.choice(["short", "repeat", "mask"]),
            "num_canonical_nodes": rng.choice([1, 7, 64]),
            "shuffle": rng.random() < 0.7,
            "shuffle_block_size": rng.choice([20, None]),
            "predownload": rng.choice([None, 1, 50]),
        }
        if self.is_packed:
            options["packing"] = Packing(40, column="tokens")
        self.log.append(f"{kind.__name__}({options})")
        self.dataset = kind(**options)
        self.columns = {"id"} | ({"own"} if kind is not StreamingDataset else set())
        self.numbers, self.is_filtered = list(range(SAMPLES)), False
        for link in rng.sample(["filter", "map", "select"], rng.randrange(4)):
            if self.is_packed and link != "map":
                continue
            self.log.append(link)
            if link == "filter":
                self.dataset, self.is_filtered = self.dataset.filter(is_kept), True
            elif link == "map":
                self.dataset = self.dataset.map(add_double)
                self.columns.add("double")
            elif "double" not in self.columns and not self.is_filtered:
                self.numbers = sorted(rng.sample(self.numbers, 60))
                self.dataset = self.dataset.select(self.numbers)
        nodes = self.dataset.num_canonical_nodes
        is_exact = self.dataset.remainder != "repeat"
        repeats = 0 if is_exact or self.is_packed else -len(self.numbers) % nodes
        self.repeats = range(0 if self.is_filtered else repeats, repeats + 1)
        self.readings = []

    # ------------------------------------------------------------------ checks

    def check_sample(self, number, sample):
        assert int(sample["id"]) == number, (sample["id"], number)
        assert sample["text"] == f"sample {number}"
        assert sample["tokens"].tolist() == [number] * length_of(number)
        assert self.columns <= sample.keys()
        assert "double" not in self.columns or int(sample["double"]) == 2 * number

    def expected(self):
        return Counter(n for n in self.numbers if n % 3 or not self.is_filtered)

    def of_sample(self, sample):
        number = int(sample["id"])
        self.check_sample(number, sample)
        return [number]

    def of_batch(self, batch):
        numbers = batch["id"].tolist()
        if "mask" in batch:
            return [n for n, real in zip(numbers, batch["mask"].tolist(), strict=True) if real]
        return numbers

    @staticmethod
    def of_packs(batch):
        return batch["tokens"].reshape(-1).tolist()

    # ------------------------------------------------------------------ uses

    def access(self, dataset=None, rng=None, count=12):
        dataset, rng = dataset or self.dataset, rng or self.random
        for _ in range(count):
            at = rng.randrange(-len(self.numbers), len(self.numbers))
            if self.is_filtered:  # numbers would count samples that the filter drops
                self.check_refused(dataset, at)
            else:
                self.check_sample(self.numbers[at], dataset[at])

    def access_outside(self):
        if self.is_filtered:
            self.check_refused(self.dataset, len(self.numbers))
            return
        try:
            self.dataset[len(self.numbers)]
        except IndexError:
            return
        raise AssertionError("no IndexError")

    @staticmethod
    def check_refused(dataset, at):
        try:
            dataset[at]
        except ConfigError:
            return
        raise AssertionError("no ConfigError")

    def begin(self, dataset=None):
        if self.is_packed:
            self.begin_loader(dataset)
            return
        iterator = iter(dataset or self.dataset)
        self.read(iterator, self.expected(), self.of_sample)

    def read(self, iterator, expected, numbers_of):
        self.readings.append(Reading(iterator, expected, numbers_of, self.repeats))

    def begin_loader(self, dataset=None, **workers):
        dataset = dataset or self.dataset
        if self.is_packed:
            loader = StreamingDataLoader(dataset, **workers)
            expected = Counter({n: length_of(n) for n in self.numbers})
            self.read(iter(loader), expected, self.of_packs)
            return
        loader = StreamingDataLoader(dataset, collate_fn=collate_columns, **workers)
        self.read(iter(loader), self.expected(), self.of_batch)

    def begin_threads(self):
        self.begin_loader(num_workers=2, worker_type="threads")

    def begin_processes(self):
        if self.random.random() < 0.2:
            self.begin_loader(num_workers=2)

    def advance(self):
        if not self.readings:
            self.begin()
        reading = self.random.choice(self.readings)
        if not reading.advance(self.random.choice([1, 3, 10, 200])):
            self.readings.remove(reading)

    def drop(self):
        if self.readings:
            reading = self.readings.pop(self.random.randrange(len(self.readings)))
            if self.random.random() < 0.5 and hasattr(reading.iterator, "close"):
                reading.iterator.close()

    def use_threads(self):
        failures = []

        def run(work):
            try:
                work()
            except BaseException:  # noqa: BLE001 - every failure is reported
                failures.append(traceback.format_exc())

        def iterate():
            if not self.is_packed:
                samples = [int(sample["id"]) for sample in self.dataset]
                check_epoch(Counter(samples), self.expected(), self.repeats)

        rngs = [random.Random(self.random.random()) for _ in range(3)]
        works = [lambda rng=rng: self.access(rng=rng, count=40) for rng in rngs]
        works += [iterate, lambda: (self.dataset.state_dict(), self.dataset.explain())]
        threads = [threading.Thread(target=run, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            self.advance()
        finally:
            for thread in threads:
                thread.join()
        assert not failures, failures[0]

    def ask(self):
        assert self.dataset.explain()
        assert repr(self.dataset)
        assert self.dataset.stats() is not None
        state = self.dataset.state_dict()
        assert state == self.dataset.state_dict()

    def copy_deeply(self):
        self.use_copy(copy.deepcopy(self.dataset))

    def pickle(self):
        self.use_copy(pickle.loads(pickle.dumps(self.dataset)))

    def use_copy(self, dataset):
        self.access(dataset, count=4)
        if self.random.random() < 0.5:
            self.begin(dataset)
        else:
            self.dataset = dataset

    def fork(self):
        child = multiprocessing.get_context("fork").Process(target=self.run_child)
        child.start()
        child.join()
        assert child.exitcode == 0, f"a forked child ended with {child.exitcode}"

    def run_child(self):
        signal.alarm(CHILD_SECONDS)  # what waits forever ends with SIGALRM
        # Kept until the child ends: torch's own iterator, deleted in a child, stops the parent's.
        self.inherited, self.readings = self.readings, []
        self.access()
        self.begin()
        while self.readings:
            self.advance()

    USES = (
        (access, 4), (access_outside, 1), (begin, 3), (begin_loader, 2), (begin_threads, 1),
        (begin_processes, 1), (advance, 8), (drop, 2), (use_threads, 2), (ask, 2),
        (copy_deeply, 1), (pickle, 1), (fork, 1),
    )  # fmt: skip

    def run(self):
        uses, weights = zip(*self.USES, strict=True)
        for use in self.random.choices(uses, weights, k=14):
            self.log.append(use.__name__)
            use(self)
        while self.readings:
            self.advance()
        self.access()


def collate_columns(samples):
    import torch

    return {"id": torch.tensor([int(sample["id"]) for sample in samples])}


def run(seeds):
    """Run the programs of ``seeds``; return the text of the first failure, or None."""
    warnings.simplefilter("ignore")
    logging.getLogger("mds").setLevel(logging.ERROR)  # a small limit is on purpose
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with tempfile.TemporaryDirectory() as folder:
            data = {None: os.path.join(folder, "raw"), "zstd": os.path.join(folder, "zstd")}
            for compression, path in data.items():
                write_data(path, compression)
            for seed in seeds:
                program = None
                try:
                    program = Program(data, folder, seed)
                    program.run()
                except Exception:  # noqa: BLE001 - every failure is reported
                    steps = ", ".join(program.log) if program is not None else ""
                    return f"seed {seed}: {steps}\n{traceback.format_exc()}"
    finally:
        sys.setswitchinterval(before)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="number of programs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    arguments = parser.parse_args()
    failure = run(range(arguments.seed, arguments.seed + arguments.count))
    print(failure or f"{arguments.count} programs, 0 failures")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
