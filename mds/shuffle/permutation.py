"""Keyed permutations: Feistel networks over a counter-based hash, without state.

A 64-bit mixing function in the style of counter-based generators turns a counter into bits that
look random. From such bits a Feistel network makes a permutation of 2**bits values: the value is
split in two halves, and in each round a hash of one half is added, bit by bit, to the other, which
can be undone. Any other number of values is served by the next power of two: what falls outside
is sent through again until it falls inside. All of it works on whole arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]
    Words = NDArray[np.uint32]

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: consecutive counters end up far apart
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_TURN, _ADD, _SPREAD = np.uint32(0x9E3779B1), np.uint32(0xC2B2AE35), np.uint32(0x85EBCA6B)


def derive_key(*numbers: int) -> int:
    """A 64-bit key from numbers that are not negative; their order and count matter."""
    key = _mix64(len(numbers))
    for number in numbers:
        rest = number
        # Numbers beyond 64 bits are folded in piece by piece.
        while True:
            key = _mix64((key ^ (rest & _MASK)) * _STEP + 1 & _MASK)
            rest >>= 64
            if not rest:
                break
    return key


def hash_counters(key: int | Keys, counters: NDArray[np.integer]) -> Keys:
    """Counter-based hash: 64 bits for each counter, by one key or one each."""
    bits = counters.astype(np.uint64)
    bits *= np.uint64(_STEP)
    bits += np.asarray(key, np.uint64)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(_FIRST)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_SECOND)
    bits ^= bits >> np.uint64(31)
    return bits


def keyed_order(key: int, count: int, groups: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Keyed order of the numbers below ``count``, by hash; ascending ``groups`` stay apart."""
    width = max(count - 1, 1).bit_length()
    numbers = np.arange(count, dtype=np.uint64)
    packed = hash_counters(key, numbers)
    high = int(groups[-1]).bit_length() if groups is not None and count else 0
    if groups is not None and high:
        packed >>= np.uint64(high)
        packed |= groups.astype(np.uint64) << np.uint64(64 - high)
    # Sorting numbers that carry their index is three times as fast as an argsort.
    packed >>= np.uint64(width)
    packed <<= np.uint64(width)
    packed |= numbers
    packed.sort()
    packed &= np.uint64((1 << width) - 1)
    return packed.astype(np.int64)


def permute(values: Words, keys: Keys, bits: int | Words, rounds: int = 0) -> Words:
    """Feistel permutation of values below 2**bits, each by its key; ``bits`` up to 32.

    ``rounds``: 0 is `rounds_for` of all the bits.
    """
    count = rounds or rounds_for(bits)
    return _feistel_network(values, bits, list(_rounds(keys, count)))


def unpermute(values: Words, keys: Keys, bits: int | Words, rounds: int = 0) -> Words:
    """The inverse of `permute`."""
    count = rounds or rounds_for(bits)
    return _feistel_network(values, bits, list(_rounds(keys, count))[::-1])


def permute_below(
    values: NDArray[np.int64], sizes: NDArray[np.int64], keys: Keys, *, inverse: bool = False
) -> NDArray[np.int64]:
    """Keyed permutation of values below any size, by cycle walking in the next power of two."""
    step = unpermute if inverse else permute
    bits = bit_lengths(sizes - 1)
    out = step(values.astype(np.uint32), keys, bits).astype(np.int64)
    outside = np.flatnonzero(out >= sizes)
    while len(outside):
        again = step(out[outside].astype(np.uint32), keys[outside], bits[outside])
        out[outside] = again
        outside = outside[again >= sizes[outside]]
    return out


def bit_lengths(values: NDArray[np.int64]) -> Words:
    """How many bits each value, from 0 to 2**53, takes."""
    return np.frexp(values.astype(np.float64))[1].astype(np.uint32)


def rounds_for(bits: int | Words) -> int:
    """How many rounds mix values of so many bits; where they differ, enough for all."""
    # Measured by counting where pairs of values go, over 400,000 keys: indistinguishable from
    # chance from 8 bits on with 6 rounds; small halves mix less in a round and need more.
    return 6 if np.ndim(bits) == 0 and int(bits) >= 8 else 12


def _rounds(keys: Keys, count: int) -> Iterator[tuple[bool, Words, Words]]:
    """Of each round: whether it changes the left half, and the numbers of its hash."""
    factor, term = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    for i in range(count):
        yield i % 2 == 0, factor | np.uint32(1), term
        factor, term = term * _TURN, factor + _ADD


def _feistel_network(
    values: Words, bits: int | Words, rounds: list[tuple[bool, Words, Words]]
) -> Words:
    wide: Any = np.asarray(bits, np.uint32)
    high = wide >> np.uint32(1)
    low = wide - high
    left: Words = values >> low
    right: Words = values & ((np.uint32(1) << low) - np.uint32(1))
    # Halves that are never empty take one shift, which is at most 31.
    is_full = bool((high > 0).all())
    to_left, to_right = np.uint32(32) - high, np.uint32(32) - np.maximum(low, np.uint32(1))
    for is_left, factor, term in rounds:
        word = (right if is_left else left) * factor
        word += term
        word ^= word >> np.uint32(15)
        word *= _SPREAD
        # The topmost bits are the best mixed; a half may be empty, and so may its share of them.
        if is_left:
            if is_full:
                word >>= to_left
            else:
                word >>= np.uint32(31) - high
                word >>= np.uint32(1)
            left ^= word
        else:
            word >>= to_right
            if not is_full:
                word &= (np.uint32(1) << low) - np.uint32(1)
            right ^= word
    left <<= low
    left |= right
    return left


def _mix64(number: int) -> int:
    number ^= number >> 30
    number = number * _FIRST & _MASK
    number ^= number >> 27
    number = number * _SECOND & _MASK
    return number ^ number >> 31
