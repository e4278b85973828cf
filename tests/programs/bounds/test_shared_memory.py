"""A full /dev/shm: worker threads do not need it, and worker processes say what they need."""

import shutil
import subprocess
import sys

import pytest

from mds import MDSWriter

SHELL = """
mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 42
head -c 1000000 /dev/zero > /dev/shm/full 2>/dev/null
exec "$@"
"""
READ = """
import sys
from mds import StreamingDataLoader, StreamingDataset
from mds.errors import NoSpaceError
for kind in "threads", "processes":
    loader = StreamingDataLoader(
        StreamingDataset(sys.argv[1], batch_size=2), num_workers=2, worker_type=kind
    )
    try:
        print(sum(len(batch["x"]) for batch in loader))
    except NoSpaceError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare, to mount another /dev/shm")
def test_a_full_folder_is_named(tmp_path):
    """With the way to give the container more, and the one that needs none."""
    with MDSWriter(out=str(tmp_path / "data"), columns={"x": "int"}) as writer:
        for number in range(8):
            writer.write({"x": number})
    program = [sys.executable, "-c", READ, str(tmp_path / "data")]
    command = ["unshare", "--mount", "sh", "-c", SHELL, "sh", *program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if "unshare failed" in done.stderr or done.returncode == 42:
        pytest.skip("this user may not mount a file system")
    samples, error = done.stdout.splitlines()
    assert samples == "8"
    assert error.startswith("start 2 worker processes: /dev/shm is full")
    assert "--shm-size=1g" in error
    assert "worker_type='threads'" in error
