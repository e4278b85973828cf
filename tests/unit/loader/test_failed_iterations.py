"""Iterations that fail in the middle: what `next` gives afterwards, and what of them stays."""

import contextlib
import copy
import gc
import os
import signal
import subprocess
import sys
import weakref

import pytest
import torch
from runs import as_json
from torch.utils.data import DataLoader

import mds
from mds import StreamingDataLoader, StreamingDataset
from mds.cache.shard_cache import live_caches
from mds.errors import ConfigError, FunctionError, IterationError, MdsError
from mds.shardfile.compression import parse_compression

WORKERS = {
    "no workers": {},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "persistent": {"num_workers": 2, "workers": "processes", "persistent_workers": True},
}


class Bad(Exception):
    """What a function of the caller's raises."""


@pytest.fixture
def fails(tmp_path):
    """A function of a number that raises for sample 57 until it is called with ``repair``."""
    armed = tmp_path / "armed"
    armed.touch()

    def look(number, *, repair=False):
        if repair:
            armed.unlink()
        elif number == 57 and armed.exists():
            raise Bad("sample 57")

    return look


def checked(fails):
    """A function for `map` that fails."""

    def look(sample):
        fails(int(sample["id"]))
        return sample

    return look


def collate(samples):
    """The numbers of samples."""
    return {"id": torch.tensor([int(sample["id"]) for sample in samples])}


def numbers(batches):
    """The numbers of the samples of batches."""
    return [number for batch in batches for number in batch["id"].tolist()]


def take_until_error(iterator):
    """What comes before the error, and the error."""
    found = []
    try:
        found.extend(iterator)
    except Exception as error:  # noqa: BLE001 - compared by the test
        return found, error
    raise AssertionError("no error")


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


@pytest.mark.parametrize("link", ["map", "filter", "own"])
def test_a_failed_iteration_of_a_dataset_keeps_raising(make, fails, link):
    """The position is behind the last sample that came, and the next iteration is whole."""
    look = checked(fails)

    class Own(StreamingDataset):
        def __getitem__(self, at):
            return look(super().__getitem__(at))

    dataset = (Own if link == "own" else StreamingDataset)(local=make(), batch_size=4)
    if link == "map":
        dataset = dataset.map(look)
    elif link == "filter":
        dataset = dataset.filter(lambda sample: bool(look(sample)))
    iterator = iter(dataset)
    before, error = take_until_error(iterator)
    state = dataset.state_dict()
    for _ in range(3):
        with pytest.raises(type(error), match=str(error).partition("(")[0]):
            next(iterator)
    assert dataset.state_dict() == state
    fails(0, repair=True)
    dataset.load_state_dict(state)
    assert [int(s["id"]) for s in [*before, *dataset]] == list(range(100))
    assert len([*dataset]) == 100


def test_a_text_that_does_not_decode_is_not_passed_over(make):
    """An error of the decoder counts its sample as one that did not come."""
    columns = {"id": "int", "text": "str"}
    data = make(40, columns=columns, value=lambda i: {"id": i, "text": f"sample {i:03}"})
    name = os.path.join(data, "shard.00001.mds")
    with open(name, "r+b") as file:
        at = file.read().index(b"sample 015")
        file.seek(at)
        file.write(b"\xff")
    dataset = StreamingDataset(local=data, batch_size=4)
    iterator = iter(dataset)
    before, error = take_until_error(iterator)
    with pytest.raises(type(error)):
        next(iterator)
    assert len(before) == 15
    assert dataset.state_dict()["sample_in_epoch"] == 15


def test_an_interrupted_iteration_says_so_and_its_remedy_works(make):
    """KeyboardInterrupt is not raised twice; the state that the message names goes on."""

    def interrupt(sample):
        if is_armed and sample["id"] == 57:
            raise KeyboardInterrupt
        return sample

    is_armed = True
    dataset = StreamingDataset(local=make(), batch_size=4).map(interrupt)
    loader = StreamingDataLoader(dataset, collate_fn=collate)
    iterator, before = iter(loader), []
    with pytest.raises(KeyboardInterrupt):
        before.extend(iterator)
    is_armed = False
    with pytest.raises(IterationError, match=r"loader\.load_state_dict\(loader\.state_dict\(\)\)"):
        next(iterator)
    loader.load_state_dict(loader.state_dict())
    assert numbers([*before, *loader]) == list(range(100))


def test_a_signal_between_two_batches_ends_nothing(make):
    """An interrupt in the program's own code leaves the iteration as it is."""
    loader = StreamingDataLoader(StreamingDataset(local=make(), batch_size=4))
    iterator = iter(loader)
    before = [next(iterator)]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert numbers([*before, *iterator]) == list(range(100))


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


@pytest.mark.parametrize("how", ["no workers", "threads"])
def test_a_kept_error_keeps_no_shard(make, fails, how):
    """An error has the frames that it passed through; shards are given back all the same."""
    dataset = StreamingDataset(local=make(), batch_size=4).map(checked(fails))
    iterator = iter(StreamingDataLoader(dataset, collate_fn=collate, **WORKERS[how]))
    _, error = take_until_error(iterator)
    assert isinstance(error.__cause__, Bad)
    held = [cache.stats()["held_shards"] for cache in live_caches()]
    assert not any(held)


PROGRAM = """
import atexit, builtins, sys

@atexit.register
def print_held_shards():  # after the functions that mds has registered
    print(sum(cache.stats()["held_shards"] for cache in live_caches()))

from mds import StreamingDataset, StreamingDataLoader
from mds.cache.shard_cache import live_caches
dataset = StreamingDataset(local=sys.argv[1], batch_size=4)
source = dataset if sys.argv[2] == "dataset" else StreamingDataLoader(dataset)
builtins.kept = iter(source)
next(builtins.kept)
"""


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


def test_an_error_in_a_worker_of_torchs_loader_is_read_line_by_line(make):
    """Line ends of the traceback are line ends."""
    loader = DataLoader(StreamingDataset(local=make()), batch_size=4, num_workers=2)
    with pytest.raises(ConfigError) as caught:
        list(loader)
    lines = str(caught.value).split("\n")
    assert len(lines) > 10
    assert "batch_size" in lines[-2]
    assert "\\n" not in str(caught.value)


def test_text_of_others_in_an_error_stays_on_one_line():
    """Only what begins as torch begins keeps its lines."""
    assert "\n" not in str(ConfigError("a file called Caught X in worker process 0.\nOriginal"))


def test_errors_can_be_made_of_their_text_alone():
    """So torch raises the class in the trainer that was raised in a worker process."""
    classes = [
        c for c in vars(mds.errors).values() if isinstance(c, type) and issubclass(c, MdsError)
    ]
    for kind in classes:
        assert isinstance(kind("text"), kind)
        assert type(copy.copy(kind("text"))) is kind


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
