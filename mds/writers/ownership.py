"""Ownership of a writer: one process, and one thread at a time.

Neither costs a system call: a forked child marks the writers that it inherited at the fork, and a
turn is a token taken from a list and put back, which is one operation for Python (60 ns both).
Threads may take turns; two at once are refused rather than made to wait, since samples would come
in an order that depends on luck.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Protocol

from mds.errors import WriterError
from mds.process.fork_safe import call_in_child

#: How a writer ended for the child that inherited it.
INHERITED = (
    "belongs to the process that made it, and this is a forked child. Make a writer in every "
    "process, each with a folder of its own, and join them with merge_index"
)


class Inherited(Protocol):
    """What can be told that it is another process' now."""

    def leave_to_parent(self) -> None:
        """Do nothing any more; nothing may be closed, sent or removed."""


@contextlib.contextmanager
def hold_turn(turn: list[bool]) -> Iterator[None]:
    """Hold a writer's turn, the one token of a list. Raises WriterError if another thread does."""
    try:
        token = turn.pop()
    except IndexError:
        raise two_threads_error() from None
    try:
        yield
    finally:
        turn.append(token)


def two_threads_error() -> WriterError:
    """The error for a turn that another thread holds."""
    return WriterError(
        "two threads use this writer at once, and it is for one at a time: samples would come in "
        "an order that depends on luck. Write from one thread, or make a writer in each with a "
        "folder of its own, and join them with merge_index."
    )


_writers: weakref.WeakSet[Inherited] = weakref.WeakSet()


def register_writer(writer: Inherited) -> None:
    """Have a writer told when it finds itself in a forked child."""
    _writers.add(writer)


def _leave_to_parent() -> None:
    for writer in list(_writers):
        writer.leave_to_parent()
    _writers.clear()


call_in_child(_leave_to_parent)
