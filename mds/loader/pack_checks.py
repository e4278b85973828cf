"""What a loader of packs is given, checked: how packs become batches, and what makes batches."""

from __future__ import annotations

from typing import Any

from torch.utils.data import default_collate, default_convert

from mds.dataset.packed_epoch import check_packed
from mds.dataset.streaming import StreamingDataset
from mds.errors import ConfigError
from mds.loader.packed_batches import PACK_AS
from mds.transforms.column_function import ColumnFunction


def check_packs(loader: Any, streaming: StreamingDataset | None, pack_as: str | None) -> str | None:
    """How packs become the batches of a loader, None without packing. Raises ConfigError."""
    packing = None if streaming is None else streaming.packing
    if pack_as not in (None, *PACK_AS):
        raise ConfigError(f"pack_as is {' or '.join(map(repr, PACK_AS))}, got {pack_as!r}.")
    if packing is None or streaming is None:
        if pack_as is not None:
            raise ConfigError(
                f"pack_as={pack_as!r} is about packs, and the dataset makes none: give it "
                "packing=Packing(...)."
            )
        return None
    if streaming is not loader.dataset or type(streaming).__iter__ is not StreamingDataset.__iter__:
        raise ConfigError(
            f"packing= makes batches of packs, and {type(loader.dataset).__name__} iterates by "
            "itself over samples: give the loader a StreamingDataset, and what changes a sample to "
            "its map()."
        )
    check_packed(streaming)
    if loader.batch_size != streaming.batch_size:
        raise ConfigError(
            f"batch_size counts packs here, and is {loader.batch_size} for the loader and "
            f"{streaming.batch_size} for the dataset: give it to the dataset alone."
        )
    is_ours = isinstance(loader.collate_fn, ColumnFunction)
    if not is_ours and loader.collate_fn not in (default_collate, default_convert):
        raise ConfigError(
            "packing= makes the batches, so collate_fn= would be given no samples: do what it does "
            "in map(), for each document, or in map_batches(), for the packed batch."
        )
    return pack_as or "varlen"
