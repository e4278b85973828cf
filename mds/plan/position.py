"""Position in the order of a run: an epoch, and a place in it.

A place counts the samples, or the packs, of all ranks since the epoch began; skipped steps count
too. Samples can be found from any place. Packs are made window by window, so to go on with them
takes a cursor as well, unless the place is the beginning of an epoch.
"""

from __future__ import annotations

from typing import NamedTuple


class Cursor(NamedTuple):
    """Next pack of every canonical node.

    Attributes:
        windows: For each canonical node the window that is read next, and the pack in it.
        node: Canonical node that gives the next pack.
    """

    windows: tuple[tuple[int, int], ...]
    node: int = 0


class Position(NamedTuple):
    """Place in an epoch.

    Attributes:
        epoch: Epoch, from 0; -1 before the first one.
        place: Samples or packs of all ranks that come before it in the epoch.
        unit: What ``place`` counts, "samples" or "packs".
        cursor: Where packs go on; None for samples, and at the beginning of an epoch.
        is_finished: Whether the iteration of the epoch has ended, so that the next epoch comes.
    """

    epoch: int
    place: int = 0
    unit: str = "samples"
    cursor: Cursor | None = None
    is_finished: bool = False

    def following(self) -> Position:
        """Return the beginning of the next epoch, which is epoch 0 before the first one."""
        return Position(max(self.epoch, -1) + 1, 0, self.unit)
