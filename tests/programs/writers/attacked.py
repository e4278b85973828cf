"""A writer under attack: what the test of several writers in one folder runs, and its processes.

Whoever harms files (deletes, truncates) does so before any writer of the schedule begins to
finish: both hold one lock (`Gate`). So every index that appears can be judged, since nothing that
it names was harmed after the writer's last look. Folders are moved at any time, which harms no
file; indexes are judged wherever they are.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import random
import sys

from mds import CSVWriter, JSONWriter, LocalDataset, MDSWriter
from mds.errors import MdsError

TAG = 100_000  # samples of a writer are numbered from a multiple of this


class Gate:
    """Open until the first writer begins to finish."""

    def __init__(self, root):
        self._path = os.path.join(root, "gate")

    @contextlib.contextmanager
    def held(self):
        """Hold the gate; gives the file, which says something when it is shut."""
        with open(self._path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def shut(self):
        with self.held() as file:
            file.write(b"shut")

    @contextlib.contextmanager
    def passing(self):
        """Whether harm may be done now, which is done inside."""
        with self.held() as file:
            yield file.seek(0, os.SEEK_END) == 0


def fork_once(writer):
    """A forked child does with the writer what it may not."""
    child = os.fork()
    if child == 0:
        try:
            with contextlib.suppress(MdsError):
                writer.write({"x": -1})
            writer.finish()
            writer.abort()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def write(out, gate, seed, tag, *, forks):
    """Write a dataset of a random kind; what became of it."""
    moves = random.Random(seed)
    kind = moves.choice([MDSWriter, JSONWriter, CSVWriter])
    options = {
        "size_limit": moves.choice([400, 1000]),
        "exist_ok": moves.random() < 0.8,
        "compression": moves.choice([None, "zstd"]),
        "max_workers": moves.choice([1, 2, None]),
        "durable": moves.random() < 0.2,
        "keep_local": moves.random() < 0.5,
    }
    try:
        writer = kind(out=out, columns={"x": "int"}, hashes=["md5"], **options)
        with writer:
            for i in range(moves.randrange(50, 400)):
                writer.write({"x": tag * TAG + i})
                if forks and moves.random() < 0.003:
                    fork_once(writer)
                if moves.random() < 0.0015:
                    i / 0
            gate.shut()
    except (MdsError, FileExistsError, ZeroDivisionError) as error:
        return type(error).__name__
    return "published"


def judge(folder):
    """Every file that an index names, by size and digest; its samples are those of one writer."""
    shards = json.loads((folder / "index.json").read_bytes())["shards"]
    for shard in shards:
        for part in ("data", "meta"):
            info = shard.get(f"zip_{part}") or shard.get(f"raw_{part}")
            if info:
                data = (folder / info["basename"]).read_bytes()
                assert len(data) == info["bytes"], (folder, info)
                assert hashlib.md5(data).hexdigest() == info["hashes"]["md5"], (folder, info)
    if shards[0]["compression"]:
        return  # which is not read in place
    found = LocalDataset(str(folder))
    values = [int(found[i]["x"]) for i in range(len(found))]
    first = values[0]
    assert first % TAG == 0
    assert values == list(range(first, first + len(values)))


def harm(root, final, moves):
    """Delete, truncate, or move."""
    act = moves.random()
    with contextlib.suppress(OSError):
        if act < 0.4:
            os.rename(final, root / f"moved{moves.randrange(1 << 30)}")
            return
        with Gate(root).passing() as may:
            shards = sorted(root.rglob("shard*")) if may else []
            if shards and act < 0.75:
                moves.choice(shards).unlink()
            elif shards:
                os.truncate(moves.choice(shards), 3)


if __name__ == "__main__":
    out, root, seed, tag = json.loads(sys.argv[1])
    out = tuple(out) if isinstance(out, list) else out
    sys.stdout.write(write(out, Gate(pathlib.Path(root)), seed, tag, forks=True))
