"""The incumbent's ``base.shared``: its objects, for one process. No memory is shared by name here.

Modules that name them can be imported, and what they do to clean up does nothing to others. What
one process writes no other sees: the library itself needs none of it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.compat.constants import LOCALS
from mds.errors import ConfigError
from mds.process.fork_safe import new_lock

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.world import World


class _Block:
    """Bytes under a name of this process, for as long as an object has them."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)


_blocks: weakref.WeakValueDictionary[str, _Block] = weakref.WeakValueDictionary()
_lock = new_lock()


class SharedMemory:
    """Bytes that objects of the same name have in common, in this process.

    Raises FileExistsError with ``create`` when there are some, FileNotFoundError with
    ``create=False`` when there are none.
    """

    def __init__(
        self,
        name: str | None = None,
        create: bool | None = None,
        size: int = 0,
        auto_cleanup: bool = True,
    ) -> None:
        del auto_cleanup  # it goes with its last object
        self.name = name if name is not None else f"mds_{id(self):x}"
        with _lock:
            found = _blocks.get(self.name)
            if found is not None and create:
                raise FileExistsError(f"{self.name} is there already, in this process.")
            if found is None:
                if create is False:
                    raise FileNotFoundError(
                        f"there is no {self.name} in this process, and what other processes have "
                        "is not shared."
                    )
                found = _blocks[self.name] = _Block(size)
        self._block = found

    @property
    def buf(self) -> memoryview:
        """The bytes."""
        return memoryview(self._block.data)

    def fix_register(self, name: str, rtype: str) -> None:
        """Nothing to do: no tracker of resources knows of these bytes."""

    def fix_unregister(self, name: str, rtype: str) -> None:
        """Nothing to do: no tracker of resources knows of these bytes."""

    def cleanup(self) -> None:
        """Let the name be free; objects that have the bytes keep them."""
        with _lock:
            _blocks.pop(self.name, None)


class SharedArray:
    """An array that objects of the same name have in common, in this process."""

    def __init__(self, shape: int | tuple[int, ...], dtype: type, name: str) -> None:
        self.shape, self.dtype, self.name = np.empty(shape, "u1").shape, dtype, name
        size = int(np.prod(self.shape)) * np.dtype(dtype).itemsize
        self._shm = SharedMemory(name=name, size=size)

    def numpy(self) -> npt.NDArray[Any]:
        """The array."""
        found: npt.NDArray[Any] = np.ndarray(self.shape, self.dtype, self._shm.buf)
        return found

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Any:
        return self.numpy()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.numpy()[index] = value


class SharedScalar:
    """A number that objects of the same name have in common, in this process."""

    def __init__(self, dtype: type, name: str) -> None:
        self.dtype = dtype
        self._array = SharedArray(1, dtype, name)

    def get(self) -> Any:
        """The number."""
        return self._array[0]

    def set(self, value: Any) -> None:
        """Change the number."""
        self._array[0] = value


class SharedBarrier:
    """A barrier for one process: it is open."""

    def __init__(self, filelock_path: str, shm_name: str) -> None:
        self.filelock_path = filelock_path
        self._array = SharedArray(3, np.int32, shm_name)
        self.num_enter, self.num_exit, self.flag = 0, -1, True

    @property
    def num_enter(self) -> int:
        """Kept because code reads it."""
        return int(self._array[0])

    @num_enter.setter
    def num_enter(self, value: int) -> None:
        self._array[0] = value

    @property
    def num_exit(self) -> int:
        """Kept because code reads it."""
        return int(self._array[1])

    @num_exit.setter
    def num_exit(self, value: int) -> None:
        self._array[1] = value

    @property
    def flag(self) -> bool:
        """Kept because code reads it."""
        return bool(self._array[2])

    @flag.setter
    def flag(self, value: bool) -> None:
        self._array[2] = bool(value)

    def __call__(self, num_procs: int) -> None:
        """Go on: other processes are not waited for."""


# ---------------------------------------------------------------------- names of shared memory


def _each_prefix_int() -> Iterator[int]:
    return iter(range(10**6))


def _get_path(prefix_int: int, name: str) -> str:
    return f"{prefix_int:06}_{name}"


def _pack_locals(dirnames: list[str], prefix_int: int) -> bytes:
    text = "\0".join([*dirnames, str(prefix_int)]).encode()
    return (len(text) + 4).to_bytes(4, "little") + text


def _unpack_locals(data: bytes) -> tuple[list[str], int]:
    size = int.from_bytes(data[:4], "little")
    *dirnames, prefix_int = bytes(data[4:size]).decode().split("\0")
    return dirnames, int(prefix_int)


def _check_self(streams_local: list[str]) -> None:
    """Raise ConfigError (a ValueError) where two streams have one folder."""
    twice = sorted({folder for folder in streams_local if streams_local.count(folder) > 1})
    if twice:
        raise ConfigError(f"Reused local directory: {twice} vs {twice}. Provide a different one.")


def _check_and_find(
    streams_local: list[str], streams_remote: list[str | None], shm_name: str
) -> int:
    """The first number that is free in this process.

    Raises ConfigError (a ValueError) where a folder of a remote is another's in this process.
    """
    mine = {
        os.path.abspath(folder)
        for folder, remote in zip(streams_local, streams_remote, strict=True)
        if remote is not None
    }
    with _lock:
        for number in _each_prefix_int():
            found = _blocks.get(_get_path(number, shm_name))
            if found is None:
                return number
            theirs, _ = _unpack_locals(bytes(found.data))
            if mine & {*theirs}:
                raise ConfigError(
                    f"Reused local directory: {sorted(mine)} vs {theirs}. Provide a different one."
                )
    raise ConfigError("there are a million objects with shared memory in this process.")


def _check_and_find_retrying(
    streams_local: list[str], streams_remote: list[str | None], shm_name: str, retry: int
) -> int:
    if retry < 0:
        raise ConfigError(f"retry must not be negative, got {retry}.")
    return _check_and_find(streams_local, streams_remote, shm_name)


def get_shm_prefix(
    streams_local: list[str], streams_remote: list[str | None], world: World, retry: int = 100
) -> tuple[int, SharedMemory]:
    """A number that no other object of this process has, and the bytes that hold it."""
    del world
    _check_self(streams_local)
    number = _check_and_find_retrying(streams_local, streams_remote, LOCALS, retry)
    data = _pack_locals([os.path.abspath(folder) for folder in streams_local], number)
    memory = SharedMemory(_get_path(number, LOCALS), create=True, size=len(data))
    memory.buf[:] = data
    return number, memory
