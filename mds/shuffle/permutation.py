"""Keyed permutations: Feistel networks over a counter-based hash, without state.

A 64-bit mixing function in the style of counter-based generators turns a counter into bits that
look random. From such bits a Feistel network makes a permutation of 2**bits values: the value is
split in two halves, and in each round a hash of one half is added, bit by bit, to the other, which
can be undone. Any other number of values is served by the next power of two: what falls outside
is sent through again until it falls inside. All of it works on whole arrays.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]
    Words = NDArray[np.uint32]

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: consecutive counters end up far apart
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Arrays of no dimension, with which numpy computes in half the time that scalars take.
_MIX_STEP, _MIX_FIRST, _MIX_SECOND = (np.array(n, np.uint64) for n in (_STEP, _FIRST, _SECOND))
_MIX_SHIFTS = tuple(np.array(n, np.uint64) for n in (30, 27, 31))
_TURN, _ADD = 0x9E3779B1, 0xC2B2AE35
_SPREAD, _UNIT, _HALF = (np.array(each, np.uint32) for each in (0x85EBCA6B, 1, 15))


def derive_key(*numbers: int) -> int:
    """Return a 64-bit key from numbers that are not negative; their order and count matter."""
    return functools.reduce(_fold, numbers, _mix64(len(numbers)))


def partial_key(*numbers: int) -> int:
    """Return a key of numbers that lacks its last one, which `finish_keys` adds."""
    return functools.reduce(_fold, numbers, _mix64(len(numbers) + 1))


def finish_keys(partial: Keys, lasts: NDArray[np.int64]) -> Keys:
    """`derive_key` of the numbers of partial keys and a last one each, below 2**63."""
    return hash_counters(1, partial ^ lasts.astype(np.uint64))


def hash_counters(key: int | Keys, counters: NDArray[np.integer]) -> Keys:
    """Counter-based hash: 64 bits for each counter, by one key or one each."""
    bits = counters.astype(np.uint64)
    bits *= _MIX_STEP
    bits += np.asarray(key, np.uint64)
    mixed = bits >> _MIX_SHIFTS[0]
    bits ^= mixed
    bits *= _MIX_FIRST
    np.right_shift(bits, _MIX_SHIFTS[1], out=mixed)
    bits ^= mixed
    bits *= _MIX_SECOND
    np.right_shift(bits, _MIX_SHIFTS[2], out=mixed)
    bits ^= mixed
    return bits


def permute(values: Words, keys: Keys, bits: int | Words, rounds: int = 0) -> Words:
    """Feistel permutation of values below 2**bits, each by its key; ``bits`` up to 32.

    ``rounds``: 0 is `rounds_for` of all the bits.
    """
    return _network(keys, bits, rounds).forward(values)


def unpermute(values: Words, keys: Keys, bits: int | Words, rounds: int = 0) -> Words:
    """Return the inverse of `permute`."""
    return _network(keys, bits, rounds).backward(values)


def permute_below(
    values: NDArray[np.int64], sizes: NDArray[np.int64], keys: Keys, *, inverse: bool = False
) -> NDArray[np.int64]:
    """Keyed permutation of values below any size, by cycle walking in the next power of two."""
    step = _Network.backward if inverse else _Network.forward
    network = _network(keys, bit_lengths(sizes - 1))
    out = step(network, values.astype(np.uint32)).astype(np.int64)
    outside = (out >= sizes).nonzero()[0]
    while len(outside):
        again = step(network.some(outside), out[outside].astype(np.uint32))
        out[outside] = again
        outside = outside[again >= sizes[outside]]
    return out


def bit_lengths(values: NDArray[np.int64]) -> Words:
    """Return the number of bits of each value, from 0 to 2**53."""
    return np.frexp(values.astype(np.float64))[1].astype(np.uint32)


def rounds_for(bits: int | Words) -> int:
    """Return how many rounds mix values of so many bits; where they differ, enough for all."""
    # Measured by counting where pairs of values go, over 400,000 keys: indistinguishable from
    # chance from 8 bits on with 6 rounds; small halves mix less in a round and need more.
    return 6 if np.ndim(bits) == 0 and int(bits) >= 8 else 12


class _Network(NamedTuple):
    """Feistel networks of keys: the ``factors`` and ``terms`` of the hash of each round, by key.

    ``low`` and ``high`` are the bits of the halves, and ``to_left`` and ``to_right`` what moves the
    topmost bits of a word to them; arrays of no dimension where all keys have the same.
    """

    factors: Words
    terms: Words
    low: Words
    high: Words
    to_left: Words
    to_right: Words
    is_full: bool  # whether no half is empty

    def some(self, which: NDArray[np.intp]) -> _Network:
        """Return the networks of some of the keys."""
        factors, terms = (each.take(which, axis=1) for each in (self.factors, self.terms))
        if self.low.ndim == 0:
            return self._replace(factors=factors, terms=terms)
        low, high, to_left, to_right = (
            each.take(which) for each in (self.low, self.high, self.to_left, self.to_right)
        )
        return _Network(factors, terms, low, high, to_left, to_right, self.is_full)

    def forward(self, values: Words) -> Words:
        """Return the values that these are sent to."""
        return self._through(values, range(len(self.factors)))

    def backward(self, values: Words) -> Words:
        """Return the values that are sent to these."""
        return self._through(values, range(len(self.factors) - 1, -1, -1))

    def _through(self, values: Words, rounds: range) -> Words:
        factors, terms, low, high, to_left, to_right, is_full = self
        below = (_UNIT << low) - _UNIT
        left: Words = values >> low
        right: Words = values & below
        word, mixed = np.empty_like(left), np.empty_like(left)
        for i in rounds:
            is_left = i % 2 == 0
            np.multiply(right if is_left else left, factors[i], out=word)
            word += terms[i]
            np.right_shift(word, _HALF, out=mixed)
            word ^= mixed
            word *= _SPREAD
            # The topmost bits are the best mixed; a half may be empty, and so may its share of
            # them, where one shift, at most 31, is not enough.
            if is_left:
                word >>= to_left
                if not is_full:
                    word *= high > 0
                left ^= word
            else:
                word >>= to_right
                if not is_full:
                    word &= below
                right ^= word
        left <<= low
        left |= right
        return left


def _network(keys: Keys, bits: int | Words, rounds: int = 0) -> _Network:
    """Return the networks of keys, for values of so many bits."""
    count = rounds or rounds_for(bits)
    wide: Words = np.asarray(bits, np.uint32)
    high = np.asarray(wide >> _UNIT)
    low = np.asarray(wide - high)
    to_left, to_right = (
        np.asarray(np.uint32(32) - np.maximum(half, _UNIT)) for half in (high, low)
    )
    is_full = bool(high.all())
    return _Network(*_hashes(keys, count), low, high, to_left, to_right, is_full)


def _hashes(keys: Keys, count: int) -> tuple[Words, Words]:
    """Return the factors and terms of so many rounds, (rounds, keys)."""
    factor, term = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    # A round has term * _TURN and factor + _ADD of the one before it for factor and term: a
    # multiple of one half of the key and a constant, and of the other half in the next round.
    by_factor, by_term = _coefficients(count)
    factors = _alternate(factor, term, *by_factor)
    terms = _alternate(term, factor, *by_term)
    factors |= _UNIT
    return factors, terms


def _alternate(first: Words, second: Words, by: Words, plus: Words) -> Words:
    """Return multiples of two halves in turns, plus ``plus``, (rounds, keys)."""
    out = np.empty((len(by), len(first)), np.uint32)
    np.multiply(by[::2], first, out=out[::2])
    np.multiply(by[1::2], second, out=out[1::2])
    out += plus
    return out


@functools.lru_cache(maxsize=8)
def _coefficients(count: int) -> list[tuple[Words, Words]]:
    """Return the multipliers and increments that turn halves of a key into rounds."""
    mask, found = (1 << 32) - 1, []
    by, plus, term_by, term_plus = 1, 0, 1, 0
    for _ in range(count):
        found.append((by, plus, term_by, term_plus))
        following = (term_by * _TURN & mask, term_plus * _TURN & mask, by, plus + _ADD & mask)
        by, plus, term_by, term_plus = following
    columns = np.array(found, np.uint32).reshape(count, 4, 1).transpose(1, 0, 2)
    return [(columns[0], columns[1]), (columns[2], columns[3])]


def _fold(key: int, number: int) -> int:
    """Return a key with one more number; those beyond 64 bits are folded in piece by piece."""
    while True:
        key = _mix64((key ^ (number & _MASK)) * _STEP + 1 & _MASK)
        number >>= 64
        if not number:
            return key


def _mix64(number: int) -> int:
    number ^= number >> 30
    number = number * _FIRST & _MASK
    number ^= number >> 27
    number = number * _SECOND & _MASK
    return number ^ number >> 31
