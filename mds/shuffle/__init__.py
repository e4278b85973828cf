"""Registry of shuffles: from shard sizes, seed, epoch and block to a permutation of ids.

One algorithm a file. Those of the incumbent draw the same random numbers in the same order and so
give the same order to the last id. `register_shuffle` adds one; so does an entry point of the group
``mds.shuffles``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.errors import ConfigError, UnknownNameError
from mds.plugins import load_plugin
from mds.shuffle.base import RandomAccessShuffle, Shuffle, ShuffleSpec
from mds.shuffle.naive import Naive
from mds.shuffle.py1b import Py1b
from mds.shuffle.py1br import Py1br
from mds.shuffle.py1e import Py1e
from mds.shuffle.py1s import Py1s
from mds.shuffle.py2s import Py2s
from mds.shuffle.seekable import Seekable
from mds.shuffle.sequential import SequentialShuffle
from mds.text.near import did_you_mean

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

algos: dict[str, type[Shuffle]] = {
    "naive": Naive,
    "py1b": Py1b,
    "py1br": Py1br,
    "py1e": Py1e,
    "py1s": Py1s,
    "py2s": Py2s,
    "seekable": Seekable,
}
_BUILT_IN = frozenset(algos)


def register_shuffle(name: str, algorithm: type[Shuffle]) -> None:
    """Have ``shuffle_algo=name`` shuffle by ``algorithm``.

    Every process that plans must register it, worker processes too: do so where the dataset's class
    is defined, or name it in an entry point of the group ``mds.shuffles``. Raises ConfigError for a
    name of ours, whose order must not change.
    """
    if name in _BUILT_IN:
        raise ConfigError(f"shuffle_algo {name!r} is built in: take another name.")
    algos[name] = _checked_shuffle(name, algorithm)


def find_shuffle(name: str) -> type[Shuffle]:
    """The algorithm of that name. Raises UnknownNameError (a KeyError and a ValueError)."""
    if name in algos:
        return algos[name]
    loaded = load_plugin("mds.shuffles", name, "shuffle_algo")
    if loaded is not None:
        return algos.setdefault(name, _checked_shuffle(name, loaded))
    raise UnknownNameError(
        f"no shuffle_algo {name!r}: choose one of {', '.join(algos)}.{did_you_mean(name, algos)}"
    )


def _checked_shuffle(name: str, algorithm: object) -> type[Shuffle]:
    # Plans read sequential and random-access shuffles in different ways; there is no third.
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
    """The ids 0 to sum(shard_sizes) - 1 in the order of an epoch, as one int64 array.

    Raises UnknownNameError for an unknown ``algo`` and PlanError for numbers that make no order.
    """
    algorithm = find_shuffle(algo)
    sizes = np.asarray(shard_sizes, np.int64).reshape(-1)
    spec = ShuffleSpec(sizes, num_canonical_nodes, seed, epoch, block_size)
    shuffle = algorithm(spec)
    out = np.empty(spec.samples, np.int64)
    at = 0
    for node in range(spec.num_canonical_nodes):
        for ids in shuffle.windows(node):
            out[at : at + len(ids)] = ids
            at += len(ids)
    return out
