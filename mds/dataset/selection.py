"""Which of the stored samples take part, decided before the order is made.

Because the plan only ever sees the selected samples, every promise about order, resume and ranks
holds for a selection as for a whole dataset. A selection is a sorted array of sample numbers with a
fingerprint that goes into the state; a memory-mapped file of any size will do.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.arguments import shown
from mds.errors import ArgumentError, ConfigError, NotFoundError
from mds.format.hashing import hexdigest

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """Sorted, distinct numbers of stored samples."""

    ids: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    def per_shard(self, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the selected samples of each shard, given where shards begin, (shards + 1,)."""
        return np.diff(np.searchsorted(self.ids, ends)).astype(np.int64)

    def stored(self, sample: int) -> int:
        """Return the stored number of a selected sample."""
        return int(self.ids[sample])

    def stored_many(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the stored numbers of selected samples, int64."""
        return np.asarray(self.ids[samples], np.int64)

    def numbers(self, stored: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers in the selection of stored samples, which must be selected."""
        return np.searchsorted(self.ids, stored).astype(np.int64)

    def within(self, samples: npt.NDArray[np.int64]) -> Selection:
        """Return the selection of some of the selected samples."""
        return Selection(self.stored_many(samples))

    def fingerprint(self) -> str:
        """Return a digest of the numbers."""
        return hexdigest("xxh3_64", np.ascontiguousarray(self.ids, "<i8").tobytes())


def parse_selection(choice: Any, samples: int) -> npt.NDArray[np.int64]:
    """Return sorted sample numbers of numbers, a boolean mask, or a ``.npy`` file of either.

    Raises ConfigError (a ValueError) for numbers out of range or given twice, or a mask of
    another length.
    """
    if isinstance(choice, (str, os.PathLike)):
        choice = _load(choice)
    if callable(choice):
        raise ArgumentError(
            "select() takes sample numbers, a boolean mask or a .npy file, got a function. Write "
            "select(where=function)."
        )
    array = np.asarray(choice)
    if array.dtype == bool:
        if array.shape != (samples,):
            raise ConfigError(
                f"a mask of shape {array.shape} cannot select from {samples} samples."
            )
        return np.flatnonzero(array).astype(np.int64)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or not array.size):
        raise ConfigError(
            f"select() takes sample numbers or a boolean mask, got {array.dtype} of shape "
            f"{array.shape}. Write select([0, 7]), select(dataset_mask) or select(where=function)."
        )
    ids = np.unique(array.astype(np.int64))
    if len(ids) != len(array):
        raise ConfigError(
            f"{len(array) - len(ids)} of {len(array)} selected sample numbers are repeated; use "
            "repeat= of a Stream to see samples more often."
        )
    if len(ids) and (ids[0] < 0 or ids[-1] >= samples):
        raise ConfigError(
            f"select() was given sample numbers from {ids[0]} to {ids[-1]}, of {samples} samples: "
            f"they go from 0 to {samples - 1}."
        )
    return ids


def _load(path: str | os.PathLike[str]) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise NotFoundError(
            f"select({os.fspath(path)!r}): there is no such .npy file. Give sample numbers, a mask "
            "or the path of a .npy file of either; to choose by content write select(where=...)."
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"select({os.fspath(path)!r}): this is not a .npy file of numbers or of a mask "
            f"({error}). Write one with numpy.save()."
        ) from error


def split_by_hash(
    keys: npt.NDArray[np.uint64], shares: Mapping[str, float], seed: int
) -> dict[str, npt.NDArray[np.int64]]:
    """Return disjoint parts that have all samples; samples with equal keys share a part.

    Shares must sum to 1, or ConfigError (a ValueError) is raised.
    """
    if not shares or any(s < 0 for s in shares.values()):
        raise ConfigError(f"split() takes names and shares of at least 0, got {dict(shares)}.")
    if not 0.5 < (total := sum(shares.values())) < 1.5 or not np.isclose(total, 1.0):
        raise ConfigError(
            f"the shares of split() must sum to 1, got {shown(total)}: {shown(dict(shares))}. "
            "Change one of them."
        )
    bounds = np.cumsum(list(shares.values()))[:-1]
    part = np.searchsorted(bounds, _uniform(keys, seed), "right")
    return {name: np.flatnonzero(part == i).astype(np.int64) for i, name in enumerate(shares)}


def key_of(value: Any) -> int:
    """Return a number for a value, the same on all machines: of its bytes, or of its text."""
    if isinstance(value, np.ndarray):
        data = value.tobytes()
    else:
        data = bytes(value) if isinstance(value, (bytes, bytearray)) else str(value).encode()
    return int(hexdigest("xxh3_64", data), 16)


def _uniform(numbers: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each, by the finaliser of SplitMix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = (numbers + np.uint64(seed & 0xFFFFFFFF) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return np.asarray(z >> np.uint64(11), np.float64) / float(1 << 53)
