"""Checks of what a loader is given: its arguments, and datasets that wrap a StreamingDataset.

Add a rule to `LOADER_RULES` for a new argument.

As in torch, the kind of the outermost dataset decides. An IterableDataset iterates what it wraps,
in our order, and its position is known. Anything else is asked for samples by number, in the order
of a sampler: there torch's rules hold unchanged, and no position is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from torch.utils.data import ConcatDataset, Dataset, IterableDataset

from mds._arguments import (
    Rule,
    check_arguments,
    flag,
    function,
    number,
    one_of,
    refuse_unknown,
    shown,
    whole,
)
from mds._dataset.run import run_of, source_of
from mds._dataset.streaming import StreamingDataset
from mds._iteration.batch_maker import is_default_collate
from mds._words import WorkerType, plural
from mds.errors import ArgumentError, ConfigError


def _is_pad_word(value: Any) -> bool:
    """Return True if a value is a text that names padding in other libraries."""
    return isinstance(value, str) and value.lower() in ("pad", "padded", "padding", "longest")


LOADER_RULES: dict[str, Rule] = {
    "batch_size": whole(1, unit="samples").or_none("samples one by one"),
    "num_workers": whole(0),
    "worker_type": one_of(*get_args(WorkerType)),
    "microbatches": whole(1, unit="batches"),
    "collate_fn": function("a function that makes a batch of a list of samples")
    ._replace(fix=lambda value: "mds.transforms.pad('tokens')" if _is_pad_word(value) else "")
    .or_none(),
    "pin_memory": flag(),
    "drop_last": flag(),
    "timeout": number(above=0, reaches=True, unit="seconds"),
    "worker_init_fn": function("a function of a worker's number").or_none(),
    "prefetch_factor": whole(1, unit="batches").or_none("2 of each worker"),
    "persistent_workers": flag(),
    "in_order": flag(),
}


def check_loader(owner: str, dataset: Any, arguments: Mapping[str, Any], names: list[str]) -> None:
    """Check the dataset and the arguments of a loader.

    Args:
        owner: Name of the user's class, for messages.
        dataset: Dataset that the loader was given.
        arguments: Other arguments, by name.
        names: Names of all arguments that a loader takes.

    Raises ConfigError, or its subclass ArgumentError for a wrong type or an unknown name.
    """
    if isinstance(dataset, (str, bytes, dict)) or not (
        hasattr(dataset, "__iter__") or hasattr(dataset, "__getitem__")
    ):
        raise ArgumentError(
            f"{owner}({shown(dataset)}): the first argument must be a dataset. Write "
            f"{owner}(StreamingDataset(local=...), batch_size=...)."
        )
    refuse_workers(owner, arguments)
    refuse_unknown(owner, arguments, names, "StreamingDataLoader")
    check_arguments(owner, arguments, LOADER_RULES)
    if arguments.get("num_workers", 0):
        return
    for name in ("prefetch_factor", "persistent_workers", "worker_type"):
        if arguments.get(name) and arguments[name] != "auto":
            raise ConfigError(
                f"{owner}({name}={arguments[name]!r}): the loader has no workers, so it would "
                f"have no effect. Give num_workers= too, or leave {name} out."
            )


def refuse_workers(owner: str, arguments: Mapping[str, Any]) -> None:
    """Refuse the argument ``workers``, which meant two things, and name the right one."""
    if "workers" in arguments:
        value = arguments["workers"]
        name = "worker_type" if isinstance(value, str) else "num_workers"
        raise ArgumentError(
            f"{owner}(workers={shown(value)}): the argument is named {name}=. Write "
            f"{name}={shown(value)}."
        )


def check_microbatches(loader: Any, dataset: StreamingDataset | None) -> None:
    """Refuse micro-batches of a loader whose batches are not equal parts of a step (ConfigError).

    ``dataset``: StreamingDataset that the loader reads, or None.
    """
    count, size = loader.microbatches, loader.batch_size
    if dataset is None or not run_of(dataset).is_strict:
        kind = type(loader.dataset)
        raise ConfigError(
            f"microbatches={count}: steps are divided for a StreamingDataset of mds, but this "
            f"loader reads a {kind.__module__}.{kind.__name__}. Leave it out."
        )
    if size is None:
        raise ConfigError(
            f"microbatches={count} divides steps into batches, but batch_size=None makes single "
            "samples. Give a batch_size."
        )
    if size != dataset.batch_size:
        raise ConfigError(
            f"microbatches={count}: batch_size is {size} for the loader but {dataset.batch_size} "
            f"for the dataset. It is the size of one of the {plural(count, 'batch')} of a step, "
            "so it must "
            f"be {size} for both, or be given to only one of them."
        )


def check_packs(loader: Any, streaming: StreamingDataset) -> None:
    """Refuse a loader and its dataset with packing if their settings contradict each other.

    Raises ConfigError. Without packing there is nothing to refuse.
    """
    if streaming.packing is None:
        return
    from mds._iteration.packed_batches import check_packing
    from mds.transforms._collate import ColumnFunction

    if streaming is not loader.dataset or type(streaming).__iter__ is not StreamingDataset.__iter__:
        raise ConfigError(
            f"packing= needs a StreamingDataset, but {type(loader.dataset).__name__} has its own "
            "__iter__ over samples. Give the loader the StreamingDataset, and change samples in "
            "map()."
        )
    order = run_of(streaming).order
    check_packing(source_of(streaming), order.spec, order.samples_by_stream())
    if loader.batch_size != streaming.batch_size:
        raise ConfigError(
            f"batch_size counts packs here, and is {loader.batch_size} for the loader but "
            f"{streaming.batch_size} for the dataset. Give it only to the dataset."
        )
    is_ours = isinstance(loader.collate_fn, ColumnFunction)
    if not is_ours and not is_default_collate(loader.collate_fn):
        raise ConfigError(
            "packing= makes the batches, so collate_fn= would get no samples. Move its code into "
            "map(), for each document, or map_batches(), for the packed batch."
        )


def check_threads(arguments: Mapping[str, Any], about_processes: tuple[str, ...]) -> None:
    """Refuse options of worker processes beside ``worker_type="threads"`` (ConfigError)."""
    for name in about_processes:
        if arguments.get(name):
            raise ConfigError(
                f"{name}={shown(arguments[name])} would have no effect: it applies to worker "
                "processes, but worker_type='threads' has none. Leave it out, or use "
                "worker_type='processes'."
            )


_MAX_DEPTH = 16  # of wrappers, which may refer to each other in a circle
_MAX_LISTED = 100  # items of a list in which datasets are searched


def find_streaming(dataset: Any) -> StreamingDataset | None:
    """Return the StreamingDataset that a loader iterates, or None if there is none.

    It is the dataset itself, or the ``.dataset`` of a wrapper (or of several) that iterates it.
    """
    for _ in range(_MAX_DEPTH):
        if isinstance(dataset, StreamingDataset):
            return dataset
        if not isinstance(dataset, IterableDataset):
            return None
        dataset = getattr(dataset, "dataset", None)
    return None


def find_wrapped(dataset: Any) -> StreamingDataset | None:
    """Return the StreamingDataset inside a wrapper that keeps no position, or None."""
    if find_streaming(dataset) is not None:
        return None
    return next((d for d in _walk_datasets(dataset) if isinstance(d, StreamingDataset)), None)


def check_wrapper(dataset: Any, num_samples_seen: int | None) -> None:
    """Refuse a ConcatDataset of streaming datasets; warn of a wrapper that hides samples.

    ``num_samples_seen``: length of the wrapper, or None if it has none. torch refuses such a
    ConcatDataset by an assertion, which ``python -O`` removes. Raises ConfigError.
    """
    for inner in _walk_datasets(dataset):
        if isinstance(inner, ConcatDataset) and any(
            isinstance(d, StreamingDataset) for d in inner.datasets
        ):
            raise ConfigError(
                f"a {type(inner).__name__} cannot keep the order of streaming datasets. Use one "
                "StreamingDataset with several streams: streams=[Stream(...), Stream(...)]."
            )
    wrapped = find_wrapped(dataset)
    if wrapped is None or num_samples_seen is None or wrapped.num_ranks == 1:
        return
    if num_samples_seen == wrapped.length < wrapped.num_samples:
        warnings.warn(
            f"{type(dataset).__name__} has {num_samples_seen} of "
            f"{plural(wrapped.num_samples, 'sample')}, "
            "because len() of a StreamingDataset counts the samples of one rank. Use "
            "dataset.num_samples in the wrapper.",
            stacklevel=4,
        )


def check_same_columns(dataset: StreamingDataset) -> None:
    """Refuse streams whose columns differ: they do not fit into one batch (ConfigError).

    The columns that functions or a class of the user return are not known here, and not checked.
    """
    source = source_of(dataset)
    if not source.is_plain or dataset.batching_method.endswith("per_stream"):
        return
    first: tuple[int, set[str]] | None = None  # number of the first stream, and its columns
    for stream, index in enumerate(source.shards.indexes):
        for schema in index.schemas:
            names = {name for name in schema.columns.names if name in source.columns}
            if first is not None and names != first[1]:
                raise ConfigError(
                    f"samples of {_stream_name(first[0], dataset)} have {_list_names(first[1])}, "
                    f"but those of {_stream_name(stream, dataset)} have {_list_names(names)}, so "
                    "they do not fit into one batch. Choose common columns with columns=, or use "
                    "batching_method='per_stream' or a collate_fn=."
                )
            first = first or (stream, names)


def check_generators(dataset: StreamingDataset) -> None:
    """Refuse functions of a dataset that `mds.transforms.seeded` wraps (ConfigError).

    They seed the global random generators, which would be those of all threads.
    """
    from mds.transforms._randomness import Seeded

    for link in source_of(dataset).filter.chain.links:
        if isinstance(link.function, Seeded):
            raise ConfigError(
                f"worker_type='threads': {link.function!r} seeds the global random generators, "
                "which threads share. Use worker_type='processes', or draw from the argument rng "
                "of map()."
            )


def _stream_name(stream: int, dataset: StreamingDataset) -> str:
    """Return words for a stream in a message; ``stream`` is its number from 0."""
    if dataset.num_streams == 1:
        return "some shards"
    return f"stream {[*run_of(dataset).order.samples_by_stream()][stream]}"


def _list_names(names: set[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "no columns"


def refuse_sampling(names: list[str]) -> None:
    """Refuse arguments of a loader whose work the dataset does (ConfigError).

    ``names``: those of ``shuffle``, ``sampler`` and ``batch_sampler`` that were given.
    """
    ways = {
        "shuffle": "StreamingDataset(..., shuffle=True, shuffle_seed=...) shuffles it",
        "sampler": "it finds its ranks itself, or use topology=; select() chooses samples",
        "batch_sampler": "use batch_size= and batching_method= of the dataset",
    }
    remedies = "; ".join(f"{name}=: {ways[name]}" for name in names)
    raise ConfigError(f"the dataset sets the order, so a loader cannot change it. {remedies}.")


def _walk_datasets(dataset: Any) -> Iterator[Any]:
    """Yield a dataset, the datasets in its attributes, those in their attributes, and so on.

    Each comes once, also if datasets refer to each other. Lists in attributes are searched too, up
    to their first `_MAX_LISTED` items; a StreamingDataset is not searched.
    """
    waiting, seen_ids = [dataset], {id(dataset)}
    while waiting:
        owner = waiting.pop(0)
        yield owner
        if isinstance(owner, StreamingDataset):
            continue
        for value in [*getattr(owner, "__dict__", {}).values()]:
            for item in value[:_MAX_LISTED] if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, Dataset) and id(item) not in seen_ids:
                    seen_ids.add(id(item))
                    waiting.append(item)
