"""Subsets of a dataset, chosen before or while it is iterated; each is a dataset of its own.

These functions are methods of Samples.
"""

from __future__ import annotations

import copy
import numbers
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from mds.arguments import check_arguments, shown
from mds.cache.source import cache_root
from mds.dataset.filtering import Fate
from mds.dataset.reading import ReadableDataset, all_items, judge_all
from mds.dataset.schema import column_names
from mds.dataset.selection import Selection, key_of, parse_selection, split_by_hash
from mds.dataset.selection_files import evaluate_once
from mds.dataset.settings import LIMIT_RULES, check_function, find_column
from mds.dataset.shard_map import ShardMap
from mds.errors import ArgumentError, ConfigError
from mds.units import parse_count

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.readers import ColumnSelection


class SubsettableDataset(ReadableDataset, Protocol):
    """What these functions need of a dataset."""

    _columns: ColumnSelection

    def get_item(self, sample_id: int) -> Any: ...  # noqa: D102 - the dataset tells it
    def _reset(self, shards: ShardMap) -> None: ...


D = TypeVar("D", bound=SubsettableDataset)


def select(
    self: D,
    choice: Any = None,
    *,
    where: Callable[[Any], Any] | None = None,
    key: str | None = None,
) -> D:
    """A dataset of the chosen samples only; they are numbered anew from 0.

    ``choice``: distinct sample numbers, a boolean mask of ``num_samples``, or a ``.npy`` file
    of either. Or ``where``: a function of a sample, which is called for every sample now, once
    on a node, so that batches are full. ``key`` names what it chooses: the result is kept in
    the cache folder and later runs take it as it is, so use another key when the function
    changes. Order, resume and ranks hold for a selection as for a whole dataset.

    >>> long = dataset.select(where=lambda s: len(s["text"]) > 99, key="long")  # doctest: +SKIP
    """
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
    if where is not None:
        check_function(type(self).__name__, "select", where, "where=lambda sample: ...")
        return _selected(self, _evaluated(self, where, key))
    return _selected(self, parse_selection(choice, self._shards.num_samples))


def limit(self: D, samples: int | str) -> D:
    """A dataset of the first ``samples`` samples (a number, or a text as "10k"; 0: none)."""
    check_arguments(f"{type(self).__name__}.limit", {"samples": samples}, LIMIT_RULES)
    count = parse_count(samples)
    return _selected(self, np.arange(min(count, self._shards.num_samples)))


def filter(self: D, keep: Callable[[Any], bool]) -> D:  # noqa: A001 - a method's name
    """A dataset that drops the samples for which ``keep`` is false, while iterating.

    A batch of a loader holds what is kept of its places in the order: it is smaller by what was
    dropped and never filled up, so the number of steps is that of the unfiltered dataset, the
    same on all ranks. Every batch gets a ``mask``; where nothing is left of one it holds a
    single sample whose mask is False. ``skipped`` and `stats` tell what was dropped. With
    worker processes that are spawned, ``keep`` must be fit for a pickle. For full batches
    decide beforehand: `select`.
    """
    part = copy.copy(self)
    part._filter = self._filter.with_function("filter", keep)
    part._reset(self._shards)
    return part


def split(
    self: D, shares: Mapping[str, float], *, by: str | None = None, seed: int = 0
) -> dict[str, D]:
    """Disjoint datasets by name that together are this one.

    A sample's part depends on its number and ``seed`` alone, so it stays when samples are
    added behind it. With ``by`` it depends on the value of that column instead, so that what
    belongs together (a user, a book) stays together; every sample is read once for that.

    >>> parts = dataset.split({"train": 0.98, "val": 0.02}, by="book")  # doctest: +SKIP
    """
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
    if by is None:
        keys = np.arange(self._shards.num_samples, dtype=np.uint64)
    else:
        find_column(f"split(by={by!r})", by, column_names(self._shards.indexes))
        values = (sample[by] for sample in all_items(self, self.get_item))
        keys = np.fromiter(map(key_of, values), np.uint64, self._shards.num_samples)
    parts = split_by_hash(keys, shares, seed)
    return {name: _selected(self, ids) for name, ids in parts.items()}


def _evaluated(
    dataset: SubsettableDataset, where: Callable[[Any], Any], key: str | None
) -> npt.NDArray[np.int64]:
    """The numbers of the samples for which ``where`` is true."""
    kept = dataset._filter.with_function("filter", where)

    def evaluate() -> npt.NDArray[np.int64]:
        judged = judge_all(dataset, kept)
        return np.array([i for i, _, fate in judged if fate is Fate.KEPT], np.int64)

    if dataset._filter.chain.links:
        return evaluate()  # what earlier functions refer to has no name
    folder = os.path.join(cache_root(), "selections")
    chosen = evaluate_once(folder, _data_name(dataset), where, key, evaluate)
    if len(chosen) and not 0 <= chosen[0] <= chosen[-1] < dataset._shards.num_samples:
        return evaluate()  # of other data, whatever its name says
    return chosen


def _data_name(dataset: SubsettableDataset) -> str:
    """What samples depend on: the data, how they are read, and a subclass that changes them."""
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    sources = [
        (s.index.fingerprint, s.remote or s.folder, s.version) for s in dataset._cache.sources
    ]
    skips = dataset._filter.skip_broken
    return repr((sources, dataset._shards.fingerprint, dataset._columns, skips, kind))


def _selected(dataset: D, ids: npt.NDArray[np.int64]) -> D:
    """A dataset of these of its samples."""
    part = copy.copy(dataset)
    before = dataset._shards.selection
    selection = before.within(ids) if before is not None else Selection(ids)
    part._reset(ShardMap(dataset._shards.indexes, selection))
    return part
