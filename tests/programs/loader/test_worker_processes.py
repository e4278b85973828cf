"""What a caller's collate function makes, as it arrives from worker processes."""

import copy
import dataclasses
import gc
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import weakref
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from mds import MDSWriter, StreamingDataLoader, StreamingDataset
from mds.errors import FunctionError
from tests.unit.loader.worker_processes_helpers import big, loader_of, plain


class Pair(NamedTuple):
    """A batch as some models want it."""

    ids: torch.Tensor
    texts: tuple


@dataclasses.dataclass
class Record:
    """A batch as others want it."""

    vectors: torch.Tensor
    more: list


def nested(samples):
    """Any nesting of what a collate function may return."""
    ids = torch.tensor([s["id"] for s in samples])
    texts = tuple(s["text"] for s in samples)
    vectors = torch.stack([torch.from_numpy(s["vector"]) for s in samples])
    return {
        "pair": Pair(ids, texts),
        "record": Record(vectors, [np.stack([s["vector"] for s in samples]).T, b"x" * len(texts)]),
        "workers": get_worker_info().num_workers,
    }


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_any_nesting_arrives_however_workers_are_started(make, method):
    """With its types and values, and with memory that can be written to."""
    loader = loader_of(make(), collate_fn=nested, multiprocessing_context=method)
    seen = []
    for batch in loader:
        pair, record = batch["pair"], batch["record"]
        assert type(pair) is Pair
        assert type(record) is Record
        assert list(pair.texts) == [f"sample {i}" for i in pair.ids.tolist()]
        assert (record.vectors == pair.ids[:, None]).all()
        assert np.array_equal(record.more[0].T, record.vectors)
        assert record.more[1] == b"x" * len(pair.ids)
        assert batch["workers"] == 2
        seen += pair.ids.tolist()
        record.vectors.zero_()
        record.more[0][:] = 0
    assert sorted(seen) == [*range(100)]


def test_batches_that_are_kept_never_change(make):
    """A trainer that keeps all of them has all of them, after its loader is gone too."""
    kept = []
    for _ in range(3):
        loader = loader_of(make(1000), samples=10)
        kept.extend(loader)
        del loader
    gc.collect()
    assert sorted(i for b in kept for i in b["id"].tolist()) == sorted([*range(1000)] * 3)
    assert all(bool((b["vector"] == b["id"][:, None]).all()) for b in kept)


def test_a_worker_takes_one_descriptor_of_the_trainer(make):
    """Besides those of torch's queues; however many tensors there are."""

    def files():
        names = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return sum("mds-batches" in os.readlink(name) for name in names if os.path.islink(name))

    gc.collect()  # loaders of other tests
    before = files()
    loader = loader_of(make(), collate_fn=nested)
    kept = []
    iterator = iter(loader)
    kept.extend(iterator)
    assert files() == before + 2
    del iterator, loader, kept
    gc.collect()
    assert files() == before


def test_workers_that_stay_lend_the_same_memory_again(make):
    """Epochs that are left early give back what was on its way."""
    loader = loader_of(make(1000), samples=10, persistent_workers=True)
    for steps in (1, 7, 30, 2):
        for step, batch in enumerate(loader):
            assert (batch["vector"] == batch["id"][:, None]).all()
            if step == steps:
                break
    del batch
    assert len([*loader]) == 100
    readers = loader._loader_state.inner.dataset._readers
    gc.collect()
    assert [repr(reader).split()[1] for reader in readers] == ["0", "0"]


def limit_files(_):
    """Let the system refuse shared memory, as when there is none left."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, 1 << 15))


def test_where_memory_is_short_batches_go_through_the_pipe(make):
    """Refused is refused: no worker ends by SIGBUS."""
    loader = loader_of(make(), collate_fn=big, samples=10, worker_init_fn=limit_files)
    found = [batch["id"] for batch in loader if (batch["x"] == batch["id"]).all()]
    assert len(found) == 10


class Failing(StreamingDataset):
    """A sample that cannot be made."""

    def get_item(self, sample_id, retry=7):
        """A sample."""
        if sample_id == 77:
            raise LookupError("sample 77 is bad")
        return super().get_item(sample_id)


def strange(samples):
    """A batch that cannot cross."""
    return [lambda: 1] if samples[0]["id"] == 60 else samples[0]["id"]


def test_errors_come_in_their_turn_and_with_their_traceback(make):
    """Batches before them arrive; what cannot be pickled is an error and no hang."""
    loader = StreamingDataLoader(
        Failing(local=make(), batch_size=5), num_workers=2, collate_fn=plain
    )
    seen = []
    with pytest.raises(LookupError, match=r"(?s)worker process 1.*in get_item.*sample 77 is bad"):
        seen.extend(batch["id"][0].item() for batch in loader)
    assert seen == [*range(0, 75, 5)]
    assert loader.state_dict()["sample_in_epoch"] == 75
    loader = StreamingDataLoader(
        StreamingDataset(local=make(), batch_size=5), num_workers=1, collate_fn=strange
    )
    seen = []
    with pytest.raises(Exception, match="pickle"):
        seen.extend(loader)
    assert seen == [*range(0, 60, 5)]


class Doubled(IterableDataset):
    """A caller's dataset around ours."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        for sample in self.dataset:
            yield {**sample, "twice": 2 * sample["vector"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
@pytest.mark.parametrize("stays", [False, True])
def test_a_copy_of_a_loader_starts_workers_of_its_own(make, copied, stays):
    """Trainers copy and pickle loaders, also such as were iterated."""
    loader = loader_of(make(), persistent_workers=stays)
    first = [batch["id"].tolist() for batch in loader]
    other = copied(loader)
    assert sorted(i for b in other for i in b["id"].tolist()) == [*range(100)]
    # A shallow copy has the same dataset, so each loader continues the epochs of the other.
    shares_dataset = copied is copy.copy
    with pytest.warns(UserWarning, match="another loader") if shares_dataset else nullcontext():
        assert sorted(i for b in loader for i in b["id"].tolist()) == [*range(100)]
    assert sorted(i for b in first for i in b) == [*range(100)]


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
def test_wrappers_and_pinning_are_as_ever(make, pin_memory):
    """The caller's own iteration goes the same way."""
    dataset = Doubled(StreamingDataset(local=make(), batch_size=10))
    loader = StreamingDataLoader(dataset, batch_size=10, num_workers=2, pin_memory=pin_memory)
    seen = []
    for batch in loader:
        assert (batch["twice"] == 2 * batch["id"][:, None]).all()
        seen += batch["id"].tolist()
    assert sorted(seen) == [*range(100)]


KILLED = textwrap.dedent("""
    import os, signal, sys, time
    from mds import StreamingDataLoader, StreamingDataset

    def collate(samples):
        return samples

    if __name__ == "__main__":
        dataset = StreamingDataset(local=sys.argv[1], batch_size=5)
        loader = StreamingDataLoader(dataset, num_workers=2, collate_fn=collate)
        iterator = iter(loader)
        next(iterator)
        print(os.getpid(), *[worker.pid for worker in iterator._workers], flush=True)
        if sys.argv[2] == "worker":
            os.kill(iterator._workers[0].pid, signal.SIGKILL)
            try:
                [*iterator]
            except RuntimeError as error:
                # torch has two messages; which one comes first depends on the moment of the kill
                messages = ("exited unexpectedly", "is killed by signal")
                print(any(message in str(error) for message in messages), flush=True)
        else:
            os.kill(os.getpid(), signal.SIGKILL)
""")


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "trainer"])
def test_nothing_is_left_of_those_that_were_killed(make, tmp_path, victim):
    """No name in /dev/shm and no process; a dead worker is an error of the loop."""
    path = tmp_path / "program.py"
    path.write_text(KILLED)
    done = subprocess.run(
        [sys.executable, str(path), make(1000), victim], capture_output=True, text=True, check=False
    )
    pids, *rest = done.stdout.splitlines()
    assert rest == (["True"] if victim == "worker" else [])
    assert done.returncode == (0 if victim == "worker" else -signal.SIGKILL)
    assert len(pids.split()) == 3
    if os.path.isdir("/dev/shm"):  # where other programs have names, too
        left = [name for name in os.listdir("/dev/shm") if {*name.split("_")} & {*pids.split()}]
        assert not left


@pytest.mark.parametrize("groups", [False, True])
def test_an_error_ends_the_workers_at_once(tmp_path, groups):
    """They end without a garbage collection, which would come after their queues are shut."""
    with MDSWriter(out=str(tmp_path / "d"), columns={"x": "int"}, size_limit=200) as writer:
        for number in range(80):
            writer.write({"x": number})
    dataset = StreamingDataset(local=str(tmp_path / "d"), batch_size=4).map(_fail_at_seven)
    loader = StreamingDataLoader(dataset, num_workers=2, collate_fn=None if groups else list)
    gc.disable()
    try:
        iterator = iter(loader)
        inner, workers = weakref.ref(iterator._inner), iterator._workers
        with pytest.raises(FunctionError, match="seven"):
            list(iterator)
        assert inner() is None
        assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()


def _fail_at_seven(sample):
    if sample["x"] == 7:
        raise ValueError("seven")
    return sample
