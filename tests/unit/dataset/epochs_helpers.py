"""Helpers of the tests of epochs, in this folder and in tests/programs/dataset."""

import warnings

from mds import StreamingDataLoader, StreamingDataset


def ranks_of(make, **options):
    """A loader for each of four ranks, over the same 50 samples."""
    return [
        StreamingDataLoader(
            StreamingDataset(
                local=make(50), topology=(rank, 4), batch_size=3, shuffle=True, **options
            )
        )
        for rank in range(4)
    ]


def stop_after(loader, steps):
    """The batches of so many steps, the state after them, and its warnings."""
    batches = iter(loader)
    first = [next(batches).tolist() for _ in range(steps)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = loader.state_dict()
        loader.state_dict()
    return first, state, [str(each.message) for each in caught]
