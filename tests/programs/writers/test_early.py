"""Shards that are written while they are filled have the bytes of those that are gathered first."""

import os
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest

from mds import MDSWriter
from mds.errors import EncodingError, NoSpaceError, WriterError

LIMIT = 6 << 20
COLUMNS = {"n": "int", "tokens": "ndarray:uint16:3000"}
ROW = 8 + 6000


class Gathering(MDSWriter):
    """A writer that gathers each shard whole."""

    def _plan_header(self):
        return None


class Odd(MDSWriter):
    """A writer whose samples are not of the size that their columns have."""

    step = 0

    def encode_sample(self, sample):
        data = super().encode_sample(sample)
        return data[: len(data) - self.step] if self.step > 0 else data + bytes(-self.step)


class OddGathering(Odd, Gathering):
    """The same, gathered."""


def sample(number):
    return {"n": number, "tokens": np.full(3000, number % 65536, np.uint16)}


def fill(kind, out, count, flush=(), **options):
    with kind(out=out, columns=COLUMNS, **{"size_limit": LIMIT, **options}) as writer:
        for number in range(count):
            writer.write(sample(number))
            if number in flush:
                writer.flush_shard()
        return writer


def write_all(out, samples):
    with MDSWriter(out=out, columns=COLUMNS, size_limit=LIMIT) as writer:
        for each in samples:
            writer.write(each)


def write_into(writer, count):
    for number in range(count):
        writer.write(sample(number))


def both(tmp_path, written, count, kinds=(MDSWriter, Gathering), **more):
    """What two kinds of writer leave: the first in pieces, the second gathered."""
    folders = [str(tmp_path / kind.__name__) for kind in kinds]
    for kind, folder in zip(kinds, folders, strict=True):
        fill(kind, folder, count, **more)
    one, other = (written(folder).bytes() for folder in folders)
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []
    return written(folders[0])


FULL = (LIMIT - 300) // (ROW + 4)


@pytest.mark.parametrize("count", [1, 200, FULL - 1, FULL, FULL + 1, 2 * FULL, 2 * FULL + 700])
def test_shards_are_those_that_are_gathered(tmp_path, written, count):
    """Full ones, the last one, and one that nothing was written of before its end."""
    found = both(tmp_path, written, count)
    assert sum(found.counts()) == count
    assert len(found.samples()) == count


@pytest.mark.parametrize("hashes", [[], ["xxh3_128", "xxh64"]])
def test_digests_of_shards_in_pieces(tmp_path, written, hashes):
    """None, or several: the index is that of shards that are gathered."""
    both(tmp_path, written, 2 * FULL + 700, flush=(5, 900), hashes=hashes)


def test_slow_digests_are_left_to_threads(out):
    """A sha1 takes longer than writing, so it is not computed between two samples."""
    with MDSWriter(out=out, columns=COLUMNS, hashes=["sha1", "xxh64"]) as writer:
        assert writer._plan_header() is None


def test_shards_that_end_early_get_their_own_header(tmp_path, written):
    """Where the user ends them, after much and after nothing."""
    found = both(tmp_path, written, 3 * FULL, flush=(5, 900, 901, FULL + 901))
    assert found.counts()[:3] == [6, 895, 1]


@pytest.mark.parametrize("most", [400, 800, 5000])
def test_a_number_of_samples_ends_shards_too(tmp_path, written, most):
    """Shards of fewer samples than fit have the header of so many."""
    assert max(both(tmp_path, written, 2000, samples_per_shard=most).counts()) == min(most, FULL)


@pytest.mark.parametrize("step", [8, -8, 3000])
def test_samples_of_another_size_than_their_columns(tmp_path, written, step):
    """The header tells what was written, whatever was expected."""
    Odd.step = step
    both(tmp_path, written, 2 * FULL, kinds=(Odd, OddGathering))


def test_samples_larger_than_what_is_gathered(tmp_path, written):
    """Each of them goes to the file by itself."""
    large = {"x": "ndarray:uint8:3000000"}
    rows = [{"x": np.full(3000000, number, np.uint8)} for number in range(9)]
    for kind in (MDSWriter, Gathering):
        with kind(out=str(tmp_path / kind.__name__), columns=large, size_limit=10 << 20) as writer:
            for row in rows:
                writer.write(row)
    one, other = (written(tmp_path / kind.__name__).bytes() for kind in (MDSWriter, Gathering))
    assert one == other


def test_tiny_samples_are_gathered(out):
    """Their header is as large as they are, so it is made once, when it is known."""
    with MDSWriter(out=out, columns={"x": "uint8", "y": "float64"}) as writer:
        assert writer._plan_header() is None
        writer.write({"x": 1, "y": 0.5})


PROGRAM = """
import re, sys
import numpy as np
from mds import MDSWriter
columns, row = {"tokens": "ndarray:int32:2048"}, {"tokens": np.arange(2048, dtype=np.int32)}
def fill(name, count):
    with MDSWriter(out=sys.argv[1] + name, columns=columns) as writer:
        for _ in range(count):
            writer.write(row)
def peak():  # not ru_maxrss, which begins at what the process that started this one had
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10
fill("/warm", 1000)
before = peak()
fill("/real", 3 * 8192)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
def test_memory_is_a_few_megabytes(tmp_path):
    """Whatever the size of a shard."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 16 << 20


def test_an_aborted_writer_leaves_nothing_half_written(out):
    """Of the shard that was being filled no file stays; complete ones do."""
    samples = [sample(number) for number in range(2 * FULL - 9)]
    with pytest.raises(EncodingError):
        write_all(out, [*samples, {}])
    assert {name for name in os.listdir(out) if "shard" in name} <= {"shard.00000.mds"}
    fill(MDSWriter, out, 10, exist_ok=True)


def test_a_limit_on_files_is_told_while_a_shard_is_filled(out):
    """With the first sample that does not fit any more, and again when the writer ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, hard))
    try:
        writer = MDSWriter(out=out, columns=COLUMNS, size_limit=LIMIT)
        with pytest.raises(WriterError, match="File too large"):
            write_into(writer, FULL)
        with pytest.raises(WriterError, match="File too large"):
            writer.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "index.json" not in os.listdir(out)
    assert not [name for name in os.listdir(out) if "shard" in name]


def test_a_disk_without_room_is_told_while_a_shard_is_filled(tmp_path):
    """The error names the folder, and its cause the lack of room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("disks can be mounted by root only")
    try:
        with pytest.raises(WriterError, match="No space left") as caught:
            fill(MDSWriter, str(folder / "out"), FULL)
        assert isinstance(caught.value.__cause__, NoSpaceError)
        assert not [path for path in folder.rglob("*") if "shard" in path.name]
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_folder_that_is_deleted_while_a_shard_is_filled(out):
    """The writer stops before the shard is full."""
    writer = MDSWriter(out=out, columns=COLUMNS, size_limit=LIMIT)
    for number in range(300):
        writer.write(sample(number))
    shutil.rmtree(out)
    with pytest.raises(WriterError, match="out"):
        write_into(writer, FULL)
    writer.abort()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_leaves_the_file_alone(out, written):
    """Also when it ends as programs do."""
    with MDSWriter(out=out, columns=COLUMNS, size_limit=LIMIT) as writer:
        for number in range(FULL // 2):
            writer.write(sample(number))
        child = os.fork()
        if child == 0:
            try:
                writer.finish()
                del writer
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for number in range(FULL // 2, FULL + 9):
            writer.write(sample(number))
    assert len(written(out).samples()) == FULL + 9
