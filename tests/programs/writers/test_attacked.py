"""Several writers in one folder, that is deleted from and moved away: every index is whole.

A few schedules with all other tests; ``MDS_FAULTS=long`` makes it two hundred.
"""

import collections
import importlib.util
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading

import pytest

_FILE = pathlib.Path(__file__).with_name("attacked.py")
_SPEC = importlib.util.spec_from_file_location("mds_tests_attacked", _FILE)
attacked = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(attacked)

SCHEDULES = 10 if os.environ.get("MDS_FAULTS") == "long" else 4
ROUNDS = 20 if os.environ.get("MDS_FAULTS") == "long" else 1


class Schedule:
    """Writers in threads and processes, and what is done to their folders meanwhile."""

    def __init__(self, root, seed):
        self.root, self.moves, self.ends = root, random.Random(seed), collections.Counter()
        self.final = root / "end"
        self.pair = self.moves.random() < 0.5

    def run(self):
        """All of it; every index below the folder is judged. Gives how many there are."""
        begun = [self.begin(tag) for tag in range(self.moves.choice([2, 2, 3]))]
        for _ in range(self.moves.choice([0, 1, 3, 6])):
            threading.Event().wait(self.moves.random() * 0.02)
            attacked.harm(self.root, self.final, self.moves)
        for wait in begun:
            wait()
        indexes = sorted(self.root.rglob("index.json"))
        for index in indexes:
            attacked.judge(index.parent)
        return len(indexes)

    def begin(self, tag):
        """Start a writer; gives what waits for its end."""
        out = str(self.final)
        if self.pair:
            out = (str(self.root / f"near{self.moves.randrange(2)}"), out)
        seed = self.moves.randrange(1 << 30)
        if self.moves.random() < 0.2:
            return self.process(json.dumps([out, str(self.root), seed, tag]))
        return self.thread(out, seed, tag)

    def process(self, arguments):
        command = [sys.executable, str(_FILE), arguments]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        def wait():
            said, _ = child.communicate(timeout=600)
            assert child.returncode == 0
            self.ends[said] += 1

        return wait

    def thread(self, out, seed, tag):
        ends = []

        def work():
            try:
                gate = attacked.Gate(self.root)
                ends.append(attacked.write(out, gate, seed, tag, forks=False))
            except BaseException as error:
                ends.append(repr(error))
                raise

        thread = threading.Thread(target=work)
        thread.start()

        def wait():
            thread.join(600)
            assert not thread.is_alive()
            self.ends[ends[0]] += 1

        return wait


@pytest.mark.filterwarnings("ignore:.*was never finished:UserWarning")
@pytest.mark.parametrize("number", range(ROUNDS))
def test_every_index_is_whole(tmp_path, number):
    """Whatever writers and deletions do to each other; samples are those of one writer."""
    ends, indexes = collections.Counter(), 0
    for seed in range(number * SCHEDULES, (number + 1) * SCHEDULES):
        schedule = Schedule(tmp_path / str(seed), seed)
        schedule.root.mkdir()
        indexes += schedule.run()
        ends.update(schedule.ends)
        shutil.rmtree(schedule.root)
    print(SCHEDULES, "schedules", indexes, "indexes", dict(ends))
    known = {"published", "WriterError", "FileExistsError", "ZeroDivisionError"}
    assert set(ends) <= known | {"VanishedError", "StoreError"}
    assert indexes >= SCHEDULES // 3
