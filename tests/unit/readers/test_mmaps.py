"""Maps of files: ordinary ones, but for the descriptor that they do not keep."""

import mmap
import os
import subprocess
import sys

import numpy as np
import pytest

from mds._prefetch.lookahead import count_fitting
from mds._process import mmaps
from mds._process.mmaps import count_maps, map_descriptor


@pytest.fixture(autouse=True)
def _nothing_else_is_let_go(no_garbage):
    """Maps and descriptors are counted."""


@pytest.fixture
def path(tmp_path):
    """A file of 10,000 bytes."""
    place = tmp_path / "file"
    place.write_bytes(bytes(range(250)) * 40)
    return place


def mapped(path, size=10_000, **options):
    """The file mapped, and closed."""
    file = os.open(path, os.O_RDWR)
    try:
        return map_descriptor(file, size, **options)
    finally:
        os.close(file)


def test_a_map_is_an_ordinary_one(path):
    """Slices are bytes, buffers are read-only, and the file's descriptor is free again."""
    before, maps = len(os.listdir("/proc/self/fd")), count_maps()
    found = mapped(path)
    assert type(found) is mmap.mmap
    assert found[3:6] == b"\x03\x04\x05"
    assert len(found) == 10_000
    assert found[:] == path.read_bytes()
    assert memoryview(found).readonly
    with pytest.raises(TypeError):
        found[0] = 1
    assert len(os.listdir("/proc/self/fd")) == before
    assert count_maps() == maps + 1
    del found
    assert count_maps() == maps


def test_views_keep_a_map(path):
    """It ends with the last of them, and until then it cannot be closed under them."""
    maps = count_maps()
    found = mapped(path)
    view, array = memoryview(found)[5:], np.frombuffer(found, np.uint8)
    with pytest.raises(BufferError):
        found.close()
    path.unlink()
    del found
    assert view[0] == 5
    assert array[-1] == 249
    del view
    assert count_maps() == maps + 1
    del array
    assert count_maps() == maps


def test_a_shared_map_writes_to_its_file(path):
    """What is written is in the file, for every process that has it mapped."""
    one, two = mapped(path, is_shared=True), mapped(path)
    one[0:3] = b"abc"
    assert two[0:3] == b"abc"
    assert path.read_bytes()[:4] == b"abc\x03"


@pytest.mark.parametrize("size", [0, -1, 10_001])
def test_no_more_is_mapped_than_there_is(path, size):
    """Bytes beyond the end of a file would end the process when they are read."""
    with pytest.raises(ValueError, match="mapped"):
        mapped(path, size)


def test_what_the_system_refuses_is_an_error(path):
    """A descriptor that may not be read is no map, and the process goes on."""
    file = os.open(path, os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="Permission denied"):
            map_descriptor(file, 100)
    finally:
        os.close(file)
    assert mapped(path)[:2] == b"\0\1"


def test_without_a_c_library_maps_are_those_of_python(path, monkeypatch):
    """Where the system has no such call, maps keep their descriptors and are fewer."""
    monkeypatch.setattr(mmaps, "_system_mmap", lambda: None)
    assert mapped(path)[3:5] == b"\x03\x04"
    shared = mapped(path, is_shared=True)
    shared[0] = 7
    assert path.read_bytes()[0] == 7
    mmaps.max_maps.cache_clear()
    assert mmaps.max_maps() <= 2 * mmaps.MAX_MAPS
    mmaps.max_maps.cache_clear()


def test_a_view_survives_a_fork(path):
    """A child reads what its parent has mapped."""
    found = mapped(path)
    pid = os.fork()
    if not pid:
        os._exit(int(found[:] != path.read_bytes()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_number_of_maps_is_asked_for_by_a_variable():
    """MDS_MAX_MAPS is what the process may have, but for a number that is none."""
    script = "from mds._process import mmaps; print(mmaps.max_maps())"
    told = {"1000": "1000", "3": "32", "many": str(mmaps.max_maps())}
    for value, wanted in told.items():
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "MDS_MAX_MAPS": value},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == wanted


def test_a_window_is_cut_where_its_shards_are_too_many():
    """As many ids as have so many different shards between them, and not one less."""
    shards = np.array([4, 4, 7, 4, 9, 7, 1, 1])
    assert [count_fitting(shards, most) for most in (1, 2, 3, 4, 9)] == [2, 4, 6, 8, 8]
