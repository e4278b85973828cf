"""What a loader of packs is given, checked: how packs become batches, and what makes batches."""

from __future__ import annotations

from typing import Any

from torch.utils.data import default_collate, default_convert

from mds.dataset.streaming import StreamingDataset
from mds.encodings import parse_encoding
from mds.errors import ConfigError
from mds.loader.pack_documents import batch_dtype
from mds.loader.packed_batches import PACK_AS
from mds.transforms.collate import ColumnFunction


def check_packs(loader: Any, streaming: StreamingDataset | None, pack_as: str | None) -> str | None:
    """Return how packs become the batches of a loader, or None without packing.

    Raises ConfigError for what does not go together.
    """
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
    _check_packing(streaming)
    _check_streams(streaming)
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


def _check_packing(dataset: Any) -> None:
    """Refuse settings of a dataset with which no packs can be made (ConfigError)."""
    packing = dataset.packing
    is_made = dataset._filter.chain.maps or dataset._has_own_items
    if not is_made and packing.lengths not in dataset._columns:
        raise ConfigError(
            f"Packing counts the lengths of column {packing.lengths!r}, and columns= leaves it out."
        )
    if packing.budget is not None and dataset.batch_size not in (None, 1):
        raise ConfigError(
            f"Packing(budget=...) makes a batch of each pack, and batch_size is "
            f"{dataset.batch_size}: use batch_size=1."
        )


def _check_streams(dataset: StreamingDataset) -> None:
    """Refuse streams whose columns do not fit into one batch of packs (ConfigError).

    What a function or a class of the caller's makes of samples is not known here.
    """
    if dataset._filter.chain.maps or dataset._has_own_items:
        return
    first: tuple[str, dict[str, str]] | None = None
    titles = dataset._order.samples_by_stream()
    for stream, index in zip(titles, dataset._shards.indexes, strict=True):
        for schema in index.schemas:
            pairs = zip(schema.columns.names, schema.columns.encodings, strict=True)
            columns = {name: text for name, text in pairs if name in dataset._columns}
            if first is None:
                first = stream, columns
                continue
            if lacking := sorted(columns.keys() ^ first[1].keys()):
                raise ConfigError(
                    f"packing=: streams {first[0]} and {stream} differ in the column "
                    f"{lacking[0]!r}, so their samples do not fit into one batch. Give columns= "
                    "that all have."
                )
            for name, text in columns.items():
                if _pack_kind(text) != _pack_kind(first[1][name]):
                    raise ConfigError(
                        f"packing=: column {name!r} is {first[1][name]!r} in stream {first[0]} and "
                        f"{text!r} in stream {stream}, which do not fit into one column. Leave it "
                        "out with columns=, or write one of the streams anew."
                    )


def _pack_kind(text: str) -> Any:
    """Return what a column of an encoding becomes in packs; whole numbers of any width are one."""
    encoding = parse_encoding(text.removeprefix("optional[").removesuffix("]"))
    if text.startswith(("list[", "optional[list[")):
        return "list"
    dtype = encoding.element_dtype if encoding.dtype is None else encoding.dtype
    return None if dtype is None else str(batch_dtype(dtype))
