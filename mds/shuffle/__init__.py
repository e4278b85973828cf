"""Shuffles: from shard sizes, seed, epoch and block to a permutation of sample ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.shuffle._base import RandomAccessShuffle, Shuffle, ShuffleSpec
    from mds.shuffle._registry import get_shuffle, register_shuffle
    from mds.shuffle._sequential import SequentialShuffle

_HOMES = {
    "RandomAccessShuffle": "_base",
    "SequentialShuffle": "_sequential",
    "Shuffle": "_base",
    "ShuffleSpec": "_base",
    "get_shuffle": "_registry",
    "register_shuffle": "_registry",
}

__all__ = [
    "RandomAccessShuffle",
    "SequentialShuffle",
    "Shuffle",
    "ShuffleSpec",
    "get_shuffle",
    "register_shuffle",
]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
