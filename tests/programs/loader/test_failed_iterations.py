"""Iterations that fail in the middle: what `next` gives afterwards, and what of them stays."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import weakref

import pytest

from mds import StreamingDataLoader, StreamingDataset
from mds._shardfile.compression import parse_compression
from mds.errors import FunctionError, IterationError
from tests.unit.dataset.runs import as_json
from tests.unit.loader import failed_iterations_helpers
from tests.unit.loader.failed_iterations_helpers import (
    WORKERS,
    checked,
    collate,
    numbers,
    take_until_error,
)

# Fixtures of both halves of these tests.
fails = failed_iterations_helpers.fails


@pytest.mark.parametrize("how", WORKERS)
def test_a_failed_iteration_keeps_raising_and_its_state_is_exact(make, fails, how):
    """No later batch comes; a resumed run gives what is left, and the next epoch is complete."""
    dataset = StreamingDataset(local=make(), batch_size=4, shuffle=True).map(checked(fails))
    loader = StreamingDataLoader(dataset, collate_fn=collate, **WORKERS[how])
    iterator = iter(loader)
    before, error = take_until_error(iterator)
    assert isinstance(error, FunctionError)
    state = as_json(loader.state_dict())
    for _ in range(3):
        with pytest.raises(FunctionError, match="57"):
            next(iterator)
    assert as_json(loader.state_dict()) == state
    fails(0, repair=True)
    loader.load_state_dict(state)
    assert sorted(numbers(before) + numbers(loader)) == list(range(100))
    assert sorted(numbers(loader)) == list(range(100))


@pytest.mark.parametrize("how", ["no workers", "threads", "processes"])
def test_the_epoch_after_a_failed_one_is_complete(make, fails, how):
    """It needs no state."""
    dataset = StreamingDataset(local=make(), batch_size=4).map(checked(fails))
    loader = StreamingDataLoader(dataset, collate_fn=collate, **WORKERS[how])
    take_until_error(iter(loader))
    fails(0, repair=True)
    assert sorted(numbers(loader)) == list(range(100))
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("how", ["processes", "persistent"])
def test_a_killed_worker_ends_the_iteration_and_not_the_loader(make, how):
    """Every later call raises; the next epoch has new workers."""
    dataset = StreamingDataset(local=make(400), batch_size=4)
    loader = StreamingDataLoader(dataset, collate_fn=collate, **WORKERS[how])
    iterator = iter(loader)
    before = [next(iterator)]
    for worker in iterator._workers:
        os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError):
        before.extend(iterator)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            next(iterator)
    loader.load_state_dict(as_json(loader.state_dict()))
    assert sorted(numbers([*before, *loader])) == list(range(400))


PROGRAM = """
import atexit, builtins, sys

@atexit.register
def print_held_shards():  # after the functions that mds has registered
    print(sum(cache.stats()["held_shards"] for cache in live_caches()))

from mds import StreamingDataset, StreamingDataLoader
from mds._cache.shard_cache import live_caches
dataset = StreamingDataset(local=sys.argv[1], batch_size=4)
source = dataset if sys.argv[2] == "dataset" else StreamingDataLoader(dataset)
builtins.kept = iter(source)
next(builtins.kept)
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", ["dataset", "loader"])
def test_an_iterator_that_outlives_all_modules_is_silent(make, source):
    """What it holds is given back before the interpreter clears the modules."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, make(), source]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "0\n", "")


def in_fork(function):
    """What a function gives in a forked child, as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.alarm(60)  # one that waits for ever ends
            os.write(writer, str(function()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answers:
        answer = answers.read().decode()
    os.waitpid(child, 0)
    return answer


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize("how", ["dataset", "no workers", "threads", "processes"])
def test_a_forked_child_cannot_go_on_with_an_iterator(make, tmp_path, how):
    """It raises instead of waiting for threads of its parent, which goes on by itself."""
    dataset = StreamingDataset(remote=make(), local=str(tmp_path / "cache"), batch_size=4)
    source = dataset
    if how != "dataset":
        source = StreamingDataLoader(dataset, collate_fn=collate, **WORKERS[how])
    iterator = iter(source)
    before = [next(iterator)]

    def go_on():
        try:
            for _ in iterator:
                pass
        except IterationError:
            return f"raised, and {sum(1 for _ in source)} anew"
        return "ended"

    assert in_fork(go_on) == f"raised, and {100 if how == 'dataset' else 25} anew"
    after = [*before, *iterator]
    found = [s["id"] for s in after] if how == "dataset" else numbers(after)
    assert sorted(found) == list(range(100))


@pytest.mark.slow
def test_a_decompressor_is_collected():
    """Neither one that ended nor one whose target failed stays in memory."""

    def fail(piece):
        raise OSError("full")

    codec = parse_compression("zstd")
    packed = b"".join(codec.compress_parts([b"x" * 1000]))
    for sink in (len, fail):
        decompressor = codec.decompressor(1000)
        with contextlib.suppress(OSError):
            decompressor.feed_to(packed, sink)
        gone = weakref.ref(decompressor)
        del decompressor
        gc.collect()
        assert gone() is None
