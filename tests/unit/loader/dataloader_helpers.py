"""Helpers of the tests of dataloader, in this folder and in tests/programs/loader."""

from mds import Stream, StreamingDataLoader, StreamingDataset


def read(loader):
    """The ids of an epoch, batch by batch."""
    return [batch["id"].tolist() for batch in loader]


HOWS = {
    "here": {},
    "processes": {"num_workers": 2, "worker_type": "processes"},
    "threads": {"num_workers": 2, "worker_type": "threads"},
}


class Mine(StreamingDataset):
    """A dataset with code of its own."""

    def __getitem__(self, at):
        return super().__getitem__(at)


def by_stream(make, method, rank, ranks, size=12, **options):
    """A loader of one rank that mixes three streams in global batches of ``size``."""
    streams = [
        Stream(local=make(samples=count, first=first), proportion=1 / 3)
        for first, count in ((0, 37), (100, 52), (200, 124))
    ]
    dataset = StreamingDataset(
        streams=streams,
        batch_size=size // ranks,
        shuffle=True,
        batching_method=method,
        topology=(rank, ranks),
    )
    return StreamingDataLoader(dataset, **options)
