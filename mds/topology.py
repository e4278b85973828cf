"""Who am I among nodes, ranks and workers: found once, from what the launcher left behind.

The first of these that knows wins: what the caller said, torch.distributed if it is up, the
variables of torchrun, of SLURM, of Open MPI, and last a single process. Nothing is brought up: no
process group is made, no collective is called, no accelerator is touched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mds.errors import ConfigError
from mds.world import World

if TYPE_CHECKING:
    Topology = World | Callable[[], Any] | Any


class Ranks(NamedTuple):
    """The place of this process in a job, before workers and replication."""

    rank: int
    world_size: int
    local_world_size: int
    source: str

    def world(self, workers: int = 1, worker: int = 0) -> World:
        """The World of worker ``worker`` of ``workers`` of this rank."""
        nodes = self.world_size // self.local_world_size
        return World(nodes, self.local_world_size, workers, self.rank * workers + worker)


# Variables of each launcher: rank, world size, ranks on this node.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)


def find_ranks(topology: Topology | None = None) -> Ranks:
    """The ranks of this process.

    ``topology`` may be a World, a torch.distributed process group (its ranks are the data-parallel
    ranks), a one-dimensional DeviceMesh such as ``mesh['dp']``, a pair (rank, world size), or a
    function without arguments that gives one of these.
    Raises ConfigError when the numbers contradict each other.
    """
    while callable(topology) and not isinstance(topology, World):
        topology = topology()
    if topology is None:
        return _checked(_discovered(os.environ))
    if isinstance(topology, World):
        return Ranks(topology.rank, topology.num_ranks, topology.ranks_per_node, "topology=")
    if isinstance(topology, tuple):
        rank, size = topology
        return _checked(_within_node(int(rank), int(size), "topology="))
    if hasattr(topology, "get_local_rank"):  # a DeviceMesh
        if topology.ndim != 1:
            raise ConfigError(
                f"topology= is a DeviceMesh of {topology.ndim} dimensions. Give the data-parallel "
                "one, such as mesh['dp']."
            )
        return _checked(_within_node(topology.get_local_rank(), topology.size(), "DeviceMesh"))
    if hasattr(topology, "rank") and hasattr(topology, "size"):  # a process group
        return _checked(_within_node(topology.rank(), topology.size(), "process group"))
    raise ConfigError(
        f"topology= takes a World, a process group, a DeviceMesh dimension, (rank, world size) or "
        f"a function that gives one of these; got {type(topology).__name__}."
    )


def worker_place() -> tuple[int, int]:
    """(number of this DataLoader worker, how many there are); (0, 1) outside of workers."""
    info = _worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)


def worker_group() -> int:
    """A number that the workers of one DataLoader iterator share; -1 outside of workers."""
    info = _worker_info()
    return info.seed - info.id if info is not None else -1


def in_worker() -> bool:
    """Whether this process is a worker of a torch DataLoader."""
    return _worker_info() is not None


def _worker_info() -> Any:
    # Without torch loaded nobody can be one of its workers.
    data = sys.modules.get("torch.utils.data")
    return data.get_worker_info() if data is not None else None


def _discovered(env: Mapping[str, str]) -> Ranks:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
        return _within_node(rank, size, "torch.distributed")
    for source, rank_name, size_name, local_name in _LAUNCHERS:
        if rank_name in env or size_name in env:
            rank, size = _number(env, rank_name, 0), _number(env, size_name, 1)
            # SLURM writes "4(x2)" for two nodes of four.
            local = _number(env, local_name, 1 if source == "torchrun" else size)
            return Ranks(rank, size, local, source)
    return Ranks(0, 1, 1, "single process")


def _within_node(rank: int, size: int, source: str) -> Ranks:
    """Ranks whose number on a node is known from the environment, or else all on one node."""
    for _, _, _, name in _LAUNCHERS:
        if name in os.environ:
            local = _number(os.environ, name, size)
            # A data-parallel group may be smaller than a node's processes.
            return Ranks(rank, size, local if size % local == 0 else size, source)
    return Ranks(rank, size, size, source)


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if text is None:
        return default
    digits = text.split("(")[0]
    if not digits.strip().isdecimal():
        raise ConfigError(f"the environment variable {name} is {text!r}; expected a number.")
    return int(digits)


def _checked(ranks: Ranks) -> Ranks:
    rank, size, local, source = ranks
    if size < 1 or local < 1 or size % local:
        raise ConfigError(
            f"{source} says {size} ranks, {local} on each node: the first must be a multiple of "
            "the second. Pass topology= to say how the ranks stand."
        )
    if not 0 <= rank < size:
        raise ConfigError(f"{source} says rank {rank} of {size} ranks.")
    return ranks
