"""Row keys: 64 bits for each place of an epoch, from which a sample's random numbers follow.

A key is a hash of the seed, the epoch, the place in the order and the sample, and of nothing else:
neither of ranks nor of workers, batches or where a run was resumed. The sample counts because the
places of batches that are built by stream are those of the whole step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mds.shuffle.permutation import derive_key, hash_counters

if TYPE_CHECKING:
    import numpy.typing as npt

    Keys = npt.NDArray[np.uint64]

_PLACES, _SAMPLES, _NUMBERS, _LINKS = range(0x7A5, 0x7A9)
_SPREAD = np.uint64(0xD6E8FEB86659FD93)


def keys_of_places(
    seed: int, epoch: int, places: npt.NDArray[np.int64], samples: npt.NDArray[np.int64]
) -> Keys:
    """Compute the keys of samples at places of an epoch."""
    bits = hash_counters(derive_key(_PLACES, seed, epoch), places)
    bits ^= samples.astype(np.uint64) * _SPREAD
    return hash_counters(derive_key(_SAMPLES, seed, epoch), bits)


def key_of_number(seed: int, sample: int) -> int:
    """Compute the key of a sample that is read by its number, outside of epochs."""
    return derive_key(_NUMBERS, seed, sample)


def keys_of_link(keys: Keys, stream: int) -> Keys:
    """Compute the keys for one function of batches, independent of other functions' keys."""
    return hash_counters(derive_key(_LINKS, stream), keys)


class KeyedGenerator:
    """Numpy Generator over a counter-based bit generator (Philox) whose key is set for each use.

    To set the state takes 1 to 2 us, to make a Generator 20.
    """

    def __init__(self, stream: int) -> None:
        self.bits = np.random.Philox(key=0)
        self.rng = np.random.Generator(self.bits)
        self._key = np.array([0, stream], np.uint64)
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": np.zeros(4, np.uint64), "key": self._key},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def at(self, key: int) -> np.random.Generator:
        """Return the generator at the start of a key's numbers, valid until the next call."""
        self._key[0] = key
        self.bits.state = self._state
        return self.rng
