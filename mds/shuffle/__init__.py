"""Shuffles: from unit sizes, canonical nodes, seed, epoch and block size to an order of ids.

One algorithm a file. Those of the incumbent draw the same random numbers in the same order and so
give the same order to the last id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.errors import UnknownNameError
from mds.shuffle.naive import naive
from mds.shuffle.py1b import py1b
from mds.shuffle.py1br import py1br
from mds.shuffle.py1e import py1e
from mds.shuffle.py1s import py1s
from mds.shuffle.py2s import py2s
from mds.shuffle.spans import ShuffleSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike, NDArray

__all__ = ["ShuffleSpec", "algos", "find_shuffle", "get_shuffle"]

algos: dict[str, Callable[[ShuffleSpec], Iterator[NDArray[np.int64]]]] = {
    "naive": naive,
    "py1b": py1b,
    "py1br": py1br,
    "py1e": py1e,
    "py1s": py1s,
    "py2s": py2s,
}


def find_shuffle(name: str) -> Callable[[ShuffleSpec], Iterator[NDArray[np.int64]]]:
    """The algorithm of that name. Raises UnknownNameError (a KeyError and a ValueError)."""
    if name not in algos:
        raise UnknownNameError(f"no shuffle_algo {name!r}: choose one of {', '.join(algos)}.")
    return algos[name]


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
    make = find_shuffle(algo)
    sizes = np.asarray(shard_sizes, np.int64).reshape(-1)
    spec = ShuffleSpec(sizes, num_canonical_nodes, seed, epoch, block_size)
    return np.concatenate([np.zeros(0, np.int64), *make(spec)])
