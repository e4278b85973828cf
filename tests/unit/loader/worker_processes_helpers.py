"""Helpers of the tests of worker processes, in this folder and in tests/programs/loader."""

import torch
from torch.utils.data import default_collate

from mds import StreamingDataLoader, StreamingDataset


def plain(samples):
    """A collate function of one's own that calls torch's."""
    return default_collate(samples)


def loader_of(data, *, collate_fn=plain, samples=8, **options):
    dataset = StreamingDataset(local=data, batch_size=samples, shuffle=True)
    options = {"num_workers": 2, **options}
    return StreamingDataLoader(dataset, collate_fn=collate_fn, **options)


def big(samples):
    """Half a megabyte a batch."""
    return {"id": samples[0]["id"], "x": torch.full((1 << 16,), samples[0]["id"]).double()}
