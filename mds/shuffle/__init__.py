"""Registry of shuffles: from shard sizes, seed, epoch and block to a permutation of ids.

A shuffle is a class in a file of its own, which is imported when its name is looked up. Those of
mosaicml-streaming (all but ``seekable``) draw the same random numbers in the same order as there
and so give the same order to the last id. `register_shuffle` adds one; so does an entry point of
the group ``mds.shuffles``.
"""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.arguments import did_you_mean
from mds.errors import ConfigError, UnknownNameError
from mds.shuffle.base import RandomAccessShuffle, Shuffle, ShuffleSpec
from mds.shuffle.sequential import SequentialShuffle

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "RandomAccessShuffle",
    "SequentialShuffle",
    "Shuffle",
    "ShuffleSpec",
    "algos",
    "find_shuffle",
    "get_shuffle",
    "register_shuffle",
]

#: Built-in shuffles: the name, which is also the module's, and the class in it.
_BUILT_IN = {
    "naive": "Naive",
    "py1b": "Py1b",
    "py1br": "Py1br",
    "py1e": "Py1e",
    "py1s": "Py1s",
    "py2s": "Py2s",
    "seekable": "Seekable",
}


class _Algorithms(UserDict[str, type[Shuffle]]):
    """Shuffles by name; built-in ones are imported when they are first looked up.

    Until then the value of a name in ``data`` is the name of the class, a string.
    """

    # UserDict would look the name up, and so import the module.
    def __contains__(self, name: object) -> bool:
        return name in self.data

    def __getitem__(self, name: str) -> type[Shuffle]:
        entry: Any = self.data[name]
        if isinstance(entry, str):
            entry = self.data[name] = getattr(import_module(f"mds.shuffle.{name}"), entry)
        algorithm: type[Shuffle] = entry
        return algorithm


algos = _Algorithms()
algos.data.update(_BUILT_IN)  # type: ignore[arg-type]  # names of classes, until they are imported


def register_shuffle(name: str, algorithm: type[Shuffle]) -> None:
    """Make an algorithm available as ``shuffle_algo=name``.

    - ``name`` (str): Its name. States record it.
    - ``algorithm`` (type): A subclass of `SequentialShuffle` or `RandomAccessShuffle`.

    Every process that plans must register it, worker processes too: do so where the dataset's class
    is defined, or name it in an entry point of the group ``mds.shuffles``. Raises ConfigError for a
    built-in name, whose order must not change.

    >>> register_shuffle("whole_shards", WholeShards)  # doctest: +SKIP
    >>> mds.StreamingDataset("data/train", shuffle_algo="whole_shards")  # doctest: +SKIP
    """
    if name in _BUILT_IN:
        raise ConfigError(f"shuffle_algo {name!r} is built in: take another name.")
    algos[name] = _checked_shuffle(name, algorithm)


def find_shuffle(name: str) -> type[Shuffle]:
    """Return the shuffle of a name: a built-in or registered one, or that of an entry point.

    Raises UnknownNameError (a KeyError and a ValueError) for an unknown name.
    """
    if name in algos:
        return algos[name]
    from mds.lazy_imports import load_plugin

    loaded = load_plugin("mds.shuffles", name, "shuffle_algo")
    if loaded is not None:
        return algos.setdefault(name, _checked_shuffle(name, loaded))
    raise UnknownNameError(
        f"no shuffle_algo {name!r}: choose one of {', '.join(algos)}.{did_you_mean(name, algos)}"
    )


def _checked_shuffle(name: str, algorithm: object) -> type[Shuffle]:
    """Return a class if it is a shuffle. Raises ConfigError for anything else."""
    # Plans read sequential and random-access shuffles in different ways, and know no other way.
    kinds = (SequentialShuffle, RandomAccessShuffle)
    if not (isinstance(algorithm, type) and issubclass(algorithm, kinds)):
        raise ConfigError(
            f"shuffle_algo {name!r} is {algorithm!r}: inherit mds.shuffle.SequentialShuffle or "
            "mds.shuffle.RandomAccessShuffle."
        )
    return algorithm


def get_shuffle(
    algo: str,
    shard_sizes: ArrayLike,
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> NDArray[np.int64]:
    """Return the ids 0 to sum(shard_sizes) - 1 in the order of an epoch, as one int64 array.

    - ``algo`` (str): Name of the shuffle.
    - ``shard_sizes`` (array of integers): Samples of each shard.
    - ``num_canonical_nodes`` (int): Nodes to which shards are dealt once for all epochs.
    - ``seed`` (int): Seed of the run.
    - ``epoch`` (int): Number of the epoch, from 0.
    - ``block_size`` (int, default 262144, samples): Size of a block, if the shuffle has any.

    Raises UnknownNameError for an unknown ``algo`` and PlanError for numbers that make no order.

    >>> get_shuffle("py1s", [3, 3], num_canonical_nodes=1, seed=1, epoch=0)
    array([0, 1, 2, 5, 3, 4])
    """
    algorithm = find_shuffle(algo)
    sizes = np.asarray(shard_sizes, np.int64).reshape(-1)
    spec = ShuffleSpec(sizes, num_canonical_nodes, seed, epoch, block_size)
    shuffle = algorithm(spec)
    out = np.empty(spec.samples, np.int64)
    start = 0
    for node in range(spec.num_canonical_nodes):
        for ids in shuffle.windows(node):
            out[start : start + len(ids)] = ids
            start += len(ids)
    return out
