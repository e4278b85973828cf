"""Parts of a dataset, chosen before or while it is iterated; each is a dataset of its own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.contents import Contents
from mds.selection import Selection, key_of, parse_selection, split_by_hash
from mds.sieve import Sieve
from mds.units import parse_count

if TYPE_CHECKING:
    from typing_extensions import Self


class Parts:
    """The ways to make a smaller dataset of a dataset."""

    sieve: Sieve
    _contents: Contents

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """One sample by its number."""
        raise NotImplementedError

    def _become(self, contents: Contents) -> None:
        """Be a dataset of these contents that has not begun yet."""
        raise NotImplementedError

    def select(self, choice: Any) -> Self:
        """A dataset of the samples with these numbers only; they are numbered anew from 0.

        ``choice``: distinct sample numbers, a boolean mask of ``num_samples``, or a ``.npy`` file
        of either. Order, resume and ranks hold for it as for a whole dataset.
        """
        return self._selected(parse_selection(choice, self._contents.num_samples))

    def limit(self, samples: int | str) -> Self:
        """A dataset of the first ``samples`` samples (a number, or a text such as "10k")."""
        return self._selected(np.arange(min(parse_count(samples), self._contents.num_samples)))

    def filter(self, keep: Callable[[Any], bool]) -> Self:
        """A dataset that leaves out the samples for which ``keep`` is false, while iterating.

        Ranks stay equal: the place of what is left out is filled by the next good sample of the
        same worker. ``left_out`` tells which they were. With worker processes that are spawned,
        ``keep`` must be fit for a pickle. What is known beforehand is better left to `select`.
        """
        part = copy.copy(self)
        part.sieve = dataclasses.replace(self.sieve, keep=keep)
        part._become(self._contents)  # noqa: SLF001 - a part of us
        return part

    def split(
        self, shares: Mapping[str, float], *, by: str | None = None, seed: int = 0
    ) -> dict[str, Self]:
        """Disjoint datasets by name that together are this one.

        A sample's part depends on its number and ``seed`` alone, so it stays when samples are
        added behind it. With ``by`` it depends on the value of that column instead, so that what
        belongs together (a user, a book) stays together; every sample is read once for that.

        >>> parts = dataset.split({"train": 0.98, "val": 0.02}, by="book")  # doctest: +SKIP
        """
        if by is None:
            keys = np.arange(self._contents.num_samples, dtype=np.uint64)
        else:
            keys = np.fromiter(
                (key_of(self.get_item(i)[by]) for i in range(self._contents.num_samples)),
                np.uint64,
                self._contents.num_samples,
            )
        parts = split_by_hash(keys, shares, seed)
        return {name: self._selected(ids) for name, ids in parts.items()}

    def _selected(self, ids: Any) -> Self:
        part = copy.copy(self)
        before = self._contents.selection
        selection = before.within(ids) if before is not None else Selection(ids)
        part._become(Contents(self._contents.indexes, selection))  # noqa: SLF001 - a part of us
        return part
