"""Datasets of the caller's around a StreamingDataset: what a loader does with each kind.

As in torch, the kind of the outermost dataset decides. An IterableDataset iterates what it wraps,
in our order, and its position is known. Anything else is asked for samples by number, in the order
of a sampler: there torch's rules hold unchanged, and no position is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, IterableDataset

from mds.dataset.streaming import StreamingDataset
from mds.errors import ConfigError
from mds.transforms.randomness import Seeded

_MAX_DEPTH = 16  # wrappers may point in circles
_MAX_LISTED = 100  # datasets of a list that are looked at


def find_streaming(dataset: Any) -> StreamingDataset | None:
    """Return this StreamingDataset, or the one that iterable wrappers keep as ``.dataset``."""
    for _ in range(_MAX_DEPTH):
        if isinstance(dataset, StreamingDataset):
            return dataset
        if not isinstance(dataset, IterableDataset):
            return None
        dataset = getattr(dataset, "dataset", None)
    return None


def find_wrapped(dataset: Any) -> StreamingDataset | None:
    """Return a StreamingDataset inside a wrapper that keeps no position."""
    if find_streaming(dataset) is not None:
        return None
    return next((d for d in _inside(dataset) if isinstance(d, StreamingDataset)), None)


def check_wrapper(dataset: Any, num_samples_seen: int | None) -> None:
    """Refuse or warn about a wrapper that would not show what its writer expects.

    ``num_samples_seen``: its length, where it has one. Raises ConfigError for a ConcatDataset of
    streaming datasets, which torch refuses too, but not under ``python -O``.
    """
    for each in _inside(dataset):
        if isinstance(each, ConcatDataset) and any(
            isinstance(d, StreamingDataset) for d in each.datasets
        ):
            raise ConfigError(
                f"a {type(each).__name__} of streaming datasets keeps no order of its own: give "
                "one StreamingDataset several streams, streams=[Stream(...), Stream(...)]."
            )
    wrapped = find_wrapped(dataset)
    if wrapped is None or num_samples_seen is None or wrapped.num_ranks == 1:
        return
    if num_samples_seen == wrapped.length < wrapped.num_samples:
        warnings.warn(
            f"{type(dataset).__name__} shows {num_samples_seen} of {wrapped.num_samples} samples: "
            "len() of a StreamingDataset counts those of one rank. Let the wrapper use "
            "dataset.num_samples.",
            stacklevel=4,
        )


def check_same_columns(dataset: StreamingDataset) -> None:
    """Refuse streams of other columns, whose samples fit into no batch (ConfigError).

    The columns behind a function or a class of the user are not known here.
    """
    if not dataset._is_plain or dataset.batching_method.endswith("per_stream"):
        return
    first: tuple[int, set[str]] | None = None
    for stream, index in enumerate(dataset._shards.indexes):
        for schema in index.schemas:
            names = {name for name in schema.columns.names if name in dataset._columns}
            if first is not None and names != first[1]:
                raise ConfigError(
                    f"samples of {_called(first[0], dataset)} have {_listed(first[1])}, those of "
                    f"{_called(stream, dataset)} have {_listed(names)}: they do not fit into one "
                    "batch. Give columns= that all have, batching_method='per_stream', or a "
                    "collate_fn=."
                )
            first = first or (stream, names)


def check_generators(dataset: StreamingDataset) -> None:
    """Refuse functions under `seeded` where threads share the generators (ConfigError)."""
    for link in dataset._filter.chain.links:
        if isinstance(link.function, Seeded):
            raise ConfigError(
                f"workers='threads': {link.function!r} seeds the global random generators, which "
                "threads share. Use workers='processes', or draw from the argument rng of map()."
            )


def _called(stream: int, dataset: StreamingDataset) -> str:
    if dataset.num_streams == 1:
        return "some shards"
    name = dataset.streams[stream]._name
    return f"stream {stream}" if name is None else f"stream {name!r}"


def _listed(names: set[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "no columns"


def refuse_sampling(names: list[str]) -> None:
    """Refuse arguments of a loader that a StreamingDataset takes instead (ConfigError)."""
    ways = {
        "shuffle": "StreamingDataset(..., shuffle=True, shuffle_seed=...) shuffles it",
        "sampler": "its ranks are found by themselves, or given by topology=; select() chooses",
        "batch_sampler": "batch_size= and batching_method= of the dataset decide",
    }
    remedies = "; ".join(f"{name}=: {ways[name]}" for name in names)
    raise ConfigError(f"the order is the dataset's own, so a loader cannot change it. {remedies}.")


def _inside(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those in its attributes and in theirs, each once."""
    waiting, seen_ids = [dataset], {id(dataset)}
    while waiting:
        each = waiting.pop(0)
        yield each
        if isinstance(each, StreamingDataset):
            continue
        for value in [*getattr(each, "__dict__", {}).values()]:
            for item in value[:_MAX_LISTED] if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, Dataset) and id(item) not in seen_ids:
                    seen_ids.add(id(item))
                    waiting.append(item)
