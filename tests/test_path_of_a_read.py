"""How many files and frames of ours lie between a batch and the bytes of a cold remote shard."""

import re
import subprocess
import sys

#: Files that run at the most until the first remote read, in the thread of the loop and in the one
#: that reads; 50 were asked for, and docs/decisions says what keeps it from that.
MOST_FILES = 61
MOST_FRAMES = 10


def test_the_path_of_a_read_does_not_grow():
    """A file that only passes on, or a book that a read does not need, shows here."""
    done = subprocess.run(
        [sys.executable, "-m", "devtools.count_path"],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    files = int(re.search(r"^(\d+) files in which a line runs down", done.stdout, re.MULTILINE)[1])
    frames = int(re.search(r"^(\d+) frames at the remote read", done.stdout, re.MULTILINE)[1])
    assert 30 < files <= MOST_FILES, done.stdout
    assert 5 < frames <= MOST_FRAMES, done.stdout
