"""Ranks of this process, and collectives: `streaming.base.distributed` and `streaming.base.world`.

The getters are live: code that replaces one of them gives a dataset another rank or world. mds
makes no process group, and its datasets call no collective. Without a process group, a collective
returns what it would return in a single process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

import mds.world
from mds.compat._overrides import Sealed, replacement
from mds.errors import ConfigError
from mds.world import Ranks, find_ranks, worker_place

T = TypeVar("T")


class World(mds.world.World, metaclass=Sealed):
    """Nodes, ranks and workers, and the place of this process among them; see `mds.World`."""

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> mds.world.World:
        """Return the world of this process.

        ``environ``: environment with the variables of a launcher; None for the replaced getters,
        or this process's environment if none is replaced.
        """
        ranks = _replaced_ranks() if environ is None else None
        if ranks is None:
            return super().detect(environ)
        worker, workers = worker_place()
        return ranks.world(workers, worker)


def find_current_ranks(topology: Any) -> Ranks:
    """Return the ranks of this process.

    ``topology``: argument of a dataset, such as (rank, world_size); None for the replaced getters,
    or the launcher's environment if none is replaced. Raises ConfigError for numbers that
    contradict each other.
    """
    ranks = _replaced_ranks() if topology is None else None
    return find_ranks(topology) if ranks is None else ranks


def _replaced_ranks() -> Ranks | None:
    """Return the ranks that the getters give if code has replaced one of them, else None.

    Raises ConfigError for numbers that contradict each other.
    """
    getters = {
        getter.__name__: _replacement_of(getter.__name__) or getter
        for getter in (get_rank, get_world_size, get_local_world_size)
    }
    if [*getters.values()] == [get_rank, get_world_size, get_local_world_size]:
        return None
    rank, size, local_size = (int(getter()) for getter in getters.values())
    if local_size < 1 or size < 1 or size % local_size or not 0 <= rank < size:
        numbers = zip(getters, (rank, size, local_size), strict=True)
        raise ConfigError(
            f"{', '.join(f'{name}() is {number}' for name, number in numbers)}: the world size "
            "must be a multiple of the ranks of a node and above the rank. Replace all three."
        )
    return Ranks(rank, size, local_size, "streaming.base.distributed")


def _replacement_of(name: str) -> Any:
    in_dataset = replacement("streaming.base.dataset", name)
    return in_dataset or replacement("streaming.base.distributed", name)


def get_rank() -> int:
    """Return the rank of this process."""
    return find_ranks(has_defaults=True).rank


def get_world_size() -> int:
    """Return the number of ranks."""
    return find_ranks(has_defaults=True).world_size


def get_local_world_size() -> int:
    """Return the number of ranks on the node of this process."""
    return find_ranks(has_defaults=True).local_world_size


def get_local_rank() -> int:
    """Return the rank of this process on its node."""
    variable = os.environ.get("LOCAL_RANK")
    ranks = find_ranks(has_defaults=True)
    return int(variable) if variable else ranks.rank % ranks.local_world_size


def maybe_init_dist() -> bool:
    """Return False: this call has made no process group that the caller has to destroy."""
    return False


def barrier() -> None:
    """Wait for the other ranks of the process group, if there is one."""
    if (group := _process_group()) is not None:
        group.barrier()


def broadcast(tensor: Any, src: int) -> None:
    """Overwrite ``tensor`` with the tensor of rank ``src``, if there is a process group."""
    if (group := _process_group()) is not None:
        group.broadcast(tensor, src)


def all_gather(tensor_list: list[Any], tensor: Any) -> None:
    """Write the tensors of all ranks into ``tensor_list``, which has a tensor for each rank.

    ``tensor``: tensor of this rank.
    """
    if (group := _process_group()) is not None:
        group.all_gather(tensor_list, tensor)
    else:
        tensor_list[0].copy_(tensor)


def all_gather_object(obj: T) -> list[T]:
    """Return the objects of all ranks, in the order of the ranks; ``obj`` is that of this rank."""
    if (group := _process_group()) is None:
        return [obj]
    objects: list[T | None] = [None] * group.get_world_size()
    group.all_gather_object(objects, obj)
    return objects  # type: ignore[return-value]


def _process_group() -> Any:
    """Return torch.distributed, or its replacement, if a process group exists, else None."""
    distributed = replacement("streaming.base.distributed", "dist")
    distributed = distributed or sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
