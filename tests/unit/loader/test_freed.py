"""A dataset, its loader and their iterators are freed with their last use.

A dataset that only a garbage collection frees keeps its mapped files, its descriptors and the
threads that fetch ahead, and torch may shut the queues of worker processes before they have ended.
"""

import collections
import copy
import gc
import weakref

import pytest
import torch

from mds import StreamingDataLoader, StreamingDataset
from tests.unit.loader import packed_helpers

corpus = packed_helpers.corpus


class Own(StreamingDataset):
    """A class of a user that makes its own samples."""

    def __getitem__(self, index):
        return {"id": super().__getitem__(index)["id"]}


def loop(dataset):
    """Iterate an epoch to its end."""
    iterator = iter(dataset)
    for _ in iterator:
        pass
    return [iterator]


def stop_early(dataset):
    """Leave an epoch after its first sample, with the shards of the others open."""
    iterator = iter(dataset)
    next(iterator)
    return [iterator]


def stop_and_resume(dataset):
    """Go on from a state in the middle of an epoch."""
    first = iter(dataset)
    next(first)
    dataset.load_state_dict(dataset.state_dict())
    second = iter(dataset)
    next(second)
    return [first, second]


def load(dataset, **options):
    """Take a batch of a loader, and its state."""
    loader = StreamingDataLoader(dataset, **options)
    batches = iter(loader)
    next(batches)
    assert loader.state_dict()["sample_in_epoch"] or options
    return [loader, batches]


def load_an_epoch(dataset):
    """Take all batches of an epoch of a loader."""
    loader = StreamingDataLoader(dataset)
    batches = iter(loader)
    assert [*batches]
    return [loader, batches]


def load_in_threads(dataset):
    """Make batches in threads, some of them ahead."""
    return load(dataset, num_workers=2, worker_type="threads")


def load_in_processes(dataset):
    """Make batches in worker processes."""
    return load(dataset, num_workers=1, worker_type="processes")


def change(dataset):
    """Call functions of the user, of which one drops samples."""
    changed = dataset.map(dict).filter(lambda sample: sample["id"] % 3)
    assert [*changed]
    return [changed, *load(changed)]


def choose(dataset):
    """Take parts of a dataset, by number, by a function and by a column."""
    parts = [dataset.select([1, 2]), dataset.select(where=lambda s: s["id"] > 3), dataset.limit(9)]
    parts += dataset.split([0.5, 0.5], by="id")
    for part in parts:
        assert [*part]
    return parts


def copy_it(dataset):
    """Iterate a copy, as each worker thread does."""
    other = copy.copy(dataset)
    stop_early(dataset)
    return [other, *stop_early(other)]


def divide(sample):
    """Fail at one sample."""
    return 1 // (sample["id"] - 5)


def fail(dataset):
    """Iterate until a function of the user raises an error."""
    changed = dataset.map(divide)
    objects = [changed]
    for read in (loop, load_an_epoch):
        with pytest.raises(RuntimeError, match="division"):
            objects += read(changed)
    return objects


def fail_again(dataset):
    """Ask iterations for more after they failed."""
    changed = dataset.map(divide)
    iterators = [iter(changed), iter(StreamingDataLoader(changed))]
    for iterator in iterators:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="division"):
                collections.deque(iterator)
    return [changed, *iterators]


USES = (
    loop, stop_early, stop_and_resume, load, load_an_epoch, load_in_threads, load_in_processes,
    change, choose, copy_it, fail, fail_again,
)  # fmt: skip


def check(use, make):
    """Use a dataset; assert that it and all objects of the use are freed with the last reference.

    ``make`` returns the dataset, to which nothing else refers.
    """
    objects = [make()]
    objects += use(objects[0])
    names = [type(each).__name__ for each in objects]
    references = [weakref.ref(each) for each in objects]
    gc.collect()
    gc.disable()  # so that a cycle shows
    try:
        objects.clear()
        living = [name for name, ref in zip(names, references, strict=True) if ref() is not None]
        assert not living
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [StreamingDataset, Own])
@pytest.mark.parametrize("use", USES)
def test_a_dataset_is_freed_with_its_last_use(make, use, kind):
    """Neither the run nor an iteration of a dataset keeps it, its loader or its iterator."""
    folder = make()
    check(use, lambda: kind(local=folder, batch_size=4, shuffle=True))


@pytest.mark.parametrize("use", [loop, stop_early, stop_and_resume, load, load_an_epoch, copy_it])
def test_a_dataset_of_packs_is_freed_with_its_last_use(corpus, use):
    """The same holds for packs."""
    check(use, lambda: packed_helpers.make(corpus))


def test_a_caller_may_delete_what_it_has(make):
    """An epoch that begins keeps no local variable of the functions that called it."""
    dataset = StreamingDataset(local=make(), batch_size=8, topology=(0, 2))
    batch = torch.zeros(8)
    freed = weakref.ref(batch)
    next(iter(dataset))
    del batch
    assert freed() is None
