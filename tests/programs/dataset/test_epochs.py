"""The epoch book: copies of a dataset in workers agree on the epoch, and leave nothing."""

import itertools
import re

import pytest
import torch.utils.data

from mds import StreamingDataLoader, StreamingDataset
from mds._dataset.order_state import SharedEpochCounter
from tests.unit.dataset.epochs_helpers import ranks_of, stop_after


class Epochs(torch.utils.data.IterableDataset):
    """Yields the epoch that its worker took."""

    def __init__(self):
        self.book = SharedEpochCounter()

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        turn = self.book.begin_epoch(info.seed - info.id, info.id)
        return iter([(turn.position.epoch, info.id)])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method_write_into_the_parents_book(method):
    """The main process sees the epochs that began in workers."""
    dataset = Epochs()
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context=method
    )
    seen = [sorted(map(tuple, loader)) for _ in range(2)]
    assert seen == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
    assert dataset.book.next_epoch == 2


@pytest.mark.parametrize("rank", range(4))
def test_the_state_of_any_rank_at_the_end_serves_all(make, rank):
    """With remainder="short" every rank begins the next epoch, whose state was saved."""
    loaders = ranks_of(make, remainder="short")
    for loader in loaders:
        list(loader)
    state = loaders[rank].state_dict()
    following = [[b["id"].tolist() for b in loader] for loader in loaders]
    resumed = ranks_of(make, remainder="short")
    for loader in resumed:
        loader.load_state_dict(state)
    assert [[b["id"].tolist() for b in loader] for loader in resumed] == following


class Buckets(torch.utils.data.IterableDataset):
    """A wrapper that holds samples back until two of a remainder have come."""

    def __init__(self, dataset):
        self.dataset, self.held = dataset, {}

    def __iter__(self):
        for sample in self.dataset:
            values = self.held.setdefault(sample["id"] % 2, [])
            values.append(sample["id"])
            if len(values) == 2:
                del self.held[sample["id"] % 2]
                yield from values
        for values in self.held.values():
            yield from values


class SavedBuckets(Buckets):
    """Buckets that are saved beside the state of the loader."""

    def state_dict(self):
        """Return the buckets."""
        return {key: [*values] for key, values in self.held.items()}

    def load_state_dict(self, state):
        """Begin with these buckets."""
        self.held = state


def bucket_loader(where, kind=Buckets, rank=0, ranks=1, workers=0, **options):
    """A loader of batches of four from buckets."""
    dataset = StreamingDataset(
        local=where, batch_size=4, shuffle=True, topology=(rank, ranks), shuffle_algo="seekable"
    )
    return StreamingDataLoader(kind(dataset), batch_size=4, num_workers=workers, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_wrapper_that_holds_samples_back_is_named_once(make, workers):
    """A state is exact where no warning comes: each sample is then seen once."""
    where, exact, inexact = make(samples=96), 0, 0
    for steps in range(2, 24, 10 if workers else 1):
        first, state, told = stop_after(bucket_loader(where, workers=workers), steps)
        resumed = bucket_loader(where, workers=workers)
        resumed.load_state_dict(state)
        seen = sorted(itertools.chain(*first, *(batch.tolist() for batch in resumed)))
        if not told:
            assert seen == [*range(96)]
            exact += 1
            continue
        (message,) = told
        given = rf"returned {4 * steps}\. .*Packing .*filter.*state_dict"
        assert re.search(r"Buckets has read \d+ .*" + given, message)
        inexact += seen != [*range(96)]
    assert exact or workers
    assert inexact > 0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_wrapper_keeps_what_it_holds_back_in_a_state_of_its_own(make, rank):
    """Saved on each rank beside the loader's state, nothing is lost and there is no warning."""
    where, held_back = make(samples=96), 0
    whole = [*itertools.chain(*(b.tolist() for b in bucket_loader(where, Buckets, rank, 2)))]
    for steps in range(1, 10):
        loader = bucket_loader(where, SavedBuckets, rank, 2)
        first, state, told = stop_after(loader, steps)
        assert not told
        held = loader.dataset.state_dict()
        held_back += len(held)
        resumed = bucket_loader(where, SavedBuckets, rank, 2)
        resumed.dataset.load_state_dict(held)
        resumed.load_state_dict(state)
        seen = itertools.chain(*first, *(batch.tolist() for batch in resumed))
        assert sorted(seen) == sorted(whole)
    assert held_back
