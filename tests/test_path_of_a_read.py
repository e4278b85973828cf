"""How many files and frames of ours lie between a batch and the bytes of a cold remote shard."""

import re
import subprocess
import sys

#: Files that run at most until the first remote read, in the thread of the loop and in the one
#: that reads, and until the batch is complete.
MOST_FILES = 51
MOST_FILES_IN_ALL = 61
MOST_FRAMES = 10


TRIES = 3  # the thread of the loop may run one file more before the other one reads


def count_path():
    """Return the files until the remote read, those until the batch, the frames, and the text."""
    done = subprocess.run(
        [sys.executable, "-m", "devtools.count_path"],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    files = int(re.search(r"^(\d+) files in which a line runs down", done.stdout, re.MULTILINE)[1])
    frames = int(re.search(r"^(\d+) frames at the remote read", done.stdout, re.MULTILINE)[1])
    later = int(re.search(r"^(\d+) more until the batch is", done.stdout, re.MULTILINE)[1])
    return files, later, frames, done.stdout


def test_the_path_of_a_read_does_not_grow():
    """A new file that only forwards calls, or that a read does not need, is noticed here."""
    counts = []
    while len(counts) < TRIES and (not counts or min(counts)[0] > MOST_FILES):
        counts.append(count_path())
    files, later, frames, text = min(counts)
    assert 30 < files <= MOST_FILES, text
    assert 0 < later <= MOST_FILES_IN_ALL - files, text
    assert 5 < frames <= MOST_FRAMES, text
