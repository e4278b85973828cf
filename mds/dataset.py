"""StreamingDataset: samples in an order, as torch knows datasets."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from mds.samples import Samples


class StreamingDataset(Samples, IterableDataset[Any]):
    """Samples of one or several streams for a torch DataLoader; the arguments are Samples'.

    >>> dataset = StreamingDataset(remote="s3://bucket/c4", batch_size=32, shuffle=True)
    ... # doctest: +SKIP
    """
