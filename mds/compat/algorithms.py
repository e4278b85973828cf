"""Shuffles and partitions by name, as `streaming.base.shuffle` and `streaming.base.partition`.

Both registries are live: an algorithm that code puts into one is used by datasets, under a name of
its own or in the place of a built-in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mds.compat.overrides import LiveRegistry
from mds.errors import ConfigError, UnknownNameError
from mds.plan import get_partitions as native_partitions
from mds.plan.spec import PARTITION_ALGOS
from mds.shuffle import SequentialShuffle, algos
from mds.shuffle import get_shuffle as native_shuffle

Ids = NDArray[np.int64]


def _shuffle_of(algo: str) -> Callable[..., Ids]:
    def get(
        shard_sizes: Ids, num_canonical_nodes: int, seed: int, epoch: int, block_size: int = 1 << 18
    ) -> Ids:
        return native_shuffle(algo, shard_sizes, num_canonical_nodes, seed, epoch, block_size)

    return _named(get, f"get_shuffle_{algo}", f"Return the order of samples that {algo!r} makes.")


def _partitions_of(algo: str) -> Callable[..., Ids]:
    def get(
        num_samples: int,
        num_canonical_nodes: int,
        num_physical_nodes: int,
        ranks_per_node: int,
        workers_per_rank: int,
        batch_size: int,
        drop_first: int = 0,
        initial_physical_nodes: int | None = None,
    ) -> Ids:
        return native_partitions(
            algo,
            num_samples,
            num_canonical_nodes,
            num_physical_nodes,
            ranks_per_node,
            workers_per_rank,
            batch_size,
            drop_first,
            initial_physical_nodes,
        )

    doc = f"Return the positions of each worker, as {algo!r} partitions them."
    return _named(get, f"get_partitions_{algo}", doc)


def _named(function: Callable[..., Ids], name: str, doc: str) -> Callable[..., Ids]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


_NATIVE_SHUFFLES = dict(algos.data)  # before code has replaced one


class _FunctionShuffle(SequentialShuffle):
    """Shuffle by a function that code has put into `shuffle.algos`."""

    function: ClassVar[Callable[..., Any]]
    needs_all_samples = True
    uses_blocks = True

    def prepare(self) -> np.random.Generator:
        """Call the function, which draws its own random numbers."""
        spec = self.spec
        order = type(self).function(
            spec.sizes, spec.num_canonical_nodes, spec.seed, spec.epoch, spec.block_size
        )
        self._ids = np.asarray(order, np.int64).reshape(-1)
        if not np.array_equal(np.sort(self._ids), np.arange(spec.samples)):
            raise ConfigError(
                f"the shuffle {type(self).__name__} returned {len(self._ids)} ids, which are not "
                f"each of 0 to {spec.samples - 1} once."
            )
        return np.random.default_rng(0)

    def generate(self, node: int, rng: np.random.Generator) -> Iterator[Ids]:
        """Yield the ids of a canonical node."""
        del rng
        yield self._ids[self.starts[node] : self.starts[node + 1]]


def _use_shuffle(name: str) -> None:
    """Let plans use the function that the registry now has under a name."""
    function = shuffle_algos.get(name)
    if shuffle_algos.is_original(name) and name in _NATIVE_SHUFFLES:
        algos.data[name] = _NATIVE_SHUFFLES[name]
    elif function is None:
        algos.data.pop(name, None)
    else:
        algos.data[name] = type(name, (_FunctionShuffle,), {"function": staticmethod(function)})


shuffle_algos: LiveRegistry[str, Callable[..., Ids]] = LiveRegistry(
    "shuffle.algos", {name: _shuffle_of(name) for name in algos}, _use_shuffle
)
partition_algos: LiveRegistry[str, Callable[..., Ids]] = LiveRegistry(
    "partition.algos", {name: _partitions_of(name) for name in PARTITION_ALGOS}
)
get_shuffle_naive = shuffle_algos["naive"]
get_shuffle_py1br = shuffle_algos["py1br"]
get_shuffle_py1e = shuffle_algos["py1e"]
get_shuffle_py1s = shuffle_algos["py1s"]
get_shuffle_py2s = shuffle_algos["py2s"]
get_partitions_orig = partition_algos["orig"]
get_partitions_relaxed = partition_algos["relaxed"]


def get_shuffle(
    algo: str,
    shard_sizes: Ids,
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> Ids:
    """Return the order of samples that an algorithm makes.

    Raises UnknownNameError (a KeyError) for an unknown algorithm.
    """
    if algo not in shuffle_algos:  # one that was registered with mds since
        return native_shuffle(algo, shard_sizes, num_canonical_nodes, seed, epoch, block_size)
    return shuffle_algos[algo](shard_sizes, num_canonical_nodes, seed, epoch, block_size)


def get_partitions(
    algo: str,
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> Ids:
    """Return the positions of each worker: (nodes, ranks, workers, batches, batch), -1 for padding.

    Raises UnknownNameError (a KeyError) for an unknown algorithm.
    """
    if algo not in partition_algos:
        raise UnknownNameError(
            f"no partition_algo {algo!r}: choose one of {', '.join(partition_algos)}."
        )
    return partition_algos[algo](
        num_samples,
        num_canonical_nodes,
        num_physical_nodes,
        ranks_per_node,
        workers_per_rank,
        batch_size,
        drop_first,
        initial_physical_nodes,
    )
