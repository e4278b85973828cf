"""Placeholders for names of mosaicml-streaming's shared memory and threads.

mds has neither. The names can be imported and used in annotations; constants have the values of
mosaicml-streaming, which clean-up code reads. Making an object of a class, or calling a function,
raises SealedNameError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from mds.compat._overrides import Sealed
from mds.errors import SealedNameError

LOCALS = "locals"
BARRIER = "barrier"
NEXT_EPOCH = "next_epoch"
CACHE_USAGE = "cache_usage"
SHARD_STATES = "shard_states"
SHARD_ACCESS_TIMES = "shard_access_times"
RESUME = "resume"
EPOCH_SHAPE = "epoch_shape"
EPOCH_DATA = "epoch_data"
SHM_TO_CLEAN = [
    LOCALS,
    BARRIER,
    NEXT_EPOCH,
    CACHE_USAGE,
    SHARD_STATES,
    SHARD_ACCESS_TIMES,
    RESUME,
    EPOCH_SHAPE,
    EPOCH_DATA,
]
BARRIER_FILELOCK = "barrier_filelock"
CACHE_FILELOCK = "cache_filelock"
#: Time between two looks at shared memory, in seconds.
TICK = 0.007
#: Longest wait for a request, in seconds.
DEFAULT_TIMEOUT = 60.0
#: Longest wait at a barrier, in seconds.
TIMEOUT = 60
#: Time of the last access to a shard that was never used.
NEVER = (1 << 64) - 1

_NO_SHARED_MEMORY = "mds needs no shared memory with a name and no barrier: leave this call out"
_NO_THREADS = "mds has no such threads: override _get_work() or get_item() of StreamingDataset"


def _refuse_use(name: str, remedy: str) -> NoReturn:
    raise SealedNameError(f"{name} can be imported but not used through mds. {remedy}.")


class _Placeholder(metaclass=Sealed):
    """Base of classes that can be imported and not used.

    Raises SealedNameError with ``_remedy`` when an object is made.
    """

    _remedy = _NO_SHARED_MEMORY

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        _refuse_use(type(self).__name__, self._remedy)


class SharedArray(_Placeholder):
    """Array in shared memory."""


class SharedBarrier(_Placeholder):
    """Barrier of all processes of a node."""


class SharedMemory(_Placeholder):
    """Block of shared memory."""


class SharedScalar(_Placeholder):
    """Number in shared memory."""


class _Iterator(_Placeholder):
    """Progress of an iteration's threads."""

    _remedy = _NO_THREADS


class _IterState(_Placeholder):
    """Value of the state of an iteration's threads."""

    _remedy = _NO_THREADS


class _ShardState(_Placeholder):
    """Value of the state of a shard in shared memory."""

    _remedy = _NO_THREADS


def _placeholder(name: str) -> Callable[..., NoReturn]:
    """Return a function of that name, which raises SealedNameError when it is called."""

    def refuse_call(*args: Any, **kwargs: Any) -> NoReturn:
        del args, kwargs
        _refuse_use(name, _NO_SHARED_MEMORY)

    refuse_call.__name__ = refuse_call.__qualname__ = name
    return refuse_call


get_shm_prefix = _placeholder("get_shm_prefix")
_check_and_find = _placeholder("_check_and_find")
_check_and_find_retrying = _placeholder("_check_and_find_retrying")
_check_self = _placeholder("_check_self")
_each_prefix_int = _placeholder("_each_prefix_int")
_pack_locals = _placeholder("_pack_locals")
_unpack_locals = _placeholder("_unpack_locals")


def _get_path(prefix_int: int, name: str) -> str:
    """Return the name of a block of shared memory of mosaicml-streaming, for clean-up code.

    ``prefix_int``: number of the dataset on this node; ``name``: kind of block, such as `LOCALS`.
    """
    return f"{prefix_int:06}_{name}"
