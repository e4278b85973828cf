"""The incumbent's ``_Iterator`` and states: what its threads share. Nothing here has such threads.

An iterator counts the threads that leave it, for code that makes one of its own.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from mds.compat.overrides import Sealed
from mds.process.fork_safe import new_condition

if TYPE_CHECKING:
    import numpy.typing as npt


class _ShardState(IntEnum):
    """Where a shard is."""

    INVALID = 0
    REMOTE = 1
    PREPARING = 2
    LOCAL = 3


class _IterState(IntEnum):
    """Whether an iteration goes on."""

    ITERATING = 0
    EXITING = 1
    EXITED = 2


class _Iterator(metaclass=Sealed):
    """The ids of one iteration, and how many of its two threads have left."""

    _num_threads_to_exit = 2

    def __init__(self, sample_ids: npt.NDArray[np.int64]) -> None:
        self.sample_ids = sample_ids
        self.total = len(sample_ids)
        self.prepare_index = self.ready_index = self.yield_index = self.eviction_index = 0
        self._state = _IterState.ITERATING
        self._num_exited = 0
        self._changed = new_condition()

    def non_blocking_exit(self) -> None:
        """Ask the threads to leave."""
        with self._changed:
            if self._state == _IterState.ITERATING:
                self._state = _IterState.EXITING
            self._changed.notify_all()

    def exit(self) -> None:
        """Ask the threads to leave, and wait until they have."""
        self.non_blocking_exit()
        with self._changed:
            self._changed.wait_for(lambda: self._num_exited >= self._num_threads_to_exit)
            self._state = _IterState.EXITED

    def should_exit(self) -> bool:
        """Whether the threads were asked to leave."""
        return self._state != _IterState.ITERATING

    def on_exit(self) -> None:
        """Tell that a thread has left."""
        with self._changed:
            self._num_exited += 1
            self._changed.notify_all()
