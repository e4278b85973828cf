"""Shuffles: from unit sizes, canonical nodes, seed, epoch and block size to an order of ids.

One algorithm a file. Those of the incumbent draw the same random numbers in the same order and so
give the same order to the last id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.errors import UnknownNameError
from mds.shuffle.drawn import DrawnShuffle
from mds.shuffle.naive import Naive
from mds.shuffle.py1b import Py1b
from mds.shuffle.py1br import Py1br
from mds.shuffle.py1e import Py1e
from mds.shuffle.py1s import Py1s
from mds.shuffle.py2s import Py2s
from mds.shuffle.seekable import Seekable
from mds.shuffle.spans import ShuffleSpec

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["DrawnShuffle", "Seekable", "ShuffleSpec", "algos", "find_shuffle", "get_shuffle"]

algos: dict[str, type[DrawnShuffle | Seekable]] = {
    "naive": Naive,
    "py1b": Py1b,
    "py1br": Py1br,
    "py1e": Py1e,
    "py1s": Py1s,
    "py2s": Py2s,
    "seekable": Seekable,
}


def find_shuffle(name: str) -> type[DrawnShuffle | Seekable]:
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
    shuffle = make(spec)
    out = np.empty(spec.samples, np.int64)
    at = 0
    for node in range(spec.num_canonical_nodes):
        for ids in shuffle.windows(node):
            out[at : at + len(ids)] = ids
            at += len(ids)
    return out
