"""Samples of a subset: chosen by a function of a sample, or dealt to parts by a hash."""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.arguments import shown
from mds.cache.source import cache_root
from mds.dataset.filtering import Fate
from mds.dataset.reading import ReadableDataset, all_items, judge_all
from mds.dataset.schema import column_names
from mds.dataset.selection import evaluate_once, key_of, parse_selection, split_by_hash
from mds.dataset.settings import check_function, find_column
from mds.errors import ArgumentError, ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt

    Ids = npt.NDArray[np.int64]


def choose_numbers(
    dataset: ReadableDataset, choice: Any, where: Callable[[Any], Any] | None, key: str | None
) -> Ids:
    """Return the sorted numbers of the samples of `Samples.select`."""
    if (choice is None) == (where is None):
        raise ConfigError(
            "select() takes sample numbers or where=, and one of them: select([0, 7]), or "
            "select(where=lambda sample: ...)."
        )
    if key is not None and (where is None or not isinstance(key, str)):
        raise ConfigError(
            f"select(key={shown(key)}): key is a text that names what where= chooses, as in "
            "select(where=lambda sample: ..., key='long')."
        )
    if where is None:
        return parse_selection(choice, dataset._shards.num_samples)
    check_function(type(dataset).__name__, "select", where, "where=lambda sample: ...")
    return _evaluate(dataset, where, key)


def choose_parts(
    dataset: ReadableDataset, shares: Mapping[str, float], by: str | None, seed: int
) -> dict[str, Ids]:
    """Return the sorted numbers of the samples of each part of `Samples.split`."""
    if not isinstance(shares, Mapping):
        raise ConfigError(
            "split() takes a share for each name, as in {'train': 0.9, 'val': 0.1}, got "
            f"{shares!r}."
        )
    share: Any
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, numbers.Real):
            raise ArgumentError(
                f"split() takes a number for each name, got {share!r} for {name!r}. Write "
                "{'train': 0.9, 'val': 0.1}."
            )
    count = dataset._shards.num_samples
    if by is None:
        keys = np.arange(count, dtype=np.uint64)
    else:
        find_column(f"split(by={by!r})", by, column_names(dataset._shards.indexes))
        values = (sample[by] for sample in all_items(dataset, dataset.get_item))
        keys = np.fromiter(map(key_of, values), np.uint64, count)
    return split_by_hash(keys, shares, seed)


def _evaluate(dataset: ReadableDataset, where: Callable[[Any], Any], key: str | None) -> Ids:
    """Return the numbers of the samples for which ``where`` is true."""
    kept = dataset._filter.with_function("filter", where)

    def evaluate() -> Ids:
        fates = judge_all(dataset, kept)
        return np.array([number for number, _, fate in fates if fate is Fate.KEPT], np.int64)

    if dataset._filter.chain.links:
        return evaluate()  # earlier functions may depend on anything, so the result has no name
    folder = os.path.join(cache_root(), "selections")
    chosen = evaluate_once(folder, _data_name(dataset), where, key, evaluate)
    if len(chosen) and not 0 <= chosen[0] <= chosen[-1] < dataset._shards.num_samples:
        return evaluate()  # the stored result is of other data
    return chosen


def _data_name(dataset: ReadableDataset) -> str:
    """Return a name of the data, how they are read, and a subclass that changes samples."""
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    sources = [
        (s.index.fingerprint, s.remote or s.folder, s.version) for s in dataset._cache.sources
    ]
    skips = dataset._filter.skip_broken
    return repr((sources, dataset._shards.fingerprint, dataset._columns, skips, kind))
