"""Registry of shuffles: from shard sizes, seed, epoch and block to a permutation of ids.

A shuffle is a class in a file of its own, which is imported when its name is looked up. Those of
mosaicml-streaming (all but ``seekable``) draw the same random numbers in the same order as there
and so give the same order to the last id. `register_shuffle` adds one; so does an entry point of
the group ``mds.shuffles``.
"""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from mds._arguments import did_you_mean
from mds._lazy_imports import Registry, registers
from mds._words import ShuffleAlgo
from mds.errors import UnknownNameError
from mds.shuffle._base import RandomAccessShuffle, Shuffle, ShuffleSpec
from mds.shuffle._sequential import SequentialShuffle

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: Built-in shuffles: the name, which is also the module's, and the class in it.
_BUILT_IN = {name: name.capitalize() for name in get_args(ShuffleAlgo)}


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
            entry = self.data[name] = getattr(import_module(f"mds.shuffle._{name}"), entry)
        algorithm: type[Shuffle] = entry
        return algorithm


algos = _Algorithms()
algos.data.update(_BUILT_IN)  # names of classes, until they are imported


def _is_shuffle(algorithm: Any) -> bool:
    """Whether an object is a class of shuffles: plans know no other than these two ways to read."""
    kinds = (SequentialShuffle, RandomAccessShuffle)
    return isinstance(algorithm, type) and issubclass(algorithm, kinds)


_shuffles: Registry[type[Shuffle]] = Registry(
    "shuffle",
    algos,
    _BUILT_IN,
    _is_shuffle,
    "inherit mds.shuffle.SequentialShuffle or mds.shuffle.RandomAccessShuffle",
    "ShuffleContract",
)


@registers
def register_shuffle(name: str, shuffle: type[Shuffle], *, replace: bool = False) -> None:
    """Make a shuffle available as ``shuffle_algo=name``; also a decorator, without ``shuffle``.

    - ``name`` (str): Its name. States record it.
    - ``shuffle`` (type): A subclass of `SequentialShuffle` or `RandomAccessShuffle`.
      `mds.testing.ShuffleContract` tests it.
    - ``replace`` (bool, default False): Whether the name may be taken; see docs/contributing.md.

    Every process that plans must register it, worker processes too: do so at the top level of the
    training script, or name it in an entry point of the group ``mds.shuffles``. Raises ConfigError
    for a name that is taken, and for another object.

    >>> @register_shuffle("whole_shards")  # doctest: +SKIP
    ... class WholeShards(SequentialShuffle): ...
    >>> mds.StreamingDataset("data/train", shuffle_algo="whole_shards")  # doctest: +SKIP
    """
    _shuffles.add(name, shuffle, replace=replace)


def find_shuffle(name: str) -> type[Shuffle]:
    """Return the shuffle of a name: a built-in or registered one, or that of an entry point.

    Raises UnknownNameError (a KeyError and a ValueError) for an unknown name.
    """
    algorithm = _shuffles.find(name)
    if algorithm is not None:
        return algorithm
    raise UnknownNameError(
        f"no shuffle_algo {name!r}: choose one of {', '.join(algos)}.{did_you_mean(name, algos)}"
    )


def get_shuffle(
    algo: ShuffleAlgo | str,
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
