"""The incumbent's ``base.distributed``: this rank, and collectives where a group is up.

No process group is ever made here. Without one, a collective is what it is among a single
process.
"""

from __future__ import annotations

import os
import sys
from typing import Any, TypeVar

import mds.world
from mds.compat.overrides import Sealed
from mds.world import find_ranks

T = TypeVar("T")


class World(mds.world.World, metaclass=Sealed):
    """A place among nodes, ranks and workers, whose methods are not replaced from outside."""


def get_rank() -> int:
    """The rank of this process."""
    return find_ranks(has_defaults=True).rank


def get_world_size() -> int:
    """How many ranks there are."""
    return find_ranks(has_defaults=True).world_size


def get_local_world_size() -> int:
    """How many ranks this node has."""
    return find_ranks(has_defaults=True).local_world_size


def get_local_rank() -> int:
    """The rank of this process on its node."""
    told = os.environ.get("LOCAL_RANK")
    ranks = find_ranks(has_defaults=True)
    return int(told) if told else ranks.rank % ranks.local_world_size


def maybe_init_dist() -> bool:
    """False: no process group was made, so none is the caller's to destroy."""
    return False


def barrier() -> None:
    """Wait for the other ranks of the process group, if there is one."""
    if (group := _group()) is not None:
        group.barrier()


def broadcast(tensor: Any, src: int) -> None:
    """Overwrite ``tensor`` with that of rank ``src``, if there is a process group."""
    if (group := _group()) is not None:
        group.broadcast(tensor, src)


def all_gather(tensor_list: list[Any], tensor: Any) -> None:
    """Write the tensors of all ranks into ``tensor_list``."""
    if (group := _group()) is not None:
        group.all_gather(tensor_list, tensor)
    else:
        tensor_list[0].copy_(tensor)


def all_gather_object(obj: T) -> list[T]:
    """The objects of all ranks."""
    if (group := _group()) is None:
        return [obj]
    found: list[T | None] = [None] * group.get_world_size()
    group.all_gather_object(found, obj)
    return found  # type: ignore[return-value]


def _group() -> Any:
    """torch.distributed if a process group is up, else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
