"""How many files and frames of ours lie between a batch and the bytes of a cold remote shard."""

import re
import subprocess
import sys

#: Files that run at most until the first remote read, in the thread of the loop and in the one
#: that reads, and until the batch is complete.
MOST_FILES = 50
MOST_FILES_IN_ALL = 60
MOST_FRAMES = 10


def test_the_path_of_a_read_does_not_grow():
    """A new file that only forwards calls, or that a read does not need, is noticed here."""
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
    assert 30 < files <= MOST_FILES, done.stdout
    assert 0 < later <= MOST_FILES_IN_ALL - files, done.stdout
    assert 5 < frames <= MOST_FRAMES, done.stdout
