"""Keyed permutations and orders: Feistel networks and sorts by hash, without state.

`hash_counters` mixes a 64-bit key and a counter into 64 bits that look random::

    x = counter * step + key
    x = (x ^ x >> 30) * first;  x = (x ^ x >> 27) * second;  hash = x ^ x >> 31      (mod 2**64)

`permute` makes a permutation of the numbers below 2**bits of such bits: a Feistel network. A number
is split in two halves. Each round hashes one half and adds the hash to the other half, bit by bit,
so that the same round applied again undoes it::

    high   low                 high ^= hash(low)           rounds 0, 2, 4, ...
      |     |                  low ^= hash(high)           rounds 1, 3, 5, ...
      ^<-hash
      |     |                  hash(half) = top bits of  w * spread
      hash->^                               with  w = v ^ v >> 15,  v = half * factor + term

`permute_below` serves any other count of numbers by the next power of two. A number that falls
outside is sent through the network again until it falls inside (cycle walking), which keeps it a
permutation and takes fewer than two passes on average.

`keyed_order` sorts numbers by their hashes. All of it works on whole arrays.
"""

from __future__ import annotations

import copy
import functools
import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Keys = NDArray[np.uint64]
    Words = NDArray[np.uint32]

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: consecutive counters end up far apart
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Arrays of no dimension, with which numpy computes in half the time that scalars take.
_MIX_STEP, _MIX_FIRST, _MIX_SECOND = (np.array(n, np.uint64) for n in (_STEP, _FIRST, _SECOND))
_MIX_SHIFTS = tuple(np.array(n, np.uint64) for n in (30, 27, 31))
_ROUND_FACTOR, _ROUND_TERM = 0x9E3779B1, 0xC2B2AE35
_SPREAD, _UNIT, _HALF = (np.array(each, np.uint32) for each in (0x85EBCA6B, 1, 15))


# ------------------------------------------------------------------------------- keys and hashes


def derive_key(*numbers: int) -> int:
    """Return a 64-bit key from numbers that are not negative; their order and count matter."""
    return functools.reduce(_fold, numbers, _mix64(len(numbers)))


def partial_key(*numbers: int) -> int:
    """Return a key of all numbers but the last one, which `finish_keys` adds."""
    return functools.reduce(_fold, numbers, _mix64(len(numbers) + 1))


def finish_keys(partial: Keys, lasts: Ids) -> Keys:
    """Return `derive_key` of the numbers of each partial key and one more number.

    ``lasts`` has the last number for each partial key, below 2**63.
    """
    return hash_counters(1, partial ^ lasts.astype(np.uint64))


def hash_counters(key: int | Keys, counters: NDArray[np.integer]) -> Keys:
    """Return 64 hashed bits for each counter, uint64, by one key for all or one key each.

    The formula is in the module's docstring: a step of SplitMix64.
    """
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


def _fold(key: int, number: int) -> int:
    """Return a 64-bit key that also depends on ``number``, which may have any size."""
    while True:  # fold in 64 bits of the number at a time
        key = _mix64((key ^ (number & _MASK)) * _STEP + 1 & _MASK)
        number >>= 64
        if not number:
            return key


def _mix64(number: int) -> int:
    """Return the mixed bits of a 64-bit number, as `hash_counters` mixes them."""
    number ^= number >> 30
    number = number * _FIRST & _MASK
    number ^= number >> 27
    number = number * _SECOND & _MASK
    return number ^ number >> 31


# ------------------------------------------------------------------------------- permutations


def permute(values: Words, keys: Keys, bits: int | Words, rounds: int = 0) -> Words:
    """Return values below 2**bits permuted by a Feistel network, each by its own key.

    Args:
        values: Numbers below 2**bits, uint32 of shape (n,).
        keys: Key of each value, uint64 of shape (n,).
        bits: Number of bits, at most 32: one for all values, or one each.
        rounds: Number of Feistel rounds; 0 is `rounds_for` of the bits.
    """
    return _make_network(keys, bits, rounds).forward(values)


def unpermute(values: Words, keys: Keys, bits: int | Words, rounds: int = 0) -> Words:
    """Return the values that `permute` sends to these: its inverse."""
    return _make_network(keys, bits, rounds).backward(values)


def permute_below(values: Ids, sizes: Ids, keys: Keys, *, inverse: bool = False) -> Ids:
    """Return values permuted below any sizes, each by its own size and key, int64.

    Args:
        values: Numbers below their ``sizes``, int64 of shape (n,).
        sizes: Count of the numbers that are permuted, for each value, up to 2**32.
        keys: Key of each value.
        inverse: Whether to undo the permutation.
    """
    step = _Network.backward if inverse else _Network.forward
    network = _make_network(keys, bit_lengths(sizes - 1))
    out = step(network, values.astype(np.uint32)).astype(np.int64)
    # Cycle walking: permute the values outside again until they are inside.
    outside = (out >= sizes).nonzero()[0]
    while len(outside):
        again = step(network.subset(outside), out[outside].astype(np.uint32))
        out[outside] = again
        outside = outside[again >= sizes[outside]]
    return out


def bit_lengths(values: Ids) -> Words:
    """Return the number of bits of each value, uint32. Values are from 0 to 2**53.

    The exponent of a float is the number of bits of its integer part.
    """
    return np.frexp(values.astype(np.float64))[1].astype(np.uint32)


def rounds_for(bits: int | Words) -> int:
    """Return the number of rounds that mix values of so many bits; for an array, enough for all."""
    # Measured by counting where pairs of values go, over 400,000 keys: indistinguishable from
    # chance from 8 bits on with 6 rounds; small halves mix less in a round and need more.
    return 6 if np.ndim(bits) == 0 and int(bits) >= 8 else 12


class _Network(NamedTuple):
    """Feistel networks, one for each key.

    Attributes:
        factors, terms: Numbers of the hash of each round, uint32 of shape (rounds, keys).
        low, high: Number of bits of the low and of the high half. These two and the next two are
            arrays of no dimension if they are the same for all keys.
        to_high, to_low: Shifts that keep as many of the topmost bits of a hash as the high and the
            low half have.
        is_full: Whether no half is empty.
    """

    factors: Words
    terms: Words
    low: Words
    high: Words
    to_high: Words
    to_low: Words
    is_full: bool

    def subset(self, indexes: NDArray[np.intp]) -> _Network:
        """Return the networks of the keys at these indexes."""
        # Arrays of no dimension are the same for all keys and stay.
        factors, terms = (each.take(indexes, axis=1) for each in (self.factors, self.terms))
        if self.low.ndim == 0:
            return self._replace(factors=factors, terms=terms)
        low, high, to_high, to_low = (
            each.take(indexes) for each in (self.low, self.high, self.to_high, self.to_low)
        )
        return _Network(factors, terms, low, high, to_high, to_low, self.is_full)

    def forward(self, values: Words) -> Words:
        """Return the permuted values."""
        return self._run_rounds(values, range(len(self.factors)))

    def backward(self, values: Words) -> Words:
        """Return the values that `forward` permutes to these, by the rounds in reverse order."""
        return self._run_rounds(values, range(len(self.factors) - 1, -1, -1))

    def _run_rounds(self, values: Words, rounds: range) -> Words:
        """Return the values after these rounds, in this order; see the module's docstring.

        The arrays ``word`` and ``mixed`` are reused, as new ones would cost as much as a round.
        """
        factors, terms, low, high, to_high, to_low, is_full = self
        low_mask = (_UNIT << low) - _UNIT
        high_half: Words = values >> low
        low_half: Words = values & low_mask
        word, mixed = np.empty_like(high_half), np.empty_like(high_half)
        for i in rounds:
            changes_high = i % 2 == 0
            np.multiply(low_half if changes_high else high_half, factors[i], out=word)
            word += terms[i]
            np.right_shift(word, _HALF, out=mixed)
            word ^= mixed
            word *= _SPREAD
            # The topmost bits are the best mixed. A half may be empty, and then none of them is
            # kept; one shift, at most 31, cannot remove all.
            if changes_high:
                word >>= to_high
                if not is_full:
                    word *= high > 0
                high_half ^= word
            else:
                word >>= to_low
                if not is_full:
                    word &= low_mask
                low_half ^= word
        high_half <<= low
        high_half |= low_half
        return high_half


def _make_network(keys: Keys, bits: int | Words, rounds: int = 0) -> _Network:
    """Return a network for each key, for values of so many bits.

    Args:
        keys: Keys, uint64 of shape (n,).
        bits: Number of bits, at most 32: one for all keys, or one each.
        rounds: Number of rounds; 0 is `rounds_for` of the bits.
    """
    count = rounds or rounds_for(bits)
    wide: Words = np.asarray(bits, np.uint32)
    high = np.asarray(wide >> _UNIT)
    low = np.asarray(wide - high)
    to_high, to_low = (np.asarray(np.uint32(32) - np.maximum(half, _UNIT)) for half in (high, low))
    is_full = bool(high.all())
    return _Network(*_round_numbers(keys, count), low, high, to_high, to_low, is_full)


def _round_numbers(keys: Keys, count: int) -> tuple[Words, Words]:
    """Return the factors and terms of ``count`` rounds, uint32 of shape (rounds, keys).

    The first factor and term are the two halves of a key. Each further pair follows from the pair
    before it: factor = term * _ROUND_FACTOR, term = factor + _ROUND_TERM. So each is a multiple of
    one half of the key and a constant, and in the next round of the other half.
    """
    factor, term = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    for_factors, for_terms = _round_constants(count)
    factors = _multiply_in_turns(factor, term, *for_factors)
    terms = _multiply_in_turns(term, factor, *for_terms)
    factors |= _UNIT  # a product with an odd factor loses no bits
    return factors, terms


def _multiply_in_turns(even: Words, odd: Words, multipliers: Words, increments: Words) -> Words:
    """Return multiplier * half + increment for each round, uint32 of shape (rounds, keys).

    ``even`` is the half of the keys for rounds 0, 2, ..., and ``odd`` that for rounds 1, 3, ....
    """
    out = np.empty((len(multipliers), len(even)), np.uint32)
    np.multiply(multipliers[::2], even, out=out[::2])
    np.multiply(multipliers[1::2], odd, out=out[1::2])
    out += increments
    return out


@functools.lru_cache(maxsize=8)
def _round_constants(count: int) -> list[tuple[Words, Words]]:
    """Return the multipliers and increments of the factors, and those of the terms.

    Each is uint32 of shape (rounds, 1). They follow from the recurrence in `_round_numbers`, by
    keeping track of what a half of the key is multiplied by and of what is added.
    """
    mask = (1 << 32) - 1
    rows = []
    factor_multiplier, factor_increment, term_multiplier, term_increment = 1, 0, 1, 0
    for _ in range(count):
        rows.append((factor_multiplier, factor_increment, term_multiplier, term_increment))
        factor_multiplier, factor_increment, term_multiplier, term_increment = (
            term_multiplier * _ROUND_FACTOR & mask,
            term_increment * _ROUND_FACTOR & mask,
            factor_multiplier,
            factor_increment + _ROUND_TERM & mask,
        )
    columns = np.array(rows, np.uint32).reshape(count, 4, 1).transpose(1, 0, 2)
    return [(columns[0], columns[1]), (columns[2], columns[3])]


# ------------------------------------------------------------------------------- keyed orders


def keyed_order(key: int, count: int, groups: Ids | None = None) -> Ids:
    """Return the numbers below ``count`` sorted by their hashes.

    Args:
        key: Key of the hash.
        count: Number of the numbers to sort.
        groups: Group of each number, ascending. Numbers are sorted within their groups; groups keep
            their order. None for one group.
    """
    return KeyedOrders([(count, groups)]).orders(np.asarray(key, np.uint64))


class KeyedOrders:
    """Keyed orders of several ranges of numbers, which are computed together.

    A number is sorted as one 64-bit integer, which is three times as fast as an argsort::

        bits 63 ............................... 0
            | group | top bits of hash | number |

    Args:
        ranges: For each range how many numbers it has, from 0 on, and ascending groups of them that
            stay apart, or None.
    """

    def __init__(self, ranges: Sequence[tuple[int, Ids | None]]) -> None:
        counts = [count for count, _ in ranges]
        self.starts = np.cumsum([0, *counts])
        self._numbers, self._groups = (np.zeros(sum(counts), np.uint64) for _ in range(2))
        # Masks of the bits that hold a number, and how many bits hold a group, of each range.
        number_masks, group_bits = [], []
        for start, (count, groups) in zip(self.starts.tolist(), ranges, strict=False):
            self._numbers[start : start + count] = np.arange(count)
            number_masks.append((1 << max(count - 1, 1).bit_length()) - 1)
            bits = int(groups[-1]).bit_length() if groups is not None and count else 0
            if groups is not None and bits:
                topmost = groups.astype(np.uint64) << np.uint64(64 - bits)
                self._groups[start : start + count] = topmost
            group_bits.append(bits)
        self._number_masks, self._group_bits = (
            np.repeat(np.array(each, np.uint64), counts) for each in (number_masks, group_bits)
        )

    def subset(self, indexes: Ids) -> KeyedOrders:
        """Return the keyed orders of some ranges, by their indexes, laid end to end anew."""
        orders = copy.copy(self)
        sizes = np.diff(self.starts)[indexes]
        numbers = join_ranges(self.starts[indexes], sizes)
        for name in ("_numbers", "_groups", "_number_masks", "_group_bits"):
            setattr(orders, name, getattr(self, name)[numbers])
        orders.starts = np.concatenate([[0], sizes.cumsum()])
        return orders

    def orders(self, keys: Keys) -> Ids:
        """Return the orders of all ranges end to end, int64.

        ``keys`` is one key for all numbers, or a key for each number of each range.
        """
        # Pack group, hash and number into an integer each, sort, and keep the numbers.
        packed = hash_counters(keys, self._numbers)
        packed >>= self._group_bits
        packed |= self._groups
        packed &= ~self._number_masks
        packed |= self._numbers
        for first, last in itertools.pairwise(self.starts.tolist()):
            packed[first:last].sort()
        packed &= self._number_masks
        return packed.astype(np.int64)


def join_ranges(begins: Ids, sizes: Ids) -> Ids:
    """Return ranges of integers end to end, int64: range i is from ``begins[i]`` on.

    It has ``sizes[i]`` integers, so begins (5, 1) and sizes (2, 3) give 5, 6, 1, 2, 3.
    """
    ends: Ids = sizes.cumsum()
    numbers: Ids = np.repeat(begins - (ends - sizes), sizes)
    numbers += np.arange(int(sizes.sum()))
    return numbers
