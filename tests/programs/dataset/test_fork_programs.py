"""Programs that fork while threads of theirs use a dataset: they end, with the right samples."""

import subprocess
import sys

import pytest

PROGRAM = """
import faulthandler, sys, threading
faulthandler.dump_traceback_later(500, exit=True)
from mds import StreamingDataset, StreamingDataLoader

data, what = sys.argv[1:]
dataset = StreamingDataset(local=data, batch_size=4, shuffle=True)
loader = StreamingDataLoader(dataset, num_workers=2, worker_type="processes")
over = threading.Event()

def save():
    while not over.is_set():
        {"dataset": dataset.state_dict, "loader": loader.state_dict, "stats": dataset.stats,
         "sample": lambda: dataset[3]}[what]()

threads = [threading.Thread(target=save, daemon=True) for _ in range(2)]
for thread in threads: thread.start()
for _ in range(4):
    assert sorted(i for batch in loader for i in batch["id"].tolist()) == list(range(100))
over.set()
for thread in threads: thread.join()
print("whole")
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["dataset", "loader", "sample"])
def test_threads_go_on_while_workers_are_forked(make, what):
    """State, counts and samples are asked for all the time while epochs fork their workers."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, make(), what],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr
